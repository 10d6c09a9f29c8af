"""SyncGroup (14): a task, because the answer comes when the leader's assignment is committed."""

from quorumlog.broker.groups.core.requests import Sync
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_PROTOCOL = 5  # null is allowed there, and refused (KIP-559)


@answers(SyncGroupRequest, 0, 5)
async def handle(
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
