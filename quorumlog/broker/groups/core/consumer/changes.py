"""What one step changes in one group: records, each applied as soon as it is decided."""

from typing import Final

from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    RecordKey,
    RecordKind,
    Value,
)


class Changes:
    """A later rule of the same step sees what an earlier one has changed."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group: Final = group
        self.records: Final[list[ConsumerGroupRecord]] = []

    def write(self, kind: RecordKind, value: Value | None, name: str = "") -> None:
        """Write a record; None: a tombstone."""
        subject = RecordKey(kind, self.group.group_id, name)
        record = ConsumerGroupRecord(subject=subject, value=value)
        self.group.apply(record)
        self.records.append(record)

    def settle_state(self) -> None:
        """Let the state of the group follow, once all is decided."""
        if self.records:
            self.group.settle_state()
