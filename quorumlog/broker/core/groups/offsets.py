"""What is durable of the groups of one partition: exactly what replaying its records gives.

Source: KIP-211 (offsets of a group expire only once the group has been empty for long enough).
"""

from collections.abc import Iterable

from quorumlog.broker.core.groups.records import GroupRecord, LogRecord, OffsetRecord, StoredGroup
from quorumlog.broker.core.groups.requests import CommittedOffset
from quorumlog.wire.codec.identifiers import TopicPartition


class CommittedState:
    """Invariant: only `apply` writes, and only committed records are applied."""

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CommittedState):
            return NotImplemented
        return (self.groups, self.offsets) == (other.groups, other.offsets)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def apply(self, record: LogRecord) -> None:
        """Take over one record. A tombstone for what is not there is nothing (compaction)."""
        if isinstance(record, GroupRecord):
            if record.stored is None:
                self.groups.pop(record.group_id, None)
            else:
                self.groups[record.group_id] = record.stored
        elif record.committed is not None:
            self.offsets.setdefault(record.group_id, {})[record.topic_partition] = record.committed
        else:
            offsets = self.offsets.get(record.group_id, {})
            offsets.pop(record.topic_partition, None)
            if not offsets:
                self.offsets.pop(record.group_id, None)

    def tombstones(self, group_id: str, partitions: Iterable[TopicPartition]) -> list[LogRecord]:
        """Return what removes these offsets, and the group as well once no offset is left."""
        gone = sorted(partitions)
        records: list[LogRecord] = [
            OffsetRecord(group_id=group_id, topic_partition=where, committed=None) for where in gone
        ]
        if group_id in self.groups and len(gone) == len(self.offsets.get(group_id, {})):
            records.append(GroupRecord(group_id=group_id, stored=None))
        return records

    def expired(self, group_id: str, before_ms: int) -> list[TopicPartition]:
        """Return the partitions of a group without members, whose offsets are older than that.

        An offset ages from its commit, or from when the group lost its last member.
        """
        stored = self.groups.get(group_id)
        empty_since_ms = stored.state_since_ms if stored else -1
        return [
            where
            for where, committed in self.offsets.get(group_id, {}).items()
            if max(committed.commit_timestamp_ms, empty_since_ms) <= before_ms
        ]
