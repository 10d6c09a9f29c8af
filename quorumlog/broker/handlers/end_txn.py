"""EndTxn (26): commits or aborts a transaction. Source: KIP-98, KIP-890 (v5: a new epoch)."""

from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.broker.transactions.core.requests import (
    EndTransaction,
    EndTransactionResult,
    ProducerIdAndEpoch,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from quorumlog.wire.codec.schemas import RequestHeader


@answers(EndTxnRequest, 0, 5)
def handle(context: BrokerContext, header: RequestHeader, request: EndTxnRequest) -> Reply:
    """Answer once the decision is committed; the markers follow."""
    end = EndTransaction(
        transactional_id=request.transactional_id,
        api_version=header.api_version,
        producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
    )
    return when_done(context.transactions.ask(end), _response)


def _response(result: EndTransactionResult) -> EndTxnResponse:
    return EndTxnResponse(
        error_code=result.error_code,
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.epoch,
    )
