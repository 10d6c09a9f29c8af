"""The deletion of offsets and groups: by administrators, with their topic, or by expiry.

A pending offset is deleted with its group or topic, or by OffsetDelete, as in Kafka: its marker
then does not restore it. Expiry keeps an offset that an open transaction may change, and its
group. In a group with members, expiry deletes only offsets of topics to which no member subscribes
(KIP-211).
"""

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass, field
from typing import Final

from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.groups.core.consumer_groups import OWN_REQUEST, ConsumerGroups
from quorumlog.broker.groups.core.group import Group, GroupState
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.member_messages import CONSUMER, subscribed_topics
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import GroupRecord, Key, LogRecord, OffsetRecord
from quorumlog.broker.groups.core.requests import CommitResult, DeleteGroup, DeleteOffsets
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition

ANY_TOPIC: Final = None  # unknown subscriptions: any topic may be subscribed to


def decide_deletion(
    group: Group | None,
    offsets: Collection[TopicPartition],
    request: DeleteOffsets,
    subscribed: frozenset[str] | None,
) -> tuple[CommitResult, tuple[LogRecord, ...]]:
    """Return the response to OffsetDelete (KIP-496), and the tombstones to commit before it.

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


EXPIRED_MAX: Final = 1_000  # tombstones of one group in one batch; the next check deletes more


@dataclass(frozen=True, slots=True)
class OffsetRemoval:
    """Deletes offsets of all groups; has no state of its own."""

    _committed: CommittedState
    _transactional: TransactionalOffsets
    _outbox: GroupOutbox

    def handle_delete(
        self,
        group: Group | None,
        request_id: int,
        request: DeleteOffsets,
        subscribed: frozenset[str] | None,
    ) -> None:
        """Delete offsets; the group stays. `subscribed`: a consumer group's topics, or None."""
        offsets = self._transactional.partitions(request.group_id)
        result, records = decide_deletion(group, offsets, request, subscribed)

        def done(_now_ms: int, error_code: ErrorCode) -> None:
            is_written = error_code is ErrorCode.NONE
            self._outbox.reply(request_id, result if is_written else request.refuse(error_code))

        if records:
            self._outbox.append(records, done)
        else:
            self._outbox.reply(request_id, result)

    def handle_topics_deleted(self, group_ids: Iterable[str], topics: Iterable[str]) -> None:
        """Delete the offsets of these groups in deleted topics, also offsets being written."""
        deleted = frozenset(topics)
        offsets = {
            (group_id, where)
            for group_id in group_ids
            for where in self._transactional.partitions(group_id)
        }
        records = [
            OffsetRecord(group_id=group_id, topic_partition=where, committed=None)
            for group_id, where in sorted(offsets | self._outbox.offsets_under_way())
            if where.topic in deleted
        ]
        if records:
            self._outbox.append(tuple(records), lambda _now_ms, _error_code: None)

    def tombstones(
        self, group_id: str, partitions: Iterable[TopicPartition], *, is_asked: bool
    ) -> tuple[LogRecord, ...]:
        """Return tombstones for these offsets, and for the group if no offset is left.

        `is_asked`: an administrator deletes the group, also its pending offsets.
        """
        keeps_group = not is_asked and bool(self._transactional.unstable(group_id))
        records = self._committed.tombstones(group_id, partitions, keeps_group=keeps_group)
        if not records and self._outbox.is_writing(group_id):
            records = [GroupRecord(group_id=group_id, stored=None)]  # deletes the one being written
        return tuple(records)

    def expired(self, group_id: str, before_ms: int) -> tuple[list[TopicPartition], bool]:
        """Return the expired offsets of an empty group, and whether no other offset is left."""
        unstable = self._transactional.unstable(group_id)
        old = self._committed.expired(group_id, before_ms)
        expired = [where for where in old if where not in unstable][:EXPIRED_MAX]
        is_last = len(expired) == len(self._committed.offsets.get(group_id, {}))
        return expired, is_last and not unstable

    def expire_unsubscribed(
        self,
        group_id: str,
        old: Iterable[TopicPartition],
        topics: frozenset[str] | None,
        under_way: Set[Key],
    ) -> None:
        """Delete old offsets of a group with members, in topics to which no member subscribes.

        `old`: the partitions with an old offset. `topics`: those that members may read; if they are
        ANY_TOPIC (unknown subscriptions), all offsets stay. `under_way`: keys of records being
        written: the log may have a newer commit of such a key before the tombstone.
        """
        if topics is ANY_TOPIC:
            return
        unstable = self._transactional.unstable(group_id)
        expired = [
            where
            for where in old
            if where.topic not in topics
            and where not in unstable
            and (group_id, where) not in under_way
        ][:EXPIRED_MAX]
        if expired:
            records = self._committed.tombstones(group_id, expired, keeps_group=True)
            self._outbox.append(tuple(records), lambda _now_ms, _error_code: None)


def topics_read(group: Group) -> frozenset[str] | None:
    """Return the topics that members of a classic group may read, or ANY_TOPIC.

    ANY_TOPIC during a rebalance: members may subscribe to their old topics again (KAFKA-13636).
    """
    is_settled = group.state is GroupState.STABLE and group.protocol_type == CONSUMER
    return subscribed_by(group) if is_settled else ANY_TOPIC


CLEANED_AT_ONCE: Final = 5_000  # groups and offsets in one step: some ms


@dataclass(slots=True, eq=False)
class GroupRemoval:
    """Deletes groups without members, offsets and records; has the progress of the clean-up.

    The periodic clean-up deletes expired offsets (KIP-211), in steps of some groups each.
    """

    _settings: BrokerSettings
    _outbox: GroupOutbox
    _committed: CommittedState
    _transactional: TransactionalOffsets
    _offset_removal: OffsetRemoval
    _classic: ClassicGroups
    _consumer: ConsumerGroups
    next_cleanup_ms: int = field(default=0, init=False)
    _to_clean: list[str] = field(default_factory=list, init=False)  # the next group last

    def loaded(self, now_ms: int) -> None:
        """Clean up for the first time after an interval."""
        self.next_cleanup_ms = now_ms + self._settings.offsets_retention_check_interval_ms

    def handle_delete(self, now_ms: int, request_id: int, request: DeleteGroup) -> None:
        """Delete a group without members, and its offsets; answer once that is committed."""
        group_id = request.group_id
        group = self._classic.groups.get(group_id)
        partitions = self._transactional.partitions(group_id)
        if self._consumer.owns(group_id):
            self._consumer.delete(now_ms, request_id, group_id, partitions)
        elif not partitions and group is None:
            self._outbox.reply(request_id, ErrorCode.GROUP_ID_NOT_FOUND)
        elif group is not None and group.state is not GroupState.EMPTY:
            self._outbox.reply(request_id, ErrorCode.NON_EMPTY_GROUP)
        else:
            self._delete(group_id, now_ms, partitions, request_id)
        self._classic.settle(group_id)

    def _delete(
        self,
        group_id: str,
        now_ms: int,
        partitions: Iterable[TopicPartition],
        request_id: int | None,
    ) -> None:
        """Delete the group's records; `request_id`: an administrator's request; None: expiry."""

        def done(now_ms: int, error_code: ErrorCode) -> None:
            if error_code is ErrorCode.NONE:
                self.drop_if_unused(group_id, now_ms, even_if_awaited=request_id is not None)
            if request_id is not None:
                self._outbox.reply(request_id, error_code)

        is_asked = request_id is not None
        records = self._offset_removal.tombstones(group_id, partitions, is_asked=is_asked)
        if records:
            self._outbox.append(records, done)
        else:  # the group has no record to delete
            done(now_ms, ErrorCode.NONE)

    def drop_if_unused(self, group_id: str, now_ms: int, *, even_if_awaited: bool = False) -> None:
        """Drop a group without members, offsets or records.

        A group is kept while a client with a new member id has yet to join with it, unless
        `even_if_awaited`.
        """
        group = self._classic.groups.get(group_id)
        if (
            group is not None
            and group.state is GroupState.EMPTY
            and (even_if_awaited or not group.pending)
            and group_id not in self._committed.groups
            and not self._transactional.partitions(group_id)
            and not self._outbox.is_writing(group_id)  # else a record would outlive the group
        ):
            self._classic.drop(group, now_ms)

    # The clean-up.

    @property
    def is_cleaning(self) -> bool:
        """Whether a clean-up is under way."""
        return bool(self._to_clean)

    def begin_cleanup(self, group_ids: list[str]) -> None:
        """Begin a clean-up of these groups, in their order."""
        self._to_clean = group_ids[::-1]

    def clean_up(self, now_ms: int) -> None:
        """Delete expired offsets and unused groups, some groups per tick."""
        before_ms = now_ms - self._settings.offsets_retention_minutes * 60_000
        under_way, changing = self._outbox.keys_under_way(), self._outbox.groups_under_way()
        examined = 0
        while self._to_clean and examined < CLEANED_AT_ONCE:
            group_id = self._to_clean.pop()
            examined += 1 + len(self._committed.offsets.get(group_id, ()))
            if self._consumer.is_replacing(group_id):
                continue
            if self._has_members(group_id):
                # Offsets of a group with members age from their commit.
                if old := self._committed.committed_before(group_id, before_ms):
                    topics = self._topics_read(group_id)
                    self._offset_removal.expire_unsubscribed(group_id, old, topics, under_way)
            elif group_id not in changing:
                self._clean_up_empty(group_id, now_ms, before_ms)
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self.next_cleanup_ms = now_ms if self._to_clean else now_ms + interval_ms

    def _has_members(self, group_id: str) -> bool:
        group = self._classic.groups.get(group_id)
        if group is not None and (group.state is not GroupState.EMPTY or group.pending):
            return True
        return self._consumer.is_in_use(group_id)

    def _topics_read(self, group_id: str) -> frozenset[str] | None:
        group = self._classic.groups.get(group_id)
        return self._consumer.topics_read(group_id) if group is None else topics_read(group)

    def _clean_up_empty(self, group_id: str, now_ms: int, before_ms: int) -> None:
        expired, is_last = self._offset_removal.expired(group_id, before_ms)
        if is_last and self._consumer.owns(group_id):
            partitions = self._transactional.partitions(group_id)
            self._consumer.delete(now_ms, OWN_REQUEST, group_id, partitions)
        elif expired or (is_last and group_id in self._committed.groups):
            self._delete(group_id, now_ms, expired, None)
        else:
            self.drop_if_unused(group_id, now_ms)
