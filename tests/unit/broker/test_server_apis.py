"""APIs of metadata, asked over a connection in each version; refusals as in Apache Kafka 4.3."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.responses.internal_topics import new_topic
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER
from quorumlog.wire.codec.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from quorumlog.wire.codec.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from quorumlog.wire.codec.messages.describe_cluster import DescribeClusterRequest
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.schemas import request_class
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.requests import list_offset, lose_controller, produce, topic_creation
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.support.groups.offset_requests import commit
from tests.support.groups.single_broker import BROKER, SETTINGS


async def test_each_version_of_each_api_answers_an_empty_request(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for api_key in sorted(HANDLERS):
            for version in versions(api_key):
                request = request_class(api_key)()
                if hasattr(request, "acks"):
                    request.acks = -1  # with 0 there would be no answer to wait for
                assert await connection.send(request, version=version) is not None


@pytest.mark.parametrize(
    ("name", "partitions", "replication_factor"),
    [("__consumer_offsets", 4, 2), ("__transaction_state", 5, 3)],
)
def test_an_internal_topic_has_the_settings_of_its_own(
    name: str, partitions: int, replication_factor: int
) -> None:
    settings = BrokerSettings(
        offsets_topic_num_partitions=4,
        offsets_topic_replication_factor=2,
        transaction_state_log_num_partitions=5,
        transaction_state_log_replication_factor=3,
    )
    topic = new_topic(name, settings)
    assert (topic.partitions, topic.replication_factor) == (partitions, replication_factor)


async def test_clients_do_not_write_to_the_internal_topics(tmp_path: Path) -> None:
    """One record that the coordinator cannot read would keep it from loading the partition."""

    async with asking(tmp_path) as (_, connection):
        finder = FindCoordinatorRequest(key="g", coordinator_keys=["g"])
        await connection.send(finder)  # makes the topic
        batch = encode_batch([Record(0, 0, b"k", b"v")])
        for acks in (1, -1):
            answer = await produce(connection, batch, topic="__consumer_offsets", acks=acks)
            assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert answer.error_message == "only brokers write to this topic"


async def test_metadata_lists_brokers_topics_by_name_or_id_and_leaders(tmp_path: Path) -> None:
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
        asked = [
            MetadataRequestTopic(topic_id=topic_id, name=None),
            MetadataRequestTopic(topic_id=b"x" * 16, name=None),
        ]
        response = await connection.send(MetadataRequest(topics=asked), version=13)
        outcomes = [(topic.name, topic.error_code) for topic in response.topics]
        assert outcomes == [("t", ErrorCode.NONE), (None, ErrorCode.UNKNOWN_TOPIC_ID)]


async def test_metadata_creates_a_topic_if_client_and_settings_allow_it(tmp_path: Path) -> None:
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
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        topic = broker.controller.image.topics["t"]
        leaderless = replace(topic.partitions[0], leader_id=NO_LEADER)
        topics = {"t": replace(topic, partitions=(leaderless,))}
        broker.metadata.publish(ClusterDelta(), replace(broker.controller.image, topics=topics))
        response = await connection.send(MetadataRequest(topics=None))
        [partition] = response.topics[0].partitions
        assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        lose_controller(monkeypatch, broker)
        request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
        [new] = (await connection.send(request)).topics
        assert new.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        finder = FindCoordinatorRequest(coordinator_keys=["g"])
        [found] = (await connection.send(finder)).coordinators
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        [outcome] = (await connection.send(topic_creation("x"))).topics
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
            CreatableTopic(
                name="assigned.twice",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1])] * 2,
            ),
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
                "assigned.twice": ErrorCode.INVALID_REPLICA_ASSIGNMENT,
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


async def test_a_topic_is_described_with_the_setting_of_its_creation(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        cluster = await connection.send(DescribeClusterRequest())
        assert [node.broker_id for node in cluster.brokers] == [BROKER]
        metadata = await connection.send(MetadataRequest(topics=[]))
        assert cluster.cluster_id == metadata.cluster_id == "test"
        request = topic_creation("t", configs={"retention.ms": "5"})
        [created] = (await connection.send(request)).topics
        settings = {made.name: (made.value, made.config_source) for made in created.configs or []}
        assert settings["retention.ms"] == ("5", 1)
        assert settings["cleanup.policy"] == ("delete", 5)
        resources = [
            DescribeConfigsResource(resource_type=kind, resource_name=name)
            for kind, name in ((2, "t"), (2, "nope"), (4, "77"))
        ]
        for version in versions(32):
            asked = DescribeConfigsRequest(resources=resources, include_synonyms=True)
            response = await connection.send(asked, version=version)
            of_topic, unknown, other = response.results
            values = {found.name: (found.value, found.config_source) for found in of_topic.configs}
            assert values["retention.ms"] == ("5", 1)
            assert values["min.insync.replicas"] == ("1", 5)
            assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert other.error_code == ErrorCode.INVALID_REQUEST


async def test_producer_ids_are_given_once_and_not_for_half_of_one(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        given = [await connection.send(InitProducerIdRequest()) for _ in range(25)]
        assert {(answer.error_code, answer.producer_epoch) for answer in given} == {(0, 0)}
        assert len({answer.producer_id for answer in given}) == 25
        for producer_id, epoch, code in (
            (5, -1, ErrorCode.INVALID_REQUEST),
            (-1, 0, ErrorCode.INVALID_REQUEST),
            (5, 0, ErrorCode.NONE),
            (-1, -1, ErrorCode.NONE),
        ):
            request = InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
            for version in versions(22)[3:]:
                answer = await connection.send(request, version=version)
                assert answer.error_code == code
                is_given = code == ErrorCode.NONE
                assert (answer.producer_id >= 0) is is_given
                assert answer.producer_epoch == (0 if is_given else -1)


def list_offsets(*asked: tuple[int, int]) -> ListOffsetsTopic:
    """Return the request for these (partition, timestamp)."""
    parts = [ListOffsetsPartition(partition_index=one, timestamp=at) for one, at in asked]
    return ListOffsetsTopic(name="t", partitions=parts)


async def test_a_partition_named_twice_in_list_offsets_has_one_error(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        in_one = [list_offsets((0, -1), (0, -2), (1, -1))]
        in_two = [list_offsets((0, -1), (1, -1)), list_offsets((0, -1))]
        for topics in (in_one, in_two):
            request = ListOffsetsRequest(replica_id=-1, topics=topics)
            for version in versions(2):
                [topic] = (await connection.send(request, version=version)).topics
                codes = {part.partition_index: part.error_code for part in topic.partitions}
                assert len(topic.partitions) == 2
                assert codes == {0: ErrorCode.INVALID_REQUEST, 1: ErrorCode.NONE}
        ask = FetchPartition(partition=0, fetch_offset=99, partition_max_bytes=1000)
        fetch = FetchRequest(topics=[FetchTopic(topic="t", partitions=[ask])])
        answer = await connection.send(fetch, version=12)
        [partition] = answer.responses[0].partitions
        assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert partition.high_watermark == partition.last_stable_offset == -1
        assert partition.log_start_offset == -1


FIRST_VERSIONS = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}


async def test_a_special_offset_is_known_from_its_version_on(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        for version in versions(2):
            for timestamp in (*FIRST_VERSIONS, -7, -(2**63), 5):
                asked = ListOffsetsRequest(replica_id=-1, topics=[list_offsets((0, timestamp))])
                [topic] = (await connection.send(asked, version=version)).topics
                is_known = timestamp > 0 or version >= FIRST_VERSIONS.get(timestamp, 99)
                expected = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_VERSION
                [partition] = topic.partitions
                assert partition.error_code == expected, (version, timestamp)


# Answers of Apache Kafka 4.3.1 without tiered storage: (offset, timestamp, has an epoch) for the
# batches [0, 1], [2, 3] and [4, 5] of the timestamps 1000 to 1002, with the log start 0, then 3.
NOTHING = -1, -1, False
OFFSETS_OF_KAFKA = {
    -1: ((6, -1, True), (6, -1, True)),  # latest
    -2: ((0, -1, True), (3, -1, True)),  # earliest
    -3: ((4, 1002, True), (4, 1002, True)),  # of the largest timestamp
    -4: ((0, -1, True), (3, -1, True)),  # earliest local
    -5: (NOTHING, NOTHING),  # latest tiered
    -6: (NOTHING, NOTHING),  # earliest pending upload
    0: ((0, 1000, True), (3, 1001, True)),
    10**15: (NOTHING, NOTHING),
}


async def test_special_offsets_are_those_of_kafka_without_tiered_storage(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        for timestamp_ms in (1000, 1001, 1002):
            records = [Record(offset, timestamp_ms, b"k", b"v") for offset in (0, 1)]
            assert (await produce(connection, encode_batch(records))).error_code == 0
        for place, log_start_offset in enumerate((0, 3)):
            await delete_records(connection, log_start_offset)
            for timestamp, answers in OFFSETS_OF_KAFKA.items():
                for version in range(4, 12):
                    if version < FIRST_VERSIONS.get(timestamp, 0):
                        continue
                    found = await list_offset(connection, timestamp, version=version)
                    assert found.error_code == ErrorCode.NONE
                    has_epoch = found.leader_epoch >= 0
                    answer = found.offset, found.timestamp, has_epoch
                    assert answer == answers[place], (timestamp, version)
        for timestamp in (-4, -5, -6):  # they are a leader's answers, too
            asked = ListOffsetsPartition(
                partition_index=0, timestamp=timestamp, current_leader_epoch=99
            )
            topic = ListOffsetsTopic(name="t", partitions=[asked])
            request = ListOffsetsRequest(replica_id=-1, topics=[topic], timeout_ms=1000)
            [refused] = (await connection.send(request)).topics[0].partitions
            assert refused.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def delete_records(connection: KafkaConnection, offset: int) -> None:
    part = DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsTopic(name="t", partitions=[part])]
    answer = await connection.send(DeleteRecordsRequest(topics=topics, timeout_ms=5000))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


async def test_metadata_of_a_topic_named_twice_or_by_an_id_too_early(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        topic_id = await create(connection, "t")
        names = [MetadataRequestTopic(name=name) for name in ("t", "a/b", "t", "a/b")]
        for version in versions(3):
            answer = await connection.send(MetadataRequest(topics=names), version=version)
            assert [topic.name for topic in answer.topics] == ["t", "a/b"]
        ids = [MetadataRequestTopic(name=None, topic_id=topic_id)] * 2
        answer = await connection.send(MetadataRequest(topics=ids))
        assert [topic.name for topic in answer.topics] == ["t"]
        by_id = MetadataRequestTopic(name="t", topic_id=topic_id)
        nameless = MetadataRequestTopic(name=None)
        for version in (10, 11):
            for wrong in (by_id, nameless):
                request = MetadataRequest(topics=[MetadataRequestTopic(name="t"), wrong])
                answer = await connection.send(request, version=version)
                outcomes = [(topic.name, topic.error_code) for topic in answer.topics]
                refusal = ErrorCode.INVALID_REQUEST
                assert outcomes == [("t", refusal), (wrong.name or "", refusal)]
                assert answer.brokers == []
        answer = await connection.send(MetadataRequest(topics=[by_id]), version=12)
        assert answer.topics[0].error_code == ErrorCode.NONE


async def test_describe_cluster_has_two_types_of_endpoints_and_one_answer(tmp_path: Path) -> None:
    expected = {
        0: ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        1: ErrorCode.NONE,
        2: ErrorCode.MISMATCHED_ENDPOINT_TYPE,
        3: ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
    }
    async with asking(tmp_path) as (_, connection):
        for version in (1, 2):
            for endpoint_type, code in expected.items():
                request = DescribeClusterRequest(endpoint_type=endpoint_type)
                answer = await connection.send(request, version=version)
                assert (answer.error_code, bool(answer.brokers)) == (code, code == 0)
                assert answer.endpoint_type == 1
                if endpoint_type == 2:  # clients show it to people
                    assert answer.error_message == (
                        "The request was sent to an endpoint of type BROKER, but we wanted an "
                        "endpoint of type CONTROLLER"
                    )


NOT_ASKED = -(2**31)
TOPIC, CLUSTER, GROUP = 3576, 8096, 3400  # as Apache Kafka answers without an authorizer


async def test_operations_of_topics_cluster_and_groups_are_named_if_asked(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        asked = [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="a/b")]
        for version in versions(3)[8:]:
            for topics in (asked, None):
                plain = await connection.send(MetadataRequest(topics=topics), version=version)
                found = {topic.topic_authorized_operations for topic in plain.topics}
                assert found == {NOT_ASKED}
                assert plain.cluster_authorized_operations == NOT_ASKED
                curious = MetadataRequest(
                    topics=topics,
                    include_topic_authorized_operations=True,
                    include_cluster_authorized_operations=version <= 10,
                )
                full = await connection.send(curious, version=version)
                found = {topic.topic_authorized_operations for topic in full.topics}
                assert found == {TOPIC}
                expected = CLUSTER if version <= 10 else NOT_ASKED  # gone since v11
                assert full.cluster_authorized_operations == expected
        unknown = MetadataRequestTopic(topic_id=b"x" * 16, name=None)
        request = MetadataRequest(topics=[unknown], include_topic_authorized_operations=True)
        [topic] = (await connection.send(request, version=12)).topics
        assert topic.topic_authorized_operations == NOT_ASKED
        for version in versions(60):
            for include, expected in ((False, NOT_ASKED), (True, CLUSTER)):
                cluster = DescribeClusterRequest(include_cluster_authorized_operations=include)
                answer = await connection.send(cluster, version=version)
                assert answer.cluster_authorized_operations == expected
        await coordinator_is_ready(connection)
        assert await commit(connection, "g") == 0
        for version in versions(15)[3:]:
            asking_groups = DescribeGroupsRequest(groups=["g", "nope"])
            described = await connection.send(asking_groups, version=version)
            assert {group.authorized_operations for group in described.groups} == {NOT_ASKED}
            asking_groups.include_authorized_operations = True
            known, nobody = (await connection.send(asking_groups, version=version)).groups
            assert known.authorized_operations == GROUP
            is_error = version >= 6  # older versions call it a Dead group
            assert nobody.authorized_operations == (NOT_ASKED if is_error else GROUP)
