"""One transactional id: what is committed of it, the change under way, and the markers to come.

The functions that end in `TransactionMetadata` say what a change would write, and change nothing.
`apply` makes the change once its record is committed.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.broker.transactions.core.records import TransactionMetadata, contradiction
from quorumlog.broker.transactions.core.requests import (
    EPOCH_BUMP,
    NO_PRODUCER,
    ProducerIdAndEpoch,
)
from quorumlog.broker.transactions.core.states import (
    PREPARED,
    TRANSITIONS,
    WITHOUT_TRANSACTION,
    TransactionState,
)
from quorumlog.invariants import require, some
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

NO_JITTER: Final = 0.5
EPOCH_MAX: Final = 32_767  # is never given to a producer: it is left to fence the last one


def is_exhausted(epoch: int) -> bool:
    """Whether the next epoch would be one that no producer may have."""
    return epoch >= EPOCH_MAX - 1


class Transaction:
    """One transactional id.

    Invariants (1 and 2 are checked at every change, the others after every step):
      1. Every change is legal, and none begins while another is under way.
      2. The epoch of a producer id never falls, and `last_update_ms` rises with every change.
      3. What is committed does not contradict itself (`records.contradiction`).
      4. Markers are missing, or under way, in the Prepare states only, for its partitions.
    """

    def __init__(self, transactional_id: str, metadata: TransactionMetadata | None = None) -> None:
        self.transactional_id: Final = transactional_id
        self._metadata = metadata
        self.pending: TransactionState | None = None  # the state that the change under way leads to
        self.pending_behind: TransactionState | None = None  # that of another in the same batch
        self.unmarked: set[TopicPartition] = set()  # no marker is known to be there
        self.being_marked: set[TopicPartition] = set()  # their markers are under way
        self.failures = 0  # in a row: refused writes, markers that were not written
        self.not_before_ms = 0  # of what is due, nothing is tried again before
        self._expect_markers()

    @property
    def state(self) -> TransactionState:
        """The state that is committed."""
        return TransactionState.EMPTY if self._metadata is None else self._metadata.state

    @property
    def is_new(self) -> bool:
        """Whether no record of the id is committed."""
        return self._metadata is None

    @property
    def metadata(self) -> TransactionMetadata:
        """What is committed. Raises InvariantViolation if the id is new."""
        return some(self._metadata, f"{self.transactional_id} has a record")

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The producer that is not fenced."""
        if self._metadata is None:
            return NO_PRODUCER
        return ProducerIdAndEpoch(self._metadata.producer_id, self._metadata.producer_epoch)

    @property
    def pending_changes(self) -> int:
        """How many changes are under way: two in one batch at most."""
        return (self.pending is not None) + (self.pending_behind is not None)

    @property
    def is_busy(self) -> bool:
        """Whether clients must wait: a change is under way, or the markers of a decision are."""
        return self.pending is not None or self.state in PREPARED

    def refusal_of(self, producer: ProducerIdAndEpoch) -> ErrorCode:
        """Say why this producer may do nothing; NONE: it is the one that is not fenced."""
        if producer.producer_id != self.producer.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_current = producer.epoch == self.producer.epoch
        return ErrorCode.NONE if is_current else ErrorCode.PRODUCER_FENCED

    @property
    def awaits_markers(self) -> bool:
        """Whether the markers of all partitions that lack one are under way."""
        return bool(self.unmarked) and len(self.being_marked) == len(self.unmarked)

    # --- What a change would write ---

    def initialized(
        self,
        now_ms: int,
        producer: ProducerIdAndEpoch,
        transaction_timeout_ms: int,
        last_producer_epoch: int,
    ) -> TransactionMetadata:
        """Return what is so once a producer begins to use the id: -> Empty."""
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
        """Return what is so with partitions added, perhaps the first ones: -> Ongoing."""
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
        """Return what is so once the outcome is decided: -> PrepareCommit or PrepareAbort.

        `producer_epoch` is that of the markers.
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
        """Return what is so once every marker is written: -> CompleteCommit or CompleteAbort."""
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
        """Return the time of a change: later than the one before, whatever the clocks of brokers.

        So the time of a Prepare record names that one decision, also to a later coordinator.
        """
        if self._metadata is None:
            return now_ms
        return max(now_ms, self._metadata.last_update_ms + 1)

    # --- Changes ---

    def begin(self, to: TransactionState) -> None:
        """Note that a change is under way; other requests wait until it has ended."""
        is_fence = self.pending is TransactionState.PREPARE_EPOCH_FENCE
        source = TransactionState.PREPARE_EPOCH_FENCE if is_fence else self.state
        require(self.pending is None or is_fence, "1: one change at a time")
        self._require_legal(source, to)
        self.pending = to

    def begin_behind(self, to: TransactionState) -> None:
        """Note that the batch of the change under way makes another one, after it."""
        require(self.pending is not None, "1: there is one that it follows")
        require(self.pending_behind is None, "1: two changes in a batch, no more")
        self._require_legal(self.pending or to, to)
        self.pending_behind = to

    def give_up(self) -> None:
        """Note that the change under way will not happen: nothing has changed."""
        self.pending = self.pending_behind = None

    def back_off(self, now_ms: int, backoff: Backoff) -> None:
        """Try nothing again that is due, before some time has passed.

        Failures that come while we wait count once: they are answers of one round.
        """
        if now_ms >= self.not_before_ms:
            self.failures += 1
            self.not_before_ms = now_ms + int(backoff.delay_ms(self.failures, NO_JITTER))

    def apply(self, metadata: TransactionMetadata) -> None:
        """Make the change under way: its record is committed."""
        require(self.pending is metadata.state, "1: what is committed was under way")
        self._transition(metadata)
        self.pending, self.pending_behind = self.pending_behind, None
        self.failures = self.not_before_ms = 0
        self._expect_markers()

    def die(self) -> None:
        """Note that the tombstone is committed."""
        self.apply(replace(self.metadata, state=TransactionState.DEAD))

    def _transition(self, metadata: TransactionMetadata) -> None:
        """Write the state; nothing else does, once there is one."""
        self._require_legal(self.state, metadata.state)
        before = self._metadata
        if before is not None and metadata.state is not TransactionState.DEAD:
            is_same_id = metadata.producer_id == before.producer_id
            is_lower = is_same_id and metadata.producer_epoch < before.producer_epoch
            require(not is_lower, f"2: epoch {before.producer_epoch} of {self.transactional_id}")
            require(metadata.last_update_ms > before.last_update_ms, "2: a later change")
        self._metadata = metadata

    def _require_legal(self, source: TransactionState, to: TransactionState) -> None:
        change = f"{self.transactional_id}: {source.value} -> {to.value}"
        require(to in TRANSITIONS[source], f"1: {change} is no legal change")

    def _expect_markers(self) -> None:
        is_prepared = self.state in PREPARED
        self.unmarked = {*self.metadata.partitions} if is_prepared else set()
        self.being_marked = set()

    def check_invariants(self) -> None:
        """Raise InvariantViolation if one does not hold."""
        if self._metadata is None:
            return
        wrong = contradiction(self._metadata)
        require(wrong is None, f"3: {wrong}")
        require(self.state in PREPARED or not self.unmarked, "4: markers without a decision")
        known = {*self._metadata.partitions}
        require(self.being_marked <= self.unmarked <= known, "4: markers of strangers")


def producer_after(prepared: TransactionMetadata) -> ProducerIdAndEpoch:
    """Return what the producer is known by after the transaction that `prepared` ends."""
    if prepared.next_producer_id != NO_PRODUCER_ID:
        return ProducerIdAndEpoch(prepared.next_producer_id, max(prepared.next_producer_epoch, 0))
    return ProducerIdAndEpoch(prepared.producer_id, prepared.producer_epoch)


def bumped(epoch: int) -> int:
    """Return the epoch after this one; the last one stays, so that an abort is always possible."""
    return min(epoch + 1, EPOCH_MAX)


def bumps_epoch(transaction_version: int) -> bool:
    """Whether every transaction has an epoch of its own (KIP-890)."""
    return transaction_version >= EPOCH_BUMP
