"""DescribeTransactions (65): the state of transactional ids. Source: KIP-664."""

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.broker.transactions.core.requests import TransactionDescription
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(DescribeTransactionsRequest, 0, 0)
def handle(
    context: BrokerContext, header: RequestHeader, request: DescribeTransactionsRequest
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
