"""Groups of the consumer protocol (KIP-848), asked over a connection."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import ZERO_UUID
from quorumlog.wire.codec.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    DescribedGroup,
)
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.list_groups import ListGroupsRequest
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.support.groups.single_broker import SETTINGS

FEATURES = {"group.version": 1}
OTHER_ID = b"other topic's id"


def first_heartbeat(**changes: object) -> ConsumerGroupHeartbeatRequest:
    values: dict[str, object] = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**{**values, **changes})  # type: ignore[arg-type]


def assigned(answer: ConsumerGroupHeartbeatResponse) -> dict[bytes, list[int]] | None:
    if answer.assignment is None:
        return None
    return {one.topic_id: one.partitions for one in answer.assignment.topic_partitions}


async def described(connection: KafkaConnection, group_id: str = "g") -> DescribedGroup:
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    [group] = (await connection.send(request)).groups
    return group


async def test_a_member_joins_is_described_and_leaves(tmp_path: Path) -> None:
    async with asking(tmp_path, features=FEATURES) as (_, connection):
        topic_id = await create(connection, "t")
        await coordinator_is_ready(connection)
        answer = await connection.send(first_heartbeat())
        assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", 1)
        assert answer.heartbeat_interval_ms == 5000
        assert assigned(answer) == {topic_id: [0, 1]}
        has = [RequestTopicPartitions(topic_id=topic_id, partitions=[0, 1])]
        later = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=1, topic_partitions=has
        )
        assert assigned(await connection.send(later)) is None
        group = await described(connection)
        assert group.error_code == ErrorCode.NONE
        assert (group.group_state, group.assignor_name) == ("Stable", "uniform")
        [member] = group.members
        assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
        assert (member.member_type, member.subscribed_topic_names) == (1, ["t"])
        [shown] = member.target_assignment.topic_partitions
        assert (shown.topic_name, shown.partitions) == ("t", [0, 1])
        assert member.assignment.topic_partitions[0].topic_id == topic_id
        later.member_epoch = -1
        left = await connection.send(later)
        assert (left.error_code, left.member_epoch) == (ErrorCode.NONE, -1)
        assert (await described(connection)).group_state == "Empty"
        given = await connection.send(first_heartbeat(member_id=""), version=0)
        assert (given.error_code, len(given.member_id or "")) == (ErrorCode.NONE, 36)
        refused = await connection.send(first_heartbeat(member_id=""), version=1)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert "member_id" in (refused.error_message or "")


async def test_a_member_subscribes_by_an_expression(tmp_path: Path) -> None:
    async with asking(tmp_path, features=FEATURES) as (_, connection):
        first = await create(connection, "logs-1")
        await create(connection, "others")
        await coordinator_is_ready(connection)
        by_expression = first_heartbeat(
            subscribed_topic_names=None, subscribed_topic_regex="logs-[0-9]+"
        )
        answer = await connection.send(by_expression)
        assert assigned(answer) == {first: [0, 1]}
        second = await create(connection, "logs-2")
        later = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
        answer = await connection.send(later)
        assert (answer.error_code, answer.member_epoch) == (ErrorCode.NONE, 2)
        assert assigned(answer) == {first: [0, 1], second: [0, 1]}
        for malformed in ("(", "(?=a)", r"(a)\1"):
            bad = first_heartbeat(member_id="n", subscribed_topic_regex=malformed)
            refused = await connection.send(bad)
            assert refused.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
            assert refused.error_message


async def test_groups_are_listed_by_type_and_described_by_their_own_api(tmp_path: Path) -> None:
    async with asking(tmp_path, features=FEATURES) as (_, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        await connection.send(first_heartbeat())
        [listed] = (await connection.send(ListGroupsRequest())).groups
        assert (listed.group_id, listed.group_type) == ("g", "consumer")
        assert (listed.protocol_type, listed.group_state) == ("consumer", "Stable")
        filters = (["Consumer"], ["stable"], 1), (["classic"], [], 0), ([], ["Empty"], 0)
        for types, states, found in filters:
            request = ListGroupsRequest(types_filter=types, states_filter=states)
            assert len((await connection.send(request)).groups) == found
        classic = DescribeGroupsRequest(groups=["g"])
        [unknown] = (await connection.send(classic)).groups
        assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert "consumer group" in (unknown.error_message or "")
        assert (await described(connection, "x")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await described(connection, "")).error_code == ErrorCode.INVALID_GROUP_ID


async def test_offsets_of_members_and_of_topics_by_id(tmp_path: Path) -> None:
    async with asking(tmp_path, features=FEATURES) as (_, connection):
        topic_id = await create(connection, "t")
        await coordinator_is_ready(connection)
        await connection.send(first_heartbeat())
        offset = OffsetCommitRequestPartition(partition_index=1, committed_offset=7)
        topics = [
            OffsetCommitRequestTopic(name="t", topic_id=one, partitions=[offset])
            for one in (topic_id, OTHER_ID)
        ]
        commit = OffsetCommitRequest(
            group_id="g", generation_id_or_member_epoch=1, member_id="m", topics=topics
        )
        known, unknown = (await connection.send(commit, version=10)).topics
        assert (known.topic_id, known.partitions[0].error_code) == (topic_id, ErrorCode.NONE)
        assert unknown.topic_id == OTHER_ID
        assert unknown.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        by_name = commit.topics.pop()
        commit.generation_id_or_member_epoch = 5
        [stale] = (await connection.send(commit, version=9)).topics
        assert stale.partitions[0].error_code == ErrorCode.STALE_MEMBER_EPOCH
        both = [
            OffsetFetchRequestTopics(name=by_name.name, topic_id=one, partition_indexes=[0, 1])
            for one in (topic_id, OTHER_ID)
        ]
        fetch = OffsetFetchRequestGroup(group_id="g", member_id="m", member_epoch=1, topics=both)
        everything = OffsetFetchRequestGroup(group_id="g", topics=None)
        request = OffsetFetchRequest(groups=[fetch, everything])
        some, all_of_it = (await connection.send(request, version=10)).groups
        assert [part.committed_offset for part in some.topics[0].partitions] == [-1, 7]
        assert some.topics[0].topic_id == topic_id
        codes = [part.error_code for part in some.topics[1].partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_ID] * 2
        [topic] = all_of_it.topics
        assert (topic.topic_id, len(topic.partitions)) == (topic_id, 1)
        fetch.topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[1])]
        for epoch, code in ((4, ErrorCode.STALE_MEMBER_EPOCH), (1, ErrorCode.NONE)):
            fetch.member_epoch = epoch
            [group] = (await connection.send(OffsetFetchRequest(groups=[fetch]), version=9)).groups
            assert group.error_code == code
            assert [topic.topic_id for topic in group.topics] in ([], [ZERO_UUID])  # by name


@pytest.mark.parametrize(
    ("features", "protocols", "remedy"),
    [
        ({}, "classic,consumer", "group.version"),
        (FEATURES, "classic", "group.coordinator.rebalance.protocols"),
    ],
)
async def test_the_protocol_may_be_switched_off(
    tmp_path: Path, features: dict[str, int], protocols: str, remedy: str
) -> None:
    settings = replace(SETTINGS, group_coordinator_rebalance_protocols=protocols)
    async with asking(tmp_path, settings, features) as (_, connection):
        for version in versions(68):
            answer = await connection.send(first_heartbeat(), version=version)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert remedy in (answer.error_message or "")
            assert "group.protocol=classic" in (answer.error_message or "")
        group = await described(connection)
        assert group.error_code == ErrorCode.UNSUPPORTED_VERSION
