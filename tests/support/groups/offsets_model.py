"""A simple model of a log of offsets: a dict of committed ones, and one per open transaction.

It shares no code with the coordinator. Each value keeps the offset of its record, and the newest
record wins when a transaction is committed, as in Kafka.
"""

from dataclasses import dataclass, field

from quorumlog.broker.groups.core.records import LogRecord, OffsetRecord
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.transaction_markers import TransactionMarker

Where = tuple[str, TopicPartition]


@dataclass(frozen=True)
class InTransaction:
    """A record of a transaction."""

    producer_id: int
    producer_epoch: int
    record: OffsetRecord


Entry = LogRecord | InTransaction | TransactionMarker


@dataclass
class OffsetsModel:
    """Values: (offset of the record, the committed offset)."""

    committed: dict[Where, tuple[int, int]] = field(default_factory=dict)
    pending: dict[int, dict[Where, tuple[int, int]]] = field(default_factory=dict)

    def apply(self, log_offset: int, entry: Entry) -> None:
        match entry:
            case TransactionMarker(producer_id=producer_id, commits=commits):
                ended = self.pending.pop(producer_id, {})
                for where, value in ended.items() if commits else ():
                    self.committed[where] = max(value, self.committed.get(where, value))
            case InTransaction(producer_id=producer_id, record=record):
                assert record.committed is not None
                offsets = self.pending.setdefault(producer_id, {})
                offsets[record.group_id, record.topic_partition] = (
                    log_offset,
                    record.committed.offset,
                )
            case OffsetRecord(group_id=group_id, topic_partition=partition, committed=None):
                for offsets in [self.committed, *self.pending.values()]:
                    offsets.pop((group_id, partition), None)
            case OffsetRecord(group_id=group_id, topic_partition=partition, committed=committed):
                assert committed is not None
                self.committed[group_id, partition] = log_offset, committed.offset
            case _:  # a generation of a group
                pass

    @property
    def shown(self) -> dict[Where, int]:
        """The offsets that OffsetFetch returns."""
        return {where: offset for where, (_, offset) in self.committed.items()}

    @property
    def unstable(self) -> set[Where]:
        """The partitions that OffsetFetch refuses when offsets must be stable."""
        return {where for offsets in self.pending.values() for where in offsets}
