"""Fetches while memory holds little: each answer is what the log holds at that moment.

Planted bugs must be found: one keeps what it read before another leader replaced it, one waits for
the disk on the event loop, one never reads again what was brought in.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.io import fetches
from quorumlog.broker.fetching.io.fetches import Fetches
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import DEBUG_REPLICA, FetchedPartition
from quorumlog.broker.partitions.log.cold_reads import bring_in
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import OffsetOutOfRange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset
from quorumlog.wire.codec.message import Sendable, contents
from quorumlog.wire.codec.records import Record, encode_batch, restamp
from tests.support.broker.cold_disk import ColdDisk, ColdQueue
from tests.support.broker.one_broker import AT, append, fetch_of, one_broker, publish
from tests.support.broker.replicas import image
from tests.support.sizes import tries
from tests.support.waiting import loop_turns

STEPS = 60
SEEDS = tries(60)
MUTANT_SEEDS = 200


class WrongAnswer(Exception):
    """An answer that is not what the log holds, or one that never comes."""


class Story:
    """One broker that leads and follows in turn; `answered` counts answers with records."""

    def __init__(self, seed: int, replicas: Replicas, disk: ColdDisk, queue: ColdQueue) -> None:
        self.rng = random.Random(seed)
        self.replicas, self.disk, self.queue = replicas, disk, queue
        self.leader_epoch = 0
        self.answered = 0
        self.unsent: list[tuple[Sequence[Sendable], bytes]] = []  # answers, and their bytes
        self.waiting: list[tuple[int, FetchSpec]] = []

    @property
    def driver(self) -> PartitionDriver:
        driver = self.replicas.drivers.get(AT)
        assert driver is not None
        return driver

    def batch(self) -> bytes:
        return encode_batch([Record(0, 1, None, self.rng.randbytes(self.rng.randint(1, 300)))])

    def append(self) -> None:
        if self.driver.partition.state.is_leader:
            append(self.replicas, records=self.batch())
        elif not self.driver.is_truncating:
            records = bytearray(self.batch())
            end = self.driver.log.log_end_offset
            restamp(records, 0, base_offset=end, leader_epoch=self.leader_epoch)
            self.driver.append_as_follower(
                records,
                leader_epoch=Epoch(self.leader_epoch),
                high_watermark=end,
                log_start_offset=self.driver.log.log_start_offset,
                now_ms=0,
                wall_ms=0,
            )

    def forget(self) -> None:
        self.disk.cached.clear()

    def work_on(self) -> None:
        self.queue.release_one()

    def delete_records(self) -> None:
        state = self.driver.partition.state
        if state.is_leader:
            start = self.rng.randint(state.log_start_offset, state.high_watermark)
            self.driver.advance_log_start(0, Offset(start))
            self.driver.log.remove_dead_segments()

    def change_leader(self) -> None:
        """Lead; or follow a leader whose log is another from some offset on."""
        self.leader_epoch += 1
        leader_id = self.rng.choice((1, 2))
        epoch = self.leader_epoch
        publish(self.replicas, image(leader_id, epoch, epoch, (leader_id,), replicas=(1, 2)))
        state = self.driver.partition.state
        if leader_id == 2 and not self.driver.is_truncating:
            end = self.rng.randint(state.log_start_offset, state.log_end_offset)
            diverged = events.LeaderDiverged(
                leader_epoch=Epoch(epoch),
                fetch_offset=state.log_end_offset,
                last_fetched_epoch=state.epochs.latest_epoch,
                epoch=state.epochs.latest_epoch,
                end_offset=Offset(end),
            )
            self.driver.feed(0, diverged)

    def fetch(self) -> None:
        offset = self.rng.randint(0, self.driver.log.log_end_offset)
        max_bytes = self.rng.choice((1, 400, 2000, 10**6))
        spec = fetch_of(
            offset,
            replica_id=self.rng.choice((-1, DEBUG_REPLICA)),
            max_bytes=max_bytes,
            partition_max_bytes=max_bytes,
            max_wait_ms=self.rng.choice((0, 10**6)),
            min_bytes=self.rng.choice((1, 1, 3000)),
        )
        fetch = (offset, spec)

        def check(answers: list[FetchedPartition]) -> None:
            self.waiting = [one for one in self.waiting if one is not fetch]
            for found in answers:
                self.check(offset, found)

        self.waiting.append(fetch)
        self.replicas.fetches.fetch(spec, check)

    def check_waiting(self) -> None:
        """Raise WrongAnswer if a fetch waits although there is something to read."""
        for offset, spec in self.waiting:
            if spec.min_bytes == 1 and offset < self.driver.end(spec.read_end):
                raise WrongAnswer(f"the fetch from {offset} is not answered")

    def check(self, offset: int, found: FetchedPartition) -> None:
        """Compare an answer with the log, in the moment of the answer."""
        records = b"".join(contents(found.records or ()))
        if found.error_code is not ErrorCode.NONE or not records:
            return
        cached, self.disk.is_working = set(self.disk.cached), True
        read, at = bytearray(), Offset(offset)
        try:
            while len(read) < len(records):
                one = self.driver.log.read(at, max_bytes=1, end_offset=10**9)
                if at == one.next_offset:
                    break
                read += bytes(one.records)
                at = one.next_offset
        except OffsetOutOfRange:
            return  # it was read just before it was deleted
        finally:
            self.disk.cached, self.disk.is_working = cached, False
        if bytes(read) != records:
            raise WrongAnswer("other records are answered than the log holds")
        self.answered += 1
        self.unsent.append((found.records, records))

    def check_unsent(self) -> None:
        """Raise WrongAnswer if an answer that was not sent at once has other bytes by now."""
        if any(b"".join(contents(chunks)) != records for chunks, records in self.unsent):
            raise WrongAnswer("records of an answer have changed before they were sent")


async def tell(directory: Path, seed: int) -> int:
    """Return how many answers had records. Raises WrongAnswer."""
    disk = ColdDisk()
    queue = ColdQueue(disk)
    rng = random.Random(seed)
    settings = LogSettings(segment_bytes=rng.choice((300, 1000, 10**6)), index_interval_bytes=100)
    async with one_broker(
        directory, (1,), disk=disk, log_settings=settings, disk_queue=queue
    ) as replicas:
        story = Story(seed, replicas, disk, queue)
        steps: list[Callable[[], None]] = [
            *[story.append] * 4,
            *[story.fetch] * 3,
            *[story.work_on] * 4,
            story.forget,
            story.delete_records,
            story.change_leader,
        ]
        queue.is_held = True
        try:
            for _ in range(STEPS):
                rng.choice(steps)()
                await loop_turns(rng.choice((0, 3)))
            while queue.held:
                story.work_on()
                await loop_turns(3)
        finally:
            queue.release()
        if disk.loop_waits:
            raise WrongAnswer(f"the event loop waits for {disk.loop_waits[0]}")
        story.check_waiting()
        story.check_unsent()
    return story.answered


async def test_every_answer_is_what_the_log_holds(tmp_path: Path) -> None:
    answered = sum([await tell(tmp_path / str(seed), seed) for seed in range(SEEDS)])
    assert answered > SEEDS


async def found_after(directory: Path) -> int:
    """Return how many stories it takes to find what is planted."""
    for seed in range(MUTANT_SEEDS):
        try:
            await tell(directory / str(seed), seed)
        except WrongAnswer:
            return seed + 1
    return 0


@pytest.mark.planted
async def test_records_of_another_leader_epoch_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fetches, "_restart_changed", lambda *_: None)
    assert await found_after(tmp_path)


@pytest.mark.planted
async def test_a_read_that_waits_on_the_event_loop_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetches, "BRING_INS_MAX", 0)
    assert await found_after(tmp_path)


@pytest.mark.planted
async def test_a_fetch_that_is_forgotten_once_its_read_is_possible_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(*arguments: Any, done: Callable[[None], None], **named: Any) -> None:
        bring_in(*arguments, done=lambda _: None, **named)

    monkeypatch.setattr(fetches, "bring_in", forget)
    assert await found_after(tmp_path)
