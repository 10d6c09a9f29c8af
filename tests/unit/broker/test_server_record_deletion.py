"""DeleteRecords, asked over a connection in every version."""

from pathlib import Path

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from quorumlog.wire.codec.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions

BATCH = encode_batch([Record(offset, 1, None, b"x") for offset in range(4)])


async def produce(connection: KafkaConnection, topic_id: bytes, partition: int) -> None:
    data = TopicProduceData(
        topic_id=topic_id, partition_data=[PartitionProduceData(index=partition, records=BATCH)]
    )
    response = await connection.send(
        ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), version=13
    )
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def delete(
    connection: KafkaConnection, version: int, *asked: tuple[str, int, int]
) -> list[tuple[int, int]]:
    """Return (error code, low watermark) of each (topic, partition, offset)."""
    topics = [
        DeleteRecordsTopic(
            name=name, partitions=[DeleteRecordsPartition(partition_index=index, offset=offset)]
        )
        for name, index, offset in asked
    ]
    response = await connection.send(
        DeleteRecordsRequest(topics=topics, timeout_ms=5000), version=version
    )
    assert [topic.name for topic in response.topics] == [name for name, *_ in asked]
    return [
        (partition.error_code, partition.low_watermark)
        for topic in response.topics
        for partition in topic.partitions
    ]


async def test_records_are_deleted_in_every_version(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        topic_id = await create(connection, "t", 1)
        await produce(connection, topic_id, 0)
        for version in versions(21):
            deleted = await delete(connection, version, ("t", 0, version + 1))
            assert deleted == [(ErrorCode.NONE, version + 1)]
        assert await delete(connection, 2, ("t", 0, -1)) == [(ErrorCode.NONE, 4)]
        earliest = ListOffsetsTopic(
            name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-2)]
        )
        found = await connection.send(ListOffsetsRequest(replica_id=-1, topics=[earliest]))
        assert found.topics[0].partitions[0].offset == 4


async def test_each_partition_has_its_own_outcome(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await coordinator_is_ready(connection)
        topic_id = await create(connection, "t", 1)
        await produce(connection, topic_id, 0)
        compacted = CreatableTopic(
            name="compacted",
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="cleanup.policy", value="compact")],
        )
        await connection.send(CreateTopicsRequest(topics=[compacted], timeout_ms=1000))
        outcomes = await delete(
            connection,
            2,
            ("t", 0, 5),
            ("t", 7, 0),
            ("unknown", 0, 0),
            ("__consumer_offsets", 0, -1),
            ("compacted", 0, 0),
            ("t", 0, 3),
        )
        assert outcomes == [
            (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (ErrorCode.INVALID_TOPIC_EXCEPTION, -1),
            (ErrorCode.POLICY_VIOLATION, -1),
            (ErrorCode.NONE, 3),
        ]
