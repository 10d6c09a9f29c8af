"""Metadata (3): the brokers, topics and leaders; may create a requested topic.

If the response names this broker as the leader of a new partition, it waits until the broker
serves the partition: a client without retries sends its next request at once.

Source: KIP-516 (topic ids from v10 on), KIP-204 (auto creation is the client's choice from v4 on),
KIP-430 (authorized operations from v8 on).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from quorumlog.broker.responses.cluster_view import metadata_response, partitions_of, topic_of
from quorumlog.broker.responses.internal_topics import new_topic
from quorumlog.broker.server.api import BrokerContext, Reply, answers
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable
from quorumlog.metadata_quorum.controller_requests import CreateTopics
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicId
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import is_topic_name

CREATED_WAIT_MS: Final = 1000  # until the image has the leaders of a new topic, and they serve
FIRST_VERSION_BY_IDS: Final = 12  # 10 and 11 have the field, but Kafka refuses it


@answers(MetadataRequest, 0, 13)
def handle(context: BrokerContext, header: RequestHeader, request: MetadataRequest) -> Reply:
    """Answer from the image; as a task if topics must be created first."""
    asked = request.topics
    if asked is None or (header.api_version == 0 and not asked):
        topics = [topic_of(context.image, topic) for topic in context.image.topics.values()]
        return metadata_response(context, header, request, topics)
    if _is_by_id_too_early(header, asked):
        return _refused(asked)
    names = [
        topic.name for topic in asked if topic.name is not None and topic.topic_id == ZERO_TOPIC_ID
    ]
    if request.allow_auto_topic_creation and context.settings.auto_create_topics_enable:
        known = context.image.topics
        missing = [name for name in names if name not in known and is_topic_name(name)]
        if missing:
            return _create_then_answer(context, header, request, missing)
    names += [context.image.topic_names.get(TopicId(topic.topic_id), "") for topic in asked]
    if any(map(context.metadata.is_to_lead, partitions_of(context.image, names))):
        return _lead_then_answer(context, header, request, names)
    return _answer(context, header, request)


def _is_by_id_too_early(header: RequestHeader, asked: Iterable[MetadataRequestTopic]) -> bool:
    """Whether a topic has an id, or no name, in a version that reads only names."""
    return header.api_version < FIRST_VERSION_BY_IDS and any(
        topic.name is None or topic.topic_id != ZERO_TOPIC_ID for topic in asked
    )


def _refused(asked: Iterable[MetadataRequestTopic]) -> MetadataResponse:
    """Refuse the whole request, as Kafka does, for each of its topics."""
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in asked
        ]
    )


def _answer(
    context: BrokerContext,
    header: RequestHeader,
    request: MetadataRequest,
    refused: Mapping[str, ErrorCode] = MappingProxyType({}),
) -> MetadataResponse:
    """Answer each topic once, even if its name or id is repeated."""
    asked_once = {(asked.name, asked.topic_id): asked for asked in request.topics or ()}
    topics = [_topic(context, asked, refused) for asked in asked_once.values()]
    return metadata_response(context, header, request, topics)


def _topic(
    context: BrokerContext, asked: MetadataRequestTopic, refused: Mapping[str, ErrorCode]
) -> MetadataResponseTopic:
    image, topic_id, name = context.image, TopicId(asked.topic_id), asked.name
    if topic_id != ZERO_TOPIC_ID:
        name = image.topic_names.get(topic_id)
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    elif not is_topic_name(name or ""):
        missing = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        missing = refused.get(name or "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    topic = image.topics.get(name or "")
    if topic is not None:
        return topic_of(image, topic)
    return MetadataResponseTopic(error_code=missing, name=name, topic_id=topic_id)


async def _lead_then_answer(
    context: BrokerContext, header: RequestHeader, request: MetadataRequest, names: list[str]
) -> MetadataResponse:
    await context.metadata.wait_until(
        lambda _: True,
        timeout_ms=CREATED_WAIT_MS,
        leaders_of=lambda image: partitions_of(image, names),
    )
    return _answer(context, header, request)


async def _create_then_answer(
    context: BrokerContext, header: RequestHeader, request: MetadataRequest, missing: list[str]
) -> MetadataResponse:
    """Create topics, and wait a little: a response with leaders spares every client a retry."""
    refused = dict.fromkeys(missing, ErrorCode.LEADER_NOT_AVAILABLE)
    wanted = tuple(new_topic(name, context.settings) for name in refused)
    try:
        results = (await context.controller.ask(CreateTopics(topics=wanted))).results
    except ControllerUnavailable:
        return _answer(context, header, request, refused)
    refused |= {
        result.name: result.error_code
        for result in results
        if result.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
    }
    created = [
        result.name for result in results if refused[result.name] == ErrorCode.LEADER_NOT_AVAILABLE
    ]
    await context.metadata.wait_until(
        lambda image: all(name in image.topics for name in created),
        timeout_ms=CREATED_WAIT_MS,
        leaders_of=lambda image: partitions_of(image, created),
    )
    return _answer(context, header, request, refused)
