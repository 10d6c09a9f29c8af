"""The effects of one step, the writes under way, and the producer ids to come."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.broker.transactions.core.effects import (
    AllocateProducerId,
    AnswerRequest,
    AppendRecords,
    Effect,
    SendMarkers,
)
from quorumlog.broker.transactions.core.records import (
    FLEXIBLE_VALUE_VERSION,
    TransactionMetadata,
    TransactionRecord,
)
from quorumlog.broker.transactions.core.requests import Result
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode

WriteDone = Callable[[int, ErrorCode], None]
"""Called once with (now_ms, error_code); if the code is NONE, after the change was made."""
AllocationDone = Callable[[int, int, ErrorCode], None]
"""Called once with (now_ms, producer_id, error_code); the id is valid if the code is NONE."""

Change = tuple[TransactionMetadata, WriteDone]
"""The metadata of a change, and the call once its write has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWrite:
    """Records that are being written, and the call once the write has ended."""

    write_id: int
    records: tuple[TransactionRecord, ...]
    done: WriteDone


class TransactionOutbox:
    """Invariants: writes end in the order of their start; an id awaits one producer id at most.

    `transaction_version` is the finalized level: at 0, records have the old format.
    """

    def __init__(self, transaction_version: int) -> None:
        self.transaction_version = transaction_version
        self._effects: list[Effect] = []
        self._writes: deque[PendingWrite] = deque()
        self._records: Counter[str] = Counter()  # under way, of each transactional id
        self._allocations: dict[str, AllocationDone] = {}
        self._last_write_id = 0

    def reply(self, request_id: int, result: Result) -> None:
        """Answer a request."""
        self._effects.append(AnswerRequest(request_id=request_id, result=result))

    def write(
        self,
        transaction: Transaction,
        metadata: TransactionMetadata,
        done: WriteDone,
        behind: TransactionMetadata | None = None,
    ) -> None:
        """Write the change under way; `done` is called when the write has ended.

        `behind`: a second change, in the same batch.
        """
        changes = [metadata] if behind is None else [metadata, behind]
        states = [transaction.pending, transaction.pending_behind][: len(changes)]
        require(states == [one.state for one in changes], "1: a change begins before its write")
        records = [self._record(transaction.transactional_id, one) for one in changes]
        self._append(tuple(records), done)

    def _record(self, transactional_id: str, metadata: TransactionMetadata) -> TransactionRecord:
        level = max(self.transaction_version, metadata.client_transaction_version)
        return TransactionRecord(
            transactional_id=transactional_id,
            metadata=metadata,
            value_version=min(level, FLEXIBLE_VALUE_VERSION),
        )

    def write_tombstones(self, transactional_ids: list[str], done: WriteDone) -> None:
        """Write tombstones of these ids in one batch; `done` as in `write`."""
        records = [
            TransactionRecord(transactional_id=one, metadata=None) for one in transactional_ids
        ]
        self._append(tuple(records), done)

    def _append(self, records: tuple[TransactionRecord, ...], done: WriteDone) -> None:
        self._last_write_id += 1
        write_id = self._last_write_id
        self._writes.append(PendingWrite(write_id=write_id, records=records, done=done))
        self._records.update(one.transactional_id for one in records)
        self._effects.append(AppendRecords(write_id=write_id, records=records))

    def allocate(self, transaction: Transaction, done: AllocationDone) -> None:
        """Get a producer id for the change under way."""
        transactional_id = transaction.transactional_id
        require(transactional_id not in self._allocations, "1: one change, one producer id")
        self._allocations[transactional_id] = done
        self._effects.append(AllocateProducerId(transactional_id=transactional_id))

    def send(self, markers: SendMarkers) -> None:
        """Send markers."""
        self._effects.append(markers)

    def finish(self, write_id: int) -> PendingWrite:
        """Remove and return the oldest write, which must be this one."""
        require(bool(self._writes), f"write {write_id} ended twice")
        write = self._writes.popleft()
        require(write.write_id == write_id, f"write {write_id} ended before {write.write_id}")
        for record in write.records:
            self._records[record.transactional_id] -= 1
            if not self._records[record.transactional_id]:
                del self._records[record.transactional_id]
        return write

    def changes_under_way(self, transactional_id: str) -> int:
        """Return how many changes of an id are being written, or wait for a producer id."""
        return self._records[transactional_id] + (transactional_id in self._allocations)

    def allocated(self, transactional_id: str) -> AllocationDone | None:
        """Remove and return the id's call; None: an earlier coordinator made the request."""
        return self._allocations.pop(transactional_id, None)

    def drain(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects
