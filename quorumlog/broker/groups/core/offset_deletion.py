"""OffsetDelete: an administrator may delete offsets in topics that the group does not subscribe to.

Source: KIP-496.
"""

from collections.abc import Collection
from typing import Final

from quorumlog.broker.groups.core.group import Group, GroupState
from quorumlog.broker.groups.core.member_messages import CONSUMER, subscribed_topics
from quorumlog.broker.groups.core.records import LogRecord, OffsetRecord
from quorumlog.broker.groups.core.requests import CommitResult, DeleteOffsets
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition

ANY_TOPIC: Final = None  # unknown subscriptions: any topic may be subscribed to


def decide_deletion(
    group: Group | None,
    offsets: Collection[TopicPartition],
    request: DeleteOffsets,
    subscribed: frozenset[str] | None = None,
) -> tuple[CommitResult, tuple[LogRecord, ...]]:
    """Return the response, and the tombstones to commit before it is sent.

    `offsets`: the partitions with a committed or pending offset of the group; `group` None: it has
    only offsets, or does not exist. `subscribed`: the topics of a consumer group; None: it is not
    one. A partition without an offset gets NONE, as in Kafka: there is no offset to delete.
    """
    if subscribed is None:
        refusal = _refusal(group, has_offsets=bool(offsets))
        if refusal is not ErrorCode.NONE:
            return request.refuse(refusal), ()
        subscribed = subscribed_by(group)
    outcomes = dict.fromkeys(request.partitions, ErrorCode.NONE)
    for where in request.partitions:
        if subscribed is ANY_TOPIC or where.topic in subscribed:
            outcomes[where] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    tombstones = tuple(
        OffsetRecord(group_id=request.group_id, topic_partition=where, committed=None)
        for where, outcome in outcomes.items()
        if outcome is ErrorCode.NONE and where in offsets
    )
    return CommitResult(error_code=ErrorCode.NONE, partitions=outcomes), tombstones


def _refusal(group: Group | None, *, has_offsets: bool) -> ErrorCode:
    if group is None:
        return ErrorCode.NONE if has_offsets else ErrorCode.GROUP_ID_NOT_FOUND
    is_readable = group.state is GroupState.EMPTY or group.protocol_type == CONSUMER
    return ErrorCode.NONE if is_readable else ErrorCode.NON_EMPTY_GROUP


def subscribed_by(group: Group | None) -> frozenset[str] | None:
    """Return the topics that members of a classic group subscribe to, or ANY_TOPIC.

    ANY_TOPIC stands for unknown subscriptions: the group has no generation yet, or a member's
    metadata is malformed.
    """
    if group is None or not group.members:
        return frozenset()
    if group.protocol_name is None:
        return ANY_TOPIC
    topics: set[str] = set()
    for member in group.members.values():
        try:
            topics.update(subscribed_topics(member.metadata(group.protocol_name)))
        except MalformedFrame:
            return ANY_TOPIC
    return frozenset(topics)
