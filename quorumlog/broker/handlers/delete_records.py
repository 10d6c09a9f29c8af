"""DeleteRecords (API key 21): raises log start offsets (KIP-107)."""

import asyncio
from functools import partial

from quorumlog.broker.partitions.core.deletions import DeletionResult
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, TopicPartition
from quorumlog.wire.codec.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS


@answers(DeleteRecordsRequest, 0, 2)
async def handle(context: BrokerContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Raise the log start offsets; answer when live replicas follow, or after `timeout_ms`."""
    response = DeleteRecordsResponse()
    waiting = []
    for topic in request.topics:
        results = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(results)
        for asked in topic.partitions:
            slot = DeleteRecordsPartitionResult(
                partition_index=asked.partition_index, low_watermark=UNKNOWN_OFFSET
            )
            results.partitions.append(slot)
            if topic.name in INTERNAL_TOPICS:  # their coordinators need the records
                slot.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
                continue
            outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(outcome)
            context.replicas.deletions.delete(
                TopicPartition(topic.name, asked.partition_index),
                asked.offset,
                timeout_ms=request.timeout_ms,
                done=partial(_take, slot, outcome),
            )
    for outcome in waiting:
        await outcome
    return response


def _take(
    slot: DeleteRecordsPartitionResult, outcome: "asyncio.Future[None]", result: DeletionResult
) -> None:
    slot.error_code, slot.low_watermark = result
    if not outcome.done():  # the connection may be gone
        outcome.set_result(None)
