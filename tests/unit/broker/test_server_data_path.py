"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch over a connection to one broker."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicPartition
from quorumlog.wire.codec.messages import produce as produce_messages
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    LeaderIdAndEpoch,
)
from quorumlog.wire.codec.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection
from tests.support.broker.requests import BY_NAME, list_offset, produce
from tests.support.groups.asking import asking, create

INT_MAX = 2**31 - 1


def batch(*values: bytes, sequence: int = -1) -> bytes:
    is_sequenced = sequence >= 0
    return encode_batch(
        [Record(index, 1000 + index, None, value) for index, value in enumerate(values)],
        producer_id=7 if is_sequenced else -1,
        producer_epoch=0 if is_sequenced else -1,
        base_sequence=sequence,
    )


async def read(
    client: KafkaConnection,
    offset: int,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
) -> tuple[int, bytes]:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[partition])]
    request = FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=topics
    )
    [answer] = (await client.send(request, version=12)).responses[0].partitions
    records = answer.records or b""
    assert isinstance(records, bytes | bytearray | memoryview)
    return answer.error_code, bytes(records)


async def test_batches_are_checked_and_a_duplicate_has_its_first_offset(tmp_path: Path) -> None:
    torn = bytearray(batch(b"c"))
    torn[-1] ^= 1
    async with asking(tmp_path) as (_, client):
        await create(client, "t")
        for records, acks, expected, offset in (
            (batch(b"a", b"b", sequence=0), -1, ErrorCode.NONE, 0),
            (batch(b"a", b"b", sequence=0), -1, ErrorCode.NONE, 0),
            (batch(b"z", sequence=9), -1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
            (bytes(torn), -1, ErrorCode.CORRUPT_MESSAGE, -1),
            (batch(b"c"), 2, ErrorCode.INVALID_REQUIRED_ACKS, -1),
            (batch(b"c"), 1, ErrorCode.NONE, 2),
        ):
            answer = await produce(client, records, acks=acks)
            assert (answer.error_code, answer.base_offset) == (expected, offset)


async def test_without_answers_an_error_closes_the_connection(tmp_path: Path) -> None:
    def unanswered(name: str) -> ProduceRequest:
        data = [PartitionProduceData(index=0, records=batch(b"a"))]
        topic = TopicProduceData(name=name, partition_data=data)
        return ProduceRequest(acks=0, timeout_ms=5000, topic_data=[topic])

    async with asking(tmp_path) as (_, client):
        await create(client, "t")
        client.send_no_reply(unanswered("t"), version=BY_NAME)
        assert (await read(client, 0, max_wait_ms=5000))[1]
        client.send_no_reply(unanswered("no topic"), version=BY_NAME)
        with pytest.raises(ConnectionLost):
            await read(client, 0)


async def test_a_leader_elsewhere_is_named_with_its_epoch(tmp_path: Path) -> None:
    """KIP-951: since Produce 10 and Fetch 16."""
    async with asking(tmp_path) as (broker, client):
        topic_id = await create(client, "t", 1)
        topic = broker.controller.image.topics["t"]
        moved = replace(topic.partitions[0], leader_id=BrokerId(2), leader_epoch=Epoch(4))
        topics = {"t": replace(topic, partitions=(moved,))}
        delta = ClusterDelta(partitions=frozenset({TopicPartition("t", 0)}))
        broker.controller.publish(delta, topics=topics)
        for version in (9, 10):
            answer = await produce(client, batch(b"a"), version=version)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            there = produce_messages.LeaderIdAndEpoch(leader_id=2, leader_epoch=4)
            assert answer.current_leader == (there if version == 10 else None)
        asked = FetchPartition(partition=0, current_leader_epoch=3, partition_max_bytes=1000)
        fetch = FetchRequest(topics=[FetchTopic(topic_id=topic_id, partitions=[asked])])
        [found] = (await client.send(fetch, version=16)).responses[0].partitions
        assert found.current_leader == LeaderIdAndEpoch(leader_id=2, leader_epoch=4)


async def test_a_fetch_of_more_than_fits_has_as_much_as_fits(tmp_path: Path) -> None:
    one = batch(b"x" * 100)
    async with asking(tmp_path) as (_, client):
        await create(client, "t")
        for _ in range(3):
            await produce(client, one)
        for max_bytes, count in ((2 * len(one), 2), (0, 1), (-1, 1)):
            async with asyncio.timeout(10):
                _, records = await read(
                    client, 0, max_wait_ms=INT_MAX, min_bytes=INT_MAX, max_bytes=max_bytes
                )
            assert len(records) == count * len(one)


async def test_a_long_poll_ends_with_records_or_its_time(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, client):
        await create(client, "t")
        await produce(client, batch(b"a", b"b"))
        _, records = await read(client, 0)
        values = [record.value for _, all_of in decode_batches(records) for record in all_of]
        assert values == [b"a", b"b"]
        assert await read(client, 99) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        assert await read(client, 2, max_wait_ms=20) == (ErrorCode.NONE, b"")
        poll = asyncio.ensure_future(read(client, 2, max_wait_ms=5000))
        await asyncio.sleep(0.01)
        other = await KafkaConnection.open("127.0.0.1", broker.port, client_id="other")
        await produce(other, batch(b"c"))
        assert b"c" in (await poll)[1]
        await other.close()


async def test_offsets_are_found_by_name_time_and_epoch(tmp_path: Path) -> None:
    expected = {-1: (2, -1), -2: (0, -1), -3: (1, 1001), 1001: (1, 1001), 5000: (-1, -1)}
    async with asking(tmp_path) as (_, client):
        await create(client, "t")
        await produce(client, batch(b"a", b"b"))
        for timestamp, found in expected.items():
            answer = await list_offset(client, timestamp, version=7)
            assert (answer.error_code, answer.offset, answer.timestamp) == (0, *found)
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=0, leader_epoch=0)
        topic = OffsetForLeaderTopic(topic="t", partitions=[asked])
        end = await client.send(OffsetForLeaderEpochRequest(topics=[topic]))
        assert (end.topics[0].topic, end.topics[0].partitions[0].end_offset) == ("t", 2)
