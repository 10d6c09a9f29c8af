"""A log of offsets: its entries, the producers that write to it, and messages for its oracle."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace as Message
from typing import Any

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import LogRecord, OffsetRecord, encode
from quorumlog.broker.groups.core.requests import (
    CommittedOffset,
    CommitTransactionalOffsets,
    CompleteTransaction,
)
from quorumlog.chaos.simulation.oracles.exchanges import Exchange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker


@dataclass(frozen=True)
class InTransaction:
    """A record of a transaction."""

    producer_id: int
    producer_epoch: int
    record: OffsetRecord


Entry = LogRecord | InTransaction | TransactionMarker


def topics_of(
    offsets: Mapping[TopicPartition, CommittedOffset | None], codes: Mapping[TopicPartition, int]
) -> list[Any]:
    """Return the topics of a message as an oracle reads them: the partitions with an error code."""
    shown = [(*at, code, offsets[at] or CommittedOffset()) for at, code in codes.items()]
    return [
        Message(
            name=topic,
            partitions=[
                Message(
                    partition_index=index,
                    error_code=code,
                    committed_offset=one.offset,
                    committed_metadata=one.metadata,
                    metadata=one.metadata,
                )
            ],
        )
        for topic, index, code, one in shown
    ]


def exchange_of(api_key: int, mark: int = 0, **fields: Any) -> Exchange:
    """Return a request that arrives when the oracle has read `mark` changes."""
    return Exchange(1, RequestHeader(api_key, 0, 1, "client"), Message(**fields), mark)


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
