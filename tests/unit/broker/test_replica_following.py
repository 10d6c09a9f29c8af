"""A follower's log and what it learns from it, with a real log and a leader's answers by hand."""

from pathlib import Path

from quorumlog.broker.partitions.core import events
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset
from quorumlog.wire.codec.records import read_header, restamp
from tests.support.broker.one_broker import (
    AT,
    append,
    follow,
    from_leader,
    one_broker,
    publish,
    sequenced,
)
from tests.support.broker.replica_calls import partition_of
from tests.support.broker.replicas import image


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
        take, driver = follow(replicas), replicas.drivers.get(AT)
        assert driver is not None
        take(from_leader(0, sequence=0) + from_leader(1, sequence=1))
        driver.feed(
            0,
            events.LeaderDiverged(
                leader_epoch=Epoch(1),
                fetch_offset=Offset(2),
                last_fetched_epoch=Epoch(1),
                epoch=Epoch(1),
                end_offset=Offset(1),
            ),
        )
        assert driver.producers.check(read_header(sequenced(1))).duplicate_of is None
        assert driver.producers.check(read_header(sequenced(0))).duplicate_of is not None
        driver.feed(
            0,
            events.FetchOutOfRange(
                leader_epoch=Epoch(1),
                fetch_offset=Offset(1),
                last_fetched_epoch=Epoch(1),
                log_start_offset=Offset(9),
            ),
        )
        assert (driver.log.log_start_offset, len(driver.producers)) == (9, 0)
        take(from_leader(9))
        assert driver.partition.state.log_end_offset == 10


async def test_only_a_batch_of_the_epoch_that_is_followed_is_taken(tmp_path: Path) -> None:
    """A newer leader's batches may not be what the log of the epoch we fetch in holds."""

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        take, newer = follow(replicas), from_leader(1)
        restamp(newer, 0, base_offset=1, leader_epoch=2)
        take(from_leader(0) + newer)
        partition = partition_of(replicas, AT)
        assert partition is not None
        assert partition.state.log_end_offset == 1  # KAFKA-18723
