"""WriteTxnMarkers (API key 27): a coordinator ends transactions in partitions led here.

Brokers send it; as in Kafka it is advertised to all clients. Sources: KIP-98, KIP-1228 (v2).
"""

import asyncio
from typing import Final

from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from quorumlog.wire.codec.transaction_markers import TransactionMarker

MARKERS_AT_ONCE: Final = 100  # written without a break: some milliseconds
EPOCH_MAX: Final = 2**31 - 1


@answers(WriteTxnMarkersRequest, 1, 2)
async def handle(
    context: BrokerContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Write all markers; answer when each is committed, or refused."""
    response = WriteTxnMarkersResponse()
    epoch_max = _newest_coordinator_epoch(context)
    waiting: list[tuple[WritableTxnMarkerPartitionResult, asyncio.Future[ErrorCode]]] = []
    for asked in request.markers:
        result = WritableTxnMarkerResult(producer_id=asked.producer_id)
        response.markers.append(result)
        for topic in asked.topics:
            slots = WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(slots)
            for index in topic.partition_indexes:
                slot = WritableTxnMarkerPartitionResult(partition_index=index)
                slots.partitions.append(slot)
                at = TopicPartition(topic.name, index)
                waiting.append((slot, _write(context, at, asked, epoch_max)))
                if len(waiting) % MARKERS_AT_ONCE == 0:
                    await asyncio.sleep(0)
    for slot, outcome in waiting:
        slot.error_code = await outcome
    return response


def _write(
    context: BrokerContext, at: TopicPartition, asked: WritableTxnMarker, epoch_max: int
) -> asyncio.Future[ErrorCode]:
    marker = TransactionMarker(
        asked.producer_id, asked.producer_epoch, asked.coordinator_epoch, asked.transaction_result
    )
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    refusal = _refusal(context, at, asked, epoch_max)
    if refusal is not ErrorCode.NONE:
        outcome.set_result(refusal)
        return outcome
    if at.topic == OFFSETS_TOPIC:  # answered when the offsets are visible (KAFKA-17507)
        return context.groups.end_transaction(at, marker, asked.transaction_version)

    def done(result: ProduceResult) -> None:
        if not outcome.done():  # the connection may be gone
            outcome.set_result(result.error_code)

    context.replicas.append_marker(
        at, marker, done=done, transaction_version=asked.transaction_version
    )
    return outcome


def _newest_coordinator_epoch(context: BrokerContext) -> int:
    """Return the highest epoch of a transaction coordinator in this broker's image."""
    topic = context.image.topics.get(TRANSACTIONS_TOPIC)
    return max((one.leader_epoch for one in topic.partitions), default=-1) if topic else EPOCH_MAX


def _refusal(
    context: BrokerContext, at: TopicPartition, asked: WritableTxnMarker, epoch_max: int
) -> ErrorCode:
    """Return the error of the request itself, else NONE; Kafka fails without a producer."""
    if asked.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if asked.producer_epoch < 0:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if context.image.partition(at) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    # DEVIATION: Kafka takes any epoch. An epoch above all coordinators' would fence them all.
    # docs/decisions/0033-transaction-coordinator.md
    if asked.coordinator_epoch > epoch_max:  # or our image is behind: the coordinator retries
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE
