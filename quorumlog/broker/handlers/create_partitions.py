"""CreatePartitions (37): the controller grows topics. Source: KIP-195."""

from typing import Final

from quorumlog.broker.responses.error_messages import shortened
from quorumlog.broker.responses.unanswered import unanswered
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    NewPartitions,
    TopicResult,
)
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

# DEVIATION: Kafka's broker lets it grow; most groups are then without their offsets.
# docs/decisions/0032-what-an-admin-request-may-not-do.md
STAYS_AS_IT_IS: Final = TopicResult(
    name=OFFSETS_TOPIC,
    error_code=ErrorCode.INVALID_PARTITIONS,
    error_message="The number of partitions for the offsets topic cannot be changed.",
)


@answers(CreatePartitionsRequest, 0, 3)
async def handle(
    context: BrokerContext, header: RequestHeader, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Grow the topics; answer once this broker knows of the new partitions, too."""
    wanted = [topic for topic in request.topics if topic.name != OFFSETS_TOPIC]
    refused = [STAYS_AS_IT_IS] * (len(request.topics) - len(wanted))
    results = await _grow(context, wanted, request) if wanted else []
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


async def _grow(
    context: BrokerContext, wanted: list[CreatePartitionsTopic], request: CreatePartitionsRequest
) -> list[TopicResult]:
    try:
        results = await context.controller.create_partitions(
            list(map(_new_partitions, wanted)), validate_only=request.validate_only
        )
    except ControllerUnavailable as error:
        error_code, message = unanswered(error, "the topic may have grown")
        return [
            TopicResult(name=topic.name, error_code=error_code, error_message=message)
            for topic in wanted
        ]
    grown = [result for result in results if result.error_code is ErrorCode.NONE]
    if grown and not request.validate_only:
        await context.metadata.wait_until(
            lambda image: all(_has_grown(image, result) for result in grown),
            timeout_ms=request.timeout_ms,
        )
    return results


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
        return True  # deleted meanwhile: there is nothing to wait for
    return len(topic.partitions) >= result.partitions
