"""InitProducerId (22): an id for an idempotent producer. Source: KIP-98, KIP-360."""

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(InitProducerIdRequest, 0, 5)
async def handle(
    context: BrokerContext, header: RequestHeader, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Return an id that no producer has, with epoch 0; the producer's former id is not used again.

    A request with only one of the two, id and epoch, is INVALID_REQUEST (KIP-360).
    """
    refusal = _refusal(request)
    if refusal is not ErrorCode.NONE:
        return InitProducerIdResponse(error_code=refusal, producer_epoch=-1)
    error_code, producer_id = await context.producer_ids.next()
    producer_epoch = 0 if error_code is ErrorCode.NONE else -1
    return InitProducerIdResponse(
        error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch
    )


def _refusal(request: InitProducerIdRequest) -> ErrorCode:
    if request.transactional_id is not None:
        # DEVIATION: Kafka begins a transaction's life here. Ours is refused, with an error that is
        # fatal in every client; there is no field for a message.
        # docs/decisions/0013-transactional-ids-are-refused.md
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    has_id, has_epoch = request.producer_id != -1, request.producer_epoch != -1
    return ErrorCode.NONE if has_id == has_epoch else ErrorCode.INVALID_REQUEST
