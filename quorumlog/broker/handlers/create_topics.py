"""CreateTopics (19): the controller creates topics; answered once this broker's image has them."""

from collections import Counter
from collections.abc import Mapping

from quorumlog.broker.responses.config_entries import topic_entries
from quorumlog.broker.responses.controller_answers import decided, shortened
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import NewTopic, TopicResult
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.settings.servers import BrokerConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import topic_name_error


@answers(CreateTopicsRequest, 2, 7)
async def handle(
    context: BrokerContext, header: RequestHeader, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create the well-formed topics; every topic of the request gets its own outcome."""
    counts = Counter(topic.name for topic in request.topics)
    results: dict[str, TopicResult] = {}
    wanted = []
    for topic in request.topics:
        refusal = _refusal(topic, counts[topic.name])
        if refusal is None:
            wanted.append(_new_topic(topic))
        else:
            error_code, message = refusal
            results[topic.name] = TopicResult(
                name=topic.name, error_code=error_code, error_message=message
            )
    if wanted:
        results |= await _create(context, wanted, request)
    given = {topic.name: topic.configs for topic in wanted}
    image, broker = context.image, context.config  # read once: it checks each altered value
    return CreateTopicsResponse(
        topics=[
            _outcome(image, broker, result, given.get(result.name, {}))
            for result in results.values()
        ]
    )


def _refusal(topic: CreatableTopic, count: int) -> tuple[ErrorCode, str] | None:
    if count > 1:
        return ErrorCode.INVALID_REQUEST, "the request names this topic more than once"
    problem = topic_name_error(topic.name)
    if problem is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    indexes = Counter(assignment.partition_index for assignment in topic.assignments)
    if len(indexes) < len(topic.assignments):
        message = f"more than one assignment for partition {indexes.most_common(1)[0][0]}"
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, message
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        return ErrorCode.INVALID_CONFIG, f"no value for {', '.join(nulls)}"
    return None


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={
            assignment.partition_index: tuple(map(BrokerId, assignment.broker_ids))
            for assignment in topic.assignments
        },
        configs={config.name: config.value or "" for config in topic.configs},
    )


async def _create(
    context: BrokerContext, wanted: list[NewTopic], request: CreateTopicsRequest
) -> dict[str, TopicResult]:
    results = await decided(
        context,
        context.controller.create_topics(wanted, validate_only=request.validate_only),
        names=[topic.name for topic in wanted],
        kind=TopicResult,
        doubt="the topic may have been created",
        is_seen=lambda image, result: result.topic_id in image.topic_names,
        wait_ms=None if request.validate_only else request.timeout_ms,
        makes_partitions=True,
    )
    return {result.name: result for result in results}


def _outcome(
    image: ClusterImage, broker: BrokerConfig, result: TopicResult, given: Mapping[str, str]
) -> CreatableTopicResult:
    is_fine = result.error_code is ErrorCode.NONE
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_code=result.error_code,
        error_message=shortened(result.error_message),
        num_partitions=result.partitions,
        replication_factor=result.replication_factor,
        # Never null, which Java's admin client does not expect.
        configs=_configs(image, broker, result, given) if is_fine else [],
    )


def _configs(
    image: ClusterImage, broker: BrokerConfig, result: TopicResult, given: Mapping[str, str]
) -> list[CreatableTopicConfigs]:
    topic = image.topics.get(result.name)
    own = given
    if topic is not None and topic.topic_id == result.topic_id:
        own = topic.configs  # as the controller has stored them
    return [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
        )
        for entry in topic_entries(broker, own)
    ]
