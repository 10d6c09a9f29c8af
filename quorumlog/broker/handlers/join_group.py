"""JoinGroup (11): a task, because the answer comes when the rebalance is complete."""

from uuid import UUID

from quorumlog.broker.groups.core.requests import Join
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.chance import random_bytes
from quorumlog.wire.codec.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_KNOWN_MEMBER_ID = 4
FIRST_VERSION_WITH_NULL_PROTOCOL = 7
FIRST_VERSION_WITH_SKIPPED_ASSIGNMENT = 9


@answers(JoinGroupRequest, 0, 9)
async def handle(
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
