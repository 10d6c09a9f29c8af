"""Heartbeat (12): keeps a member of a classic group alive."""

from quorumlog.broker.groups.core.requests import Heartbeat
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.schemas import RequestHeader


@answers(HeartbeatRequest, 0, 4)
def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
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
