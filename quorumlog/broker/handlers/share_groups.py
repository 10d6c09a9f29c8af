"""Share groups (76-79, 90-92): refused as by Kafka while `share.version` is 0. Source: KIP-932.

The requests are advertised, as in Kafka: without the API, a client waits silently (librdkafka); a
client that is refused returns an error at once. Kafka refuses before it checks a right.
docs/decisions/0009-feature-levels.md
"""

from typing import Any, Final

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from quorumlog.wire.codec.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from quorumlog.wire.codec.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)
from quorumlog.wire.codec.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from quorumlog.wire.codec.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from quorumlog.wire.codec.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from quorumlog.wire.codec.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

NO_SHARE_GROUPS: Final = (
    "this cluster has no share groups (KIP-932): use a consumer of a consumer group"
)
_REFUSAL: Final[dict[str, Any]] = {
    "error_code": ErrorCode.UNSUPPORTED_VERSION,
    "error_message": NO_SHARE_GROUPS,
}


@answers(ShareGroupHeartbeatRequest, 1, 1)
def handle_heartbeat(
    _context: BrokerContext, _request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    """Refuse each member."""
    return ShareGroupHeartbeatResponse(**_REFUSAL)


@answers(ShareGroupDescribeRequest, 1, 1)
def handle_describe(
    _context: BrokerContext, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Refuse to describe each group."""
    groups = [DescribedGroup(group_id=group_id, **_REFUSAL) for group_id in request.group_ids]
    return ShareGroupDescribeResponse(groups=groups)


@answers(ShareFetchRequest, 1, 2)
def handle_fetch(_context: BrokerContext, _request: ShareFetchRequest) -> ShareFetchResponse:
    """Refuse to acquire records."""
    return ShareFetchResponse(**_REFUSAL)


@answers(ShareAcknowledgeRequest, 1, 2)
def handle_acknowledge(
    _context: BrokerContext, _request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Refuse acknowledgements."""
    return ShareAcknowledgeResponse(**_REFUSAL)


@answers(DescribeShareGroupOffsetsRequest, 0, 1)
def handle_describe_offsets(
    _context: BrokerContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Refuse to describe the offsets of each group."""
    return DescribeShareGroupOffsetsResponse(
        groups=[
            DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id, **_REFUSAL)
            for group in request.groups
        ]
    )


@answers(AlterShareGroupOffsetsRequest, 0, 0)
def handle_alter_offsets(
    _context: BrokerContext, _request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Refuse to alter offsets."""
    return AlterShareGroupOffsetsResponse(**_REFUSAL)


@answers(DeleteShareGroupOffsetsRequest, 0, 0)
def handle_delete_offsets(
    _context: BrokerContext, _request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Refuse to delete offsets."""
    return DeleteShareGroupOffsetsResponse(**_REFUSAL)
