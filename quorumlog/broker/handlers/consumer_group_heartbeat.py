"""ConsumerGroupHeartbeat (68): refused, because there is no KIP-848 protocol yet.

The API is advertised all the same, as by a Kafka whose `group.version` is 0: a client that does not
find it waits silently (librdkafka); a client that is refused tells its user at once.
docs/decisions/0031-a-heartbeat-of-kip-848-is-refused-aloud.md
"""

from typing import Final

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

REFUSAL: Final = (
    "this cluster does not have the consumer group protocol (KIP-848): set group.protocol=classic"
)


@answers(ConsumerGroupHeartbeatRequest, 0, 1)
def handle(
    context: BrokerContext, header: RequestHeader, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Refuse with UNSUPPORTED_VERSION: no client tries again."""
    del context, header, request
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=REFUSAL
    )
