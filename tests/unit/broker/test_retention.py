"""Retention on a broker with real logs: what goes, what stays, and what clients see of it."""

import asyncio
from errno import ENOSPC
from pathlib import Path

from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.producer_loading import load_producers
from quorumlog.broker.replicas import Replicas
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.log_directories import started
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
    sequenced,
)
from tests.support.broker.replica_calls import fetch_from
from tests.support.broker.replicas import image
from tests.support.waiting import until

SMALL = LogSettings(segment_bytes=1)  # one batch in each segment
ALONE = image(1, 0, 0, (1,), replicas=(1,))
FOLLOWED = image(1, 0, 1, (1, 2), replicas=(1, 2))


def driver_of(replicas: Replicas) -> PartitionDriver:
    return replicas.drivers[AT]


def segments(replicas: Replicas) -> list[Offset]:
    return [*driver_of(replicas).log.segment_base_offsets]


def ends(replicas: Replicas) -> tuple[int, int]:
    log = driver_of(replicas).log
    return log.log_start_offset, log.log_end_offset


async def test_what_is_too_old_goes_the_active_segment_too(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        for _ in range(3):
            append(replicas)
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (3, 3)
        assert segments(replicas) == [3]
        assert append(replicas).base_offset == 3
        below = fetch_from(replicas, fetch_of(2))
        assert isinstance(below, list)
        assert below[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await replicas.list_offset(AT, -2)).offset == 3


async def test_a_start_that_rose_so_lasts_and_the_files_go(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        publish(replicas, ALONE, retention_ms="-1", retention_bytes=str(len(BATCH)))
        for _ in range(4):
            append(replicas)
        await replicas.ticks.retention.check_all()
        assert ends(replicas) == (3, 4)
        await until(lambda: not driver_of(replicas).log.has_dead_segments)
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        assert ends(replicas) == (3, 4)
    assert [path.name for path in (tmp_path / "orders-0").glob("*.log*")] == [f"{3:020d}.log"]


async def test_settings_and_followers_that_change_count_from_the_next_check_on(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
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
    async with one_broker(tmp_path, isr=(1, 2), log_settings=SMALL) as replicas:
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


async def test_the_producers_of_records_that_are_gone_are_known_after_a_crash(
    tmp_path: Path,
) -> None:
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
