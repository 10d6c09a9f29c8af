"""A follower's log and what it learns from it, with a real log and a leader's answers by hand."""

from pathlib import Path

from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import read_header, restamp
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import (
    AT,
    append,
    follow,
    from_leader,
    one_broker,
    publish,
    sequenced,
)
from tests.support.broker.replicas import diverged, image, out_of_range


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


async def test_a_log_that_starts_within_a_batch_of_the_leader_takes_that_batch(
    tmp_path: Path,
) -> None:
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


async def test_a_batch_waits_until_the_disk_has_begun_the_log_where_it_begins(
    tmp_path: Path,
) -> None:
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
