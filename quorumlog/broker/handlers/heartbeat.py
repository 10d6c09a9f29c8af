"""Heartbeat (12)."""

from quorumlog.broker.groups.core.requests import Heartbeat
from quorumlog.broker.server.api import ApiHandler, BrokerContext, Reply, when_done
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.schemas import RequestHeader


def handle(context: BrokerContext, header: RequestHeader, request: HeartbeatRequest) -> Reply:
    """Prolong the member's session."""
    del header
    heartbeat = Heartbeat(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
    )
    return when_done(
        context.groups.ask(heartbeat), lambda error_code: HeartbeatResponse(error_code=error_code)
    )


HANDLER = ApiHandler(api_key=HeartbeatRequest.API_KEY, min_version=0, max_version=4, handle=handle)
