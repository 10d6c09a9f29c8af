"""Which producers' first batches of a transaction wait for their coordinators (KIP-890).

A guard is taken before the question. It counts until a batch of the producer is appended, or a
marker that may be of its transaction: an answer that comes behind that is about a transaction that
has ended, and opens none (KAFKA-14884). Source: Kafka's `VerificationStateEntry`,
`VerificationGuard`.
"""

from collections import OrderedDict
from typing import Final

from quorumlog.wire.codec.error_codes import ErrorCode

# DEVIATION: Kafka remembers any number of them until they expire.
# docs/decisions/0014-every-memory-has-a-limit.md
GUARDS_MAX: Final = 100_000  # per partition: beyond it, the oldest counts no more


class Guard:
    """One producer's; `lowest_sequence` is that of the first batch that was seen (KAFKA-14920)."""

    __slots__ = ("adds", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, *, adds: bool) -> None:
        self.epoch, self.lowest_sequence, self.adds = epoch, lowest_sequence, adds

    def note(self, epoch: int, sequence: int, *, adds: bool) -> None:
        """Note another batch that waits for the answer, or is sent again."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence, self.adds = epoch, sequence, adds
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


class Guards:
    """Those of one partition, the oldest first."""

    def __init__(self) -> None:
        self._by_producer: Final[OrderedDict[int, Guard]] = OrderedDict()

    def take(self, producer_id: int, epoch: int, sequence: int, *, adds: bool) -> Guard:
        """Return the guard of a producer, a new one if it has none."""
        guard = self._by_producer.get(producer_id)
        if guard is None:
            guard = self._by_producer[producer_id] = Guard(epoch, sequence, adds=adds)
            if len(self._by_producer) > GUARDS_MAX:
                self._by_producer.popitem(last=False)
        else:
            guard.note(epoch, sequence, adds=adds)
        return guard

    def counts(self, producer_id: int, guard: Guard | None) -> bool:
        """Whether since the guard was taken neither a batch nor a marker came that takes it."""
        return guard is not None and self._by_producer.get(producer_id) is guard

    def release(self, producer_id: int) -> None:
        """Let it count no more: a batch of the producer is in the log, or a marker may be its."""
        self._by_producer.pop(producer_id, None)

    def note_marker(self, producer_id: int, ended_epoch: int, marker_epoch: int) -> None:
        """Let it count no more, unless the marker has ended an earlier transaction.

        With transaction.version 2 every transaction has an epoch, and its marker the next one. So a
        marker that is newer than what it ended, and no newer than what is asked for, is of the
        transaction before: its producer has begun the next one behind it.
        """
        guard = self._by_producer.get(producer_id)
        if guard is None or (guard.adds and ended_epoch < marker_epoch <= guard.epoch):
            return
        self.release(producer_id)


def error_for_producer(error_code: ErrorCode, *, knows_abortable: bool) -> ErrorCode:
    """Return how a producer hears that its transaction is not open (KIP-1050)."""
    is_new = error_code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable
    return ErrorCode.INVALID_TXN_STATE if is_new else error_code
