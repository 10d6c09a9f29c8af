"""The group APIs, asked over a connection, in the versions that clients send."""

from dataclasses import replace
from pathlib import Path

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.delete_groups import DeleteGroupsRequest
from quorumlog.wire.codec.messages.describe_groups import DescribeGroupsRequest
from quorumlog.wire.codec.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from quorumlog.wire.codec.messages.leave_group import LeaveGroupRequest, MemberIdentity
from quorumlog.wire.codec.messages.list_groups import ListGroupsRequest
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
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


async def check_offsets(connection: KafkaConnection, topic_id: bytes) -> None:
    for version in versions(9):
        request = OffsetFetchRequest(
            group_id="g",
            topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])],
            groups=[
                OffsetFetchRequestGroup(
                    group_id="g",
                    topics=[
                        OffsetFetchRequestTopics(
                            name="t", topic_id=topic_id, partition_indexes=[0, 1]
                        )
                    ],
                ),
                OffsetFetchRequestGroup(group_id="g", topics=None),
            ],
        )
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
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
        )
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
        offset = OffsetCommitRequestPartition(partition_index=1, committed_offset=7)
        unknown = OffsetCommitRequestPartition(partition_index=9, committed_offset=7)
        topic = OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[offset, unknown])
        commit = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=1,
            member_id=join.member_id,
            topics=[topic],
        )
        for version in versions(8):
            committed = await connection.send(commit, version=version)
            codes = [part.error_code for part in committed.topics[0].partitions]
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
        offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
        topic = OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[offset])
        commit = OffsetCommitRequest(group_id="g", topics=[topic])
        committed = await connection.send(commit)
        assert committed.topics[0].partitions[0].error_code == ErrorCode.NONE
        [group] = (await connection.send(DescribeGroupsRequest(groups=["g"]))).groups
        assert group.group_state == "Empty"
        [listed] = (await connection.send(ListGroupsRequest())).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "")


async def test_an_offset_of_a_former_topic_of_the_name_is_not_returned(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await create(connection, "t")
        await coordinator_is_ready(connection)
        offset = OffsetCommitRequestPartition(partition_index=1, committed_offset=7)
        topic = OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[offset])
        await connection.send(OffsetCommitRequest(group_id="g", topics=[topic]))
        await check_offsets(connection, topic_id)
        coordinator = broker.context.groups.coordinator("g")
        assert not isinstance(coordinator, ErrorCode)
        offsets = coordinator.committed.offsets["g"]
        at = TopicPartition("t", 1)
        assert offsets[at].topic_id == topic_id
        offsets[at] = replace(offsets[at], topic_id=b"1" * 16)  # its deletion is not written yet
        named = OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[1])
        for version in versions(9):
            if version < 8:
                continue
            group = OffsetFetchRequestGroup(group_id="g", topics=[named])
            everything = OffsetFetchRequestGroup(group_id="g", topics=None)
            request = OffsetFetchRequest(groups=[group, everything])
            one, all_there_are = (await connection.send(request, version=version)).groups
            assert [part.committed_offset for part in one.topics[0].partitions] == [-1]
            assert all_there_are.topics == []
