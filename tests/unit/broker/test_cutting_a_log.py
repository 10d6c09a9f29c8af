"""A log is cut by the disk queue: meanwhile its partition hears nothing, and others go on."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from errno import EIO
from pathlib import Path

import pytest

from quorumlog.broker.following.log.followed_partition import FollowedPartition
from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.data_path import DEBUG_REPLICA
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
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
        driver, _ = follower_with_two_records(replicas)
        queue.is_held = True
        diverge(driver)
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
        driver, take = follower_with_two_records(replicas)
        queue.is_held = True
        diverge(driver)
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
        driver, _ = follower_with_two_records(replicas)
        queue.is_held = True
        diverge(driver)
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
        driver, _ = follower_with_two_records(replicas)
        queue.is_held = True
        diverge(driver)
        gone = ClusterDelta(deleted_topics={AT.topic: TOPIC_ID})
        replicas.publish(gone, ClusterImage(brokers=ALL_ALIVE))
        publish(replicas, image(1, 0, 0, (1,), replicas=(1,)))  # made again, by the same name
        assert [key for key, _ in queue.held][:3] == [AT, AT, AT]  # the cut, deletion, opening
        queue.release()
        again = replicas.drivers[AT]
        assert again is not driver
        assert again.log.log_end_offset == 0


async def test_a_cut_that_fails_takes_the_replica_offline(tmp_path: Path) -> None:
    disk, queue = FaultyDisk(), HeldQueue()

    async with one_broker(tmp_path, isr=(1, 2), disk=disk, disk_queue=queue) as replicas:
        driver, _ = follower_with_two_records(replicas)
        queue.is_held = True
        diverge(driver)
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
