"""DescribeLogDirs, DescribeProducers and DeleteRecords over a connection, in every version."""

import errno
import os
from pathlib import Path

import pytest

from quorumlog.broker.handlers import log_dirs
from quorumlog.broker.partitions.io.descriptions import LogDirectoryDescription, ReplicaSize
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from quorumlog.wire.codec.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from quorumlog.wire.codec.messages.describe_producers import DescribeProducersRequest, TopicRequest
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.requests import list_offset, produce, topic_creation
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions


async def describe_dirs(
    connection: KafkaConnection, version: int, topics: dict[str, list[int]] | None
) -> DescribeLogDirsResult:
    request = DescribeLogDirsRequest(topics=None)
    if topics is not None:
        request.topics = [
            DescribableLogDirTopic(topic=name, partitions=part) for name, part in topics.items()
        ]
    response = await connection.send(request, version=version)
    assert response.error_code == ErrorCode.NONE
    [result] = response.results
    return result


async def append(connection: KafkaConnection, *, sequence: int = -1, producer_id: int = -1) -> int:
    """Append a batch of three records to partition 0; return its size."""
    batch = encode_batch(
        [Record(offset, 1, None, b"value") for offset in range(3)],
        producer_id=producer_id,
        producer_epoch=4 if producer_id >= 0 else -1,
        base_sequence=sequence,
    )
    assert (await produce(connection, batch)).error_code == ErrorCode.NONE
    return len(batch)


def sizes(result: DescribeLogDirsResult) -> dict[tuple[str, int], int]:
    assert not any(part.is_future_key for topic in result.topics for part in topic.partitions)
    return {
        (topic.name, part.partition_index): part.partition_size + part.offset_lag
        for topic in result.topics
        for part in topic.partitions
    }


async def test_the_log_directory_is_described_in_every_version(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 2)
        await create(connection, "u", 1)
        size = await append(connection) + await append(connection)
        for version in versions(35):
            result = await describe_dirs(connection, version, None)
            assert (result.error_code, result.log_dir) == (ErrorCode.NONE, str(tmp_path))
            assert not result.is_cordoned
            assert sizes(result) == {("t", 0): size, ("t", 1): 0, ("u", 0): 0}
            chosen = await describe_dirs(connection, version, {"t": [0, 0, 9], "v": [0]})
            assert sizes(chosen) == {("t", 0): size}
            assert (await describe_dirs(connection, version, {})).topics == []
            if version >= 4:
                total = os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks
                assert result.total_bytes == total
                assert 0 < result.usable_bytes <= total


def test_the_copy_of_a_moving_log_is_told_from_the_log() -> None:
    at = TopicPartition("t", 1)
    found = log_dirs._result(
        LogDirectoryDescription(
            path="/a",
            error_code=ErrorCode.NONE,
            replicas=(ReplicaSize(at, 10, 3), ReplicaSize(at, 4, 6, is_future=True)),
        )
    )
    [topic] = found.topics
    assert topic.partitions == [
        DescribeLogDirsPartition(partition_index=1, partition_size=10, offset_lag=3),
        DescribeLogDirsPartition(
            partition_index=1, partition_size=4, offset_lag=6, is_future_key=True
        ),
    ]


async def test_a_refusing_disk_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def space(disk: RealDisk, path: str) -> tuple[int, int]:
        raise OSError(errno.EIO, "planted", path)

    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        monkeypatch.setattr(RealDisk, "space", space)
        result = await describe_dirs(connection, 4, None)
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (result.topics, result.total_bytes, result.usable_bytes) == ([], -1, -1)


async def test_the_producers_of_a_partition_are_described(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        before_ms = broker.context.wall_ms()
        await append(connection)
        await append(connection, producer_id=7, sequence=0)
        await append(connection, producer_id=8, sequence=0)
        await append(connection, producer_id=7, sequence=3)
        request = DescribeProducersRequest(
            topics=[
                TopicRequest(name="t", partition_indexes=[0, 0, 5]),
                TopicRequest(name="u", partition_indexes=[0]),
            ]
        )
        response = await connection.send(request)
        here, elsewhere = response.topics[0].partitions
        assert here.error_code == ErrorCode.NONE
        told = [(p.producer_id, p.producer_epoch, p.last_sequence) for p in here.active_producers]
        assert told == [(8, 4, 2), (7, 4, 5)]
        for producer in here.active_producers:
            assert before_ms <= producer.last_timestamp <= broker.context.wall_ms()
            assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (elsewhere.partition_index, elsewhere.error_code) == (5, unknown)
        assert response.topics[1].partitions[0].error_code == unknown


async def test_many_producers_are_described_with_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.broker.partitions.io.descriptions.PRODUCERS_AT_ONCE", 2)

    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        for producer_id in range(5):
            await append(connection, producer_id=producer_id, sequence=0)
        asked = TopicRequest(name="t", partition_indexes=[0])
        response = await connection.send(DescribeProducersRequest(topics=[asked]))
        described = response.topics[0].partitions[0].active_producers
        assert [producer.producer_id for producer in described] == [0, 1, 2, 3, 4]


BATCH = encode_batch([Record(offset, 1, None, b"x") for offset in range(4)])


async def delete(
    connection: KafkaConnection, version: int, *asked: tuple[str, int, int]
) -> list[tuple[int, int]]:
    """Return (error code, low watermark) of each (topic, partition, offset)."""
    parts = [DeleteRecordsPartition(partition_index=index, offset=end) for _, index, end in asked]
    topics = [
        DeleteRecordsTopic(name=name, partitions=[part])
        for (name, *_), part in zip(asked, parts, strict=True)
    ]
    request = DeleteRecordsRequest(topics=topics, timeout_ms=5000)
    answered = (await connection.send(request, version=version)).topics
    assert [topic.name for topic in answered] == [name for name, *_ in asked]
    return [(one.error_code, one.low_watermark) for topic in answered for one in topic.partitions]


async def test_records_are_deleted_in_every_version(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        assert (await produce(connection, BATCH)).error_code == ErrorCode.NONE
        for version in versions(21):
            deleted = await delete(connection, version, ("t", 0, version + 1))
            assert deleted == [(ErrorCode.NONE, version + 1)]
        assert await delete(connection, 2, ("t", 0, -1)) == [(ErrorCode.NONE, 4)]
        assert (await list_offset(connection, -2)).offset == 4


async def test_each_partition_has_its_own_outcome(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await coordinator_is_ready(connection)
        await create(connection, "t", 1)
        await produce(connection, BATCH)
        await connection.send(topic_creation("compacted", configs={"cleanup.policy": "compact"}))
        outcomes = {
            ("t", 0, 5): (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
            ("t", 7, 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            ("unknown", 0, 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            ("__consumer_offsets", 0, -1): (ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
            ("compacted", 0, 0): (ErrorCode.POLICY_VIOLATION, -1),
            ("t", 0, 3): (ErrorCode.NONE, 3),
        }
        assert await delete(connection, 2, *outcomes) == [*outcomes.values()]
