"""The records that one step writes for one group."""

from typing import Final

from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    RecordKey,
    RecordKind,
    Value,
)


class Changes:
    """Applies each record to the group at once, so that later rules of the same step see it."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group: Final = group
        self.records: Final[list[ConsumerGroupRecord]] = []

    def write(self, kind: RecordKind, value: Value | None, name: str = "") -> None:
        """Add a record and apply it; `value` None: a tombstone."""
        subject = RecordKey(kind, self.group.group_id, name)
        record = ConsumerGroupRecord(subject=subject, value=value)
        self.group.apply(record)
        self.records.append(record)

    def settle_state(self) -> None:
        """Update the group's state, after the last record of the step."""
        if self.records:
            self.group.settle_state()
