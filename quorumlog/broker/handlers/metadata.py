"""Metadata (3): where brokers and partitions are; may create a topic that is asked for.

Source: KIP-516 (topic ids from v10 on), KIP-204 (auto creation is the client's choice from v4 on).
"""

from typing import Final

from quorumlog.broker.core.groups.partitioning import OFFSETS_TOPIC
from quorumlog.broker.handlers.api import ApiHandler, Reply
from quorumlog.broker.handlers.cluster_view import metadata_response, topic_of
from quorumlog.broker.handlers.find_coordinator import offsets_topic
from quorumlog.broker.handlers.names import TRANSACTIONS_TOPIC, is_topic_name
from quorumlog.broker.io.context import BrokerContext
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, NewTopic
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicId
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader

CREATED_WAIT_MS: Final = 1000  # for the new topic's leaders to be known here
FIRST_VERSION_WITH_IDS: Final = 12  # 10 and 11 have the field, but names are what counts


def handle(context: BrokerContext, header: RequestHeader, request: MetadataRequest) -> Reply:
    """Answer from the image; as a task if there are topics to create first."""
    asked = request.topics
    if asked is None or (header.api_version == 0 and not asked):
        topics = [topic_of(context.image, topic) for topic in context.image.topics.values()]
        return metadata_response(context, topics)
    names = [
        topic.name for topic in asked if topic.name is not None and topic.topic_id == ZERO_TOPIC_ID
    ]
    if request.allow_auto_topic_creation and context.settings.auto_create_topics_enable:
        known = context.image.topics
        missing = [
            name
            for name in names
            # DEVIATION: Kafka makes it. There are no transactions yet to need it.
            # docs/decisions/0013-transactional-ids-are-refused.md
            if name not in known and is_topic_name(name) and name != TRANSACTIONS_TOPIC
        ]
        if missing:
            return _create_then_answer(context, header, request, missing)
    return _answer(context, header, request)


def _answer(
    context: BrokerContext,
    header: RequestHeader,
    request: MetadataRequest,
    refused: dict[str, ErrorCode] | None = None,
) -> MetadataResponse:
    image, topics = context.image, []
    for asked in request.topics or ():
        topic_id, name = TopicId(asked.topic_id), asked.name
        if topic_id != ZERO_TOPIC_ID and header.api_version >= FIRST_VERSION_WITH_IDS:
            name = image.topic_names.get(topic_id)
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            missing = (refused or {}).get(name or "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if not is_topic_name(name or ""):
                missing = ErrorCode.INVALID_TOPIC_EXCEPTION
        topic = image.topics.get(name or "")
        if topic is not None:
            topics.append(topic_of(image, topic))
            continue
        if name is None and header.api_version < FIRST_VERSION_WITH_IDS:
            name = ""
        topics.append(MetadataResponseTopic(error_code=missing, name=name, topic_id=topic_id))
    return metadata_response(context, topics)


async def _create_then_answer(
    context: BrokerContext, header: RequestHeader, request: MetadataRequest, missing: list[str]
) -> MetadataResponse:
    """Create, and wait a little: an answer with leaders spares every client a retry."""
    refused = dict.fromkeys(missing, ErrorCode.LEADER_NOT_AVAILABLE)
    wanted = [
        offsets_topic(context.settings) if name == OFFSETS_TOPIC else NewTopic(name=name)
        for name in refused
    ]
    try:
        results = await context.controller.create_topics(wanted)
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
        lambda image: all(name in image.topics for name in created), timeout_ms=CREATED_WAIT_MS
    )
    return _answer(context, header, request, refused)


HANDLER = ApiHandler(api_key=MetadataRequest.API_KEY, min_version=0, max_version=13, handle=handle)
