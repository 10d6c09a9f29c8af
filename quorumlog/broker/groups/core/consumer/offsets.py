"""Which members of a consumer group may commit and fetch offsets. Source: KIP-848.

A member sends its member epoch where a classic member sends its generation. A commit at an older
epoch is accepted if the member has owned the partitions since that epoch (KIP-1251): the response
with its newest epoch may be on its way. In a group without members, a client that is no member may
commit, as in a classic group.
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.partitions import TopicIdPartition
from quorumlog.broker.groups.core.consumer.reconciliation import CurrentAssignment
from quorumlog.wire.codec.error_codes import ErrorCode

MEMBER_EPOCH_SINCE_VERSION: Final = 9  # of OffsetCommit and OffsetFetch


def commit_refusal(
    group: ConsumerGroup,
    member_id: str,
    member_epoch: int,
    partitions: Iterable[TopicIdPartition | None],
    *,
    api_version: int,
    is_transactional: bool = False,
) -> ErrorCode:
    """Return why OffsetCommit (or TxnOffsetCommit) is refused, or NONE.

    `partitions`: the partitions of the commit; None stands for a topic that does not exist.
    """
    if member_epoch < 0 and not group.members:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    knows_epochs = is_transactional or api_version >= MEMBER_EPOCH_SINCE_VERSION
    if not member.is_classic and not knows_epochs:
        return ErrorCode.UNSUPPORTED_VERSION
    if not member.is_classic and _has_owned_since(member.current, member_epoch, partitions):
        return ErrorCode.NONE
    return _epoch_refusal(group, member_id, member_epoch)


def _has_owned_since(
    current: CurrentAssignment, member_epoch: int, partitions: Iterable[TopicIdPartition | None]
) -> bool:
    """Whether the member has owned all of the partitions since this older epoch."""
    if member_epoch >= current.member_epoch:
        return False
    epochs = (current.assigned_at.get(one) if one is not None else None for one in partitions)
    return all(epoch is not None and epoch <= member_epoch for epoch in epochs)


def transactional_commit_refusal(
    group: ConsumerGroup,
    member_id: str,
    group_instance_id: str | None,
    member_epoch: int,
    partitions: Iterable[TopicIdPartition | None],
) -> ErrorCode:
    """Return why TxnOffsetCommit is refused, or NONE. A producer may send no member."""
    if member_epoch < 0 and not member_id and group_instance_id is None:
        return ErrorCode.NONE
    error_code = commit_refusal(
        group, member_id, member_epoch, partitions, api_version=0, is_transactional=True
    )
    is_stale = error_code is ErrorCode.STALE_MEMBER_EPOCH  # producers do not handle this code
    return ErrorCode.ILLEGAL_GENERATION if is_stale else error_code


def fetch_refusal(group: ConsumerGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
    """Return why OffsetFetch is refused, or NONE; an administrator sends no member."""
    if member_id is None and member_epoch < 0:
        return ErrorCode.NONE
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return _epoch_refusal(group, member_id or "", member_epoch)


def _epoch_refusal(group: ConsumerGroup, member_id: str, member_epoch: int) -> ErrorCode:
    member = group.members[member_id]
    if member_epoch == member.current.member_epoch:
        return ErrorCode.NONE
    return ErrorCode.ILLEGAL_GENERATION if member.is_classic else ErrorCode.STALE_MEMBER_EPOCH
