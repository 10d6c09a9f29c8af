"""A log of offsets: its entries, a model of the offsets in it, and the producers that write to it.

The model shares no code with the coordinator: a dict of committed offsets, and one for each open
transaction. Each value keeps the offset of its record, and the newest record wins when a
transaction is committed, as in Kafka.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import LogRecord, OffsetRecord, encode
from quorumlog.broker.groups.core.requests import CommitTransactionalOffsets, CompleteTransaction
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker

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
                value = log_offset, record.committed.offset
                offsets = self.pending.setdefault(producer_id, {})
                offsets[record.group_id, record.topic_partition] = value
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


def replay(coordinator: GroupCoordinator, log_offset: int, entry: Entry) -> None:
    """Let the coordinator load an entry from its bytes."""
    if isinstance(entry, TransactionMarker):
        batch = encode_marker(entry, 0)
    elif isinstance(entry, InTransaction):
        batch = encode_batch(
            [Record(log_offset, 0, *encode(entry.record), ())],
            base_offset=log_offset,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            is_transactional=True,
        )
    else:
        coordinator.replay_encoded(*encode(entry))
        return
    for header, records in decode_batches(batch):
        coordinator.replay_transactional(header, records)


def apply(state: CommittedState, log_offset: int, entry: Entry) -> None:
    """Apply an entry to a state."""
    match entry:
        case TransactionMarker(producer_id=producer_id, commits=commits):
            state.end_transaction(producer_id, commits=commits)
        case InTransaction(producer_id=producer_id, producer_epoch=epoch, record=record):
            state.pending.add(producer_id, epoch, record, log_offset)
        case _:
            state.apply(entry)


def state_of(entries: Iterable[Entry], log_start: int = 0) -> CommittedState:
    """Return the state in the entries from `log_start` on."""
    state = CommittedState()
    for log_offset, entry in enumerate(entries, log_start):
        apply(state, log_offset, entry)
    return state


@dataclass
class Producer:
    """A transactional id, in its coordinator's view. `is_open`: it has a transaction.

    `bumps`: transaction.version 2, each transaction has a new epoch. Each response has the state at
    the time of the request; it may arrive much later.
    """

    producer_id: int
    bumps: bool
    epoch: int = 0
    is_open: bool = False
    ending: TransactionMarker | None = None  # until the partition has it
    acknowledged: dict[Where, int] = field(default_factory=dict)  # in the open transaction

    def verify(self, request: CommitTransactionalOffsets) -> ErrorCode:
        """Return the coordinator's verdict on a commit."""
        if request.producer_epoch != self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.ending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if request.adds:
            self.is_open = True
        return ErrorCode.NONE if self.is_open else ErrorCode.TRANSACTION_ABORTABLE

    def end(self, random: Random) -> CompleteTransaction | None:
        """The marker that the partition should have now."""
        if self.ending is None and self.is_open:
            self.is_open = False
            self.epoch += self.bumps
            commits = random.random() < 0.7
            self.ending = TransactionMarker(self.producer_id, self.epoch, 0, commits)
        if self.ending is None:
            return None
        return CompleteTransaction(marker=self.ending, transaction_version=0)
