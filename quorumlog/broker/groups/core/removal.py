"""Which offsets are deleted: by administrators, with their topic, or because they are old.

What a transaction has pending is deleted with the group or the topic, or by name, as in Kafka: its
marker finds nothing then. Time alone deletes no offset that a transaction may change, and no group
that has one.
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offset_deletion import decide_deletion
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import GroupRecord, LogRecord, OffsetRecord
from quorumlog.broker.groups.core.requests import DeleteOffsets
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition


class OffsetRemoval:
    """Has no state of its own."""

    def __init__(
        self, committed: CommittedState, transactional: TransactionalOffsets, outbox: GroupOutbox
    ) -> None:
        self._committed: Final = committed
        self._transactional: Final = transactional
        self._outbox: Final = outbox

    def handle_delete(
        self,
        group: Group | None,
        request_id: int,
        request: DeleteOffsets,
        subscribed: frozenset[str] | None,
    ) -> None:
        """Delete offsets; the group stays. `subscribed`: topics of a consumer group, or None."""
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
        """Delete the offsets of these groups in deleted topics, also those under way."""
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

        `is_asked`: an administrator deletes the group, with all that it has.
        """
        keeps_group = not is_asked and bool(self._transactional.unstable(group_id))
        records = self._committed.tombstones(group_id, partitions, keeps_group=keeps_group)
        if not records and self._outbox.is_writing(group_id):
            records = [GroupRecord(group_id=group_id, stored=None)]  # of what is being written
        return tuple(records)

    def expired(self, group_id: str, before_ms: int) -> tuple[list[TopicPartition], bool]:
        """Return which offsets of a group without members are too old, and if these are all."""
        unstable = self._transactional.unstable(group_id)
        old = self._committed.expired(group_id, before_ms)
        expired = [where for where in old if where not in unstable]
        is_last = len(expired) == len(self._committed.offsets.get(group_id, {}))
        return expired, is_last and not unstable
