"""A client without retries, as a plain connection of a Go library: what Metadata names, serves."""

from collections import Counter
from pathlib import Path

import pytest

from quorumlog.cluster import LocalCluster
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from quorumlog.wire.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from quorumlog.wire.io.connection import KafkaConnection

pytestmark = pytest.mark.integration
TRIES = 30


async def leader_of(connection: KafkaConnection, topic: str, partition: int) -> int:
    """Ask until the partition has a leader; the topic is created by the first request."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True
    )
    while True:
        [found] = (await connection.send(request, version=4)).topics
        leaders = {one.partition_index: one.leader_id for one in found.partitions}
        if leaders.get(partition, -1) >= 0:
            return leaders[partition]


async def first_answer(connection: KafkaConnection, topic: str, partition: int) -> str:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=-2)
    topics = [ListOffsetsTopic(name=topic, partitions=[asked])]
    response = await connection.send(ListOffsetsRequest(replica_id=-1, topics=topics), version=4)
    return ErrorCode(response.topics[0].partitions[0].error_code).name


@pytest.mark.parametrize("nodes", [1, 3])
async def test_a_new_partition_is_served_by_the_broker_that_says_that_it_leads_it(
    tmp_path: Path, nodes: int
) -> None:
    with LocalCluster(tmp_path, nodes=nodes) as cluster:
        host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
        connection = await KafkaConnection.open(host, int(port), client_id="plain")
        answers: Counter[str] = Counter()
        for number in range(TRIES):
            topic, grown = f"made-{number}", f"grown-{number}"
            if await leader_of(connection, topic, 0) == cluster.nodes[0].id:
                answers[await first_answer(connection, topic, 0)] += 1
            made = CreatableTopic(name=grown, num_partitions=1, replication_factor=-1)
            await connection.send(CreateTopicsRequest(topics=[made], timeout_ms=10_000))
            wanted = CreatePartitionsTopic(name=grown, count=2, assignments=None)
            await connection.send(CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000))
            for partition in (0, 1):
                if await leader_of(connection, grown, partition) == cluster.nodes[0].id:
                    answers[await first_answer(connection, grown, partition)] += 1
        await connection.close()
        assert answers.keys() == {"NONE"}
        assert answers.total() >= TRIES // nodes
