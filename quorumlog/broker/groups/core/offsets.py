"""The durable state of the groups of one partition: exactly the result of replaying its log.

Source: KIP-211 (expiry of the offsets of empty groups, and of topics that no member reads).
"""

from collections.abc import Iterable, Iterator

from quorumlog.broker.groups.core.consumer.committed import CommittedGroups
from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord, RecordKey
from quorumlog.broker.groups.core.pending_offsets import PendingOffset, PendingOffsets
from quorumlog.broker.groups.core.records import (
    GroupRecord,
    Key,
    LogRecord,
    OffsetRecord,
    StoredGroup,
)
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.wire.codec.identifiers import TopicPartition


class CommittedState:
    """Invariant: only committed records and markers change it.

    `groups` has the classic groups, `consumer` the consumer groups, `pending` the offsets of open
    transactions. `size` is the number of classic groups and committed offsets.
    """

    def __init__(self) -> None:
        self.consumer = CommittedGroups()
        self.pending = PendingOffsets()
        self.groups: dict[str, StoredGroup] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.size = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CommittedState):
            return NotImplemented
        same_offsets = (self.groups, self.offsets) == (other.groups, other.offsets)
        same_groups = self.consumer.values == other.consumer.values
        return same_offsets and same_groups and self.pending == other.pending

    __hash__ = None  # type: ignore[assignment]  # it changes

    def apply(self, record: LogRecord) -> None:
        """Apply one record outside of transactions.

        A tombstone for an absent key changes nothing (compaction).
        """
        if isinstance(record, ConsumerGroupRecord):
            self.consumer.apply(record)
        elif isinstance(record, GroupRecord):
            before = len(self.groups)
            if record.stored is None:
                self.groups.pop(record.group_id, None)
            else:
                self.groups[record.group_id] = record.stored
            self.size += len(self.groups) - before
        else:
            self._apply_offset(record)
            self.pending.note_plain(record)

    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        """Apply a marker: commit or drop pending offsets. Return the committed offsets."""
        counting = self.pending.end(producer_id, commits=commits)
        for one in counting:
            self._apply_offset(one.record)
        return counting

    def _apply_offset(self, record: OffsetRecord) -> None:
        offsets = self.offsets.setdefault(record.group_id, {})
        before = len(offsets)
        if record.committed is not None:
            offsets[record.topic_partition] = record.committed
        else:
            offsets.pop(record.topic_partition, None)
        self.size += len(offsets) - before
        if not offsets:
            del self.offsets[record.group_id]

    def group_ids(self) -> set[str]:
        """Return the groups with live records."""
        return {*self.groups, *self.offsets, *self.consumer.values}

    @property
    def live_records(self) -> int:
        """The number of live records."""
        return self.size + self.consumer.size

    def keys_of(self, group_id: str) -> Iterator[Key]:
        """Yield the keys of the group's live records, the offsets last."""
        if group_id in self.groups:
            yield group_id, None
        yield from self.consumer.keys_of(group_id)
        for where in self.offsets.get(group_id, ()):
            yield group_id, where

    def record_of(self, key: Key) -> LogRecord:
        """Return the live record of `key`, or a tombstone."""
        if isinstance(key, RecordKey):
            return self.consumer.record_of(key)
        group_id, where = key
        if where is None:
            return GroupRecord(group_id=group_id, stored=self.groups.get(group_id))
        committed = self.offsets.get(group_id, {}).get(where)
        return OffsetRecord(group_id=group_id, topic_partition=where, committed=committed)

    def tombstones(
        self, group_id: str, partitions: Iterable[TopicPartition], *, keeps_group: bool = False
    ) -> list[LogRecord]:
        """Return tombstones for these offsets, and for the group if no offset is left."""
        gone = sorted(partitions)
        records: list[LogRecord] = [
            OffsetRecord(group_id=group_id, topic_partition=where, committed=None) for where in gone
        ]
        is_last = self.offsets.get(group_id, {}).keys() <= {*gone}
        if group_id in self.groups and is_last and not keeps_group:
            records.append(GroupRecord(group_id=group_id, stored=None))
        return records

    def expired(self, group_id: str, before_ms: int) -> list[TopicPartition]:
        """Return the partitions of an empty group whose offsets date from `before_ms` or earlier.

        An offset ages from its commit, or from the time when the group lost its last member.
        """
        stored = self.groups.get(group_id)
        is_empty_since = stored is None or stored.state_since_ms <= before_ms
        return self.committed_before(group_id, before_ms) if is_empty_since else []

    def committed_before(self, group_id: str, before_ms: int) -> list[TopicPartition]:
        """Return the partitions of a group whose last commit is at or before `before_ms`."""
        return [
            where
            for where, committed in self.offsets.get(group_id, {}).items()
            if committed.commit_timestamp_ms <= before_ms
        ]
