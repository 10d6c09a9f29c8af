"""Requests about one topic, partition or setting, and the part of the answer that is about it."""

from collections.abc import Mapping

import pytest

from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.single_broker import SingleBroker

BY_NAME = 12  # the last version of Produce that names topics, and not their ids


def lose_controller(
    monkeypatch: pytest.MonkeyPatch, broker: SingleBroker, error: Exception | None = None
) -> None:
    """Let all calls of the controller fail: by default, it does not answer."""

    async def unavailable(*_: object, **__: object) -> None:
        raise error or ControllerUnavailable("silence")

    for name in ("ask", "add_voter", "remove_voter", "upgrade_kraft_version"):
        monkeypatch.setattr(broker.controller, name, unavailable)


def topic_creation(
    name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> CreateTopicsRequest:
    given = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=given
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


async def produce(
    connection: KafkaConnection,
    records: bytes,
    *,
    topic: str = "t",
    topic_id: bytes = ZERO_UUID,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
    version: int = BY_NAME,
) -> PartitionProduceResponse:
    part = PartitionProduceData(index=partition, records=records)
    data = TopicProduceData(name=topic, topic_id=topic_id, partition_data=[part])
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[data]
    )
    answer = await connection.send(request, version=version)
    return answer.responses[0].partition_responses[0]


async def list_offset(
    connection: KafkaConnection,
    timestamp: int,
    *,
    topic: str = "t",
    partition: int = 0,
    isolation_level: int = 0,
    version: int = 6,
) -> ListOffsetsPartitionResponse:
    part = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    topics = [ListOffsetsTopic(name=topic, partitions=[part])]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)
    return (await connection.send(request, version=version)).topics[0].partitions[0]


async def describe_configs(
    connection: KafkaConnection,
    resource_type: int,
    name: str,
    keys: list[str] | None = None,
    version: int = 4,
    **more: bool,
) -> DescribeConfigsResult:
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(resources=[resource], **more)
    [result] = (await connection.send(request, version=version)).results
    return result
