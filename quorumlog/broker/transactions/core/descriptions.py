"""DescribeTransactions and ListTransactions: the committed state, for people and tools."""

from collections.abc import Mapping

from quorumlog.broker.transactions.core.requests import (
    TransactionDescription,
    TransactionFilter,
    TransactionListing,
)
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.wire.codec.error_codes import ErrorCode


def describe(
    transactions: Mapping[str, Transaction], transactional_id: str
) -> TransactionDescription:
    """Return the committed state of an id."""
    transaction = transactions.get(transactional_id)
    if not transactional_id or transaction is None or transaction.is_new:
        absent = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return TransactionDescription(
            error_code=absent if transactional_id else ErrorCode.INVALID_REQUEST,
            transactional_id=transactional_id,
        )
    metadata = transaction.metadata
    return TransactionDescription(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        state=transaction.state,
        producer=transaction.producer,
        transaction_timeout_ms=metadata.transaction_timeout_ms,
        start_ms=metadata.start_ms,
        partitions=metadata.partitions,
    )


def list_transactions(
    transactions: Mapping[str, Transaction], now_ms: int, wanted: TransactionFilter
) -> list[TransactionListing]:
    """Return the ids that pass the filter, sorted. A state that does not exist passes no id."""

    def passes(transactional_id: str, transaction: Transaction) -> bool:
        has_wanted_id = wanted.matches_id is None or wanted.matches_id(transactional_id)
        is_of_producer = (
            not wanted.producer_ids or transaction.producer.producer_id in wanted.producer_ids
        )
        has_state = not wanted.states or transaction.state.value in wanted.states
        lasts = wanted.duration_ms < 0 or (
            now_ms - transaction.metadata.start_ms > wanted.duration_ms
        )
        return has_wanted_id and is_of_producer and has_state and lasts

    return [
        TransactionListing(
            transactional_id=transactional_id,
            producer_id=transaction.producer.producer_id,
            state=transaction.state,
        )
        for transactional_id, transaction in sorted(transactions.items())
        if not transaction.is_new and passes(transactional_id, transaction)
    ]
