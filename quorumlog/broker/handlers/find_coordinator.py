"""FindCoordinator (10): finds the coordinator of a group or a transactional id.

It leads the partition of the group or id. The internal topic is created when it is first needed.
Source: KIP-98, KIP-699 (many keys from v4 on).
"""

from collections.abc import Mapping
from typing import Final

from quorumlog.broker.responses.internal_topics import create_internal, has_leaders
from quorumlog.broker.server.api import BrokerContext, Reply, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

GROUP: Final = 0
TRANSACTION: Final = 1
FIRST_VERSION_WITH_MANY_KEYS: Final = 4
TOPICS: Final[Mapping[int, str]] = {GROUP: OFFSETS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}


@answers(FindCoordinatorRequest, 0, 6)
def handle(context: BrokerContext, header: RequestHeader, request: FindCoordinatorRequest) -> Reply:
    """Answer from the image; as a task if the internal topic must be created first."""
    topic = TOPICS.get(request.key_type)
    if topic is not None and not has_leaders(context.image, topic):
        return _create_then_answer(context, header, request, topic)
    return _answer(context, header, request)


async def _create_then_answer(
    context: BrokerContext, header: RequestHeader, request: FindCoordinatorRequest, topic: str
) -> FindCoordinatorResponse:
    refusal = await create_internal(context, topic)
    return _answer(context, header, request, refusal)


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
    missing = Coordinator(key=key, node_id=-1, port=-1)
    if key_type not in TOPICS:
        missing.error_code = ErrorCode.INVALID_REQUEST
        return missing
    service = context.groups if key_type == GROUP else context.transactions
    partition = context.image.partition(service.partition_of(key))
    leader = None if partition is None else context.image.brokers.get(partition.leader_id)
    address = None if leader is None else leader.address_at(context.listener)
    if leader is None or leader.fenced or address is None:
        missing.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        missing.error_message = refusal
        return missing
    return Coordinator(key=key, node_id=leader.broker_id, host=address[0], port=address[1])
