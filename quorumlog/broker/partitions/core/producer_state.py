"""Idempotence: which batches of which producers a partition holds (KIP-98).

Only a client's append is checked; a follower adopts its leader's decisions. `check` changes
nothing, so that a failed append leaves no trace (KAFKA-6683): `record` follows the append.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from quorumlog.storage.core.producer_snapshot import NO_SEQUENCE, SnapshotEntry
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader

BATCHES_KEPT: Final = 5  # as many as a producer may have in flight
SEQUENCE_MAX: Final = 2**31 - 1
# DEVIATION: Kafka remembers any number of them until they expire.
# docs/decisions/0014-every-memory-has-a-limit.md
PRODUCERS_MAX: Final = 100_000  # per partition: beyond it, the one idle for longest is dropped


class StoredBatch(NamedTuple):
    """One of a producer's last batches: sequences and offsets of its first and last record."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ActiveProducer(NamedTuple):
    """The description of a producer; `last_sequence` is -1 if only its markers are known."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    seen_ms: int  # when it last appended


class Check(NamedTuple):
    """With NONE, append the batch, unless `duplicate_of` names its earlier place."""

    error_code: ErrorCode
    duplicate_of: StoredBatch | None = None


_APPEND: Final = Check(ErrorCode.NONE)


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence number `count` records later: 2^31 - 1 is followed by 0."""
    return (sequence + count) & SEQUENCE_MAX


class _Producer:
    __slots__ = ("batches", "epoch", "seen_ms")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[StoredBatch] = deque(maxlen=BATCHES_KEPT)
        self.seen_ms = 0


class ProducerStates:
    """The producers of one partition, the one idle for longest first.

    Invariants:
      1. A producer's batches are of one epoch, at most five, in order of sequence and offset.
      2. At most PRODUCERS_MAX producers are remembered.
    """

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def ids(self) -> list[int]:
        """Return the ids of all producers, the one idle for longest first."""
        return list(self._producers)

    def describe(self, producer_id: int) -> ActiveProducer | None:
        """Return the description of a producer, if it is known."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        last_sequence = producer.batches[-1].last_sequence if producer.batches else -1
        return ActiveProducer(producer_id, producer.epoch, last_sequence, producer.seen_ms)

    def check(self, batch: BatchHeader) -> Check:
        """Judge a client's batch; `base_offset` in it does not matter yet. Changes nothing."""
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            return _APPEND  # the producer is new, or has expired: any sequence may start
        if batch.producer_epoch < producer.epoch:
            return Check(ErrorCode.INVALID_PRODUCER_EPOCH)
        base_sequence = batch.base_sequence
        if batch.producer_epoch > producer.epoch:
            starts_anew = base_sequence == 0
            return _APPEND if starts_anew else Check(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return self._check_sequence(producer.batches, base_sequence, batch.last_offset_delta)

    def _check_sequence(
        self, batches: deque[StoredBatch], base_sequence: int, last_offset_delta: int
    ) -> Check:
        if not batches or base_sequence == sequence_after(batches[-1].last_sequence, 1):
            return _APPEND
        last_sequence = sequence_after(base_sequence, last_offset_delta)
        for stored in batches:
            if stored.base_sequence == base_sequence and stored.last_sequence == last_sequence:
                return Check(ErrorCode.NONE, stored)
        return Check(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def record(self, batch: BatchHeader, base_offset: int, wall_ms: int) -> None:
        """Note a batch that is in the log at `base_offset`."""
        if batch.producer_id < 0:
            return
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._producers[batch.producer_id] = _Producer(batch.producer_epoch)
            if len(self._producers) > PRODUCERS_MAX:
                self._producers.popitem(last=False)
        else:
            self._producers.move_to_end(batch.producer_id)
        producer.seen_ms = wall_ms
        if producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        if batch.is_control:
            return  # a marker keeps its producer alive and has no sequence (KAFKA-9144)
        delta = batch.last_offset_delta
        last_sequence = sequence_after(batch.base_sequence, delta)
        producer.batches.append(
            StoredBatch(batch.base_sequence, last_sequence, base_offset, base_offset + delta)
        )

    def snapshot(self) -> list[SnapshotEntry]:
        """Return every batch that is remembered, those of one producer oldest first."""
        entries: list[SnapshotEntry] = []
        for producer_id, producer in self._producers.items():
            epoch, seen_ms = producer.epoch, producer.seen_ms
            if not producer.batches:
                entries.append(SnapshotEntry(producer_id, epoch, NO_SEQUENCE, -1, 0, seen_ms))
            for batch in producer.batches:
                delta = batch.last_offset - batch.base_offset
                last = batch.last_sequence, batch.last_offset
                entries.append(SnapshotEntry(producer_id, epoch, *last, delta, seen_ms))
        return entries

    def rebuild(self, batches: Iterable[BatchHeader], known: Iterable[SnapshotEntry] = ()) -> None:
        """Drop all, then load a snapshot and the log's batches after it.

        A batch's own timestamp stands for the time of its append.
        """
        self._producers.clear()
        for entry in known:
            self._restore(entry)
        for batch in batches:
            self.record(batch, batch.base_offset, batch.max_timestamp)

    def _restore(self, entry: SnapshotEntry) -> None:
        producer = self._producers.get(entry.producer_id)
        if producer is None or producer.epoch != entry.producer_epoch:
            producer = self._producers[entry.producer_id] = _Producer(entry.producer_epoch)
        producer.seen_ms = entry.timestamp
        if entry.last_sequence != NO_SEQUENCE:
            base_sequence = (entry.last_sequence - entry.offset_delta) % (SEQUENCE_MAX + 1)
            base_offset = entry.last_offset - entry.offset_delta
            producer.batches.append(
                StoredBatch(base_sequence, entry.last_sequence, base_offset, entry.last_offset)
            )

    def expire(self, wall_ms: int, expiration_ms: int) -> None:
        """Drop the producers that were idle for longer than `producer.id.expiration.ms`."""
        idle = [
            producer_id
            for producer_id, producer in self._producers.items()
            if wall_ms - producer.seen_ms > expiration_ms
        ]
        for producer_id in idle:
            del self._producers[producer_id]
