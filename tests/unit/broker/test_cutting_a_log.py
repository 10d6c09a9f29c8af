"""A log is cut, or looked into by time, in the disk queue: meanwhile others go on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from errno import EIO, EMFILE
from pathlib import Path

import pytest

from quorumlog.broker.following.log.followed_partition import FollowedPartition
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import DEBUG_REPLICA, OffsetAnswer
from quorumlog.broker.partitions.log.offset_lookup import OF_MAX_TIMESTAMP, LookupByTime
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.checkpoints import (
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    read_offset_checkpoint,
)
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import (
    AT,
    TOPIC_ID,
    append,
    fetch_of,
    follow,
    from_leader,
    one_broker,
    publish,
)
from tests.support.broker.replica_calls import fetch_from, read_local
from tests.support.broker.replicas import ALL_ALIVE, diverged, fetched_by, image
from tests.support.storage.batches import timed_batch
from tests.support.storage.cleaning import rules

Take = Callable[[bytes | bytearray], FollowedPartition]


def follower_with_two_records(replicas: Replicas) -> tuple[PartitionDriver, Take]:
    append(replicas)
    append(replicas)
    take = follow(replicas)
    driver = replicas.drivers[AT]
    return driver, take


def diverge(driver: PartitionDriver) -> None:
    """Let the leader answer that only the first record is in its log."""
    driver.feed(0, diverged(2, 1))


def begin_cut(replicas: Replicas, queue: HeldQueue) -> tuple[PartitionDriver, Take]:
    """Let a follower of two records wait for the disk to cut the second."""
    driver, take = follower_with_two_records(replicas)
    queue.is_held = True
    diverge(driver)
    return driver, take


@asynccontextmanager
async def follower(directory: Path) -> AsyncIterator[tuple[Replicas, HeldQueue]]:
    queue = HeldQueue()
    async with one_broker(directory, isr=(1, 2), disk_queue=queue) as replicas:
        try:
            yield replicas, queue
        finally:
            queue.release()


async def test_what_happens_meanwhile_is_taken_in_afterwards_and_in_order(tmp_path: Path) -> None:
    async with follower(tmp_path) as (replicas, queue):
        driver, _ = begin_cut(replicas, queue)
        publish(replicas, image(1, 2, 2, (1, 2), replicas=(1, 2)))
        publish(replicas, image(2, 3, 3, (1, 2), replicas=(1, 2)))
        publish(replicas, image(1, 4, 4, (1, 2), replicas=(1, 2)))
        assert driver.partition.state.leader_epoch == 1
        assert append(replicas).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert queue.release() == [AT]
        assert driver.partition.state.is_leader
        state = driver.partition.state
        assert (state.leader_epoch, state.log_end_offset) == (4, 1)
        assert [entry.epoch for entry in driver.log.epochs.entries] == [0, 4]
        assert append(replicas).base_offset == 1


async def test_an_answer_that_comes_meanwhile_changes_nothing(tmp_path: Path) -> None:
    async with follower(tmp_path) as (replicas, queue):
        driver, take = begin_cut(replicas, queue)
        followed = take(from_leader(2))
        assert driver.log.log_end_offset == 2
        assert not followed.may_ask(0)
        queue.release()
        assert driver.log.log_end_offset == 1
        assert followed.may_ask(0)
        take(from_leader(1))
        assert driver.log.log_end_offset == 2


async def test_nothing_is_read_from_a_log_while_it_is_cut(tmp_path: Path) -> None:
    async with follower(tmp_path) as (replicas, queue):
        driver, _ = begin_cut(replicas, queue)
        error_code = read_local(replicas, AT, 0, 1000).error_code
        assert error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        waiting = fetch_from(replicas, fetch_of(1, replica_id=DEBUG_REPLICA))
        assert not isinstance(waiting, list)
        queue.release()
        assert not waiting.done()  # nothing is left above the first record
        waiting.cancel()
        fetched = driver.judge_follower_fetch(0, fetched_by(BrokerId(2), 1, leader_epoch=1))
        assert fetched.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_replica_that_is_removed_meanwhile_is_deleted_after_the_cut(tmp_path: Path) -> None:
    async with follower(tmp_path) as (replicas, queue):
        driver, _ = begin_cut(replicas, queue)
        gone = ClusterDelta(deleted_topics={AT.topic: TOPIC_ID})
        replicas.publish(gone, ClusterImage(brokers=ALL_ALIVE))
        publish(replicas, image(1, 0, 0, (1,), replicas=(1,)))  # made again, by the same name
        assert [key for key, _ in queue.held][:3] == [AT, AT, AT]  # the cut, deletion, opening
        queue.release()
        again = replicas.drivers[AT]
        assert again is not driver
        assert again.log.log_end_offset == 0


async def test_no_checkpoint_counts_records_that_are_cut(tmp_path: Path) -> None:
    """After an unclean election: a start would take their successors for committed."""
    async with follower(tmp_path) as (replicas, queue):
        driver, _ = follower_with_two_records(replicas)
        driver.feed(0, events.LogFlushed(flushed_offset=driver.log.flush()))
        files = replicas._logs.checkpoints
        files.note_high_watermarks({AT: Offset(2)})
        files.note_recovery_points({AT: driver.log})
        files.write_high_watermarks()
        files.write_recovery_points()
        queue.is_held = True
        diverge(driver)
        assert AT not in replicas._checkpoints.high_watermarks()  # the cut notes its own
        queue.release()
        for name in (REPLICATION_FILE, RECOVERY_POINT_FILE):
            assert read_offset_checkpoint(RealDisk(), str(tmp_path), name) == {AT: 1}


async def test_a_cut_that_fails_takes_the_replica_offline(tmp_path: Path) -> None:
    disk, queue = FaultyDisk(), HeldQueue()

    async with one_broker(tmp_path, isr=(1, 2), disk=disk, disk_queue=queue) as replicas:
        driver, _ = begin_cut(replicas, queue)
        publish(replicas, image(1, 2, 2, (1, 2), replicas=(1, 2)))
        disk.errors = {"truncate": EIO}
        queue.release()
        assert not driver.partition.state.is_leader  # what it heard meanwhile is void
        assert append(replicas).error_code is ErrorCode.KAFKA_STORAGE_ERROR


def feed_at_once(driver: PartitionDriver, now_ms: int, event: events.Event) -> None:
    driver._perform(now_ms, driver.partition.step(now_ms, event))


async def test_the_first_test_finds_a_driver_that_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartitionDriver, "feed", feed_at_once)
    with pytest.raises((AssertionError, InvariantViolation)):
        await test_what_happens_meanwhile_is_taken_in_afterwards_and_in_order(tmp_path)


SMALL = LogSettings(segment_bytes=200)  # two batches in a segment


@asynccontextmanager
async def filled(
    directory: Path, disk: FaultyDisk | None = None
) -> AsyncIterator[tuple[Replicas, HeldQueue]]:
    """Start a broker, the second time, on a log of ten records."""
    async with one_broker(directory, log_settings=SMALL) as replicas:
        for timestamp_ms in range(10):
            append(replicas, records=timed_batch(timestamp_ms))
    queue = HeldQueue()
    async with one_broker(directory, disk=disk, log_settings=SMALL, disk_queue=queue) as replicas:
        try:
            yield replicas, queue
        finally:
            queue.release()


async def begin(
    replicas: Replicas, queue: HeldQueue, timestamp_ms: int, replica_id: int = -1
) -> "asyncio.Task[OffsetAnswer]":
    """Ask, and return when the disk queue has the lookup."""
    queue.is_held = True
    asked = replicas.list_offset(AT, timestamp_ms, replica_id=BrokerId(replica_id))
    looking = asyncio.ensure_future(asked)
    await asyncio.sleep(0)
    assert not looking.done()
    return looking


async def outcome(looking: "asyncio.Task[OffsetAnswer]", queue: HeldQueue) -> tuple[ErrorCode, int]:
    queue.release()
    error_code, offset, *_ = await looking
    return error_code, offset


@pytest.mark.parametrize(
    ("timestamp_ms", "offset"), [(3, 3), (9, 9), (OF_MAX_TIMESTAMP, 9), (10, -1)]
)
async def test_the_loop_goes_on_and_reads_nothing_while_a_thread_looks(
    tmp_path: Path, timestamp_ms: int, offset: int
) -> None:
    disk = FaultyDisk()
    async with filled(tmp_path, disk) as (replicas, queue):
        disk.errors = {"pread": EIO}
        looking = await begin(replicas, queue, timestamp_ms)
        assert append(replicas, records=timed_batch(0)).base_offset == 10
        disk.errors = {}
        assert await outcome(looking, queue) == (ErrorCode.NONE, offset)


async def test_special_offsets_wait_for_no_thread(tmp_path: Path) -> None:
    async with filled(tmp_path) as (replicas, queue):
        for special, offset in ((-1, 10), (-2, 0), (-4, 0), (-5, -1), (-6, -1)):
            assert (await replicas.list_offset(AT, special)).offset == offset
        assert not queue.held


async def test_what_is_appended_meanwhile_is_not_found(tmp_path: Path) -> None:
    async with filled(tmp_path) as (replicas, queue):
        looking = await begin(replicas, queue, 10)
        append(replicas, records=timed_batch(20))
        assert await outcome(looking, queue) == (ErrorCode.NONE, -1)
        looking = await begin(replicas, queue, 10)
        assert await outcome(looking, queue) == (ErrorCode.NONE, 10)


async def test_a_broker_that_resigns_meanwhile_answers_not_as_the_leader(tmp_path: Path) -> None:
    async with filled(tmp_path) as (replicas, queue):
        looking = await begin(replicas, queue, 3)
        publish(replicas, image(2, 1, 1, (1, 2), replicas=(1, 2)))
        assert await outcome(looking, queue) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_a_replica_that_is_deleted_meanwhile_has_no_offsets(tmp_path: Path) -> None:
    gone = ClusterDelta(deleted_topics={AT.topic: TOPIC_ID})
    for made_again, code in (False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (True, ErrorCode.NONE):
        async with filled(tmp_path) as (replicas, queue):
            looking = await begin(replicas, queue, 3)
            replicas.publish(gone, ClusterImage(brokers=ALL_ALIVE))
            if made_again:  # and is empty
                publish(replicas, image(1, 0, 0, (1,), replicas=(1,)))
            assert await outcome(looking, queue) == (code, -1)


async def test_a_record_that_is_cut_off_meanwhile_is_not_found(tmp_path: Path) -> None:
    queue = HeldQueue()
    async with one_broker(tmp_path, isr=(1, 2), disk_queue=queue) as replicas:
        append(replicas)
        append(replicas, records=timed_batch(5))
        follow(replicas)
        driver = replicas.drivers[AT]
        try:
            looking = await begin(replicas, queue, 5, DEBUG_REPLICA)
            diverge(driver)
            assert await outcome(looking, queue) == (ErrorCode.NONE, -1)
        finally:
            queue.release()


async def test_segments_replaced_by_the_cleaner_are_looked_into_anew(tmp_path: Path) -> None:
    async with filled(tmp_path) as (replicas, queue):
        looking = await begin(replicas, queue, 3)
        log = replicas.drivers[AT].log
        cleaning = log.compaction.begin(rules(8, wall_ms=0), LogSettings(), flushed_offset=8)
        for cleaned in cleaning.run():  # records without a key go, so all become one segment
            if cleaned is not None:
                log.compaction.remove_replaced(log.compaction.swap_in(cleaned, LogSettings()) or ())
        assert log.segment_base_offsets == (0, 8)
        assert await outcome(looking, queue) == (ErrorCode.NONE, 8)


async def test_a_log_that_is_being_cut_is_not_looked_into(tmp_path: Path) -> None:
    queue = HeldQueue()
    async with one_broker(tmp_path, isr=(1, 2), disk_queue=queue) as replicas:
        begin_cut(replicas, queue)
        try:
            refused = await replicas.list_offset(AT, 0, replica_id=DEBUG_REPLICA)
            assert refused.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        finally:
            queue.release()


@pytest.mark.parametrize("files_are_gone", [False, True])
async def test_records_deleted_then_are_not_found(tmp_path: Path, files_are_gone: bool) -> None:
    async with filled(tmp_path) as (replicas, queue):
        looking = await begin(replicas, queue, 3)
        driver = replicas.drivers[AT]
        driver.log.advance_log_start_offset(Offset(5))
        if files_are_gone:
            driver.log.remove_dead_segments()
        assert await outcome(looking, queue) == (ErrorCode.NONE, 5)


@pytest.mark.parametrize("errno", [EIO, EMFILE])
async def test_a_disk_that_refuses_is_the_error_of_one_request(tmp_path: Path, errno: int) -> None:
    disk = FaultyDisk()
    async with filled(tmp_path, disk) as (replicas, queue):
        disk.errors = {"pread": errno}
        looking = await begin(replicas, queue, 3)
        assert await outcome(looking, queue) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        disk.errors = {}
        looking = await begin(replicas, queue, 3)
        assert await outcome(looking, queue) == (ErrorCode.NONE, 3)


def trust_what_was_found(looked: LookupByTime, log: Log) -> bool:
    del looked, log
    return True


@pytest.mark.parametrize("files_are_gone", [False, True])
async def test_the_tests_find_a_lookup_that_is_not_repeated(
    tmp_path: Path, files_are_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LookupByTime, "is_of", trust_what_was_found)
    with pytest.raises(AssertionError):
        await test_records_deleted_then_are_not_found(tmp_path, files_are_gone)
