"""FindCoordinator (10): which broker coordinates a group, as the leader of its partition.

Creates `__consumer_offsets` when it is first needed. Source: KIP-699 (many keys from v4 on).
"""

from typing import Final

from quorumlog.broker.groups.offsets_topic import offsets_topic
from quorumlog.broker.server.api import BrokerContext, Reply, answers
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC

GROUP: Final = 0
TRANSACTION: Final = 1
FIRST_VERSION_WITH_MANY_KEYS: Final = 4
LEADER_WAIT_MS: Final = 5000


@answers(FindCoordinatorRequest, 0, 6)
def handle(context: BrokerContext, header: RequestHeader, request: FindCoordinatorRequest) -> Reply:
    """Answer from the image; as a task if the offsets topic must be created first."""
    if request.key_type == GROUP and not _has_leaders(context.image):
        return _create_then_answer(context, header, request)
    return _answer(context, header, request)


def _has_leaders(image: ClusterImage) -> bool:
    topic = image.topics.get(OFFSETS_TOPIC)
    return topic is not None and all(part.leader_id in image.brokers for part in topic.partitions)


async def _create_then_answer(
    context: BrokerContext, header: RequestHeader, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if OFFSETS_TOPIC not in context.image.topics:
        try:
            [result] = await context.controller.create_topics([offsets_topic(context.settings)])
        except ControllerUnavailable:
            return _answer(context, header, request)
        if result.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}:
            return _answer(context, header, request, result.error_message)
        await context.metadata.wait_until(_has_leaders, timeout_ms=LEADER_WAIT_MS)
    return _answer(context, header, request)


def _answer(
    context: BrokerContext,
    header: RequestHeader,
    request: FindCoordinatorRequest,
    refusal: str | None = None,
) -> FindCoordinatorResponse:
    if header.api_version >= FIRST_VERSION_WITH_MANY_KEYS:
        keys = request.coordinator_keys
        found = [_find(context, request.key_type, key, refusal) for key in keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _find(context, request.key_type, request.key, refusal)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _find(context: BrokerContext, key_type: int, key: str, refusal: str | None) -> Coordinator:
    missing = Coordinator(key=key, node_id=-1, host="", port=-1)
    # DEVIATION: Kafka has a coordinator for transactions.
    # docs/decisions/0013-transactional-ids-are-refused.md
    if key_type == TRANSACTION:  # a fatal error in every client: retrying would never end
        missing.error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        missing.error_message = "this cluster does not support transactions"
        return missing
    if key_type != GROUP:
        missing.error_code = ErrorCode.INVALID_REQUEST
        return missing
    partition = context.image.partition(context.groups.partition_of(key))
    leader = None if partition is None else context.image.brokers.get(partition.leader_id)
    if leader is None or leader.fenced:
        missing.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        missing.error_message = refusal
        return missing
    return Coordinator(key=key, node_id=leader.broker_id, host=leader.host, port=leader.port)
