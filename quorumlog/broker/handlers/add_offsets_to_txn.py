"""AddOffsetsToTxn (25): adds a group's offsets to a transaction. Source: KIP-98."""

from quorumlog.broker.responses.internal_topics import create_internal
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.broker.transactions.core.requests import AddOffsets, ProducerIdAndEpoch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC


@answers(AddOffsetsToTxnRequest, 0, 4)
async def handle(
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
