"""ShareGroupHeartbeat (76): refused, as by Kafka while `share.version` is 0. KIP-932.

Without the API, a share consumer waits silently (librdkafka); a refused share consumer returns an
error at once. docs/decisions/0009-feature-levels.md
"""

from typing import Final

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

MESSAGE: Final = "this cluster has no share groups (KIP-932): use a consumer of a consumer group"


@answers(ShareGroupHeartbeatRequest, 1, 1)
def handle(
    context: BrokerContext, header: RequestHeader, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    """Refuse each member."""
    del context, header, request
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=MESSAGE
    )
