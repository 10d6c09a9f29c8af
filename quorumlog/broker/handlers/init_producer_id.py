"""InitProducerId (22): a producer id, for an idempotent producer or a transactional id.

Source: KIP-98, KIP-360 (a producer that recovers from an error).
"""

from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.broker.transactions.core.requests import (
    InitProducerId,
    InitProducerIdResult,
    ProducerIdAndEpoch,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(InitProducerIdRequest, 0, 5)
def handle(context: BrokerContext, header: RequestHeader, request: InitProducerIdRequest) -> Reply:
    """Initialize the transactional id at its coordinator; without one, return an unused id.

    A request with only one of producer id and epoch is INVALID_REQUEST (KIP-360).
    """
    has_id, has_epoch = request.producer_id != -1, request.producer_epoch != -1
    if has_id != has_epoch:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is None:
        return _new_id(context)
    initialization = InitProducerId(
        transactional_id=request.transactional_id,
        api_version=header.api_version,
        transaction_timeout_ms=request.transaction_timeout_ms,
        expected=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
    )
    return when_done(context.transactions.ask(initialization), _response)


async def _new_id(context: BrokerContext) -> InitProducerIdResponse:
    """Return a new id with epoch 0; the producer's former id is not used again."""
    error_code, producer_id = await context.producer_ids.next()
    producer_epoch = 0 if error_code is ErrorCode.NONE else -1
    return InitProducerIdResponse(
        error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch
    )


def _response(result: InitProducerIdResult) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=result.error_code,
        producer_id=result.producer.producer_id,
        producer_epoch=result.producer.epoch,
    )
