"""The producers of one partition: idempotence and transactions (KIP-98, 890, 1228).

Only a client's append and a marker's epochs are checked; a follower applies its leader's decisions.
A check changes no state, so that a failed append leaves no trace (KAFKA-6683): `record` follows the
append.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.open_transactions import OpenTransactions
from quorumlog.broker.partitions.core.verification import Guard, Guards
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.storage.core.producer_snapshot import NO_SEQUENCE, SnapshotEntry
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker

BATCHES_KEPT: Final = 5  # as many as a producer may have in flight
SEQUENCE_MAX: Final = 2**31 - 1
# DEVIATION: Kafka remembers any number of producers until they expire.
# docs/decisions/0039-limits.md
# Per partition: beyond it, the producer idle for longest is dropped. A producer with an open
# transaction stays: only its entry holds the transaction's first offset.
PRODUCERS_MAX: Final = 100_000
NO_TRANSACTION: Final = -1
NO_COORDINATOR: Final = -1
NEWER_EPOCH_SINCE: Final = 2  # the transaction.version whose markers have a newer epoch (KIP-890)


class StoredBatch(NamedTuple):
    """One of a producer's last batches: sequences and offsets of its first and last record."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ActiveProducer(NamedTuple):
    """The description of a producer; `last_sequence` is -1 if it has no remembered batch."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    seen_ms: int  # when it last appended
    coordinator_epoch: int = NO_COORDINATOR  # of its last marker
    transaction_offset: int = NO_TRANSACTION  # where its open transaction begins


class Check(NamedTuple):
    """With NONE, append the batch, unless `duplicate_of` is its earlier append."""

    error_code: ErrorCode
    duplicate_of: StoredBatch | None = None


ACCEPTED: Final = Check(ErrorCode.NONE)


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence number `count` records later: 2^31 - 1 is followed by 0."""
    return (sequence + count) & SEQUENCE_MAX


@dataclass(slots=True, eq=False)
class _Producer:
    epoch: int
    batches: deque[StoredBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    seen_ms: int = 0
    coordinator_epoch: int = NO_COORDINATOR
    transaction_offset: int = NO_TRANSACTION


class ProducerStates:
    """The producers of one partition; outside of transactions the longest idle comes first.

    Invariants:
      1. A producer's batches are of one epoch, at most five, in order of sequence and offset.
      2. At most PRODUCERS_MAX producers without an open transaction are remembered.
      3. A producer has an open transaction iff `transactions` has one with its first offset.
    """

    def __init__(self) -> None:
        self.transactions = OpenTransactions()
        self.guards: Final = Guards()
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._in_transaction: dict[int, _Producer] = {}
        self.clock_ahead_ms = 0  # added to the times of loaded batches: never too little

    def __len__(self) -> int:
        return len(self._producers) + len(self._in_transaction)

    def ids(self) -> list[int]:
        """Return all producer ids: outside of transactions, longest idle first, then the others."""
        return [*self._producers, *self._in_transaction]

    def describe(self, producer_id: int) -> ActiveProducer | None:
        """Return the description of a producer; None if it is not remembered."""
        producer = self._find(producer_id)
        if producer is None:
            return None
        last_sequence = producer.batches[-1].last_sequence if producer.batches else -1
        return ActiveProducer(
            producer_id,
            producer.epoch,
            last_sequence,
            producer.seen_ms,
            producer.coordinator_epoch,
            producer.transaction_offset,
        )

    def _find(self, producer_id: int) -> _Producer | None:
        return self._producers.get(producer_id) or self._in_transaction.get(producer_id)

    # --- Checks, without side effects ---

    def check(self, batch: BatchHeader) -> Check:
        """Check a client's batch by epoch and sequence; its `base_offset` is not set yet."""
        producer = self._find(batch.producer_id)
        if producer is None:
            return ACCEPTED  # the producer is new, or has expired: any sequence may start
        if batch.producer_epoch < producer.epoch:
            return Check(ErrorCode.INVALID_PRODUCER_EPOCH)
        base_sequence = batch.base_sequence
        if batch.producer_epoch > producer.epoch:
            starts_anew = base_sequence == 0
            return ACCEPTED if starts_anew else Check(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return self._check_sequence(producer.batches, base_sequence, batch.last_offset_delta)

    def _check_sequence(
        self, batches: deque[StoredBatch], base_sequence: int, last_offset_delta: int
    ) -> Check:
        expected = sequence_after(batches[-1].last_sequence, 1) if batches else 0
        if base_sequence == expected:
            return ACCEPTED
        last_sequence = sequence_after(base_sequence, last_offset_delta)
        for stored in batches:
            if stored.base_sequence == base_sequence and stored.last_sequence == last_sequence:
                return Check(ErrorCode.NONE, stored)
        return Check(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def continues(self, previous: BatchHeader, batch: BatchHeader) -> bool:
        """Whether `check` and `check_transaction` accept a batch once `previous` is recorded.

        They have accepted `previous`, a batch of the same client. False decides nothing.
        """
        return batch.producer_id == previous.producer_id and (
            batch.producer_id < 0
            or (
                batch.producer_epoch == previous.producer_epoch
                and batch.base_sequence == sequence_after(previous.last_sequence, 1)
                and batch.is_transactional == previous.is_transactional
            )
        )

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction here, in this epoch."""
        producer = self._in_transaction.get(producer_id)
        return producer is not None and producer.epoch == epoch

    def must_verify(self, batch: BatchHeader) -> bool:
        """Whether a client's valid and new batch may begin a transaction here."""
        return (
            batch.is_transactional
            and not self.is_in_transaction(batch.producer_id, batch.producer_epoch)
            and self.check(batch) == ACCEPTED
        )

    def check_epoch(self, batch: BatchHeader) -> ErrorCode:
        """Check a coordinator's batch in a client's transaction by epoch; it has no sequence."""
        producer = self._find(batch.producer_id)
        is_fenced = producer is not None and batch.producer_epoch < producer.epoch
        return ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else ErrorCode.NONE

    def check_transaction(
        self, batch: BatchHeader, guard: Guard | None, *, is_asked: bool
    ) -> ErrorCode:
        """Check the transaction of a client's batch that `check` has accepted.

        `guard`: the guard of the coordinator's verification. Without `is_asked` no verification is
        required. A batch outside of a transaction is refused while one is open.
        """
        if not batch.is_transactional:
            is_open = batch.producer_id in self._in_transaction
            return ErrorCode.INVALID_TXN_STATE if is_open else ErrorCode.NONE
        if self.is_in_transaction(batch.producer_id, batch.producer_epoch) or not is_asked:
            return ErrorCode.NONE
        if guard is None or not self.guards.counts(batch.producer_id, guard):
            return ErrorCode.INVALID_TXN_STATE  # a marker came meanwhile, or it is not verified
        return self._check_first(batch, guard)

    def _check_first(self, batch: BatchHeader, guard: Guard) -> ErrorCode:
        """Check the first batch of a transaction: an earlier batch may still be under way."""
        producer = self._find(batch.producer_id)
        is_known = producer is not None and producer.epoch == batch.producer_epoch
        has_gap = batch.base_sequence > guard.lowest_sequence and not is_known
        must_be_first = guard.adds and not is_known and batch.base_sequence != 0
        is_out_of_order = has_gap or must_be_first
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if is_out_of_order else ErrorCode.NONE

    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> ErrorCode:
        """Check a marker by its epochs.

        From transaction.version 2 on, a marker has a newer epoch than the batches that it ends. A
        marker of the same epoch is late, unless it was already written (KIP-1228, KAFKA-19999).
        """
        producer = self._find(marker.producer_id)
        if producer is None:
            return ErrorCode.NONE
        is_older = marker.producer_epoch < producer.epoch
        is_late = (
            transaction_version >= NEWER_EPOCH_SINCE
            and marker.producer_epoch == producer.epoch
            and producer.transaction_offset != NO_TRANSACTION
        )
        if is_older or is_late:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch < producer.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE

    # --- The content of the log ---

    def record(
        self,
        batch: BatchHeader,
        base_offset: int,
        wall_ms: int,
        marker: TransactionMarker | None = None,
    ) -> AbortedTransaction | None:
        """Record a batch in the log at `base_offset`; return the transaction that it aborts.

        `marker`: the content of a control batch.
        """
        if batch.producer_id < 0:
            return None
        if marker is not None:
            self._note_guard(marker)
        producer = self._seen(batch, wall_ms)
        if batch.is_control:  # a marker keeps its producer alive; it has no sequence (KAFKA-9144)
            return None if marker is None else self._end(producer, marker, base_offset)
        if batch.base_sequence >= 0:  # a coordinator's batches have none
            delta = batch.last_offset_delta
            last_sequence = sequence_after(batch.base_sequence, delta)
            producer.batches.append(
                StoredBatch(batch.base_sequence, last_sequence, base_offset, base_offset + delta)
            )
        if batch.is_transactional:
            self._maybe_begin(batch.producer_id, producer, base_offset)
        return None

    def _note_guard(self, marker: TransactionMarker) -> None:
        """Apply a marker to the guards, by the epoch of the transaction that it is about to end."""
        producer = self._in_transaction.get(marker.producer_id)
        ended_epoch = marker.producer_epoch if producer is None else producer.epoch
        self.guards.note_marker(marker.producer_id, ended_epoch, marker.producer_epoch)

    def _seen(self, batch: BatchHeader, wall_ms: int) -> _Producer:
        producer = self._find(batch.producer_id)
        if producer is None:
            producer = _Producer(batch.producer_epoch)
            self._add_idle(batch.producer_id, producer)
        elif producer.transaction_offset == NO_TRANSACTION:
            self._producers.move_to_end(batch.producer_id)
        producer.seen_ms = wall_ms
        if producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        return producer

    def _add_idle(self, producer_id: int, producer: _Producer) -> None:
        self._producers[producer_id] = producer
        if len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)

    def _maybe_begin(self, producer_id: int, producer: _Producer, first_offset: int) -> None:
        self.guards.release(producer_id)
        if producer.transaction_offset == NO_TRANSACTION:
            producer.transaction_offset = first_offset
            self._in_transaction[producer_id] = self._producers.pop(producer_id)
            self.transactions.begin(producer_id, first_offset)

    def _end(
        self, producer: _Producer, marker: TransactionMarker, marker_offset: int
    ) -> AbortedTransaction | None:
        producer_id = marker.producer_id
        producer.coordinator_epoch = marker.coordinator_epoch
        first_offset = producer.transaction_offset
        if first_offset == NO_TRANSACTION:
            return None
        producer.transaction_offset = NO_TRANSACTION
        self._add_idle(producer_id, self._in_transaction.pop(producer_id))
        stable = self.transactions.end(first_offset, marker_offset)
        if marker.commits:
            return None
        return AbortedTransaction(producer_id, first_offset, marker_offset, stable)

    # --- Snapshots ---

    def snapshot(self) -> list[SnapshotEntry]:
        """Return all remembered batches; the batches of one producer are oldest first."""
        entries: list[SnapshotEntry] = []
        for producers in (self._producers, self._in_transaction):
            for producer_id, producer in producers.items():
                entries += _entries(producer_id, producer)
        return entries

    def rebuild(self, batches: Iterable[BatchHeader], known: Iterable[SnapshotEntry] = ()) -> None:
        """Drop all producers, then load a snapshot and the batches after it, without markers.

        A batch's own timestamp, by the broker's clock, stands in for the time of its append.
        """
        self._producers.clear()
        self._in_transaction.clear()
        self.transactions = OpenTransactions()
        for entry in known:
            self._restore(entry)
        for batch in batches:
            self.record(batch, batch.base_offset, batch.max_timestamp + self.clock_ahead_ms)

    def _restore(self, entry: SnapshotEntry) -> None:
        producer_id = entry.producer_id
        producer = self._find(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(entry.producer_epoch)
        producer.seen_ms = entry.timestamp
        producer.coordinator_epoch = entry.coordinator_epoch
        if entry.last_sequence != NO_SEQUENCE:
            base_sequence = (entry.last_sequence - entry.offset_delta) % (SEQUENCE_MAX + 1)
            base_offset = entry.last_offset - entry.offset_delta
            producer.batches.append(
                StoredBatch(base_sequence, entry.last_sequence, base_offset, entry.last_offset)
            )
        if entry.transaction_offset != NO_TRANSACTION:
            self._maybe_begin(producer_id, producer, entry.transaction_offset)

    def expire(self, wall_ms: int, expiration_ms: int) -> None:
        """Drop the producers that were idle for longer than `producer.id.expiration.ms`.

        A producer with an open transaction is not idle: its marker is due.
        """
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if wall_ms - producer.seen_ms > expiration_ms
        ]
        for producer_id in idle:
            del self._producers[producer_id]


def _entries(producer_id: int, producer: _Producer) -> Iterator[SnapshotEntry]:
    head = producer_id, producer.epoch
    tail = producer.seen_ms, producer.coordinator_epoch, producer.transaction_offset
    if not producer.batches:
        yield SnapshotEntry(*head, NO_SEQUENCE, -1, 0, *tail)
    for batch in producer.batches:
        delta = batch.last_offset - batch.base_offset
        yield SnapshotEntry(*head, batch.last_sequence, batch.last_offset, delta, *tail)
