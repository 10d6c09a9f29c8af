"""InitProducerId (22), AddOffsetsToTxn (25), EndTxn (26): requests of producers. Source: KIP-98.

KIP-360 (a producer that recovers from an error), KIP-890 (EndTxn v5: a new epoch).
"""

from functools import partial

from quorumlog.broker.responses.internal_topics import create_internal
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.broker.transactions.core.requests import (
    AddOffsets,
    EndTransaction,
    InitProducerId,
    ProducerIdAndEpoch,
    ProducerResult,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest, EndTxnResponse
from quorumlog.wire.codec.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC


@answers(InitProducerIdRequest, 0, 5)
def handle_initialize(
    context: BrokerContext, header: RequestHeader, request: InitProducerIdRequest
) -> Reply:
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
    answered = partial(_answered, InitProducerIdResponse)
    return when_done(context.transactions.ask(initialization), answered)


async def _new_id(context: BrokerContext) -> InitProducerIdResponse:
    """Return a new id with epoch 0; the producer's former id is not used again."""
    error_code, producer_id = await context.producer_ids.next()
    producer_epoch = 0 if error_code is ErrorCode.NONE else -1
    return InitProducerIdResponse(
        error_code=error_code, producer_id=producer_id, producer_epoch=producer_epoch
    )


def _answered(
    response: type[InitProducerIdResponse | EndTxnResponse], result: ProducerResult
) -> InitProducerIdResponse | EndTxnResponse:
    producer_id, epoch = result.producer
    return response(error_code=result.error_code, producer_id=producer_id, producer_epoch=epoch)


@answers(AddOffsetsToTxnRequest, 0, 4)
async def handle_add_offsets(
    context: BrokerContext, header: RequestHeader, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the group's partition, which must exist; answer once the addition is committed."""
    await create_internal(context, OFFSETS_TOPIC)
    where = context.groups.partition_of(request.group_id)
    if context.image.partition(where) is None:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    addition = AddOffsets(
        transactional_id=request.transactional_id,
        api_version=header.api_version,
        producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        offsets_partition=where,
    )
    return AddOffsetsToTxnResponse(error_code=await context.transactions.ask(addition))


@answers(EndTxnRequest, 0, 5)
def handle_end(context: BrokerContext, header: RequestHeader, request: EndTxnRequest) -> Reply:
    """Answer once the decision is committed; the markers follow."""
    end = EndTransaction(
        transactional_id=request.transactional_id,
        api_version=header.api_version,
        producer=ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        commit=request.committed,
    )
    return when_done(context.transactions.ask(end), partial(_answered, EndTxnResponse))
