"""OffsetFetch (9): committed offsets; of several groups from v8 on (KIP-709). OffsetDelete (47).

An offset that was committed for a deleted topic of the same name is not returned. Offsets of topics
without subscribers can be deleted (KIP-496).
Source: KIP-848 (member epochs, v9), KAFKA-14690 (topics by id, v10).
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TypeVar

from quorumlog.broker.groups.core.requests import CommitResult, CommittedOffset, DeleteOffsets
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicId, TopicPartition
from quorumlog.wire.codec.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_ERROR_CODE = 2
FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_MEMBERS = 9
FIRST_VERSION_WITH_TOPIC_IDS = 10
NO_OFFSET = CommittedOffset(offset=-1)

P = TypeVar("P", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)
Offsets = Mapping[TopicPartition, CommittedOffset | ErrorCode | None]


@answers(OffsetFetchRequest, 1, 10)
def handle_fetch(
    context: BrokerContext, header: RequestHeader, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Answer at once, from the committed offsets."""
    if header.api_version >= FIRST_VERSION_WITH_GROUPS:
        return OffsetFetchResponse(
            groups=[
                _fetch_group(context, header.api_version, group, request.require_stable)
                for group in request.groups
            ]
        )
    error_code, offsets = _fetch(context, request.group_id, request.topics, request.require_stable)
    if error_code is not ErrorCode.NONE and header.api_version >= FIRST_VERSION_WITH_ERROR_CODE:
        offsets = {}
    return OffsetFetchResponse(
        error_code=error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic,
                partitions=[
                    _partition(OffsetFetchResponsePartition, *part, error_code) for part in parts
                ],
            )
            for topic, parts in _by_topic(offsets)
        ],
    )


def _fetch_group(
    context: BrokerContext, api_version: int, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    refusal = _refusal(context, group) if api_version >= FIRST_VERSION_WITH_MEMBERS else None
    if refusal:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=refusal)
    if api_version < FIRST_VERSION_WITH_TOPIC_IDS:
        offsets = _fetch(context, group.group_id, group.topics, require_stable)
        return _group(group.group_id, *offsets)
    topics, unknown = group.topics, list[OffsetFetchResponseTopics]()
    for topic in topics or ():
        topic.name = context.image.topic_names.get(TopicId(topic.topic_id), "")
        if not topic.name:
            unknown.append(_unknown(topic))
    if topics is not None:
        topics = [topic for topic in topics if topic.name]
    answer = _group(group.group_id, *_fetch(context, group.group_id, topics, require_stable))
    if answer.error_code != ErrorCode.NONE:
        return answer
    found = [topic for topic in answer.topics if topic.name in context.image.topics]
    for shown in found:
        shown.topic_id = context.image.topics[shown.name].topic_id
    answer.topics = found + unknown
    return answer


def _refusal(context: BrokerContext, group: OffsetFetchRequestGroup) -> ErrorCode:
    """Return why a member of a consumer group may not fetch its offsets, or NONE."""
    coordinator = context.groups.coordinator(group.group_id)
    if isinstance(coordinator, ErrorCode):
        return coordinator
    return coordinator.consumer_groups.fetch_refusal(
        group.group_id, group.member_id, group.member_epoch
    )


def _unknown(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=NO_OFFSET.offset,
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
            )
            for index in topic.partition_indexes
        ],
    )


def _fetch(
    context: BrokerContext,
    group_id: str,
    topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None,
    require_stable: bool,
) -> tuple[ErrorCode, Offsets]:
    """Return the offsets; without topics (null): all committed offsets.

    `require_stable` (v7, KIP-447): an offset that a transaction may still change is an error.
    """
    partitions = None
    if topics is not None:
        partitions = [
            TopicPartition(topic.name, index)
            for topic in topics
            for index in topic.partition_indexes
        ]
    coordinator = context.groups.coordinator(group_id)
    if isinstance(coordinator, ErrorCode):
        return coordinator, dict.fromkeys(partitions or ())
    committed = coordinator.fetch_offsets(group_id, partitions)
    former = {where for where, offset in committed.items() if _is_of_former(context, where, offset)}
    if partitions is None:
        committed = {where: one for where, one in committed.items() if where not in former}
    else:
        committed = {**committed, **dict.fromkeys(former)}
    if not require_stable:
        return ErrorCode.NONE, committed
    unstable = coordinator.transactional.unstable(group_id)
    return ErrorCode.NONE, {
        where: ErrorCode.UNSTABLE_OFFSET_COMMIT if where in unstable else offset
        for where, offset in committed.items()
    }


def _is_of_former(
    context: BrokerContext, where: TopicPartition, committed: CommittedOffset | None
) -> bool:
    """Whether the offset was committed for a former topic of the same name."""
    topic = context.image.topics.get(where.topic)
    if topic is None or committed is None:
        return False
    return committed.topic_id not in {ZERO_TOPIC_ID, topic.topic_id}


def _by_topic(
    offsets: Offsets,
) -> list[tuple[str, list[tuple[TopicPartition, CommittedOffset | ErrorCode | None]]]]:
    grouped = groupby(sorted(offsets.items(), key=lambda item: item[0]), lambda item: item[0].topic)
    return [(topic, list(items)) for topic, items in grouped]


def _partition(
    shape: type[P],
    where: TopicPartition,
    found: CommittedOffset | ErrorCode | None,
    error_code: ErrorCode,
) -> P:
    committed = found if isinstance(found, CommittedOffset) else NO_OFFSET
    return shape(
        partition_index=where.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=found if isinstance(found, ErrorCode) else error_code,
    )


def _group(group_id: str, error_code: ErrorCode, offsets: Offsets) -> OffsetFetchResponseGroup:
    if error_code is not ErrorCode.NONE:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=error_code)
    return OffsetFetchResponseGroup(
        group_id=group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=topic,
                partitions=[
                    _partition(OffsetFetchResponsePartitions, *part, error_code) for part in parts
                ],
            )
            for topic, parts in _by_topic(offsets)
        ],
    )


@answers(OffsetDeleteRequest, 0, 0)
def handle_delete(context: BrokerContext, request: OffsetDeleteRequest) -> Reply:
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
