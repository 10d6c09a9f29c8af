"""CreateTopics (19), CreatePartitions (37, KIP-195), DeleteTopics (20): the controller decides.

Topics are deleted by name, or by id from v6 on (KIP-516). The controller resolves names to ids
once, and deletes by these ids: never a topic that was created under that name in the meantime, nor
another topic with the name of a topic requested by id.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from quorumlog.broker.quotas.throttle import NO_QUOTA, Mutations
from quorumlog.broker.responses.config_entries import topic_entries
from quorumlog.broker.responses.controller_answers import decided, shortened, unanswered
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    NewPartitions,
    NewTopic,
    TopicResult,
)
from quorumlog.metadata_quorum.controller_requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FindTopics,
)
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.settings.servers import BrokerConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, BrokerId, TopicId
from quorumlog.wire.codec.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from quorumlog.wire.codec.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from quorumlog.wire.codec.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC, topic_name_error


@answers(CreateTopicsRequest, 2, 7)
async def handle_create(
    context: BrokerContext, header: RequestHeader, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create the well-formed topics; every topic of the request gets its own outcome."""
    quota = _quota(context, header)
    counts = Counter(topic.name for topic in request.topics)
    results: dict[str, TopicResult] = {}
    wanted = []
    for topic in request.topics:
        refusal = _malformed(topic, counts[topic.name])
        if refusal is None and not quota.admit(topic.name, _partitions(context, topic)):
            refusal = OVER_QUOTA
        if refusal is None:
            wanted.append(_new_topic(topic))
        else:
            error_code, message = refusal
            results[topic.name] = TopicResult(
                name=topic.name, error_code=error_code, error_message=message
            )
    if wanted:
        results |= await _create(context, wanted, request)
        quota.give_back(_refused(results.values()))
    given = {topic.name: topic.configs for topic in wanted}
    image, broker = context.image, context.config  # read once: it checks each altered value
    return CreateTopicsResponse(
        topics=[
            _outcome(image, broker, result, given.get(result.name, {}))
            for result in results.values()
        ]
    )


OVER_QUOTA: Final = (ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")


def _quota(context: BrokerContext, header: RequestHeader) -> Mutations:
    throttle = context.throttle
    return NO_QUOTA if throttle is None else throttle.mutations(context, header)


def _partitions(context: BrokerContext, topic: CreatableTopic) -> int:
    """Return the number of partitions of a new topic."""
    count = len(topic.assignments) or topic.num_partitions
    return count if count > 0 else context.settings.num_partitions


def _refused(results: Iterable[TopicResult]) -> list[str]:
    return [one.name for one in results if one.error_code is not ErrorCode.NONE]


def _malformed(topic: CreatableTopic, count: int) -> tuple[ErrorCode, str] | None:
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
        CreateTopics(topics=tuple(wanted), validate_only=request.validate_only),
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


# DEVIATION: Kafka lets this topic grow; most groups then lose their offsets.
# docs/decisions/0039-limits.md
STAYS_AS_IT_IS: Final = TopicResult(
    name=OFFSETS_TOPIC,
    error_code=ErrorCode.INVALID_PARTITIONS,
    error_message="The number of partitions for the offsets topic cannot be changed.",
)


@answers(CreatePartitionsRequest, 0, 3)
async def handle_grow(
    context: BrokerContext, header: RequestHeader, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Grow the topics; answer once this broker's image has the new partitions."""
    quota = _quota(context, header)
    others = [topic for topic in request.topics if topic.name != OFFSETS_TOPIC]
    refused = [STAYS_AS_IT_IS] * (len(request.topics) - len(others))
    wanted = []
    for topic in others:
        present = context.image.topics.get(topic.name)
        if quota.admit(topic.name, topic.count - len(present.partitions) if present else 0):
            wanted.append(topic)
        else:
            code, message = OVER_QUOTA
            refused.append(TopicResult(name=topic.name, error_code=code, error_message=message))
    results: Sequence[TopicResult] = ()
    if wanted:
        results = await decided(
            context,
            CreatePartitions(
                topics=tuple(map(_new_partitions, wanted)), validate_only=request.validate_only
            ),
            names=[topic.name for topic in wanted],
            kind=TopicResult,
            doubt="the topic may have grown",
            is_seen=_has_grown,
            wait_ms=None if request.validate_only else request.timeout_ms,
            makes_partitions=True,
        )
        quota.give_back(_refused(results))
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


FIRST_VERSION_WITH_IDS: Final = 6
NAMED_TWICE: Final = "the request names this topic more than once"
Outcomes = dict[int, DeletableTopicResult]  # by place in the request; absent: undecided


@answers(DeleteTopicsRequest, 1, 6)
async def handle_delete(
    context: BrokerContext, header: RequestHeader, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete the topics; answer once this broker has removed them, too."""
    if header.api_version < FIRST_VERSION_WITH_IDS:
        asked = [DeleteTopicState(name=name) for name in request.topic_names]
    else:
        asked = request.topics
    outcomes = _refuse_ambiguous(asked)
    last_word, message = ErrorCode.NONE, ""
    if not context.settings.delete_topic_enable:
        knows = header.api_version >= 3  # older versions lack this error code
        last_word = ErrorCode.TOPIC_DELETION_DISABLED if knows else ErrorCode.INVALID_REQUEST
    else:
        try:
            quota = _quota(context, header)
            await _delete(context, asked, outcomes, request.timeout_ms, quota)
        except ControllerUnavailable as error:
            last_word, message = unanswered(error, "the topic may have been deleted")
    return DeleteTopicsResponse(
        responses=[
            outcomes.get(place) or _refusal(topic, last_word, message)
            for place, topic in enumerate(asked)
        ]
    )


def _refusal(
    asked: DeleteTopicState, error_code: ErrorCode, message: str | None
) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=asked.name,
        topic_id=asked.topic_id,
        error_code=error_code,
        error_message=shortened(message),
    )


def _refuse_ambiguous(asked: list[DeleteTopicState]) -> Outcomes:
    """Refuse ambiguous topics, because a deletion cannot be undone."""
    names = Counter(topic.name for topic in asked)
    topic_ids = Counter(topic.topic_id for topic in asked)
    outcomes: Outcomes = {}
    for place, topic in enumerate(asked):
        has_name, has_id = topic.name is not None, topic.topic_id != ZERO_TOPIC_ID
        message = None
        if has_name == has_id:
            message = "a topic is named by its name or by its id: by one of them"
        elif (names[topic.name] if has_name else topic_ids[topic.topic_id]) > 1:
            message = NAMED_TWICE
        if message is not None:
            outcomes[place] = _refusal(topic, ErrorCode.INVALID_REQUEST, message)
    return outcomes


async def _delete(
    context: BrokerContext,
    asked: list[DeleteTopicState],
    outcomes: Outcomes,
    timeout_ms: int,
    quota: Mutations,
) -> None:
    """Add the outcome of each topic. Raises ControllerUnavailable: some may be deleted."""
    wanted = await _find(context, asked, outcomes)
    counts = Counter(wanted.values())
    for place, topic_id in list(wanted.items()):
        if counts[topic_id] > 1:  # once by its name, once by its id
            outcomes[place] = _refusal(asked[place], ErrorCode.INVALID_REQUEST, NAMED_TWICE)
            del wanted[place]
            continue
        topic_image = context.image.topics.get(context.image.topic_names.get(topic_id, ""))
        if topic_image and not quota.admit(topic_image.name, len(topic_image.partitions)):
            outcomes[place] = _refusal(asked[place], *OVER_QUOTA)
            del wanted[place]
    if not wanted:
        return
    request = DeleteTopics(topic_ids=tuple(wanted.values()))
    results = (await context.controller.ask(request)).results
    quota.give_back(_refused(results))
    gone = [result.topic_id for result in results if result.error_code is ErrorCode.NONE]
    for place, result in zip(wanted, results, strict=True):
        topic, error_code = asked[place], result.error_code
        if topic.name is not None and error_code is ErrorCode.UNKNOWN_TOPIC_ID:
            error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # another request deleted it first
        outcomes[place] = DeletableTopicResult(
            name=topic.name or result.name or None,
            topic_id=result.topic_id,
            error_code=error_code,
            error_message=shortened(result.error_message),
        )
    await context.metadata.wait_until(
        lambda image: not any(topic_id in image.topic_names for topic_id in gone),
        timeout_ms=timeout_ms,
    )


async def _find(
    context: BrokerContext, asked: list[DeleteTopicState], outcomes: Outcomes
) -> dict[int, TopicId]:
    """Return the topic id of each undecided place; refuse names without a topic."""
    open_places = [place for place in range(len(asked)) if place not in outcomes]
    wanted = {place: TopicId(asked[place].topic_id) for place in open_places}
    named = {place: name for place in open_places if (name := asked[place].name) is not None}
    request = FindTopics(names=tuple(named.values()))
    found = (await context.controller.ask(request)).results if named else ()
    for place, result in zip(named, found, strict=True):
        wanted[place] = result.topic_id
        if result.error_code is not ErrorCode.NONE:
            outcomes[place] = _refusal(asked[place], result.error_code, result.error_message)
            del wanted[place]
    return wanted
