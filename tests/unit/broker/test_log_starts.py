"""Log starts with real logs: kept in their checkpoint, followed, raised by retention."""

import asyncio
from errno import ENOSPC
from pathlib import Path

import pytest

from quorumlog.broker.partitions.core.deletions import DeletionResult
from quorumlog.broker.partitions.log.loaded_log import load_producers
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.checkpoints import encode_offset_checkpoint
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.log_directories import close_all, started, write
from tests.support.broker.one_broker import (
    AT,
    BATCH,
    TOPIC_ID,
    append,
    fetch_of,
    follow,
    from_leader,
    one_broker,
    publish,
    run,
    sequenced,
)
from tests.support.broker.replica_calls import fetch_from
from tests.support.broker.replicas import BROKERS, fetched_by, image, out_of_range
from tests.support.waiting import loop_turns, until

CHECKPOINT = "log-start-offset-checkpoint"
SMALL = LogSettings(segment_bytes=200)
ID, OTHER_ID = TopicId(b"i" * 16), TopicId(b"j" * 16)


def delete(
    replicas: Replicas, offset: int, timeout_ms: int = 10_000
) -> "asyncio.Future[DeletionResult]":
    future: asyncio.Future[DeletionResult] = asyncio.get_running_loop().create_future()
    replicas.deletions.delete(AT, offset, timeout_ms=timeout_ms, done=future.set_result)
    return future


def start_of(replicas: Replicas) -> int:
    return replicas.drivers[AT].partition.state.log_start_offset


def segments(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "orders-0").glob("*.log*"))


def hear(replicas: Replicas, log_start: int, fetch_offset: int) -> None:
    """The follower fetches."""
    driver = replicas.drivers[AT]
    epoch, start = driver.partition.state.leader_epoch, Offset(log_start)
    fetch = fetched_by(
        BROKERS[1], fetch_offset, broker_epoch=0, leader_epoch=epoch, log_start_offset=start
    )
    driver.judge_follower_fetch(0, fetch)


async def until_removed(directory: Path, names: list[str]) -> None:
    await until(lambda: segments(directory) == names)


def test_what_is_deleted_stays_so_and_its_segments_go(tmp_path: Path) -> None:
    async def story(replicas: Replicas) -> None:
        for _ in range(7):  # two per segment
            append(replicas)
        assert len(segments(tmp_path)) == 4
        result = await delete(replicas, 5)
        assert result == (ErrorCode.NONE, 5)
        assert (tmp_path / CHECKPOINT).read_bytes() == encode_offset_checkpoint({AT: Offset(5)})
        await until_removed(tmp_path, [f"{offset:020d}.log" for offset in (4, 6)])
        below, at = fetch_from(replicas, fetch_of(4)), fetch_from(replicas, fetch_of(5))
        assert isinstance(below, list)
        assert isinstance(at, list)
        refused = (ErrorCode.OFFSET_OUT_OF_RANGE, 5)
        assert (below[0].error_code, below[0].log_start_offset) == refused
        assert (at[0].error_code, at[0].log_start_offset) == (ErrorCode.NONE, 5)
        assert (await replicas.list_offset(AT, -2)).offset == 5
        assert (await delete(replicas, 3)) == (ErrorCode.NONE, 5)

    async def after(replicas: Replicas) -> None:
        assert start_of(replicas) == 5
        assert await delete(replicas, -1) == (ErrorCode.NONE, 7)

    async def in_the_end(replicas: Replicas) -> None:
        assert start_of(replicas) == 7
        assert append(replicas).base_offset == 7

    for part in (story, after, in_the_end):
        run(tmp_path, part, log_settings=SMALL)


async def test_a_start_lasts_through_a_crash_as_soon_as_it_is_answered_for(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        for _ in range(3):
            append(replicas)
        await delete(replicas, 2)
        logs = LogDirectory(RealDisk(), str(tmp_path), LogSettings())  # as the next process would
        logs.start()
        log, _ = logs.open(AT, ID, {})
        assert log.log_start_offset == 2
        log.close(clean=False)


async def test_no_timeout_is_too_short_for_the_disk_of_a_sole_replica(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        publish(replicas, image(1, 0, 1, (1,), replicas=(1,)))
        append(replicas)
        append(replicas)
        for offset in (1, 2):
            assert await delete(replicas, offset, timeout_ms=0) == (ErrorCode.NONE, offset)


async def test_a_deletion_waits_for_the_followers_that_live(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        publish(replicas, image(1, 0, 1, (1,), replicas=(1, 2)))
        append(replicas)
        append(replicas)
        assert await delete(replicas, 1, timeout_ms=0) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        hear(replicas, 0, fetch_offset=2)
        assert await delete(replicas, 1, timeout_ms=1) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        waiting, lost = delete(replicas, 1), delete(replicas, 2)
        hear(replicas, 1, fetch_offset=2)
        assert await waiting == (ErrorCode.NONE, 1)
        assert not lost.done()
        publish(replicas, image(2, 1, 2, (1, 2), replicas=(1, 2)))
        assert await lost == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert await delete(replicas, 2) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_a_follower_adopts_and_keeps_its_leaders_start(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follow(replicas, isr=(2,))
        take(from_leader(0) + from_leader(1))
        driver = replicas.drivers[AT]
        driver.append_as_follower(
            b"",
            leader_epoch=Epoch(1),
            high_watermark=Offset(2),
            log_start_offset=Offset(1),
            now_ms=0,
            wall_ms=0,
        )
        assert driver.partition.state.log_start_offset == 1
        await until(lambda: driver.partition.state.kept_log_start_offset == 1)
        assert (tmp_path / CHECKPOINT).read_bytes() == encode_offset_checkpoint({AT: Offset(1)})
        driver.feed(0, out_of_range(2, 9, last_fetched_epoch=1))
        driver.feed(0, out_of_range(9, 0))
        # Before anything is appended: else the next start would drop it.
        assert driver.log.log_end_offset == 0
        assert (tmp_path / CHECKPOINT).read_bytes() == encode_offset_checkpoint({AT: Offset(0)})


async def test_a_parked_follower_learns_of_a_new_start_and_consumers_do_not(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        publish(replicas, image(1, 0, 1, (1,), replicas=(1, 2)))
        append(replicas)
        append(replicas)
        spec = fetch_of(2, replica_id=2, leader_epoch=0, max_wait_ms=60_000)
        follower = fetch_from(replicas, spec)
        consumer = fetch_from(replicas, fetch_of(2, max_wait_ms=60_000))
        assert isinstance(follower, asyncio.Future)
        assert isinstance(consumer, asyncio.Future)
        deleted = delete(replicas, 2)
        [told] = await follower
        assert (told.error_code, told.log_start_offset, told.records) == (ErrorCode.NONE, 2, [])
        assert not consumer.done()
        assert not deleted.done()
        hear(replicas, 2, fetch_offset=2)
        assert await deleted == (ErrorCode.NONE, 2)
        consumer.cancel()


async def test_a_follower_fetches_at_once_when_its_start_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follow(replicas)(from_leader(0))
        has_fetched = asyncio.Event()
        monkeypatch.setattr(replicas._log_starts, "_fetch_now", has_fetched.set)
        driver = replicas.drivers[AT]
        driver.advance_log_start(0, Offset(1))
        async with asyncio.timeout(5):
            await has_fetched.wait()
        assert driver.partition.state.kept_log_start_offset == 1


def test_a_topic_of_the_same_name_does_not_inherit_a_start(tmp_path: Path) -> None:
    logs = started(tmp_path)
    batch = encode_batch([Record(offset, 1, None, b"x") for offset in range(4)])
    log, _ = logs.open(AT, ID, {})
    write(log, batch)
    log.advance_log_start_offset(3)
    logs.checkpoints.note_log_starts({AT: log})
    logs.checkpoints.write_log_starts()
    logs.delete(AT, log)
    log, _ = logs.open(AT, OTHER_ID, {})
    write(log, batch)
    log.close(clean=False)
    log, _ = started(tmp_path).open(AT, OTHER_ID, {})
    assert (log.log_start_offset, log.log_end_offset) == (0, 4)
    log.close(clean=False)


@pytest.mark.parametrize("damage", ["torn", "flipped"])
def test_a_damaged_checkpoint_gives_no_log_another_start(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A start that is too high would be a loss: the others would take it over from a leader."""
    logs = started(tmp_path)
    log, _ = logs.open(AT, ID, {})
    write(log, encode_batch([Record(0, 1, None, b"x")]), 3)
    log.advance_log_start_offset(1)
    close_all(logs, {AT: log}, {}, broker_epoch=1)
    whole = (tmp_path / CHECKPOINT).read_bytes()
    assert whole == encode_offset_checkpoint({AT: Offset(1)})  # a clean stop writes it
    damaged = whole[:-9] if damage == "torn" else whole.replace(b"orders 0 1", b"orders 0 3")
    (tmp_path / CHECKPOINT).write_bytes(damaged)
    log, _ = started(tmp_path).open(AT, ID, {})
    assert (log.log_start_offset, log.log_end_offset) == (0, 3)
    log.close(clean=False)
    [warning] = [one for one in caplog.messages if "is damaged" in one]
    assert warning.startswith(f"{tmp_path / CHECKPOINT} is damaged (")


async def test_segments_that_a_crash_left_dead_go_at_the_next_start(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        for _ in range(7):
            append(replicas)
    (tmp_path / CHECKPOINT).write_text("0\n1\norders 0 5\n")
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        await until_removed(tmp_path, [f"{offset:020d}.log" for offset in (4, 6)])
        assert start_of(replicas) == 5


async def test_other_partitions_are_not_here(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        told: list[DeletionResult] = []
        unknown = TopicPartition("none", 0)
        replicas.deletions.delete(unknown, 0, timeout_ms=1, done=told.append)
        assert told == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]


ONE_BATCH = LogSettings(segment_bytes=1)  # one batch in each segment
ALONE = image(1, 0, 0, (1,), replicas=(1,))
FOLLOWED = image(1, 0, 1, (1, 2), replicas=(1, 2))


def driver_of(replicas: Replicas) -> PartitionDriver:
    return replicas.drivers[AT]


def base_offsets(replicas: Replicas) -> list[Offset]:
    return [*driver_of(replicas).log.segment_base_offsets]


def ends(replicas: Replicas) -> tuple[int, int]:
    log = driver_of(replicas).log
    return log.log_start_offset, log.log_end_offset


async def test_what_is_too_old_goes_the_active_segment_too(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_BATCH) as replicas:
        for _ in range(3):
            append(replicas)
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (3, 3)
        assert base_offsets(replicas) == [3]
        assert append(replicas).base_offset == 3
        below = fetch_from(replicas, fetch_of(2))
        assert isinstance(below, list)
        assert below[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await replicas.list_offset(AT, -2)).offset == 3


async def test_a_start_that_rose_so_lasts_and_the_files_go(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_BATCH) as replicas:
        publish(replicas, ALONE, retention_ms="-1", retention_bytes=str(len(BATCH)))
        for _ in range(4):
            append(replicas)
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (3, 4)
        await until(lambda: not driver_of(replicas).log.has_dead_segments)
    async with one_broker(tmp_path, log_settings=ONE_BATCH) as replicas:
        assert ends(replicas) == (3, 4)
    assert [path.name for path in (tmp_path / "orders-0").glob("*.log*")] == [f"{3:020d}.log"]


async def test_settings_and_followers_count_from_the_next_check_on(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_BATCH) as replicas:
        append(replicas)
        append(replicas)
        for configs in ({"retention_ms": "-1"}, {"cleanup_policy": "compact"}):
            publish(replicas, ALONE, **configs)
            await replicas.ticks.retention.check_all()
            assert ends(replicas)[0] == 0
        publish(replicas, ALONE, cleanup_policy="compact,delete")
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (2, 2)
        publish(replicas, FOLLOWED)  # records that followers lack stay
        append(replicas)
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (2, 3)


async def test_a_follower_removes_by_itself_and_takes_no_lower_start(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2), log_settings=ONE_BATCH) as replicas:
        take = follow(replicas)
        take(from_leader(0))
        take(from_leader(1))
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (2, 2)
        take(from_leader(2))  # the leader starts with 0 still
        assert ends(replicas) == (2, 3)


async def test_an_active_segment_that_grows_meanwhile_stays(tmp_path: Path) -> None:
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue, log_settings=LogSettings()) as replicas:
        append(replicas)
        queue.is_held = True
        check = asyncio.create_task(replicas.ticks.retention.check_all())
        await asyncio.sleep(0)
        append(replicas)
        queue.release()
        await check
        assert ends(replicas) == (0, 2)


async def test_the_producers_of_records_that_are_gone_outlive_a_crash(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        append(replicas, records=sequenced(0))
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (1, 1)
        log, _ = started(tmp_path).open(AT, TOPIC_ID, {})  # as the next process would
        assert load_producers(log).ids() == [5]
        log.close(clean=False)


async def test_what_a_full_disk_refuses_is_done_by_the_next_check(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.on = ".snapshot"
    async with one_broker(tmp_path, disk=disk) as replicas:
        append(replicas, records=sequenced(0))
        disk.errors = {"append": ENOSPC}
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (0, 1)
        disk.errors = {}
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (1, 1)


async def test_the_segment_of_deleted_records_goes_when_it_is_no_longer_active(
    tmp_path: Path,
) -> None:
    settings = LogSettings(segment_bytes=1)  # a batch in each
    async with one_broker(tmp_path, log_settings=settings) as replicas:
        append(replicas)
        driver = driver_of(replicas)
        driver.advance_log_start(0, Offset(1))
        await loop_turns()
        assert len(segments(tmp_path)) == 1
        append(replicas)
        await loop_turns()
        assert len(segments(tmp_path)) == 2
        driver.advance_log_start(0, Offset(1))  # a client or a leader repeats it
        await loop_turns()
        assert len(segments(tmp_path)) == 1
