"""A follower's session over many logs of which memory holds little: what it is told is true.

Where logs diverge is told with every answer until the follower asks otherwise, and no records are.
A planted bug must be found: a fetch that waits for the disk forgets what it has judged.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumlog.broker.fetching.core.fetch_sessions import FetchSession
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.io import fetches
from quorumlog.broker.fetching.io.delayed_fetch import PartitionRead
from quorumlog.broker.fetching.io.session_answers import FEW, Drivers, drop_settled
from quorumlog.broker.partitions.core.data_path import FetchedPartition, PartitionFetch
from quorumlog.broker.replicas import Replicas
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, UNKNOWN_OFFSET, Epoch, Offset, TopicPartition
from quorumlog.wire.codec.message import contents
from quorumlog.wire.codec.records import iterate_headers
from tests.support.broker.cold_disk import ColdDisk, ColdQueue
from tests.support.broker.one_broker import AT, BATCH, fetch_of, one_broker, publish_all
from tests.support.broker.replica_calls import append_to
from tests.support.broker.replicas import image
from tests.support.sizes import tries
from tests.support.waiting import loop_turns

PARTITIONS = FEW + 6
OLDER, NEWER = Epoch(1), Epoch(3)  # of all logs
NEWER_FROM = 3  # the first offset of the newer epoch
STEPS = 60
SEEDS = tries(20)
MUTANT_SEEDS = 20


class WrongAnswer(Exception):
    """An answer that lets the follower go on with a log that is not the leader's."""


class Question(NamedTuple):
    """Where a follower's log ends, and the epoch of its last record."""

    offset: int
    epoch: int

    @property
    def diverges(self) -> bool:
        return NO_EPOCH < self.epoch < NEWER and self.offset > NEWER_FROM


class Story:
    """A leader, and a follower that is anywhere in its logs; `told`: how many divergences."""

    def __init__(self, seed: int, replicas: Replicas, disk: ColdDisk, queue: ColdQueue) -> None:
        self.rng = random.Random(seed)
        self.replicas, self.disk, self.queue = replicas, disk, queue
        self.questions: dict[int, Question] = {}
        self.session: FetchSession | None = None
        self.is_waiting = False
        self.told = self.now_ms = 0
        self.wrong = ""

    def append(self, index: int | None = None) -> None:
        at = self.rng.randrange(PARTITIONS) if index is None else index
        append_to(self.replicas, TopicPartition(AT.topic, at), BATCH, acks=1, timeout_ms=1000)

    def append_to_all(self) -> None:
        for index in range(PARTITIONS):
            self.append(index)

    def forget(self) -> None:
        self.disk.cached.clear()

    def work_on(self) -> None:
        self.queue.release_one()

    def drawn_question(self, index: int) -> Question:
        driver = self.replicas.drivers[TopicPartition(AT.topic, index)]
        offset = self.rng.randint(0, driver.log.log_end_offset)
        if offset > NEWER_FROM and self.rng.random() < 0.3:
            return Question(offset, OLDER)
        return Question(offset, driver.log.epochs.epoch_at(offset - 1) if offset else NO_EPOCH)

    def fetch(self) -> None:
        """Ask what has changed, unless an answer is due."""
        if self.is_waiting:
            return
        self.now_ms += self.rng.choice((0, 0, 1_000))
        share = 1.0 if self.session is None else 0.3
        changed = [index for index in range(PARTITIONS) if self.rng.random() < share]
        self.questions.update({index: self.drawn_question(index) for index in changed})
        named = [self._named(index) for index in changed]
        sessions = self.replicas.fetch_sessions
        if self.session is None:
            self.session = sessions.open(
                self.now_ms, named, uses_topic_ids=False, is_privileged=True
            )
            assert self.session is not None
        else:
            assert sessions.change(self.session, named, ())
        partitions = [one.fetch for one in self.session.candidates(self.now_ms)]
        spec = fetch_of(
            0, replica_id=2, session=self.session, partitions=partitions, max_wait_ms=10**6
        )

        def check(answers: list[FetchedPartition]) -> None:
            self.is_waiting = False
            told = zip(spec.partitions, answers, strict=True)
            self.check({fetch.topic_partition.partition: found for fetch, found in told})

        self.is_waiting = True
        self.replicas.fetches.fetch(spec, check)

    def _named(self, index: int) -> PartitionFetch:
        offset, epoch = self.questions[index]
        return PartitionFetch(
            topic_partition=TopicPartition(AT.topic, index),
            topic_id=None,
            log_start_offset=UNKNOWN_OFFSET,
            fetch_offset=Offset(offset),
            last_fetched_epoch=Epoch(epoch),
            max_bytes=1000,
            leader_epoch=NEWER,
        )

    def check(self, told: dict[int, FetchedPartition]) -> None:
        """Compare an answer with what was asked."""
        for index, question in self.questions.items():
            if question.diverges:
                found = told.get(index)
                if found is None or found.diverging != (OLDER, NEWER_FROM) or found.records:
                    self.wrong = f"{question} is answered by {found}"
                self.told += 1
        for index, found in told.items():
            records = b"".join(contents(found.records or ()))
            offsets = [header.base_offset for _, header in iterate_headers(records)]
            is_next = offsets[:1] in ([], [self.questions[index].offset])
            if found.error_code is not ErrorCode.NONE or not is_next:
                self.wrong = f"{self.questions[index]} is answered by {found}"


async def tell(directory: Path, seed: int) -> int:
    """Return how many divergences were told. Raises WrongAnswer."""
    disk = ColdDisk()
    queue = ColdQueue(disk)
    settings = LogSettings(segment_bytes=300, index_interval_bytes=0)
    async with one_broker(
        directory, (1,), disk=disk, log_settings=settings, disk_queue=queue
    ) as replicas:
        story = Story(seed, replicas, disk, queue)
        for epoch in (OLDER, NEWER):
            led = image(1, epoch, epoch, (1,), replicas=(1, 2))
            publish_all(replicas, [led] * PARTITIONS)
            for _ in range(NEWER_FROM):
                story.append_to_all()
        queue.is_held = True
        steps: list[Callable[[], None]] = [
            story.append,
            *[story.fetch] * 3,
            *[story.work_on] * 4,
            story.forget,
        ]
        try:
            for _ in range(STEPS):
                story.rng.choice(steps)()
                await loop_turns(story.rng.choice((0, 3)))
        finally:
            queue.release()
        story.append_to_all()
        await loop_turns(5)
    if story.wrong:
        raise WrongAnswer(story.wrong)
    return story.told


async def test_where_logs_diverge_is_told_and_no_records_are(tmp_path: Path) -> None:
    told = sum([await tell(tmp_path / str(seed), seed) for seed in range(SEEDS)])
    assert told > SEEDS


async def found_after(directory: Path) -> int:
    """Return how many stories it takes to find what is planted."""
    for seed in range(MUTANT_SEEDS):
        try:
            await tell(directory / str(seed), seed)
        except WrongAnswer:
            return seed + 1
    return 0


@pytest.mark.planted
async def test_a_judgement_that_is_forgotten_while_a_fetch_waits_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(spec: FetchSpec, reads: list[PartitionRead], drivers: Drivers) -> None:
        drop_settled(spec, reads, drivers)
        reads[:] = [read for read in reads if not read.is_final]

    monkeypatch.setattr(fetches, "drop_settled", forget)
    assert await found_after(tmp_path)
