"""The deletion of groups: by administrators, or because nothing of them is left to keep.

A group is dropped when it has no members, offsets or records. A periodic clean-up deletes expired
offsets (KIP-211), in steps of some groups each.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.groups.core.consumer_groups import OWN_REQUEST, ConsumerGroups
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.removal import OffsetRemoval, topics_read
from quorumlog.broker.groups.core.requests import DeleteGroup
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

CLEANED_AT_ONCE: Final = 5_000  # groups and offsets in one step: some ms


@dataclass(slots=True, eq=False)
class GroupRemoval:
    """Deletes groups, and runs the clean-up, of which it has the progress."""

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
