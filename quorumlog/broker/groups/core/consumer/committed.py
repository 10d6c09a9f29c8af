"""The durable state of the consumer groups of one partition: the newest record of each key."""

from collections.abc import Iterator, Mapping
from typing import Final

from quorumlog.broker.groups.core.consumer.records import ConsumerGroupRecord, RecordKey, Value


class CommittedGroups:
    """Invariants: only `apply` writes, and only committed records are applied.

    `size` is the number of live records.
    """

    def __init__(self) -> None:
        self.values: Final[dict[str, dict[RecordKey, Value]]] = {}
        self.size = 0

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Apply one record. A tombstone for an absent key changes nothing (compaction)."""
        values = self.values.setdefault(record.group_id, {})
        before = len(values)
        if record.value is None:
            values.pop(record.subject, None)
        else:
            values[record.subject] = record.value
        self.size += len(values) - before
        if not values:
            del self.values[record.group_id]

    def of(self, group_id: str) -> Mapping[RecordKey, Value]:
        """Return the values of a group's live records, by key."""
        return self.values.get(group_id, {})

    def keys_of(self, group_id: str) -> Iterator[RecordKey]:
        """Yield the keys of a group's live records."""
        yield from self.of(group_id)

    def tombstones(self, group_id: str) -> tuple[ConsumerGroupRecord, ...]:
        """Return tombstones for all live records of a group."""
        keys = sorted(self.keys_of(group_id))
        return tuple(ConsumerGroupRecord(subject=key, value=None) for key in keys)

    def record_of(self, key: RecordKey) -> ConsumerGroupRecord:
        """Return the live record of `key`, or a tombstone."""
        return ConsumerGroupRecord(subject=key, value=self.of(key.group_id).get(key))
