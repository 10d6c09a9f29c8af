"""A replica moves from one log directory of a broker to another, beside all else that it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.moving import (
    AT,
    Metadata,
    append,
    batch,
    broker,
    driver_of,
    names_in,
    until_in,
    values_of,
)
from tests.support.broker.replicas import BROKERS, fetched_by
from tests.support.waiting import loop_turns, until

SMALL = LogSettings(segment_bytes=400)


async def begin_held_move(replicas: Replicas, metadata: Metadata) -> None:
    """Begin a move from a to b, of which the controller commits nothing."""
    await until(lambda: metadata.told == ["a"])
    metadata.is_held = True
    await replicas.moves.alter(AT, "/b")


async def test_a_move_takes_all_records_and_leaves_nothing_behind() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata, log_settings=SMALL) as replicas:
        for value in range(50):
            append(replicas, value)
        segments = driver_of(replicas).log.segment_base_offsets
        assert len(segments) > 3
        assert await replicas.moves.alter(AT, "/b") is ErrorCode.NONE
        await until_in(replicas, "b")
        assert values_of(driver_of(replicas).log) == [*range(50)]
        assert driver_of(replicas).log.segment_base_offsets == segments
        assert append(replicas, 50).result().base_offset == 50
        assert (names_in(disk, "a"), names_in(disk, "b")) == ([], [str(AT)])
        assert metadata.told == ["a", "b"]  # before the swap, and nothing since
        assert driver_of(replicas).partition.state.high_watermark == 51
    async with broker(disk, metadata) as replicas:
        assert driver_of(replicas).log.directory == f"/b/{AT}"
        assert values_of(driver_of(replicas).log) == [*range(51)]
        assert driver_of(replicas).partition.state.high_watermark == 51


async def test_nothing_is_swapped_before_the_metadata_shows_the_new_directory() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        await begin_held_move(replicas, metadata)
        await loop_turns()
        append(replicas, 1)
        await loop_turns()
        assert driver_of(replicas).log.directory == f"/a/{AT}"
        metadata.is_held = False
        await until_in(replicas, "b")
        assert values_of(driver_of(replicas).log) == [0, 1]


async def test_what_comes_during_the_swap_waits_for_it() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        driver = driver_of(replicas)
        driver.begin_exchange()
        held = append(replicas, 1)
        await loop_turns()
        assert not held.done()
        assert driver.log.log_end_offset == 1
        driver.end_exchange(None)
        assert held.result().base_offset == 1


@asynccontextmanager
async def held_swap(replicas: Replicas, metadata: Metadata) -> AsyncIterator[HeldQueue]:
    """Move from a to b until the disk is to replace the log; the queue holds that work."""
    queue, publish = cast(HeldQueue, replicas.disk), metadata.publish

    def publish_and_hold() -> None:
        queue.is_held, metadata.publish = True, publish
        publish()

    await begin_held_move(replicas, metadata)
    await until(lambda: replicas.moves.table.sizes()[AT].offset_lag == 0)
    metadata.is_held, metadata.publish = False, publish_and_hold
    try:
        await until(lambda: queue.held)
        yield queue
    finally:
        queue.release()


async def test_requests_wait_while_the_disk_replaces_the_log_and_the_next_move_begins() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        async with held_swap(replicas, metadata) as queue:
            held = append(replicas, 1)
            assert not held.done()
            assert replicas.moves.table.sizes()[AT].directory.path == "/b"
            assert queue.release() == [AT]
        assert held.result().base_offset == 1
        await until_in(replicas, "b")
        assert not replicas.moves.table.sizes()
        await replicas.moves.alter(AT, "/c")
        await until_in(replicas, "c")
        assert values_of(driver_of(replicas).log) == [0, 1]
        assert [one.path for one in replicas._logs.online] == ["/a", "/b", "/c"]
        assert metadata.told == ["a", "b", "c"]


async def test_a_topic_that_is_deleted_while_the_disk_replaces_its_log_leaves_no_file() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        async with held_swap(replicas, metadata):
            metadata.exists = False
            metadata.publish()
        await until(lambda: names_in(disk, "a") + names_in(disk, "b") == [])
        assert not replicas.moves.table.sizes()
        await replicas.moves.alter(AT, "/a")  # for the next topic of the name
        metadata.exists, metadata.directory = True, None
        metadata.publish()
        await until_in(replicas, "a")
        assert append(replicas, 7).result().base_offset == 0
        assert replicas._logs.reported(AT) == "a"


async def test_a_stop_while_the_disk_replaces_the_log_leaves_the_new_log() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        async with held_swap(replicas, metadata):
            await replicas._tasks.stop()
        assert driver_of(replicas).log.directory == f"/b/{AT}"
        assert append(replicas, 1).result().base_offset == 1


async def test_a_log_that_replaces_another_as_its_directory_fails_is_closed() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        driver, old = driver_of(replicas), replicas._logs.home_of(AT)
        assert old is not None
        async with held_swap(replicas, metadata):
            replicas._replicas.fail_directory(old, StorageError("input/output error"))
            assert AT not in replicas.drivers
        assert driver.log.directory == f"/b/{AT}"
        assert driver.log._is_closed
        assert not replicas.moves.table.sizes()


async def test_an_answer_for_each_directory_that_cannot_be_moved_to() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
    async with broker(disk, metadata, names="ab") as replicas:
        alter = replicas.moves.alter
        assert await alter(AT, "/nowhere") is ErrorCode.LOG_DIR_NOT_FOUND
        assert await alter(AT, "/c") is ErrorCode.KAFKA_STORAGE_ERROR
        other = TopicPartition("other", 0)
        assert await alter(other, "/a") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await alter(AT, "/a") is ErrorCode.NONE
        assert names_in(disk, "b") == []


async def test_a_directory_is_preferred_for_a_log_that_is_made_later() -> None:
    disk, metadata = SimDisk(), Metadata()
    metadata.exists = False
    async with broker(disk, metadata) as replicas:
        await replicas.moves.alter(AT, "/c")
        metadata.exists = True
        metadata.publish()
        await until_in(replicas, "c")
        assert len(replicas._logs.preferred) == 0


async def test_naming_the_directory_where_it_is_cancels_and_a_third_one_redirects() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        await begin_held_move(replicas, metadata)
        assert len(names_in(disk, "b")) == 1
        await replicas.moves.alter(AT, "/a")
        assert names_in(disk, "b") == []
        await replicas.moves.alter(AT, "/b")
        await replicas.moves.alter(AT, "/c")
        assert names_in(disk, "b") == []
        metadata.is_held = False
        await until_in(replicas, "c")
        assert values_of(driver_of(replicas).log) == [0]
        assert metadata.directory == "c"


async def test_a_cancelled_move_keeps_its_copy_until_the_metadata_shows_the_old_directory() -> None:
    """Else a start without the old directory would make an empty log where the metadata says."""
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata, stops=False) as replicas:
        append(replicas, 0)
        await begin_held_move(replicas, metadata)
        await loop_turns()
        metadata.directory = "b"  # committed, and nobody has heard of it yet
        replicas._replicas.image = metadata.image()
        await replicas.moves.alter(AT, "/a")
        assert len(names_in(disk, "b")) == 1
    disk.kill()
    async with broker(disk, metadata, names="b", stops=False) as replicas:
        assert AT not in replicas.drivers
        assert str(AT) not in names_in(disk, "b")
        metadata.is_held = False
        await until(lambda: metadata.directory not in {"a", "b"})  # LOST
    disk.kill()
    async with broker(disk, metadata) as replicas:
        await until_in(replicas, "b")  # the move is begun again
        assert values_of(driver_of(replicas).log) == [0]


@pytest.mark.parametrize("is_leader", [True, False])
async def test_records_that_are_deleted_meanwhile_are_gone_from_the_copy(is_leader: bool) -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata, log_settings=SMALL) as replicas:
        for value in range(40):
            append(replicas, value)
        await begin_held_move(replicas, metadata)
        await until(lambda: replicas.moves.table.sizes()[AT].offset_lag == 0)
        driver_of(replicas).advance_log_start(0, Offset(25 if is_leader else 40))
        metadata.is_held = False
        await until_in(replicas, "b")
        log = driver_of(replicas).log
        assert log.log_start_offset == (25 if is_leader else 40)
        assert values_of(log) == [*range(log.log_start_offset, 40)]
        assert append(replicas, 40).result().base_offset == 40


async def test_a_truncation_during_the_copy_reaches_the_copy() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        for value in range(10):
            append(replicas, value)
        await begin_held_move(replicas, metadata)
        await until(lambda: replicas.moves.table.sizes()[AT].offset_lag == 0)
        driver = driver_of(replicas)
        driver.log.truncate_to(6)
        driver.log.epochs.assign(metadata.leader_epoch + 1, 6)
        for value in range(60, 70):  # other records at the same offsets, and more
            driver.log.append_as_leader(
                batch(value), leader_epoch=metadata.leader_epoch + 1, wall_ms=0
            )
        state = driver.partition.state
        state.log_end_offset = driver.log.log_end_offset
        metadata.is_held = False
        await until_in(replicas, "b")
        assert values_of(driver.log) == [*range(6), *range(60, 70)]
        assert driver.log.epochs.entries == ((1, 0), (2, 6))


async def test_the_producers_and_epochs_without_records_move_with_the_log() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata, log_settings=SMALL) as replicas:
        for sequence in range(8):
            append(replicas, sequence, producer=(7, 0, sequence))
        for value in range(20):
            append(replicas, value)
        driver = driver_of(replicas)
        driver.advance_log_start(0, Offset(20))  # no batch of the producer is left
        metadata.leader_epoch += 1
        metadata.publish()
        assert driver.log.epochs.entries[-1] == (2, 28)  # no record has it
        await replicas.moves.alter(AT, "/b")
        await until_in(replicas, "b")
        assert f"{28:020}.snapshot" in disk.listdir(f"/b/{AT}")  # a start reads no record for it
        assert driver.log.epochs.entries[-1] == (2, 28)
        assert append(replicas, 7, producer=(7, 0, 7)).result().base_offset == 7  # a duplicate
    async with broker(disk, metadata) as replicas:
        assert append(replicas, 7, producer=(7, 0, 7)).result().base_offset == 7
        wrong = append(replicas, 9, producer=(7, 0, 9)).result().error_code
        assert wrong is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_records_that_no_follower_has_are_not_committed_by_a_move() -> None:
    disk, metadata = SimDisk(), Metadata()
    metadata.replicas = (1, 2)
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        driver = driver_of(replicas)
        driver.judge_follower_fetch(0, fetched_by(BROKERS[1], 1, leader_epoch=1))
        append(replicas, 1)
        await replicas.moves.alter(AT, "/b")
        await until_in(replicas, "b")
        assert (driver.partition.state.high_watermark, driver.log.log_end_offset) == (1, 2)
        home = replicas._logs.home_of(AT)
        assert home is not None
        assert home.checkpoints.high_watermark(AT) == 1  # for a start after a crash
    async with broker(disk, metadata) as replicas:
        assert driver_of(replicas).partition.state.high_watermark == 1


async def test_a_topic_that_is_deleted_meanwhile_leaves_no_copy() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        await begin_held_move(replicas, metadata)
        metadata.exists = False
        metadata.publish()
        await until(lambda: names_in(disk, "a") + names_in(disk, "b") == [])
        assert not replicas.moves.table.sizes()


@pytest.mark.jumping_time
async def test_the_copy_is_shown_with_its_lag() -> None:
    disk, metadata = SimDisk(), Metadata()
    settings = BrokerSettings(replica_alter_log_dirs_io_max_bytes_per_second=1)
    async with broker(disk, metadata, settings=settings) as replicas:
        for value in range(3):
            append(replicas, value, size=700_000)
        await replicas.moves.alter(AT, "/b")
        await until(lambda: replicas.moves.table.sizes()[AT].log is not None)
        await loop_turns()
        described = await replicas.descriptions.log_directories(None)
        shown = {
            one.path: [(size.is_future, size.offset_lag) for size in one.replicas]
            for one in described
        }
        assert shown["/a"] == [(False, 0)]
        assert shown["/b"] == [(True, 2)]  # a chunk is one of these batches
        metadata.broker_configs = {"replica.alter.log.dirs.io.max.bytes.per.second": "100000000"}
        metadata.publish()
        await until_in(replicas, "b")


async def test_a_log_with_a_copy_is_not_compacted() -> None:
    disk, metadata = SimDisk(), Metadata()
    async with broker(disk, metadata) as replicas:
        append(replicas, 0)
        await begin_held_move(replicas, metadata)
        assert driver_of(replicas).is_moving
        metadata.is_held = False
        await until_in(replicas, "b")
        assert not driver_of(replicas).is_moving
