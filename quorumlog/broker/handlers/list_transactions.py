"""ListTransactions (66): the transactional ids that this broker coordinates.

Source: KIP-664, KIP-994 (v1: by duration), KIP-1152 (v2: by an RE2 expression). The response has no
field for a message: the client names the package extra that the broker may lack.
"""

from quorumlog.broker.groups.core.consumer.topics import InvalidRegularExpression
from quorumlog.broker.groups.io.topic_expressions import topic_matcher
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.broker.transactions.core.requests import TransactionFilter
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(ListTransactionsRequest, 0, 2)
def handle(
    context: BrokerContext, header: RequestHeader, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List the ids that pass the filter; an error if a partition is not loaded yet: retry."""
    pattern = request.transactional_id_pattern
    try:
        matches_id = topic_matcher().compile(pattern) if pattern else None
    except InvalidRegularExpression:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    wanted = TransactionFilter(
        states=frozenset(request.state_filters),
        producer_ids=frozenset(request.producer_id_filters),
        duration_ms=request.duration_filter,
        matches_id=matches_id,
    )
    response = ListTransactionsResponse(unknown_state_filters=wanted.unknown_states)
    now_ms = context.transactions.now_ms()
    for coordinator in context.transactions.coordinators():
        if isinstance(coordinator, ErrorCode):
            return ListTransactionsResponse(error_code=coordinator)
        response.transaction_states += [
            TransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.value,
            )
            for one in coordinator.list_transactions(now_ms, wanted)
        ]
    return response
