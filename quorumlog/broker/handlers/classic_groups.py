"""JoinGroup (11), SyncGroup (14), Heartbeat (12), LeaveGroup (13): members of classic groups.

A join is answered when the rebalance is complete, a sync when the leader's assignment is committed.
"""

from uuid import UUID

from quorumlog.broker.groups.core.requests import (
    Heartbeat,
    Join,
    Leave,
    LeaveResult,
    LeavingMember,
    Sync,
)
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.chance import random_bytes
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from quorumlog.wire.codec.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from quorumlog.wire.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_KNOWN_MEMBER_ID = 4
FIRST_VERSION_WITH_NULL_PROTOCOL = 7
FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9


@answers(JoinGroupRequest, 0, 9)
async def handle_join(
    context: BrokerContext, header: RequestHeader, request: JoinGroupRequest
) -> JoinGroupResponse:
    """Join; a new member id begins with the instance id or client id, as in Kafka."""
    prefix = request.group_instance_id or header.client_id or ""
    join = Join(
        group_id=request.group_id,
        member_id=request.member_id,
        new_member_id=f"{prefix}-{UUID(bytes=random_bytes(16), version=4)}",
        group_instance_id=request.group_instance_id,
        client_id=header.client_id or "",
        client_host=context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        # v0 has one timeout for both.
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if header.api_version > 0 else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        requires_known_member_id=header.api_version >= FIRST_VERSION_WITH_KNOWN_MEMBER_ID,
        supports_skipping_assignment=header.api_version >= FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT,
    )
    result = await context.groups.ask(join)
    no_protocol = None if header.api_version >= FIRST_VERSION_WITH_NULL_PROTOCOL else ""
    return JoinGroupResponse(
        error_code=result.error_code,
        generation_id=result.generation_id,
        protocol_type=result.protocol_type,
        protocol_name=no_protocol if result.protocol_name is None else result.protocol_name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in result.members
        ],
    )


FIRST_VERSION_WITH_PROTOCOL = 5  # null is allowed there, and refused (KIP-559)


@answers(SyncGroupRequest, 0, 5)
async def handle_sync(
    context: BrokerContext, header: RequestHeader, request: SyncGroupRequest
) -> SyncGroupResponse:
    """Pass on the leader's assignments; answer with the member's own assignment."""
    lacks_protocol = None in {request.protocol_type, request.protocol_name}
    if lacks_protocol and header.api_version >= FIRST_VERSION_WITH_PROTOCOL:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    sync = Sync(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={part.member_id: part.assignment for part in request.assignments},
    )
    result = await context.groups.ask(sync)
    return SyncGroupResponse(
        error_code=result.error_code,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


@answers(HeartbeatRequest, 0, 4)
def handle_heartbeat(context: BrokerContext, request: HeartbeatRequest) -> Reply:
    """Prolong the member's session."""
    heartbeat = Heartbeat(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
    )
    return when_done(
        context.groups.ask(heartbeat), lambda error_code: HeartbeatResponse(error_code=error_code)
    )


FIRST_VERSION_WITH_MANY_MEMBERS = 3


@answers(LeaveGroupRequest, 0, 5)
def handle_leave(
    context: BrokerContext, header: RequestHeader, request: LeaveGroupRequest
) -> Reply:
    """Remove members, each with an outcome; in old versions it is the error of the response."""
    has_many = header.api_version >= FIRST_VERSION_WITH_MANY_MEMBERS
    if has_many:
        members = tuple(
            LeavingMember(member_id=member.member_id, group_instance_id=member.group_instance_id)
            for member in request.members
        )
    else:
        members = (LeavingMember(member_id=request.member_id),)

    def respond(result: LeaveResult) -> LeaveGroupResponse:
        if not has_many:
            outcome = result.members[0] if result.members else result.error_code
            return LeaveGroupResponse(error_code=result.error_code or outcome)
        return LeaveGroupResponse(
            error_code=result.error_code,
            members=[
                MemberResponse(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    error_code=error_code,
                )
                for member, error_code in zip(members, result.members, strict=False)
            ],
        )

    leave = Leave(group_id=request.group_id, members=members)
    return when_done(context.groups.ask(leave), respond)
