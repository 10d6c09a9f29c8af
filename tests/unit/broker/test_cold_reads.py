"""A fetch of what is not in memory: threads bring it in, and the event loop waits for no disk."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from errno import EIO, EMFILE
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.fetching.io.delayed_fetch import READING_MS_MAX
from quorumlog.broker.fetching.io.session_answers import FEW
from quorumlog.broker.partitions.core.data_path import (
    DEBUG_REPLICA,
    FetchedPartition,
    LocalRead,
    PartitionFetch,
)
from quorumlog.broker.partitions.log.cold_reads import BRING_INS_MAX
from quorumlog.broker.replicas import Replicas
from quorumlog.clock import monotonic_ms
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, UNKNOWN_OFFSET, Epoch, Offset, TopicPartition
from quorumlog.wire.codec.message import contents
from quorumlog.wire.codec.records import iterate_headers
from tests.support.broker.cold_disk import ColdDisk, ColdQueue
from tests.support.broker.one_broker import (
    AT,
    BATCH,
    TOPIC_ID,
    append,
    fetch_of,
    follow,
    from_leader,
    one_broker,
    publish_all,
)
from tests.support.broker.replica_calls import append_to, fetch_from
from tests.support.broker.replicas import ALL_ALIVE, diverged, image
from tests.support.storage.cleaning import rules as rules_of
from tests.support.waiting import loop_turns

SMALL = LogSettings(segment_bytes=3 * len(BATCH), index_interval_bytes=0)
ONE_SEGMENT = LogSettings(index_interval_bytes=0)
RECORDS = 10
Fetched = asyncio.Future[list[FetchedPartition]]


class Broker:
    """Ten batches, of which nothing is in memory; work on the disk waits."""

    def __init__(self, replicas: Replicas, disk: ColdDisk, queue: ColdQueue) -> None:
        self.replicas, self.disk, self.queue = replicas, disk, queue

    def fetch(self, offset: int, **options: Any) -> Fetched:
        """Fetch what is not in memory."""
        fetched = fetch_from(self.replicas, fetch_of(offset, **options))
        assert not isinstance(fetched, list)
        assert not fetched.done()
        return fetched

    async def work(self) -> None:
        """Do all that waits for the disk, and what comes of it."""
        while self.queue.held:
            self.queue.release_one()
            await loop_turns(3)

    async def answer(self, fetched: Fetched) -> FetchedPartition:
        await self.work()
        assert fetched.done()
        [answer] = fetched.result()
        return answer


@asynccontextmanager
async def cold_broker(
    directory: Path, settings: LogSettings = SMALL, isr: tuple[int, ...] = (1,)
) -> AsyncIterator[Broker]:
    async with one_broker(directory, isr, log_settings=settings) as replicas:
        for _ in range(RECORDS):
            append(replicas)
    disk = ColdDisk()
    queue = ColdQueue(disk)
    async with one_broker(
        directory, isr, disk=disk, log_settings=settings, disk_queue=queue
    ) as replicas:
        disk.cached.clear()
        disk.loop_waits.clear()  # of the start
        queue.is_held = True
        try:
            yield Broker(replicas, disk, queue)
        finally:
            queue.release()


def offsets(answer: FetchedPartition) -> list[int]:
    assert answer.error_code is ErrorCode.NONE
    records = b"".join(contents(answer.records or ()))
    return [header.base_offset for _, header in iterate_headers(records)]


@pytest.mark.parametrize("settings", [SMALL, ONE_SEGMENT])
@pytest.mark.parametrize("replica_id", [-1, 2])
@pytest.mark.parametrize("max_wait_ms", [0, 1000])
async def test_a_cold_read_waits_and_everything_else_goes_on(
    tmp_path: Path, settings: LogSettings, replica_id: int, max_wait_ms: int
) -> None:
    isr = (1, 2) if replica_id > 0 else (1,)
    async with cold_broker(tmp_path, settings, isr) as broker:
        cold = broker.fetch(0, replica_id=replica_id, max_wait_ms=max_wait_ms)
        assert append(broker.replicas).base_offset == RECORDS
        hot = fetch_from(broker.replicas, fetch_of(RECORDS, replica_id=DEBUG_REPLICA))
        assert isinstance(hot, list)
        assert offsets(hot[0]) == [RECORDS]
        assert offsets(await broker.answer(cold))[:3] == [0, 1, 2]
        assert broker.disk.loop_waits == []


async def test_what_is_in_memory_is_read_at_once(tmp_path: Path) -> None:
    async with cold_broker(tmp_path) as broker:
        await broker.answer(broker.fetch(4))
        again = fetch_from(broker.replicas, fetch_of(4))
        assert isinstance(again, list)
        assert offsets(again[0]) == [4, 5]


async def test_a_log_that_is_cut_meanwhile_shows_nothing_of_what_it_was(tmp_path: Path) -> None:
    async with cold_broker(tmp_path, ONE_SEGMENT, (1, 2)) as broker:
        cold = broker.fetch(0, replica_id=DEBUG_REPLICA)
        consumer = broker.fetch(0, replica_id=2)
        take = follow(broker.replicas)
        driver = broker.replicas.drivers[AT]
        driver.feed(0, diverged(RECORDS, 5))
        assert driver.is_truncating
        await broker.work()
        [refused] = consumer.result()
        assert refused.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        take(from_leader(5))
        answer = await broker.answer(cold)
        headers = iterate_headers(b"".join(contents(answer.records or ())))
        epochs = [header.leader_epoch for _, header in headers]
        assert epochs in ([0] * 5, [0] * 5 + [1])


@pytest.mark.parametrize("settings", [SMALL, ONE_SEGMENT])
async def test_a_deleted_partition_is_unknown(tmp_path: Path, settings: LogSettings) -> None:
    async with cold_broker(tmp_path, settings) as broker:
        cold = broker.fetch(0)
        gone = ClusterDelta(deleted_topics={AT.topic: TOPIC_ID}, partitions=frozenset({AT}))
        broker.replicas.publish(gone, ClusterImage(brokers=ALL_ALIVE))
        answer = await broker.answer(cold)
        assert answer.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not broker.replicas.failure.done()


async def test_records_that_are_deleted_meanwhile_are_out_of_range(tmp_path: Path) -> None:
    async with cold_broker(tmp_path) as broker:
        cold = broker.fetch(0)
        driver = broker.replicas.drivers[AT]
        driver.advance_log_start(0, Offset(7))
        driver.log.remove_dead_segments()
        answer = await broker.answer(cold)
        assert answer.error_code is ErrorCode.OFFSET_OUT_OF_RANGE


def clean(broker: Broker) -> None:
    """Let the cleaner replace all full segments by one. Records without a key go."""
    driver = broker.replicas.drivers[AT]
    compaction, settings = driver.log.compaction, ONE_SEGMENT
    rules = rules_of(RECORDS)
    broker.disk.is_working = True
    for cleaned in compaction.begin(rules, settings, flushed_offset=RECORDS).run():
        if cleaned is not None:
            compaction.remove_replaced(compaction.swap_in(cleaned, settings) or ())
    broker.disk.is_working = False
    broker.disk.cached.clear()
    assert driver.log.segment_base_offsets == (0, 9)


async def test_a_segment_that_the_cleaner_replaces_meanwhile_is_read_anew(tmp_path: Path) -> None:
    async with cold_broker(tmp_path) as broker:
        cold = broker.fetch(4)
        clean(broker)
        assert offsets(await broker.answer(cold)) == [0]  # one empty batch, up to 8
    async with cold_broker(tmp_path / "of a coordinator") as broker:
        told = list[LocalRead]()
        broker.replicas.read_local(AT, 4, 1000, told.append)
        clean(broker)
        await broker.work()
        [read] = told
        assert (read.error_code, read.next_offset) == (ErrorCode.NONE, 9)


@pytest.mark.parametrize("errno", [EIO, EMFILE])
@pytest.mark.parametrize("settings", [SMALL, ONE_SEGMENT])
async def test_a_disk_that_refuses_is_the_error_of_that_fetch_alone(
    tmp_path: Path, settings: LogSettings, errno: int
) -> None:
    async with cold_broker(tmp_path, settings) as broker:
        broker.disk.errno = errno
        answer = await broker.answer(broker.fetch(0))
        assert answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not broker.replicas.failure.done()
        broker.disk.errno = None
        assert offsets(await broker.answer(broker.fetch(0)))[:3] == [0, 1, 2]


async def test_a_divergence_is_told_although_another_log_is_read_first(tmp_path: Path) -> None:
    """Else the follower would go on with the records that follow a record that it must cut."""
    others = range(1, FEW + 2)  # so many that a fetch in a session leaves some out
    async with cold_broker(tmp_path, isr=(1, 2)) as broker:
        replicas = broker.replicas
        led = [image(1, 3, 3, (1, 2), replicas=(1, 2))] * (len(others) + 1)
        publish_all(replicas, led)
        await broker.work()
        first = TopicPartition(AT.topic, 1)
        questions = [
            PartitionFetch(
                topic_partition=TopicPartition(AT.topic, index),
                topic_id=None,
                log_start_offset=UNKNOWN_OFFSET,
                fetch_offset=Offset(1 if index == 1 else 0),
                last_fetched_epoch=Epoch(2 if index == 1 else NO_EPOCH),
                max_bytes=1000,
                leader_epoch=Epoch(3),
            )
            for index in (0, *others)
        ]
        session = replicas.fetch_sessions.open(
            monotonic_ms(), questions, uses_topic_ids=False, is_privileged=True
        )
        spec = fetch_of(0, replica_id=2, session=session, partitions=questions)
        fetched = fetch_from(replicas, spec)
        assert isinstance(fetched, asyncio.Future)
        for _ in range(2):
            append_to(replicas, first, BATCH, acks=1, timeout_ms=1000)
        await broker.work()
        places = [question.topic_partition for question in spec.partitions]
        told = dict(zip(places, fetched.result(), strict=True))
        assert offsets(told[AT])[0] == 0
        assert told[first].diverging == (2, 0)
        assert not told[first].records


async def test_nothing_is_read_for_a_client_that_has_gone(tmp_path: Path) -> None:
    async with cold_broker(tmp_path) as broker:
        fetched = [broker.fetch(0) for _ in range(5)]
        for one in fetched:
            one.cancel()
        await loop_turns(3)
        waits = broker.disk.waits
        await broker.work()
        assert broker.disk.waits == waits
        assert AT not in broker.replicas.fetches._purgatory.by_key


async def test_memory_that_keeps_nothing_ends_in_a_read_that_waits(tmp_path: Path) -> None:
    async with cold_broker(tmp_path) as broker:
        broker.disk.keeps = False
        cold = broker.fetch(0)
        for turn in range(BRING_INS_MAX):
            assert not cold.done(), turn
            broker.queue.release_one()
            await loop_turns(3)
        assert offsets(await broker.answer(cold)) == [0, 1, 2]


async def test_a_fetch_whose_time_is_over_waits_for_its_read(tmp_path: Path) -> None:
    async with cold_broker(tmp_path) as broker:
        cold = broker.fetch(0, max_wait_ms=10, min_bytes=10**6, max_bytes=10**6)
        broker.replicas.fetches._expire(monotonic_ms() + 10)
        assert not cold.done()
        assert offsets(await broker.answer(cold)) == [0, 1, 2]


async def test_a_read_that_is_there_is_answered_though_the_time_is_over(tmp_path: Path) -> None:
    async with cold_broker(tmp_path) as broker:
        cold = broker.fetch(0, max_wait_ms=0)
        while broker.queue.held:
            broker.queue.release_one()
            broker.replicas.fetches._expire(monotonic_ms() + 10)  # in the same turn of the loop
        assert offsets(await broker.answer(cold)) == [0, 1, 2]


async def test_a_disk_that_hangs_does_not_hold_a_fetch_for_ever(tmp_path: Path) -> None:
    async with cold_broker(tmp_path) as broker:
        cold = broker.fetch(0, max_wait_ms=10)
        now_ms = monotonic_ms() + 10
        for later_ms in (0, READING_MS_MAX - 1000, READING_MS_MAX):
            assert not cold.done()
            broker.replicas.fetches._expire(now_ms + later_ms)
        assert cold.done()
        assert offsets(cold.result()[0]) == []


async def test_an_index_that_is_not_true_is_rebuilt_in_a_thread(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=5 * len(BATCH), index_interval_bytes=0)
    async with cold_broker(tmp_path, settings) as broker:
        driver = broker.replicas.drivers[AT]
        index = Path(driver.log.directory, f"{0:020d}.index")
        entries = bytearray(index.read_bytes())
        entries[7] += 1  # where the second batch starts
        index.write_bytes(entries)
        assert offsets(await broker.answer(broker.fetch(1)))[0] == 1
        assert broker.disk.loop_waits == []


@pytest.mark.parametrize("errno", [None, EIO])
async def test_a_coordinator_is_told_what_it_reads_when_it_is_in_memory(
    tmp_path: Path, errno: int | None
) -> None:
    async with cold_broker(tmp_path) as broker:
        told = list[LocalRead]()
        broker.disk.errno = errno
        broker.replicas.read_local(AT, 4, 1000, told.append)
        assert told == []
        await broker.work()
        [read] = told
        assert broker.disk.loop_waits == []
        if errno is None:
            assert (read.error_code, read.next_offset) == (ErrorCode.NONE, 6)
            assert (read.log_start_offset, read.log_end_offset) == (0, RECORDS)
        else:
            assert read.error_code is ErrorCode.KAFKA_STORAGE_ERROR
