"""Requests that contradict themselves or their version, and what Apache Kafka 4.3 answers."""

from pathlib import Path

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from quorumlog.wire.codec.messages.describe_cluster import DescribeClusterRequest
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.groups.asking import asking, create, versions


def list_offsets(*asked: tuple[int, int], topic: str = "t") -> ListOffsetsTopic:
    """Return what asks for these (partition, timestamp)."""
    partitions = [
        ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index, timestamp in asked
    ]
    return ListOffsetsTopic(name=topic, partitions=partitions)


async def test_a_partition_named_twice_in_list_offsets_is_answered_once_with_an_error(
    tmp_path: Path,
) -> None:
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


async def test_a_special_offset_is_known_from_its_version_on(tmp_path: Path) -> None:
    first_versions = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        for version in versions(2):
            for timestamp in (*first_versions, -7, -(2**63), 5):
                asked = ListOffsetsRequest(replica_id=-1, topics=[list_offsets((0, timestamp))])
                [topic] = (await connection.send(asked, version=version)).topics
                is_known = timestamp > 0 or version >= first_versions.get(timestamp, 99)
                expected = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_VERSION
                [partition] = topic.partitions
                assert partition.error_code == expected, (version, timestamp)


async def test_a_topic_named_twice_in_metadata_is_answered_once(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        topic_id = await create(connection, "t")
        names = [MetadataRequestTopic(name=name) for name in ("t", "a/b", "t", "a/b")]
        for version in versions(3):
            answer = await connection.send(MetadataRequest(topics=names), version=version)
            assert [topic.name for topic in answer.topics] == ["t", "a/b"]
        ids = [MetadataRequestTopic(name=None, topic_id=topic_id)] * 2
        answer = await connection.send(MetadataRequest(topics=ids))
        assert [topic.name for topic in answer.topics] == ["t"]


async def test_a_topic_id_in_a_version_that_goes_by_names_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        topic_id = await create(connection, "t")
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


async def test_describe_cluster_knows_two_types_of_endpoints_and_answers_for_one(
    tmp_path: Path,
) -> None:
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


async def test_a_producer_id_without_an_epoch_or_the_reverse_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
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
                assert (answer.producer_id >= 0, answer.producer_epoch) == (
                    is_given,
                    0 if is_given else -1,
                )


async def test_the_consumer_group_protocol_is_refused_aloud(tmp_path: Path) -> None:
    """A client that got no answer would wait without a word to its user."""

    async with asking(tmp_path) as (_, connection):
        for version in versions(68):
            request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m")
            answer = await connection.send(request, version=version)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert "group.protocol=classic" in (answer.error_message or "")


async def test_describe_configs_of_all_brokers_is_empty_and_of_no_topic_name_an_error(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (_, connection):
        resources = [
            DescribeConfigsResource(resource_type=4, resource_name=""),
            DescribeConfigsResource(resource_type=2, resource_name="a/b"),
            DescribeConfigsResource(resource_type=2, resource_name="nope"),
        ]
        request = DescribeConfigsRequest(resources=resources)
        for version in versions(32):
            answers = (await connection.send(request, version=version)).results
            assert [answer.error_code for answer in answers] == [
                ErrorCode.NONE,
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            assert [answer.configs for answer in answers] == [[], [], []]


async def test_a_consumer_is_told_no_offsets_beside_an_error(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        ask = FetchPartition(partition=0, fetch_offset=99, partition_max_bytes=1000)
        request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[ask])])
        answer = await connection.send(request, version=12)
        [partition] = answer.responses[0].partitions
        assert partition.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        offsets = {
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
        }
        assert offsets == {-1}
