"""One transactional id: its committed metadata, the change under way, and the missing markers.

The functions that return a `TransactionMetadata` build the metadata of a change, and change
nothing. `apply` makes the change once its record is committed.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.broker.transactions.core.records import TransactionMetadata, contradiction
from quorumlog.broker.transactions.core.requests import EPOCH_BUMP, NO_PRODUCER, ProducerIdAndEpoch
from quorumlog.broker.transactions.core.states import (
    PREPARED,
    TRANSITIONS,
    WITHOUT_TRANSACTION,
    TransactionState,
)
from quorumlog.invariants import require, some
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

RETRY: Final = Backoff(20, 1000)
"""The delays before a marker is sent again, or a refused change of the coordinator is retried."""
NO_JITTER: Final = 0.5
EPOCH_MAX: Final = 32_767  # never given to a producer: reserved to fence the last one


def is_exhausted(epoch: int) -> bool:
    """Whether the next epoch would be `EPOCH_MAX`, which no producer may have."""
    return epoch >= EPOCH_MAX - 1


class Transaction:
    """One transactional id.

    Invariants (1 and 2 are checked at every change, the others after every step):
      1. Every change is legal, and begins only when no other is under way.
      2. The epoch of a producer id never falls, and `last_update_ms` rises with every change.
      3. The committed metadata do not contradict themselves (`records.contradiction`).
      4. Markers are missing or under way only in the Prepare states, and only for its partitions.
    """

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None = None) -> None:
        self.transactional_id: Final = transactional_id
        self._metadata = metadata
        self.pending: TransactionState | None = None  # the state that the change under way leads to
        self.pending_behind: TransactionState | None = None  # of a second change in the same batch
        self.unmarked: set[TopicPartition] = set()  # without a confirmed marker
        self.being_marked: set[TopicPartition] = set()  # their markers are under way
        self.failures = 0  # consecutive: refused writes, markers that were not written
        self.not_before_ms = 0  # no retry before this time
        self._expect_markers()

    @property
    def state(self) -> TransactionState:
        """The committed state; EMPTY if the id is new."""
        return TransactionState.EMPTY if self._metadata is None else self._metadata.state

    @property
    def is_new(self) -> bool:
        """Whether no record of the id is committed."""
        return self._metadata is None

    @property
    def metadata(self) -> TransactionMetadata:
        """The committed metadata. Raises InvariantViolation if the id is new."""
        return some(self._metadata, f"{self.transactional_id} has a record")

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The current producer id and epoch: every other producer is fenced."""
        if self._metadata is None:
            return NO_PRODUCER
        return ProducerIdAndEpoch(self._metadata.producer_id, self._metadata.producer_epoch)

    @property
    def pending_changes(self) -> int:
        """The number of changes under way: at most two, in one batch."""
        return (self.pending is not None) + (self.pending_behind is not None)

    @property
    def is_busy(self) -> bool:
        """Whether clients must wait: a change, or the markers of a decision, are under way."""
        return self.pending is not None or self.state in PREPARED

    def refusal_of(self, producer: ProducerIdAndEpoch) -> ErrorCode:
        """Return why this producer is refused; NONE: it is the current producer."""
        if producer.producer_id != self.producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_current = producer.epoch == self.producer.epoch
        return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED

    @property
    def awaits_markers(self) -> bool:
        """Whether the markers of all partitions without a marker are under way."""
        return bool(self.unmarked) and len(self.being_marked) == len(self.unmarked)

    # --- The metadata of a change ---

    def initialized(
        self,
        now_ms: int,
        producer: ProducerIdAndEpoch,
        transaction_timeout_ms: int,
        last_producer_epoch: int,
    ) -> TransactionMetadata:
        """Return the metadata once a producer begins to use the id: -> Empty."""
        version = 0 if self._metadata is None else self._metadata.client_transaction_version
        return TransactionMetadata(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_timeout_ms=transaction_timeout_ms,
            state=TransactionState.EMPTY,
            last_update_ms=self._updated_ms(now_ms),
            previous_producer_id=self.producer.producer_id,
            client_transaction_version=version,
            last_producer_epoch=last_producer_epoch,
        )

    def with_partitions(
        self, now_ms: int, partitions: Iterable[TopicPartition], client_transaction_version: int
    ) -> TransactionMetadata:
        """Return the metadata with partitions added, perhaps the first: -> Ongoing."""
        begins = self.state in WITHOUT_TRANSACTION
        return replace(
            self.metadata,
            state=TransactionState.ONGOING,
            partitions=tuple(sorted({*self.metadata.partitions, *partitions})),
            last_update_ms=self._updated_ms(now_ms),
            start_ms=now_ms if begins else self.metadata.start_ms,
            previous_producer_id=self.producer.producer_id,
            client_transaction_version=client_transaction_version,
        )

    def prepared(
        self,
        now_ms: int,
        to: TransactionState,
        producer_epoch: int,
        last_producer_epoch: int,
        *,
        next_producer_id: int = NO_PRODUCER_ID,
        client_transaction_version: int,
    ) -> TransactionMetadata:
        """Return the metadata once the outcome is decided: -> PrepareCommit or PrepareAbort.

        `producer_epoch`: the epoch of the markers.
        """
        has_none = self.state in WITHOUT_TRANSACTION
        return replace(
            self.metadata,
            state=to,
            producer_epoch=producer_epoch,
            last_producer_epoch=last_producer_epoch,
            last_update_ms=self._updated_ms(now_ms),
            start_ms=now_ms if has_none else self.metadata.start_ms,
            previous_producer_id=self.producer.producer_id,
            next_producer_id=next_producer_id,
            client_transaction_version=client_transaction_version,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        """Return the metadata once every marker is written: -> CompleteCommit or CompleteAbort."""
        [to] = TRANSITIONS[self.state]
        producer = producer_after(self.metadata)
        return replace(
            self.metadata,
            state=to,
            partitions=(),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            last_update_ms=self._updated_ms(now_ms),
            previous_producer_id=self.producer.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_EPOCH,
        )

    def _updated_ms(self, now_ms: int) -> int:
        """Return the time of a change: later than the previous change, even if clocks differ.

        So the time of a Prepare record identifies that decision, also for a later coordinator.
        """
        if self._metadata is None:
            return now_ms
        return max(now_ms, self._metadata.last_update_ms + 1)

    # --- Changes ---

    def begin(self, to: TransactionState) -> None:
        """Record that a change is under way; other requests wait until it has ended."""
        is_fence = self.pending is TransactionState.PREPARE_EPOCH_FENCE
        source = TransactionState.PREPARE_EPOCH_FENCE if is_fence else self.state
        require(self.pending is None or is_fence, "1: one change at a time")
        self._require_legal(source, to)
        self.pending = to

    def begin_behind(self, to: TransactionState) -> None:
        """Record that a second change follows in the batch of the change under way."""
        require(self.pending is not None, "1: there is one that it follows")
        require(self.pending_behind is None, "1: two changes in a batch, no more")
        self._require_legal(self.pending or to, to)
        self.pending_behind = to

    def give_up(self) -> None:
        """Record that the change under way was not written: the state is unchanged."""
        self.pending = self.pending_behind = None

    def back_off(self, now_ms: int) -> None:
        """Delay the retry of anything that is due.

        Failures that come during the delay do not extend it: they belong to one round.
        """
        if now_ms >= self.not_before_ms:
            self.failures += 1
            self.not_before_ms = now_ms + int(RETRY.delay_ms(self.failures, NO_JITTER))

    def apply(self, metadata: TransactionMetadata) -> None:
        """Make the change under way: its record is committed."""
        require(self.pending is metadata.state, "1: the committed state is the pending state")
        self._transition(metadata)
        self.pending, self.pending_behind = self.pending_behind, None
        self.failures = self.not_before_ms = 0
        self._expect_markers()

    def die(self) -> None:
        """Record that the tombstone is committed."""
        self.apply(replace(self.metadata, state=TransactionState.DEAD))

    def _transition(self, metadata: TransactionMetadata) -> None:
        """Set the metadata; after `__init__`, only this method does."""
        self._require_legal(self.state, metadata.state)
        before = self._metadata
        if before is not None and metadata.state is not TransactionState.DEAD:
            is_same_id = metadata.producer_id == before.producer_id
            is_lower = is_same_id and metadata.producer_epoch < before.producer_epoch
            require(not is_lower, f"2: epoch {before.producer_epoch} of {self.transactional_id}")
            require(metadata.last_update_ms > before.last_update_ms, "2: a later change")
        self._metadata = metadata

    def _require_legal(self, source: TransactionState, to: TransactionState) -> None:
        if to not in TRANSITIONS[source]:
            change = f"{self.transactional_id}: {source.value} -> {to.value}"
            require(False, f"1: {change} is no legal change")

    def _expect_markers(self) -> None:
        is_prepared = self.state in PREPARED
        self.unmarked = {*self.metadata.partitions} if is_prepared else set()
        self.being_marked = set()

    def check_invariants(self) -> None:
        """Raise InvariantViolation if an invariant does not hold."""
        if self._metadata is None:
            return
        wrong = contradiction(self._metadata)
        require(wrong is None, f"3: {wrong}")
        require(self.state in PREPARED or not self.unmarked, "4: markers without a decision")
        known = {*self._metadata.partitions}
        require(self.being_marked <= self.unmarked <= known, "4: markers of strangers")


def producer_after(prepared: TransactionMetadata) -> ProducerIdAndEpoch:
    """Return the producer id and epoch after the transaction that `prepared` ends."""
    if prepared.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(prepared.next_producer_id, max(prepared.next_producer_epoch, 0))
    return ProducerIdAndEpoch(prepared.producer_id, prepared.producer_epoch)


def bumped(epoch: int) -> int:
    """Return the next epoch, at most `EPOCH_MAX`, so that an abort is always possible."""
    return min(epoch + 1, EPOCH_MAX)


def bumps_epoch(transaction_version: int) -> bool:
    """Whether every transaction has an epoch of its own (KIP-890)."""
    return transaction_version >= EPOCH_BUMP
