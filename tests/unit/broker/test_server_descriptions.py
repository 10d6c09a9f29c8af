"""DescribeTopicPartitions, page by page, and ListConfigResources."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId
from quorumlog.wire.codec.messages.describe_cluster import DescribeClusterRequest
from quorumlog.wire.codec.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from quorumlog.wire.codec.messages.list_config_resources import ListConfigResourcesRequest
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.replicas import broker as registered
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.support.groups.single_broker import BROKER, SETTINGS, single_broker

Place = tuple[str, int]
ALL = [(name, index) for name, count in (("a", 2), ("b", 1), ("c", 3)) for index in range(count)]


def describe(
    *names: str, limit: int = 2000, cursor: Place | None = None
) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else RequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


async def pages(connection: KafkaConnection, *names: str, limit: int) -> list[list[Place]]:
    """Return the partitions of each page, until there is no cursor any more."""
    found: list[list[Place]] = []
    cursor: Place | None = None
    while len(found) < 20:
        answer = await connection.send(describe(*names, limit=limit, cursor=cursor))
        found.append(
            [
                (topic.name or "", part.partition_index)
                for topic in answer.topics
                for part in topic.partitions
            ]
        )
        if answer.next_cursor is None:
            break
        following = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        assert following != cursor
        cursor = following
    return found


async def create_abc(connection: KafkaConnection) -> None:
    for name, count in (("c", 3), ("a", 2), ("b", 1)):
        await create(connection, name, count)


@pytest.mark.parametrize("limit", [-5, 0, 1, 2, 3, 4, 5, 6, 7])
async def test_pages_are_of_the_size_asked_for_and_leave_nothing_out(
    tmp_path: Path, limit: int
) -> None:
    async with asking(tmp_path) as (_, connection):
        await create_abc(connection)
        for names in ((), ("c", "b", "a", "b")):
            found = await pages(connection, *names, limit=limit)
            assert [place for page in found for place in page] == ALL
            assert [len(page) for page in found[:-1]] == [max(limit, 1)] * (len(found) - 1)


async def test_the_broker_has_a_limit_of_its_own(tmp_path: Path) -> None:
    settings = replace(SETTINGS, max_request_partition_size_limit=4)
    async with single_broker(tmp_path, settings) as broker:
        connection = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
        await create_abc(connection)
        found = await pages(connection, limit=2000)
        assert [len(page) for page in found] == [4, 2]
        await connection.close()


async def test_a_cursor_goes_on_where_a_topic_was_deleted_or_ended_before(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create_abc(connection)
        for cursor, left in (
            (("aa", 7), ["b", "c"]),
            (("b", 9), ["b", "c"]),  # of b nothing is left
            (("d", 0), []),
        ):
            answer = await connection.send(describe(cursor=cursor))
            assert [topic.name for topic in answer.topics] == left
            assert answer.next_cursor is None
        answer = await connection.send(describe(limit=1, cursor=("b", 9)))
        assert [len(topic.partitions) for topic in answer.topics] == [0, 1]
        assert answer.next_cursor is not None
        assert answer.next_cursor.topic_name == "c"


async def test_a_cursor_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create_abc(connection)
        for cursor in (("b", 0), ("a", -1)):
            answer = await connection.send(describe("a", "c", cursor=cursor))
            outcomes = [(topic.name, topic.error_code) for topic in answer.topics]
            refusal = ErrorCode.INVALID_REQUEST
            assert outcomes == [("a", refusal), ("c", refusal)]


async def test_a_partition_is_shown_with_its_elr(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await create(connection, "t", 1)
        topic = broker.controller.image.topics["t"]
        [partition] = topic.partitions
        shrunk = replace(
            partition,
            leader_id=NO_LEADER,
            replicas=(BROKER, BrokerId(2), BrokerId(3)),
            isr=(),
            elr=(BrokerId(2),),
        )
        brokers = {
            **broker.controller.image.brokers,
            BrokerId(2): registered(BrokerId(2)),
            BrokerId(3): registered(BrokerId(3), fenced=True),
        }
        topics = {"t": replace(topic, partitions=(shrunk,))}
        broker.controller.publish(ClusterDelta(), brokers=brokers, topics=topics)
        found, unknown, illegal = (await connection.send(describe("t", "u", "x/y"))).topics
        assert (found.topic_id, found.topic_authorized_operations) == (topic_id, 3576)
        [shown] = found.partitions
        assert shown.eligible_leader_replicas == [2]
        assert (shown.last_known_elr, shown.offline_replicas) == ([], [3])
        assert (shown.leader_id, shown.isr_nodes, shown.replica_nodes) == (-1, [], [1, 2, 3])
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_internal_topics_are_marked(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        await coordinator_is_ready(connection)
        answer = await connection.send(describe())
        marks = {topic.name: topic.is_internal for topic in answer.topics}
        assert marks == {"__consumer_offsets": True, "t": False}


async def test_fenced_brokers_are_told_to_a_client_that_asks_for_them(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        brokers = {
            **broker.controller.image.brokers,
            BrokerId(0): registered(BrokerId(0), fenced=True),
            BrokerId(7): registered(BrokerId(7)),
        }
        broker.controller.publish(ClusterDelta(), brokers=brokers)
        for version in versions(60):
            request = DescribeClusterRequest(include_fenced_brokers=version >= 2)
            answer = await connection.send(request, version=version)
            shown = {one.broker_id: one.is_fenced for one in answer.brokers}
            fenced = {0: True} if version >= 2 else {}
            assert shown == {**fenced, BROKER: False, 7: False}
        answer = await connection.send(DescribeClusterRequest(), version=2)
        assert [one.broker_id for one in answer.brokers] == [BROKER, 7]


async def test_topics_and_brokers_have_configurations(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "b")
        await create(connection, "a")
        fenced = registered(BrokerId(7), fenced=True)
        brokers = {**broker.controller.image.brokers, BrokerId(7): fenced}
        broker.controller.publish(ClusterDelta(), brokers=brokers)
        topics, here = [(2, "a"), (2, "b")], [(4, "1")]
        for types, expected in (
            ([], topics + here),
            ([2], topics),
            ([4, 2, 2], topics + here),
            ([8, 16, 32], []),
        ):
            request = ListConfigResourcesRequest(resource_types=types)
            answer = await connection.send(request)
            resources = answer.config_resources
            assert answer.error_code == ErrorCode.NONE
            assert [(one.resource_type, one.resource_name) for one in resources] == expected
        metrics = await connection.send(ListConfigResourcesRequest(), version=0)
        assert (metrics.error_code, metrics.config_resources) == (ErrorCode.NONE, [])
        unknown = await connection.send(ListConfigResourcesRequest(resource_types=[2, 3]))
        assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert unknown.config_resources == []
