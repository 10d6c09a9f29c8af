"""ListOffsets (API key 2): by time, or the special offsets of KIP-79, 405, 734, 1005, 1023."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from quorumlog.broker.partitions.core.data_path import OffsetAnswer
from quorumlog.broker.partitions.log.offset_lookup import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    OF_MAX_TIMESTAMP,
)
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicPartition
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

OFFSET_NOT_AVAILABLE_SINCE: Final = 5  # KIP-207
READ_COMMITTED: Final = 1  # an isolation level
FIRST_VERSION_OF_SPECIAL: Final[Mapping[int, int]] = MappingProxyType(
    {
        LATEST: 1,
        EARLIEST: 1,
        OF_MAX_TIMESTAMP: 7,
        EARLIEST_LOCAL: 8,
        LATEST_TIERED: 9,
        EARLIEST_PENDING_UPLOAD: 11,
    }
)


@answers(ListOffsetsRequest, 1, 11)
async def handle(
    context: BrokerContext, header: RequestHeader, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Look up the offsets of one partition after the other, as Kafka does.

    A partition named twice gets one answer, an error.
    """
    asked: dict[str, dict[int, ListOffsetsPartition]] = {}
    repeated: set[TopicPartition] = set()
    for topic in request.topics:
        partitions = asked.setdefault(topic.name, {})
        for partition in topic.partitions:
            if partition.partition_index in partitions:
                repeated.add(TopicPartition(topic.name, partition.partition_index))
            partitions[partition.partition_index] = partition

    async def look_up(where: TopicPartition, partition: ListOffsetsPartition) -> OffsetAnswer:
        if where in repeated:
            return OffsetAnswer(ErrorCode.INVALID_REQUEST)
        if not _is_supported(partition.timestamp, header.api_version):
            return OffsetAnswer(ErrorCode.UNSUPPORTED_VERSION)
        return await context.replicas.list_offset(
            where,
            partition.timestamp,
            Epoch(partition.current_leader_epoch),
            BrokerId(request.replica_id),
            is_read_committed=request.isolation_level == READ_COMMITTED,
        )

    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=name,
                partitions=[
                    _partition_response(
                        header, index, await look_up(TopicPartition(name, index), partition)
                    )
                    for index, partition in partitions.items()
                ],
            )
            for name, partitions in asked.items()
        ]
    )


def _is_supported(timestamp_ms: int, version: int) -> bool:
    """Whether the version has this special offset; every version accepts real timestamps."""
    if timestamp_ms >= 0:
        return True
    first_version = FIRST_VERSION_OF_SPECIAL.get(timestamp_ms)
    return first_version is not None and version >= first_version


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
