"""DescribeTransactions (65), ListTransactions (66): the transactional ids coordinated here.

Source: KIP-664, KIP-994 (v1: by duration), KIP-1152 (v2: by an RE2 expression). The response of a
list has no field for a message: the client names the package extra that the broker may lack.
"""

from quorumlog.broker.groups.core.consumer.topics import InvalidRegularExpression
from quorumlog.broker.groups.io.topic_expressions import topic_matcher
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.broker.transactions.core.requests import TransactionDescription, TransactionFilter
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from quorumlog.wire.codec.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)


@answers(DescribeTransactionsRequest, 0, 0)
def handle_describe(
    context: BrokerContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe each id once."""
    names = dict.fromkeys(request.transactional_ids)
    return DescribeTransactionsResponse(
        transaction_states=[_describe(context, name) for name in names]
    )


def _describe(context: BrokerContext, transactional_id: str) -> TransactionState:
    coordinator = context.transactions.coordinator(transactional_id)
    if isinstance(coordinator, ErrorCode):
        return TransactionState(error_code=coordinator, transactional_id=transactional_id)
    return _described(coordinator.describe(transactional_id))


def _described(found: TransactionDescription) -> TransactionState:
    topics: dict[str, TopicData] = {}
    for where in found.partitions:
        topic = topics.setdefault(where.topic, TopicData(topic=where.topic))
        topic.partitions.append(where.partition)
    return TransactionState(
        error_code=found.error_code,
        transactional_id=found.transactional_id,
        transaction_state="" if found.state is None else found.state.value,
        transaction_timeout_ms=found.transaction_timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer.producer_id,
        producer_epoch=found.producer.epoch,
        topics=[*topics.values()],
    )


@answers(ListTransactionsRequest, 0, 2)
def handle_list(
    context: BrokerContext, request: ListTransactionsRequest
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
        response.transaction_states += coordinator.list_transactions(now_ms, wanted)
    return response
