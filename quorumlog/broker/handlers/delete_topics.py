"""DeleteTopics (20): by name, or by id from v6 on (KIP-516)."""

from collections import Counter

from quorumlog.broker.handlers.api import ApiHandler
from quorumlog.broker.handlers.names import shortened
from quorumlog.broker.io.context import BrokerContext
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, TopicResult
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicId
from quorumlog.wire.codec.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_IDS = 6


async def handle(
    context: BrokerContext, header: RequestHeader, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete; answered once this broker has forgotten the topics, too."""
    if header.api_version < FIRST_VERSION_WITH_IDS:
        asked = [DeleteTopicState(name=name) for name in request.topic_names]
    else:
        asked = request.topics
    names = [_name_of(context, topic) for topic in asked]
    counts: Counter[str | None] = Counter(name for name in names if name is not None)
    refused = [_refusal(topic, counts[name]) for topic, name in zip(asked, names, strict=True)]
    refusals = zip(names, refused, strict=True)
    wanted = sorted({name for name, refusal in refusals if name is not None and refusal is None})
    results = await _delete(context, header, wanted, request.timeout_ms) if wanted else {}
    outcomes = [
        refusal or _outcome(topic, results.get(name) if name is not None else None)
        for topic, name, refusal in zip(asked, names, refused, strict=True)
    ]
    return DeleteTopicsResponse(responses=outcomes)


def _name_of(context: BrokerContext, asked: DeleteTopicState) -> str | None:
    if asked.name is not None:
        return asked.name
    return context.image.topic_names.get(TopicId(asked.topic_id))


def _refusal(asked: DeleteTopicState, count: int) -> DeletableTopicResult | None:
    """Refuse what could be meant in two ways: a topic that is gone does not come back."""
    if (asked.name is not None) == (asked.topic_id != ZERO_TOPIC_ID):
        message = "a topic is named by its name or by its id: by one of them"
    elif count > 1:
        message = "the request names this topic more than once"
    else:
        return None
    return DeletableTopicResult(
        name=asked.name,
        topic_id=asked.topic_id,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=message,
    )


async def _delete(
    context: BrokerContext, header: RequestHeader, names: list[str], timeout_ms: int
) -> dict[str, TopicResult]:
    if not context.settings.delete_topic_enable:
        knows = header.api_version >= 3  # before, there was no such error code
        refusal = ErrorCode.TOPIC_DELETION_DISABLED if knows else ErrorCode.INVALID_REQUEST
        return {name: TopicResult(name=name, error_code=refusal) for name in names}
    ids = {name: topic.topic_id for name in names if (topic := context.image.topics.get(name))}
    try:
        results = await context.controller.delete_topics(names)
    except ControllerUnavailable:
        timed_out = ErrorCode.REQUEST_TIMED_OUT
        return {name: TopicResult(name=name, error_code=timed_out) for name in names}
    gone = [
        ids[result.name]
        for result in results
        if result.error_code is ErrorCode.NONE and result.name in ids
    ]
    await context.metadata.wait_until(
        lambda image: not any(topic_id in image.topic_names for topic_id in gone),
        timeout_ms=timeout_ms,
    )
    return {result.name: result for result in results}


def _outcome(asked: DeleteTopicState, result: TopicResult | None) -> DeletableTopicResult:
    if result is None:
        return DeletableTopicResult(
            name=None, topic_id=asked.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
        )
    topic_id = asked.topic_id if asked.topic_id != ZERO_TOPIC_ID else result.topic_id
    return DeletableTopicResult(
        name=result.name,
        topic_id=topic_id,
        error_code=result.error_code,
        error_message=shortened(result.error_message),
    )


HANDLER = ApiHandler(
    api_key=DeleteTopicsRequest.API_KEY, min_version=1, max_version=6, handle=handle
)
