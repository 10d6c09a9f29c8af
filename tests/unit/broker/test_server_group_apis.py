"""The APIs of groups and their offsets, of both protocols, asked over a connection."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import ZERO_UUID, Request, Struct, replaced
from quorumlog.wire.codec.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    DescribedGroup,
)
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from quorumlog.wire.codec.messages.delete_groups import DeleteGroupsRequest
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest
from quorumlog.wire.codec.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from quorumlog.wire.codec.messages.leave_group import LeaveGroupRequest, MemberIdentity
from quorumlog.wire.codec.messages.list_groups import ListGroupsRequest
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from quorumlog.wire.codec.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from quorumlog.wire.codec.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.support.groups.offset_requests import commit, committed
from tests.support.groups.single_broker import BROKER, SETTINGS


def joining(group_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=9000,
        rebalance_timeout_ms=9000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )


async def coordinators_are_ready(connection: KafkaConnection) -> None:
    """Wait for every partition of the offsets topic: the empty group has one of its own."""
    await coordinator_is_ready(connection)
    async with asyncio.timeout(5):
        while await commit(connection, "") != ErrorCode.NONE:
            pass


def deletion(group_id: str, *partitions: tuple[str, int]) -> OffsetDeleteRequest:
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index)]
        )
        for name, index in partitions
    ]
    return OffsetDeleteRequest(group_id=group_id, topics=topics)


async def test_the_empty_group_keeps_offsets_and_takes_no_members(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        await coordinators_are_ready(connection)
        for version in versions(10):
            ask = FindCoordinatorRequest(key="", coordinator_keys=[""])
            found = await connection.send(ask, version=version)
            one = found.coordinators[0] if version >= 4 else found
            assert (one.error_code, one.node_id) == (ErrorCode.NONE, BROKER)
        assert await commit(connection, "", offset=5) == ErrorCode.NONE
        assert await committed(connection, "") == 5
        refused = await connection.send(joining(""), version=5)
        assert refused.error_code == ErrorCode.INVALID_GROUP_ID
        delete = DeleteGroupsRequest(groups_names=[""])
        [outcome] = (await connection.send(delete)).results
        assert outcome.error_code == ErrorCode.NONE
        assert await committed(connection, "") == -1


async def test_offsets_are_deleted_of_partitions_that_exist(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        await coordinator_is_ready(connection)
        assert await commit(connection, "g") == ErrorCode.NONE
        ask = deletion("g", ("t", 0), ("nope", 0), ("t", 7), ("t", 0))
        answer = await connection.send(ask)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        outcomes = {
            (topic.name, part.partition_index): part.error_code
            for topic in answer.topics
            for part in topic.partitions
        }
        assert answer.error_code == ErrorCode.NONE
        assert outcomes == {("t", 0): ErrorCode.NONE, ("t", 7): unknown, ("nope", 0): unknown}
        assert await committed(connection, "g") == -1


async def test_offset_delete_refuses_an_absent_or_nameless_group(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        elsewhere = await connection.send(deletion("g", ("t", 0)))
        assert elsewhere.error_code == ErrorCode.NOT_COORDINATOR
        await coordinators_are_ready(connection)
        codes = {"g": ErrorCode.GROUP_ID_NOT_FOUND, "": ErrorCode.INVALID_GROUP_ID}
        for group_id, code in codes.items():
            refused = await connection.send(deletion(group_id, ("t", 0)))
            assert (refused.error_code, refused.topics) == (code, [])
        nothing_there = await connection.send(deletion("g", ("nope", 0)))
        assert nothing_there.error_code == ErrorCode.NONE


def named(topic_id: bytes, *indexes: int) -> OffsetFetchRequestGroup:
    topic = OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[*indexes])
    return OffsetFetchRequestGroup(group_id="g", topics=[topic])


def committing(topic_id: bytes, *partitions: int, offset: int = 7) -> OffsetCommitRequest:
    parts = [
        OffsetCommitRequestPartition(partition_index=one, committed_offset=offset)
        for one in partitions
    ]
    topic = OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=parts)
    return OffsetCommitRequest(group_id="g", topics=[topic])


EVERYTHING = OffsetFetchRequestGroup(group_id="g", topics=None)


async def check_offsets(connection: KafkaConnection, topic_id: bytes) -> None:
    single = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    groups = [named(topic_id, 0, 1), EVERYTHING]
    for version in versions(9):
        request = OffsetFetchRequest(group_id="g", topics=single, groups=groups)
        response = await connection.send(request, version=version)
        topics = response.topics if version < 8 else response.groups[0].topics
        assert [part.committed_offset for part in topics[0].partitions] == [-1, 7]
        if version >= 8:
            [everything] = response.groups[1].topics
            assert [part.committed_offset for part in everything.partitions] == [7]


async def check_listing_and_end(connection: KafkaConnection, member_id: str) -> None:
    listed = await connection.send(ListGroupsRequest(states_filter=["stable"]))
    [group] = listed.groups
    assert (group.group_id, group.group_state, group.group_type) == ("g", "Stable", "classic")
    none = await connection.send(ListGroupsRequest(states_filter=["Empty"]))
    assert none.groups == []
    deletion = DeleteGroupsRequest(groups_names=["g", "nope"])
    [refused, unknown] = (await connection.send(deletion)).results
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
    [left] = (await connection.send(leave)).members
    assert left.error_code == ErrorCode.NONE
    old = await connection.send(LeaveGroupRequest(group_id="g", member_id=member_id), version=1)
    assert old.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    [deleted, _] = (await connection.send(deletion)).results
    assert deleted.error_code == ErrorCode.NONE
    [gone] = (await connection.send(DescribeGroupsRequest(groups=["g"]), version=6)).groups
    assert gone.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    [dead] = (await connection.send(DescribeGroupsRequest(groups=["g"]), version=5)).groups
    assert (dead.error_code, dead.group_state) == (ErrorCode.NONE, "Dead")


async def test_a_group_from_the_first_join_to_its_deletion(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await create(connection, "t")
        await coordinator_is_ready(connection)
        join = joining("g")
        asked = await connection.send(join, version=5)
        assert (asked.error_code, asked.protocol_name) == (ErrorCode.MEMBER_ID_REQUIRED, "")
        assert asked.member_id.startswith("test-")
        join.member_id = asked.member_id
        joined = await connection.send(join)
        assert (joined.error_code, joined.generation_id) == (0, 1)
        part = SyncGroupRequestAssignment(member_id=join.member_id, assignment=b"all")
        sync = SyncGroupRequest(
            group_id="g", generation_id=1, member_id=join.member_id, assignments=[part]
        )
        unsaid = await connection.send(sync, version=5)  # which protocol was it? (KIP-559)
        assert unsaid.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await connection.send(sync, version=3)).assignment == b"all"
        described = (await connection.send(DescribeGroupsRequest(groups=["g"]))).groups[0]
        assert (described.group_state, described.protocol_data) == ("Stable", "range")
        [member] = described.members
        assert (member.client_id, member.client_host) == ("test", "/127.0.0.1")
        commit = committing(topic_id, 1, 9)
        commit.generation_id_or_member_epoch, commit.member_id = 1, join.member_id
        for version in versions(8):
            stored = await connection.send(commit, version=version)
            codes = [part.error_code for part in stored.topics[0].partitions]
            assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await check_offsets(connection, topic_id)
        await check_listing_and_end(connection, join.member_id)
        assert broker.violations == []


async def test_offsets_without_a_group_and_a_coordinator_elsewhere(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        request = OffsetFetchRequest(
            group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        )
        not_here = ErrorCode.NOT_COORDINATOR
        assert (await connection.send(request, version=5)).error_code == not_here
        by_partition = await connection.send(request, version=1)
        assert by_partition.topics[0].partitions[0].error_code == not_here
        several = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g")])
        assert (await connection.send(several)).groups[0].error_code == not_here
        topic_id = await create(connection, "t", 1)
        await coordinator_is_ready(connection)
        stored = await connection.send(committing(topic_id, 0))
        assert stored.topics[0].partitions[0].error_code == ErrorCode.NONE
        [group] = (await connection.send(DescribeGroupsRequest(groups=["g"]))).groups
        assert group.group_state == "Empty"
        [listed] = (await connection.send(ListGroupsRequest())).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "")


FEATURES = {"group.version": 1}


def errors_in(answer: object) -> set[int]:
    """All error codes of an answer, except NONE."""
    if isinstance(answer, list):
        return set().union(*map(errors_in, answer))
    if not isinstance(answer, Struct):
        return set()
    values = {field.name: getattr(answer, field.name) for field in answer.FIELDS}
    return ({values.get("error_code", 0)} - {0}).union(*map(errors_in, values.values()))


ELSEWHERE: list[Request[Any]] = [
    joining("g"),
    SyncGroupRequest(
        group_id="g",
        member_id="m",
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
    ),
    HeartbeatRequest(group_id="g", member_id="m", generation_id=1),
    LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")]),
    DescribeGroupsRequest(groups=["g"]),
    DeleteGroupsRequest(groups_names=["g"]),
    deletion("g", ("t", 0)),
    ConsumerGroupDescribeRequest(group_ids=["g"]),
]


@pytest.mark.parametrize("asked", ELSEWHERE, ids=lambda one: type(one).__name__)
async def test_a_client_learns_that_the_coordinator_is_elsewhere(
    tmp_path: Path, asked: Request[Any]
) -> None:
    """Else it would never look for the coordinator again."""
    async with asking(tmp_path, features=FEATURES) as (_, connection):
        await create(connection, "t", 1)
        answer = await connection.send(asked)
        assert errors_in(answer) == {ErrorCode.NOT_COORDINATOR}


async def test_an_offset_of_a_former_topic_of_the_name_is_not_returned(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await create(connection, "t")
        await coordinator_is_ready(connection)
        await connection.send(committing(topic_id, 1))
        await check_offsets(connection, topic_id)
        coordinator = broker.context.groups.coordinator("g")
        assert not isinstance(coordinator, ErrorCode)
        offsets = coordinator.committed.offsets["g"]
        at = TopicPartition("t", 1)
        assert offsets[at].topic_id == topic_id
        offsets[at] = replaced(offsets[at], topic_id=b"1" * 16)  # its deletion is not written yet
        for version in versions(9)[7:]:
            request = OffsetFetchRequest(groups=[named(topic_id, 1), EVERYTHING])
            one, all_there_are = (await connection.send(request, version=version)).groups
            assert [part.committed_offset for part in one.topics[0].partitions] == [-1]
            assert all_there_are.topics == []


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
        filters: list[tuple[list[str], list[str], int]] = [
            (["Consumer"], ["stable"], 1),
            (["classic"], [], 0),
            ([], ["Empty"], 0),
        ]
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
