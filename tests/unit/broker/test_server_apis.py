"""Each API's handler, asked over a connection, in the versions that clients send."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER
from quorumlog.wire.codec.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from quorumlog.wire.codec.messages.describe_cluster import DescribeClusterRequest
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.schemas import request_class
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, create, versions
from tests.support.groups.single_broker import BROKER, SETTINGS


@pytest.mark.parametrize("api_key", sorted(HANDLERS))
async def test_every_version_of_every_api_answers_even_an_empty_request(
    api_key: int, tmp_path: Path
) -> None:
    async with asking(tmp_path) as (_, connection):
        for version in versions(api_key):
            request = request_class(api_key)()
            if hasattr(request, "acks"):
                request.acks = -1  # with 0 there would be no answer to wait for
            await connection.send(request, version=version)


@pytest.mark.parametrize("acks", [1, -1])
async def test_clients_do_not_write_to_the_internal_topics(tmp_path: Path, acks: int) -> None:
    """One record that the coordinator cannot read would keep it from loading the partition."""

    async with asking(tmp_path) as (_, connection):
        finder = FindCoordinatorRequest(key="g", coordinator_keys=["g"])
        await connection.send(finder)  # makes the topic
        data = PartitionProduceData(index=0, records=encode_batch([Record(0, 0, b"k", b"v")]))
        topic = TopicProduceData(name="__consumer_offsets", partition_data=[data])
        request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
        response = await connection.send(request, version=9)
        [answer] = response.responses[0].partition_responses
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert answer.error_message == "only brokers write to this topic"


async def test_metadata_lists_brokers_topics_and_who_leads(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await create(connection, "t")
        for version in versions(3):
            everything = MetadataRequest(topics=[] if version == 0 else None)
            response = await connection.send(everything, version=version)
            assert isinstance(response, MetadataResponse)
            [node] = response.brokers
            assert (node.node_id, node.port) == (BROKER, broker.port)
            [topic] = response.topics
            assert (topic.name, topic.error_code, len(topic.partitions)) == ("t", 0, 2)
            assert {part.leader_id for part in topic.partitions} == {BROKER}
            if version >= 1:
                assert response.controller_id == BROKER
                nothing = await connection.send(MetadataRequest(topics=[]), version=version)
                assert nothing.topics == []
            if version >= 10:
                assert topic.topic_id == topic_id


async def test_metadata_by_id(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        topic_id = await create(connection, "t")
        asked = [
            MetadataRequestTopic(topic_id=topic_id, name=None),
            MetadataRequestTopic(topic_id=b"x" * 16, name=None),
        ]
        response = await connection.send(MetadataRequest(topics=asked), version=13)
        outcomes = [(topic.name, topic.error_code) for topic in response.topics]
        assert outcomes == [("t", ErrorCode.NONE), (None, ErrorCode.UNKNOWN_TOPIC_ID)]


async def test_metadata_creates_a_topic_if_the_client_and_the_settings_allow_it(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (broker, connection):

        async def ask(name: str, *, allowed: bool = True) -> int:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=allowed
            )
            return (await connection.send(request, version=9)).topics[0].error_code

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await ask("new", allowed=False) == unknown
        assert await ask("new") == ErrorCode.NONE
        assert await ask("not a name") == ErrorCode.INVALID_TOPIC_EXCEPTION
        broker.context.settings = replace(SETTINGS, auto_create_topics_enable=False)
        other = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
        request = MetadataRequest(topics=[MetadataRequestTopic(name="other")])
        assert (await other.send(request)).topics[0].error_code == unknown
        await other.close()


async def test_metadata_without_a_leader_or_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise ControllerUnavailable

    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        topic = broker.controller.image.topics["t"]
        leaderless = replace(topic.partitions[0], leader_id=NO_LEADER)
        topics = {"t": replace(topic, partitions=(leaderless,))}
        broker.metadata.publish(ClusterDelta(), replace(broker.controller.image, topics=topics))
        response = await connection.send(MetadataRequest(topics=None))
        [partition] = response.topics[0].partitions
        assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        monkeypatch.setattr(broker.controller, "create_topics", unavailable)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
        [new] = (await connection.send(request)).topics
        assert new.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        [found] = (
            await connection.send(FindCoordinatorRequest(coordinator_keys=["g"]))
        ).coordinators
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        failed = CreateTopicsRequest(topics=[CreatableTopic(name="x")], timeout_ms=1)
        [outcome] = (await connection.send(failed)).topics
        assert outcome.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_topics_are_created_and_deleted_with_an_outcome_each(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        wanted = [
            CreatableTopic(name="good", num_partitions=3, replication_factor=1),
            CreatableTopic(name="bad name"),
            CreatableTopic(name="twice"),
            CreatableTopic(name="twice"),
            CreatableTopic(name="many", num_partitions=1, replication_factor=2),
            CreatableTopic(
                name="null", configs=[CreatableTopicConfig(name="retention.ms", value=None)]
            ),
            CreatableTopic(name="long", configs=[CreatableTopicConfig(name="x" * 32_767)]),
        ]
        for version in versions(19):
            response = await connection.send(
                CreateTopicsRequest(topics=wanted, timeout_ms=1000), version=version
            )
            codes = {topic.name: topic.error_code for topic in response.topics}
            first = version == versions(19)[0]
            assert codes == {
                "good": ErrorCode.NONE if first else ErrorCode.TOPIC_ALREADY_EXISTS,
                "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
                "twice": ErrorCode.INVALID_REQUEST,
                "many": ErrorCode.INVALID_REPLICATION_FACTOR,
                "null": ErrorCode.INVALID_CONFIG,
                "long": ErrorCode.INVALID_CONFIG,
            }
        for version in versions(20):
            topic_id = await create(connection, "t")
            request = DeleteTopicsRequest(
                topic_names=["t", "nope"],
                topics=[
                    DeleteTopicState(topic_id=topic_id),
                    DeleteTopicState(name="nope"),
                    DeleteTopicState(topic_id=b"y" * 16),
                ],
                timeout_ms=1000,
            )
            deleted = await connection.send(request, version=version)
            outcomes = [(topic.name, topic.error_code) for topic in deleted.responses]
            unknown = [(None, ErrorCode.UNKNOWN_TOPIC_ID)] if version == 6 else []
            nope = ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert outcomes == [("t", ErrorCode.NONE), nope, *unknown]


async def test_what_to_delete_must_be_said_in_one_way_only(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        ids = {name: await create(connection, name) for name in ("a", "b", "c")}
        request = DeleteTopicsRequest(
            topics=[
                DeleteTopicState(name="a", topic_id=ids["b"]),
                DeleteTopicState(),
                DeleteTopicState(name="c"),
                DeleteTopicState(topic_id=ids["c"]),
            ],
            timeout_ms=1000,
        )
        deleted = await connection.send(request, version=6)
        codes = {topic.error_code for topic in deleted.responses}
        assert (codes, len(deleted.responses)) == ({ErrorCode.INVALID_REQUEST}, 4)
        assert set(broker.controller.image.topics) == {"a", "b", "c"}


async def test_internal_topics_are_made_as_they_must_be_whoever_asks_first(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        names = ("__consumer_offsets", "__transaction_state", "__consumer_offsets")
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
        offsets, transactions = (await connection.send(request)).topics
        assert (offsets.error_code, len(offsets.partitions)) == (ErrorCode.NONE, 3)
        assert (transactions.error_code, len(transactions.partitions)) == (ErrorCode.NONE, 3)
        made = broker.controller.image.topics
        assert {topic.configs["cleanup.policy"] for topic in made.values()} == {"compact"}


async def test_a_partition_is_assigned_once(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        twice = [CreatableReplicaAssignment(partition_index=0, broker_ids=[BROKER])] * 2
        topic = CreatableTopic(
            name="t", num_partitions=-1, replication_factor=-1, assignments=twice
        )
        [outcome] = (await connection.send(CreateTopicsRequest(topics=[topic]))).topics
        assert outcome.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_describe_cluster_and_configs(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        cluster = await connection.send(DescribeClusterRequest())
        assert [node.broker_id for node in cluster.brokers] == [BROKER]
        assert cluster.cluster_id == "test"
        wrong = await connection.send(DescribeClusterRequest(endpoint_type=2))
        assert wrong.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
        config = CreatableTopicConfig(name="retention.ms", value="5")
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=[config])
        create_request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
        [created] = (await connection.send(create_request)).topics
        settings = {made.name: (made.value, made.config_source) for made in created.configs or []}
        assert settings["retention.ms"] == ("5", 1)
        assert settings["cleanup.policy"] == ("delete", 5)
        resources = [
            DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None),
            DescribeConfigsResource(
                resource_type=4,
                resource_name="1",
                configuration_keys=["num.partitions", "advertised.listeners"],
            ),
            DescribeConfigsResource(resource_type=2, resource_name="nope"),
            DescribeConfigsResource(resource_type=4, resource_name="77"),
        ]
        for version in versions(32):
            request = DescribeConfigsRequest(resources=resources, include_synonyms=True)
            response = await connection.send(request, version=version)
            of_topic, of_broker, unknown, other = response.results
            values = {found.name: (found.value, found.config_source) for found in of_topic.configs}
            assert values["retention.ms"] == ("5", 1)
            assert values["min.insync.replicas"] == ("1", 5)
            assert {found.name: found.value for found in of_broker.configs} == {
                "num.partitions": "1",
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker.port}",
            }
            assert all(found.read_only for found in of_broker.configs)
            assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert other.error_code == ErrorCode.INVALID_REQUEST


async def test_producer_ids_are_given_once(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        given = [await connection.send(InitProducerIdRequest()) for _ in range(25)]
        assert {(answer.error_code, answer.producer_epoch) for answer in given} == {(0, 0)}
        assert len({answer.producer_id for answer in given}) == 25
