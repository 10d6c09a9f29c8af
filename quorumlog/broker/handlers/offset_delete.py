"""OffsetDelete (47): deletes committed offsets of topics without subscribers. Source: KIP-496."""

from quorumlog.broker.groups.core.requests import CommitResult, DeleteOffsets
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(OffsetDeleteRequest, 0, 0)
def handle(context: BrokerContext, header: RequestHeader, request: OffsetDeleteRequest) -> Reply:
    """Delete the offsets of the partitions that exist; answer once the deletion is committed.

    Without an existing partition, the coordinator gets no request, as in Kafka.
    """
    asked = dict.fromkeys(
        TopicPartition(topic.name, part.partition_index)
        for topic in request.topics
        for part in topic.partitions
    )
    unknown = {
        where: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for where in asked
        if context.image.partition(where) is None
    }
    existing = tuple(where for where in asked if where not in unknown)
    if not existing:
        return _response(unknown)

    def respond(result: CommitResult) -> OffsetDeleteResponse:
        if result.error_code is not ErrorCode.NONE:
            return OffsetDeleteResponse(error_code=result.error_code)
        return _response({**unknown, **result.partitions})

    deletion = DeleteOffsets(group_id=request.group_id, partitions=existing)
    return when_done(context.groups.ask(deletion), respond)


def _response(outcomes: dict[TopicPartition, ErrorCode]) -> OffsetDeleteResponse:
    topics: dict[str, OffsetDeleteResponseTopic] = {}
    for where, error_code in sorted(outcomes.items()):
        topic = topics.setdefault(where.topic, OffsetDeleteResponseTopic(name=where.topic))
        topic.partitions.append(
            OffsetDeleteResponsePartition(partition_index=where.partition, error_code=error_code)
        )
    return OffsetDeleteResponse(topics=[*topics.values()])
