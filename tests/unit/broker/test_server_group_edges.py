"""Groups without a name, of offsets alone, or of members to come; and OffsetDelete."""

import asyncio
from pathlib import Path

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.delete_groups import DeleteGroupsRequest
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from quorumlog.wire.codec.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
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
        protocols=[JoinGroupRequestProtocol(name="range")],
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
        for group_id, code in (
            ("g", ErrorCode.GROUP_ID_NOT_FOUND),
            ("", ErrorCode.INVALID_GROUP_ID),
        ):
            refused = await connection.send(deletion(group_id, ("t", 0)))
            assert (refused.error_code, refused.topics) == (code, [])
        nothing_there = await connection.send(deletion("g", ("nope", 0)))
        assert nothing_there.error_code == ErrorCode.NONE
