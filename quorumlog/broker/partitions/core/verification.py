"""Guards of the first batches of transactions, while coordinators verify them (KIP-890).

A guard is taken before the verification request. It is valid until a batch of the producer is
appended, or a marker that may end its transaction. A response behind such a marker is about an
ended transaction and opens none (KAFKA-14884). Source: Kafka's `VerificationStateEntry`,
`VerificationGuard`.
"""

from collections import OrderedDict
from typing import Final

from quorumlog.wire.codec.error_codes import ErrorCode

# DEVIATION: Kafka remembers any number of guards until they expire.
# docs/decisions/0039-limits.md
GUARDS_MAX: Final = 100_000  # per partition: beyond it, the oldest guard is dropped


class Guard:
    """A guard of one producer; `lowest_sequence` is of its first batch received (KAFKA-14920)."""

    __slots__ = ("adds", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, *, adds: bool) -> None:
        self.epoch, self.lowest_sequence, self.adds = epoch, lowest_sequence, adds

    def note(self, epoch: int, sequence: int, *, adds: bool) -> None:
        """Record another batch that waits for the response, or a repeated one."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence, self.adds = epoch, sequence, adds
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class Guards:
    """The guards of one partition, the oldest first."""

    def __init__(self) -> None:
        self._by_producer: Final[OrderedDict[int, Guard]] = OrderedDict()

    def take(self, producer_id: int, epoch: int, sequence: int, *, adds: bool) -> Guard:
        """Return the guard of a producer; create it if there is none."""
        guard = self._by_producer.get(producer_id)
        if guard is None:
            guard = self._by_producer[producer_id] = Guard(epoch, sequence, adds=adds)
            if len(self._by_producer) > GUARDS_MAX:
                self._by_producer.popitem(last=False)
        else:
            guard.note(epoch, sequence, adds=adds)
        return guard

    def counts(self, producer_id: int, guard: Guard | None) -> bool:
        """Whether the guard is still valid: no batch and no marker has released it."""
        return guard is not None and self._by_producer.get(producer_id) is guard

    def release(self, producer_id: int) -> None:
        """Drop the guard: the log has a batch of the producer, or a marker of its transaction."""
        self._by_producer.pop(producer_id, None)

    def note_marker(self, producer_id: int, ended_epoch: int, marker_epoch: int) -> None:
        """Drop the producer's guard, unless the marker has ended an earlier transaction.

        With transaction.version 2 every transaction has its own epoch, and its marker the next
        epoch. A marker newer than the transaction that it ended, and no newer than the guard, is of
        the previous transaction: the producer has begun the next one after it.
        """
        guard = self._by_producer.get(producer_id)
        if guard is None or (guard.adds and ended_epoch < marker_epoch <= guard.epoch):
            return
        self.release(producer_id)


def error_for_producer(error_code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Return the error of a failed verification in a form that the client supports (KIP-1050)."""
    is_new = error_code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable
    return ErrorCode.INVALID_TXN_STATE if is_new else error_code
