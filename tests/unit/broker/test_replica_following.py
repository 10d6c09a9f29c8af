"""A follower's log, with a leader's answers by hand: taken, cut, started over, contradicted."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from quorumlog.backoff import Backoff
from quorumlog.broker.following.io.replica_fetchers import ReplicaFetchers
from quorumlog.broker.following.log.followed_partition import FollowedPartition, take_answer
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch
from quorumlog.wire.codec.messages.fetch import EpochEndOffset, PartitionData
from quorumlog.wire.codec.records import read_header, restamp
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import (
    AT,
    TOPIC_ID,
    append,
    follow,
    from_leader,
    one_broker,
    publish,
    reports_of,
    sequenced,
)
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, diverged, image, out_of_range


async def test_a_follower_that_leads_knows_the_producers_of_its_log(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follow(replicas)
        newer = from_leader(2, sequence=2)
        restamp(newer, 0, base_offset=2, leader_epoch=2)
        take(from_leader(0, sequence=0) + from_leader(1, sequence=1) + newer)  # two are taken
        publish(replicas, image(1, 2, 2, (1, 2), replicas=(1, 2)))
        assert append(replicas, records=sequenced(0)).base_offset == 0
        assert append(replicas, records=sequenced(1)).base_offset == 1
        gap = append(replicas, records=sequenced(3))
        assert gap.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert append(replicas, records=sequenced(2)).base_offset == 2


async def test_what_was_cut_or_started_over_is_not_taken_for_a_duplicate(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take, driver = follow(replicas, isr=(2,)), replicas.drivers[AT]
        take(from_leader(0, sequence=0) + from_leader(1, sequence=1))
        driver.feed(0, diverged(2, 1, epoch=1, last_fetched_epoch=1))
        assert driver.producers.check(read_header(sequenced(1))).duplicate_of is None
        assert driver.producers.check(read_header(sequenced(0))).duplicate_of is not None
        driver.feed(0, out_of_range(1, 9, last_fetched_epoch=1))
        assert (driver.log.log_start_offset, len(driver.producers)) == (9, 0)
        take(from_leader(9))
        assert driver.partition.state.log_end_offset == 10


async def test_only_a_batch_of_the_epoch_that_is_followed_is_taken(tmp_path: Path) -> None:
    """A newer leader's batches may not be what the log of the epoch we fetch in holds."""

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take, newer = follow(replicas), from_leader(1)
        restamp(newer, 0, base_offset=1, leader_epoch=2)
        take(from_leader(0) + newer)
        partition = replicas.drivers[AT].partition
        assert partition.state.log_end_offset == 1  # KAFKA-18723


def _of_epoch_0(offset: int) -> bytearray:
    records = from_leader(offset)
    restamp(records, 0, base_offset=offset, leader_epoch=0)
    return records


async def test_a_last_epoch_that_the_leader_began_later_is_cut(tmp_path: Path) -> None:
    """A flipped bit made epoch 0 another one, of which the leader says no divergence."""
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take, driver, flipped = follow(replicas, isr=(2,)), replicas.drivers[AT], from_leader(1)
        take(_of_epoch_0(0) + flipped)
        assert driver.log.epochs.epoch_at(1) == 1
        assert take(_of_epoch_0(2)).failures == 0
        assert driver.log.epochs.latest_epoch == 0
        assert driver.partition.state.log_end_offset == 1
        take(_of_epoch_0(1) + _of_epoch_0(2))
        assert driver.partition.state.log_end_offset == 3


def _start_over(driver: PartitionDriver, offset: int) -> None:
    end, epoch = driver.partition.state.log_end_offset, driver.log.epochs.latest_epoch
    driver.feed(0, out_of_range(end, offset, last_fetched_epoch=epoch))


async def test_a_log_that_starts_within_a_leaders_batch_takes_it(tmp_path: Path) -> None:
    """DeleteRecords may stop within a batch; the leader sends it whole (Kafka: KAFKA-6361)."""
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take, driver = follow(replicas, isr=(2,)), replicas.drivers[AT]
        take(from_leader(0))
        _start_over(driver, 6)
        take(from_leader(4, count=4) + from_leader(8), log_start_offset=6)
        state = driver.partition.state
        assert (state.log_start_offset, state.log_end_offset, state.high_watermark) == (6, 9, 9)
        assert driver.log.log_start_offset == 6
        assert driver.log.active_base_offset == 4


async def test_a_batch_waits_until_the_disk_has_begun_the_log_there(tmp_path: Path) -> None:
    queue = HeldQueue()
    async with one_broker(tmp_path, isr=(1, 2), disk_queue=queue) as replicas:
        take, driver = follow(replicas), replicas.drivers[AT]
        _start_over(driver, 6)
        queue.is_held = True
        received = from_leader(4, count=4)
        take(received, log_start_offset=6)
        received[:] = bytes(len(received))  # the buffer is used for the next answer
        publish(replicas, image(2, 2, 2, (2,), replicas=(1, 2)))
        assert driver.partition.state.log_end_offset == 6
        queue.release()
        assert driver.partition.state.log_end_offset == 8
        assert driver.partition.state.leader_epoch == 2


async def test_a_damaged_batch_does_not_move_the_log(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take, driver = follow(replicas), replicas.drivers[AT]
        _start_over(driver, 6)
        damaged = from_leader(4, count=4)
        damaged[-1] ^= 1
        followed = take(damaged, log_start_offset=6)
        assert followed.failures == 1
        assert driver.log.log_start_offset == driver.log.log_end_offset == 6
        take(from_leader(6) + from_leader(7))  # with records, none that begins below its end
        assert take(from_leader(7, count=3)).failures == 1
        assert driver.partition.state.log_end_offset == 8


ONE = BROKERS[0]
Take = Callable[[PartitionData], FollowedPartition]
NOTHING_FITS = PartitionData(
    partition_index=0, diverging_epoch=EpochEndOffset(epoch=1, end_offset=0)
)


class Clock:
    now_ms = 0


def follower(replicas: Replicas, clock: Clock, isr: tuple[int, ...]) -> Take:
    """Return what takes an answer of broker 2, which leads in epoch 1, as soon as one is due."""
    replicas.registered(ALL_ALIVE[ONE].broker_epoch)
    publish(replicas, image(2, 1, 1, isr, replicas=(1, 2)))
    followed = FollowedPartition(replicas.drivers[AT], Epoch(1))

    def take(answer: PartitionData) -> FollowedPartition:
        clock.now_ms = max(clock.now_ms, followed.due_ms)
        take_answer(
            followed,
            followed.position(),
            answer,
            now_ms=clock.now_ms,
            wall_ms=lambda: 0,
            backoff=Backoff(10, 1000),
            random_fraction=lambda: 0.5,
        )
        return followed

    return take


def batches(start: int, end: int) -> PartitionData:
    records = b"".join(bytes(from_leader(offset)) for offset in range(start, end))
    return PartitionData(partition_index=0, high_watermark=9, records=records)


async def test_a_member_reports_its_log_until_it_is_no_member(tmp_path: Path) -> None:
    clock = Clock()
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follower(replicas, clock, isr=(1, 2))
        take(batches(0, 3))
        followed = take(NOTHING_FITS)
        assert replicas.drivers[AT].log.log_end_offset == 3
        assert not followed.may_ask(clock.now_ms)
        assert not followed.is_flushing  # no other partition waits for it
        [report] = await reports_of(replicas)
        assert (report.topic_id, report.last_epoch, report.log_end_offset) == (TOPIC_ID, 1, 3)
        assert not report.is_whole

        eligible = replace(image(2, 1, 2, (2,), replicas=(1, 2)), elr=(ONE,))
        publish(replicas, eligible)
        assert len(await reports_of(replicas)) == 2
        publish(replicas, image(2, 1, 3, (2,), replicas=(1, 2)))
        assert len(await reports_of(replicas)) == 2
        assert followed.may_ask(clock.now_ms)
        take(NOTHING_FITS)
        assert replicas.drivers[AT].log.log_end_offset == 0
        assert replicas.may_lead.is_set()


async def test_a_follower_that_is_out_of_range_starts_over_where_its_leader_begins(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follower(replicas, Clock(), isr=(2,))
        take(batches(0, 3))
        take(
            PartitionData(
                partition_index=0,
                error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
                high_watermark=70,
                log_start_offset=50,
            )
        )
        log = replicas.drivers[AT].log
        assert (log.log_start_offset, log.log_end_offset) == (50, 50)


async def test_the_same_divergence_again_is_asked_about_ever_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was cut and fetched without end, as fast as both brokers could, and no log said so."""
    clock, turns = Clock(), 150
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follower(replicas, clock, isr=(2,))
        with caplog.at_level(logging.WARNING):
            for _ in range(turns):
                take(batches(0, 3))
                take(NOTHING_FITS)
        assert replicas.drivers[AT].log.log_end_offset == 0
        assert clock.now_ms >= (turns - 10) * 1000
        lines = [record.getMessage() for record in caplog.records]
        assert all("broker 2, which leads, answers the fetch from offset 3 on" in x for x in lines)
        assert 3 <= len(lines) <= 2 + clock.now_ms // 60_000
        take(batches(0, 3))
        assert take(batches(3, 4)).failures == 0  # it got past: it waits no more
        assert take(NOTHING_FITS).may_ask(clock.now_ms)


async def test_a_refused_batch_names_the_leader_and_the_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take = follower(replicas, Clock(), isr=(2,))
        take(batches(0, 3))
        damaged = from_leader(3)
        damaged[-1] ^= 1
        take(PartitionData(partition_index=0, records=bytes(damaged)))
        assert "as broker 2, which leads, sent it from offset 3 on: " in caplog.text


class Fetcher:
    """Records the partitions that it is to follow."""

    def __init__(self, address: object) -> None:
        self.address = address
        self.followed: list[object] = []

    def set_followed(self, followed: Iterable[FollowedPartition]) -> None:
        self.followed = [one.driver for one in followed]


async def test_a_fetcher_follows_the_partitions_of_its_leader_that_are_left() -> None:
    made: list[Fetcher] = []

    def make(address: object) -> Any:
        made.append(Fetcher(address))
        return made[-1]

    fetchers, cluster = ReplicaFetchers(make, {}), ClusterImage(brokers=ALL_ALIVE)
    first, second = (cast(PartitionDriver, object()) for _ in range(2))
    for driver in (first, second):
        fetchers.follow(driver, BROKERS[1], Epoch(1))
    fetchers.publish(cluster)
    fetchers.unfollow(first)
    fetchers.publish(cluster)
    assert [one.followed for one in made] == [[second]]
