"""The APIs of groups and their offsets, asked over a connection, in every version."""

import asyncio
from dataclasses import replace
from pathlib import Path

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.delete_groups import DeleteGroupsRequest
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
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
from tests.support.groups.single_broker import BROKER


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


async def test_the_empty_group_has_a_coordinator_that_keeps_offsets_and_takes_no_members(
    tmp_path: Path,
) -> None:
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


async def test_a_group_of_offsets_alone_knows_no_member_and_is_deleted_before_one_comes(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        await coordinator_is_ready(connection)
        assert await commit(connection, "g") == ErrorCode.NONE
        unknown = await commit(connection, "g", generation_id=3, member_id="x")
        assert unknown == ErrorCode.UNKNOWN_MEMBER_ID
        asked = await connection.send(joining("g"), version=5)
        assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
        delete = DeleteGroupsRequest(groups_names=["g"])
        [outcome] = (await connection.send(delete)).results
        assert outcome.error_code == ErrorCode.NONE
        late = joining("g")
        late.member_id = asked.member_id
        refused = await connection.send(late, version=5)
        assert refused.error_code == ErrorCode.UNKNOWN_MEMBER_ID


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


async def test_offset_delete_refuses_a_group_that_is_not_there_or_has_no_name(
    tmp_path: Path,
) -> None:
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
        offsets[at] = replace(offsets[at], topic_id=b"1" * 16)  # its deletion is not written yet
        for version in versions(9)[7:]:
            request = OffsetFetchRequest(groups=[named(topic_id, 1), EVERYTHING])
            one, all_there_are = (await connection.send(request, version=version)).groups
            assert [part.committed_offset for part in one.topics[0].partitions] == [-1]
            assert all_there_are.topics == []
