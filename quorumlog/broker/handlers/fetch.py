"""Fetch (API key 1): from consumers up to the high watermark, from replicas up to the log's end.

Every answer has session id 0: fetch sessions (KIP-227) are not kept, which the protocol allows.
There are no transactions: the last stable offset is the high watermark.
"""

from functools import partial
from typing import Final

from quorumlog.broker.core.data_path import FetchedPartition, FetchSpec, PartitionFetch
from quorumlog.broker.handlers.api import ApiHandler, Reply
from quorumlog.broker.handlers.leaders import leader_hints
from quorumlog.broker.io.context import BrokerContext
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    UNKNOWN_OFFSET,
    BrokerId,
    Epoch,
    Offset,
    TopicId,
    TopicPartition,
)
from quorumlog.wire.codec.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from quorumlog.wire.codec.schemas import RequestHeader

TOPIC_IDS_SINCE: Final = 13
REPLICA_STATE_SINCE: Final = 15
NODE_ENDPOINTS_SINCE: Final = 16
_MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def handle(context: BrokerContext, header: RequestHeader, request: FetchRequest) -> Reply:
    """Answer now, or when there are min_bytes, an error, or max_wait_ms are over."""
    # DEVIATION: Kafka keeps fetch sessions.
    # docs/decisions/0012-fetch-sessions-are-not-kept.md
    if request.session_id != 0 and request.session_epoch > 0:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    spec = _spec(context, header.api_version, request)
    respond = partial(_response, context, header, request, spec.is_from_follower)
    return context.replicas.fetch_as(spec, respond)


def _spec(context: BrokerContext, version: int, request: FetchRequest) -> FetchSpec:
    replica_id, replica_epoch = request.replica_id, -1
    if version >= REPLICA_STATE_SINCE and request.replica_state is not None:
        replica_id = request.replica_state.replica_id
        replica_epoch = request.replica_state.replica_epoch
    partitions = []
    for topic in request.topics:
        name, topic_id, error_code = topic.topic, None, ErrorCode.NONE
        if version >= TOPIC_IDS_SINCE:
            topic_id = TopicId(topic.topic_id)
            name = context.image.topic_names.get(topic_id, "")
            error_code = ErrorCode.NONE if name else ErrorCode.UNKNOWN_TOPIC_ID
        partitions += [
            PartitionFetch(
                topic_partition=TopicPartition(name, fetch.partition),
                topic_id=topic_id,
                fetch_offset=Offset(fetch.fetch_offset),
                max_bytes=fetch.partition_max_bytes,
                leader_epoch=Epoch(fetch.current_leader_epoch),
                last_fetched_epoch=Epoch(fetch.last_fetched_epoch),
                error_code=error_code,
            )
            for fetch in topic.partitions
        ]
    max_bytes = request.max_bytes
    if replica_id < 0:
        max_bytes = min(max_bytes, context.settings.fetch_max_bytes)
    return FetchSpec(
        replica_id=BrokerId(replica_id),
        replica_epoch=replica_epoch,
        max_wait_ms=request.max_wait_ms,
        min_bytes=min(request.min_bytes, max_bytes),  # more than fits is never there
        max_bytes=max_bytes,
        partitions=partitions,
    )


def _response(
    context: BrokerContext,
    header: RequestHeader,
    request: FetchRequest,
    is_from_follower: bool,
    fetched: list[FetchedPartition],
) -> FetchResponse:
    """Write what was fetched, in the request's order."""
    answers = iter(fetched)
    response = FetchResponse()
    moved: set[TopicPartition] = set()
    for topic in request.topics:
        partitions = []
        for fetch in topic.partitions:
            found = next(answers)
            # Beside an error Kafka names no offsets. Our follower needs where the log starts.
            is_silent = found.error_code is not ErrorCode.NONE and not is_from_follower
            partitions.append(_partition(fetch.partition, found, is_silent=is_silent))
            if found.error_code in _MOVED:
                name = topic.topic or context.image.topic_names.get(TopicId(topic.topic_id), "")
                moved.add(TopicPartition(name, fetch.partition))
        response.responses.append(
            FetchableTopicResponse(
                topic=topic.topic, topic_id=topic.topic_id, partitions=partitions
            )
        )
    if moved and header.api_version >= NODE_ENDPOINTS_SINCE:
        response.node_endpoints = [
            NodeEndpoint(node_id=hint.node_id, host=hint.host, port=hint.port, rack=hint.rack)
            for hint in leader_hints(context.image, moved)
        ]
    return response


def _partition(index: int, found: FetchedPartition, *, is_silent: bool) -> PartitionData:
    high_watermark = UNKNOWN_OFFSET if is_silent else found.high_watermark
    data = PartitionData(
        partition_index=index,
        error_code=found.error_code,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark,
        log_start_offset=UNKNOWN_OFFSET if is_silent else found.log_start_offset,
        aborted_transactions=None,
        records=found.records or b"",
    )
    if found.diverging is not None:
        data.diverging_epoch = EpochEndOffset(
            epoch=found.diverging.epoch, end_offset=found.diverging.end_offset
        )
    if found.error_code in _MOVED:
        data.current_leader = LeaderIdAndEpoch(
            leader_id=found.leader_id, leader_epoch=found.leader_epoch
        )
    return data


HANDLER = ApiHandler(api_key=FetchRequest.API_KEY, min_version=4, max_version=17, handle=handle)
