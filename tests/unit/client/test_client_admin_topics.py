"""Topics and elections: what is asked of whom, and what comes of the answers."""

from typing import Any

import pytest

from quorumlog.client import (
    ErrorCode,
    KafkaError,
    NewPartitions,
    NewTopic,
)
from quorumlog.wire.codec.messages import create_partitions as create_partitions_
from quorumlog.wire.codec.messages import create_topics as create_topics_
from quorumlog.wire.codec.messages import describe_topic_partitions as describe_
from quorumlog.wire.codec.messages import elect_leaders as elect_
from tests.support.client.fake_admin import U, cluster_and_admin
from tests.support.client.fake_cluster import T


def created(code: ErrorCode = ErrorCode.NONE) -> create_topics_.CreateTopicsResponse:
    one = create_topics_.CreatableTopicResult(name="new", error_code=code)
    return create_topics_.CreateTopicsResponse(topics=[one])


async def test_a_new_topic_takes_numbers_as_settings() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(create_topics_.CreateTopicsRequest, created())
        configs: dict[str, str | int | float | bool]
        configs = {"retention.ms": 1000, "preallocate": False, "cleanup.policy": "delete"}
        await admin.create_topics([NewTopic("new", 3, 2, configs=configs)])
        (topic,) = cluster.requests()[0].topics
        assert (topic.name, topic.num_partitions, topic.replication_factor) == ("new", 3, 2)
        assert {one.name: one.value for one in topic.configs} == {
            "retention.ms": "1000",
            "preallocate": "false",
            "cleanup.policy": "delete",
        }


async def test_what_is_no_topic_is_refused_before_it_is_sent() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(create_topics_.CreateTopicsRequest, created())
        wrong: Any = ["x"]
        with pytest.raises(TypeError, match="must be a list of NewTopic, not of 'x'"):
            await admin.create_topics(wrong)
        wrong = {"retention.ms": [1]}
        with pytest.raises(
            TypeError, match=r"setting 'retention\.ms' must be a str, int, float or bool"
        ):
            await admin.create_topics([NewTopic("new", configs=wrong)])
        with pytest.raises(KafkaError, match="CreateTopics cannot be written") as caught:
            await admin.create_topics([NewTopic("new", 2**40)])
        assert caught.value.code == ErrorCode.INVALID_REQUEST
        assert caught.value.definite
        assert cluster.seen == []


def grown(code: ErrorCode = ErrorCode.NONE) -> create_partitions_.CreatePartitionsResponse:
    one = create_partitions_.CreatePartitionsTopicResult(
        name="t", error_code=code, error_message="said"
    )
    return create_partitions_.CreatePartitionsResponse(results=[one])


async def test_a_topic_grows() -> None:
    async with cluster_and_admin() as (cluster, admin):
        refused = grown(ErrorCode.INVALID_PARTITIONS)
        cluster.offer(create_partitions_.CreatePartitionsRequest, grown(), grown(), refused)
        await admin.create_partitions({"t": 6})
        await admin.create_partitions({"t": NewPartitions(3, [[1, 2]])}, validate_only=True)
        with pytest.raises(KafkaError, match="INVALID_PARTITIONS: t: said") as caught:
            await admin.create_partitions({"t": 1})
        assert caught.value.definite
        first, second, _ = cluster.requests()
        assert (first.topics[0].name, first.topics[0].count) == ("t", 6)
        assert first.topics[0].assignments is None
        assert [one.broker_ids for one in second.topics[0].assignments] == [[1, 2]]
        assert (first.validate_only, second.validate_only) == (False, True)
        wrong: Any = {"t": "6"}
        with pytest.raises(TypeError, match="t: must be an int or NewPartitions, not '6'"):
            await admin.create_partitions(wrong)


async def test_a_request_that_the_cluster_has_not_is_named() -> None:
    async with cluster_and_admin() as (_cluster, admin):
        with pytest.raises(KafkaError, match="this cluster has no CreatePartitions") as caught:
            await admin.create_partitions({"t": 6})
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert caught.value.definite
        with pytest.raises(KafkaError, match="this cluster has no DescribeProducers"):
            await admin.describe_producers([T])
        with pytest.raises(KafkaError, match="this cluster has no OffsetDelete"):
            await admin.delete_consumer_group_offsets("g", [T])
        assert (await admin.describe_topics(["t"]))["t"].partitions[0].elr is None


def page(*indexes: int, next_index: int | None = None) -> describe_.DescribeTopicPartitionsResponse:
    partitions = [
        describe_.DescribeTopicPartitionsResponsePartition(
            partition_index=index,
            leader_id=1,
            leader_epoch=2,
            replica_nodes=[1, 2],
            isr_nodes=[1],
            eligible_leader_replicas=[2],
        )
        for index in indexes
    ]
    topic = describe_.DescribeTopicPartitionsResponseTopic(name="t", partitions=partitions)
    cursor = None
    if next_index is not None:
        cursor = describe_.ResponseCursor(topic_name="t", partition_index=next_index)
    return describe_.DescribeTopicPartitionsResponse(topics=[topic], next_cursor=cursor)


async def test_topics_are_described_page_by_page_with_their_elr() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(describe_.DescribeTopicPartitionsRequest, page(0, 1, next_index=2), page(2))
        described = (await admin.describe_topics(["t", "a"]))["t"]
        assert sorted(described.partitions) == [0, 1, 2]
        assert (described.partitions[2].elr, described.partitions[2].last_known_elr) == ((2,), None)
        first, second = cluster.requests()
        assert ([one.name for one in first.topics], first.cursor) == (["a", "t"], None)
        assert [one.name for one in second.topics] == ["t"]
        assert (second.cursor.topic_name, second.cursor.partition_index) == ("t", 2)


async def test_a_cursor_that_does_not_move_ends_the_question() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(describe_.DescribeTopicPartitionsRequest, page(0, next_index=1))
        with pytest.raises(KafkaError, match="does not get past"):
            await admin.describe_topics(["t"])
        assert len(cluster.seen) == 2


async def test_leaders_are_elected_and_each_outcome_is_told() -> None:
    async with cluster_and_admin() as (cluster, admin):
        results = [
            elect_.PartitionResult(partition_id=0),
            elect_.PartitionResult(partition_id=1, error_code=ErrorCode.ELECTION_NOT_NEEDED),
        ]
        answer = elect_.ElectLeadersResponse(
            replica_election_results=[
                elect_.ReplicaElectionResult(topic="t", partition_result=results)
            ]
        )
        refused = elect_.ElectLeadersResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, replica_election_results=[]
        )
        cluster.offer(elect_.ElectLeadersRequest, answer, answer, refused)
        outcomes = await admin.elect_leaders([T, U])
        assert outcomes[T] is None
        error = outcomes[U]
        assert error is not None
        assert str(error) == "ELECTION_NOT_NEEDED: t-1"
        await admin.elect_leaders(election="unclean")
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await admin.elect_leaders()
        first, second, _ = cluster.requests()
        assert [(one.topic, one.partitions) for one in first.topic_partitions] == [("t", [0, 1])]
        assert (first.election_type, second.election_type) == (0, 1)
        assert second.topic_partitions is None
        wrong: Any = "any"
        with pytest.raises(ValueError, match="election is 'preferred' or 'unclean', not 'any'"):
            await admin.elect_leaders(None, wrong)
