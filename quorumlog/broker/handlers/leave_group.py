"""LeaveGroup (13): one member, or several from v3 on (KIP-345)."""

from quorumlog.broker.groups.core.requests import Leave, LeaveResult, LeavingMember
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.wire.codec.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_MANY_MEMBERS = 3


@answers(LeaveGroupRequest, 0, 5)
def handle(context: BrokerContext, header: RequestHeader, request: LeaveGroupRequest) -> Reply:
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
