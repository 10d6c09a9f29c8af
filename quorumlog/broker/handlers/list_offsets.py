"""ListOffsets (API key 2): by time, or the special offsets of KIP-79, 734, 405."""

from quorumlog.broker.core.data_path import OffsetAnswer
from quorumlog.broker.handlers.api import ApiHandler, Reply
from quorumlog.broker.io.context import BrokerContext
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicPartition
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

OFFSET_NOT_AVAILABLE_SINCE = 5  # KIP-207


def handle(context: BrokerContext, header: RequestHeader, request: ListOffsetsRequest) -> Reply:
    """Look up each partition's offset."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    _partition_response(
                        header,
                        partition.partition_index,
                        context.replicas.list_offset(
                            TopicPartition(topic.name, partition.partition_index),
                            partition.timestamp,
                            Epoch(partition.current_leader_epoch),
                            BrokerId(request.replica_id),
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _partition_response(
    header: RequestHeader, index: int, found: OffsetAnswer
) -> ListOffsetsPartitionResponse:
    error_code = found.error_code
    too_old = header.api_version < OFFSET_NOT_AVAILABLE_SINCE
    if error_code is ErrorCode.OFFSET_NOT_AVAILABLE and too_old:
        error_code = ErrorCode.LEADER_NOT_AVAILABLE
    return ListOffsetsPartitionResponse(
        partition_index=index,
        error_code=error_code,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


HANDLER = ApiHandler(
    api_key=ListOffsetsRequest.API_KEY, min_version=1, max_version=10, handle=handle
)
