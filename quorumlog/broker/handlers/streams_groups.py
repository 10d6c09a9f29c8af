"""Streams groups (88, 89): refused as by Kafka while `streams.version` is 0. Source: KIP-1071.

Kafka refuses before it checks a right. Streams applications use the classic protocol here.
docs/decisions/0009-feature-levels.md
"""

from typing import Any, Final

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from quorumlog.wire.codec.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

NO_STREAMS_GROUPS: Final = (
    "this cluster has no streams groups (KIP-1071): set group.protocol=classic"
)
_REFUSAL: Final[dict[str, Any]] = {
    "error_code": ErrorCode.UNSUPPORTED_VERSION,
    "error_message": NO_STREAMS_GROUPS,
}


@answers(StreamsGroupHeartbeatRequest, 0, 0)
def handle_heartbeat(
    _context: BrokerContext, _request: StreamsGroupHeartbeatRequest
) -> StreamsGroupHeartbeatResponse:
    """Refuse each member."""
    return StreamsGroupHeartbeatResponse(
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        partitions_by_user_endpoint=None,
        **_REFUSAL,
    )


@answers(StreamsGroupDescribeRequest, 0, 0)
def handle_describe(
    _context: BrokerContext, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    """Refuse to describe each group."""
    groups = [DescribedGroup(group_id=group_id, **_REFUSAL) for group_id in request.group_ids]
    return StreamsGroupDescribeResponse(groups=groups)
