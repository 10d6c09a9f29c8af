"""Records above the high watermark may go again: replicas see them, consumers do not."""

import asyncio
from pathlib import Path

from quorumlog.broker.partitions.core.data_path import (
    DEBUG_REPLICA,
    NO_REPLICA,
    OffsetAnswer,
    ProduceResult,
)
from quorumlog.broker.partitions.log.offset_lookup import LATEST
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from quorumlog.wire.codec.records import read_header
from tests.support.broker.one_broker import (
    AT,
    append,
    fetch_of,
    from_leader,
    one_broker,
    publish,
    sequenced,
)
from tests.support.broker.replica_calls import append_to, fetch_from
from tests.support.broker.replicas import diverged, image


async def test_a_former_leader_serves_what_overwrote_its_own_records(tmp_path: Path) -> None:
    """Its newest batches are in memory: they must not outlive the leadership they were made in."""

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        driver = replicas.drivers[AT]
        append(replicas)  # offset 0 in epoch 0, which no follower has fetched
        publish(replicas, image(2, 1, 1, (1, 2), replicas=(1, 2)))
        driver.feed(0, diverged(1, 0, epoch=-1))
        driver.append_as_follower(
            from_leader(0),
            leader_epoch=Epoch(1),
            high_watermark=Offset(0),
            log_start_offset=Offset(0),
            now_ms=0,
            wall_ms=0,
        )
        publish(replicas, image(1, 2, 2, (1, 2), replicas=(1, 2)))
        append(replicas)  # offset 1 in epoch 2, which continues what was in memory
        assert driver.partition.state.high_watermark == 0
        fetched = fetch_from(replicas, fetch_of(0, replica_id=2, leader_epoch=2, max_wait_ms=0))
        assert isinstance(fetched, list)
        records = b"".join(fetched[0].records)
        first = read_header(records)
        second = read_header(records, first.size_in_bytes)
        assert [first.leader_epoch, second.leader_epoch] == [1, 2]


async def test_the_latest_offset_is_the_high_watermark_for_a_consumer(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        append(replicas)

        async def latest(replica_id: BrokerId) -> OffsetAnswer:
            return await replicas.list_offset(AT, LATEST, replica_id=replica_id)

        assert await latest(NO_REPLICA) == OffsetAnswer(ErrorCode.NONE, 0, -1, Epoch(0))
        assert (await latest(BrokerId(9))).offset == 0  # it is no replica of this partition
        assert (await latest(BrokerId(2))).offset == (await latest(DEBUG_REPLICA)).offset == 1


async def test_a_duplicate_of_an_older_batch_is_acknowledged_when_that_is_committed(
    tmp_path: Path,
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        waiting: list[asyncio.Future[ProduceResult]] = []

        def produce(sequence: int) -> list[bool]:
            future = append_to(replicas, AT, sequenced(sequence), acks=-1, timeout_ms=1000)
            waiting.append(future)
            return [one.done() for one in waiting]

        for sequence in (0, 1, 2):
            produce(sequence)
        assert produce(1) == [False] * 4
        fetch_from(replicas, fetch_of(1, replica_id=2, leader_epoch=0, max_wait_ms=0))
        assert [one.done() for one in waiting] == [True, False, False, False]
        fetch_from(replicas, fetch_of(2, replica_id=2, leader_epoch=0, max_wait_ms=0))
        assert [one.done() for one in waiting] == [True, True, False, True]
        assert waiting[3].result() == waiting[1].result()
        assert produce(0)[4]  # committed long ago
