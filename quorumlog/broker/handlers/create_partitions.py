"""CreatePartitions (37): the controller grows topics. Source: KIP-195."""

from typing import Final

from quorumlog.broker.responses.controller_answers import decided, shortened
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import NewPartitions, TopicResult
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC

# DEVIATION: Kafka lets this topic grow; most groups then lose their offsets.
# docs/decisions/0039-limits.md
STAYS_AS_IT_IS: Final = TopicResult(
    name=OFFSETS_TOPIC,
    error_code=ErrorCode.INVALID_PARTITIONS,
    error_message="The number of partitions for the offsets topic cannot be changed.",
)


@answers(CreatePartitionsRequest, 0, 3)
async def handle(
    context: BrokerContext, header: RequestHeader, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Grow the topics; answer once this broker's image has the new partitions."""
    wanted = [topic for topic in request.topics if topic.name != OFFSETS_TOPIC]
    refused = [STAYS_AS_IT_IS] * (len(request.topics) - len(wanted))
    results: list[TopicResult] = []
    if wanted:
        results = await decided(
            context,
            context.controller.create_partitions(
                list(map(_new_partitions, wanted)), validate_only=request.validate_only
            ),
            names=[topic.name for topic in wanted],
            kind=TopicResult,
            doubt="the topic may have grown",
            is_seen=_has_grown,
            wait_ms=None if request.validate_only else request.timeout_ms,
            makes_partitions=True,
        )
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(
                name=result.name,
                error_code=result.error_code,
                error_message=shortened(result.error_message),
            )
            for result in (*results, *refused)
        ]
    )


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = topic.assignments
    return NewPartitions(
        name=topic.name,
        count=topic.count,
        assignments=None
        if assignments is None
        else tuple(tuple(map(BrokerId, one.broker_ids)) for one in assignments),
    )


def _has_grown(image: ClusterImage, result: TopicResult) -> bool:
    topic = image.topics.get(result.name)
    if topic is None or topic.topic_id != result.topic_id:
        return True  # deleted meanwhile: no need to wait
    return len(topic.partitions) >= result.partitions
