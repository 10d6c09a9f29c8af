"""KIP-430: what a client may do, if it asks. There is no authorizer, so it may do everything."""

from pathlib import Path

from quorumlog.wire.codec.messages.describe_cluster import DescribeClusterRequest
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.support.groups.offset_requests import commit

NOT_ASKED = -(2**31)
TOPIC, CLUSTER, GROUP = 3576, 8096, 3400  # as Apache Kafka answers without an authorizer


async def test_metadata_names_the_operations_of_topics_and_cluster_if_asked(tmp_path: Path) -> None:
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


async def test_a_topic_that_only_an_unknown_id_names_has_no_operations(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        unknown = MetadataRequestTopic(topic_id=b"x" * 16, name=None)
        request = MetadataRequest(topics=[unknown], include_topic_authorized_operations=True)
        [topic] = (await connection.send(request, version=12)).topics
        assert topic.topic_authorized_operations == NOT_ASKED


async def test_describe_cluster_names_the_operations_if_asked(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for version in versions(60):
            for include, expected in ((False, NOT_ASKED), (True, CLUSTER)):
                request = DescribeClusterRequest(include_cluster_authorized_operations=include)
                answer = await connection.send(request, version=version)
                assert answer.cluster_authorized_operations == expected


async def test_describe_groups_names_the_operations_of_groups_that_are_there(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        assert await commit(connection, "g") == 0
        for version in versions(15)[3:]:
            request = DescribeGroupsRequest(groups=["g", "nope"])
            answer = await connection.send(request, version=version)
            assert {group.authorized_operations for group in answer.groups} == {NOT_ASKED}
            request.include_authorized_operations = True
            known, unknown = (await connection.send(request, version=version)).groups
            assert known.authorized_operations == GROUP
            is_error = version >= 6  # older versions call it a Dead group
            assert unknown.authorized_operations == (NOT_ASKED if is_error else GROUP)
