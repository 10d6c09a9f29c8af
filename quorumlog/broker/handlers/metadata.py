"""Metadata (3): where brokers and partitions are; may create a topic that is asked for.

Source: KIP-516 (topic ids from v10 on), KIP-204 (auto creation is the client's choice from v4 on).
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.broker.handlers.api import ApiHandler, Reply
from quorumlog.broker.handlers.names import INTERNAL_TOPICS, is_topic_name
from quorumlog.broker.io.context import BrokerContext
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, NewTopic
from quorumlog.metadata_quorum.image import ClusterImage, PartitionImage, TopicImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, ZERO_TOPIC_ID, BrokerId, TopicId
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader

CREATED_WAIT_MS: Final = 1000  # for the new topic's leaders to be known here
FIRST_VERSION_WITH_IDS: Final = 12  # 10 and 11 have the field, but names are what counts


def handle(context: BrokerContext, header: RequestHeader, request: MetadataRequest) -> Reply:
    """Answer from the image; as a task if there are topics to create first."""
    asked = request.topics
    if asked is None or (header.api_version == 0 and not asked):
        topics = [_topic(context.image, topic) for topic in context.image.topics.values()]
        return _response(context, topics)
    names = [
        topic.name for topic in asked if topic.name is not None and topic.topic_id == ZERO_TOPIC_ID
    ]
    if request.allow_auto_topic_creation and context.settings.auto_create_topics_enable:
        known = context.image.topics
        missing = [name for name in names if name not in known and is_topic_name(name)]
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
            topics.append(_topic(image, topic))
            continue
        if name is None and header.api_version < FIRST_VERSION_WITH_IDS:
            name = ""
        topics.append(MetadataResponseTopic(error_code=missing, name=name, topic_id=topic_id))
    return _response(context, topics)


async def _create_then_answer(
    context: BrokerContext, header: RequestHeader, request: MetadataRequest, missing: list[str]
) -> MetadataResponse:
    """Create, and wait a little: an answer with leaders spares every client a retry."""
    refused = dict.fromkeys(missing, ErrorCode.LEADER_NOT_AVAILABLE)
    try:
        results = await context.controller.create_topics([NewTopic(name=name) for name in missing])
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


def _response(context: BrokerContext, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    image = context.image
    unfenced = [broker for _, broker in sorted(image.brokers.items()) if not broker.fenced]
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in unfenced
        ],
        cluster_id=context.cluster_id,
        controller_id=controller_for_clients(image, context.broker_id),
        topics=topics,
    )


def controller_for_clients(image: ClusterImage, default: BrokerId) -> BrokerId:
    """Return a broker that takes admin requests: any does, so the controller only if it is one."""
    registration = image.brokers.get(image.controller_id)
    if registration is not None and not registration.fenced:
        return image.controller_id
    unfenced = [broker_id for broker_id, broker in image.brokers.items() if not broker.fenced]
    return default if default in unfenced else min(unfenced, default=NO_LEADER)


def _topic(image: ClusterImage, topic: TopicImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(image, index, partition) for index, partition in enumerate(topic.partitions)
        ],
    )


def _partition(
    image: ClusterImage, index: int, partition: PartitionImage
) -> MetadataResponsePartition:
    has_leader = partition.leader_id != NO_LEADER
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=[*partition.replicas],
        isr_nodes=[*partition.isr],
        offline_replicas=[*_offline(image, partition.replicas)],
    )


def _offline(image: ClusterImage, replicas: Iterable[BrokerId]) -> Iterable[BrokerId]:
    for broker_id in replicas:
        registration = image.brokers.get(broker_id)
        if registration is None or registration.fenced:
            yield broker_id


HANDLER = ApiHandler(api_key=MetadataRequest.API_KEY, min_version=0, max_version=13, handle=handle)
