"""DeleteTopics (20): by name, or by id from v6 on. Source: KIP-516.

The controller resolves names to ids once, and deletes by these ids: never a topic that was created
under that name in the meantime, nor another topic with the name of a topic requested by id.
"""

from collections import Counter
from typing import Final

from quorumlog.broker.responses.controller_answers import shortened, unanswered
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicId
from quorumlog.wire.codec.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_IDS: Final = 6
NAMED_TWICE: Final = "the request names this topic more than once"
Outcomes = dict[int, DeletableTopicResult]  # by place in the request; absent: undecided


@answers(DeleteTopicsRequest, 1, 6)
async def handle(
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
            await _delete(context, asked, outcomes, request.timeout_ms)
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
    context: BrokerContext, asked: list[DeleteTopicState], outcomes: Outcomes, timeout_ms: int
) -> None:
    """Add the outcome of each topic. Raises ControllerUnavailable: some may be deleted."""
    wanted = await _find(context, asked, outcomes)
    counts = Counter(wanted.values())
    for place, topic_id in list(wanted.items()):
        if counts[topic_id] > 1:  # once by its name, once by its id
            outcomes[place] = _refusal(asked[place], ErrorCode.INVALID_REQUEST, NAMED_TWICE)
            del wanted[place]
    if not wanted:
        return
    results = await context.controller.delete_topics(list(wanted.values()))
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
    found = await context.controller.find_topics(list(named.values())) if named else []
    for place, result in zip(named, found, strict=True):
        wanted[place] = result.topic_id
        if result.error_code is not ErrorCode.NONE:
            outcomes[place] = _refusal(asked[place], result.error_code, result.error_message)
            del wanted[place]
    return wanted
