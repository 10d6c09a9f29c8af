"""The effects of one step, and the writes under way."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.broker.groups.core.consumer.effects import MakeTarget, MatchTopics
from quorumlog.broker.groups.core.consumer.requests import HeartbeatResult
from quorumlog.broker.groups.core.effects import (
    AdvanceLogStart,
    AnswerRequest,
    AppendRecords,
    Effect,
    VerifyTransaction,
    WriteMarker,
)
from quorumlog.broker.groups.core.records import Key, LogRecord, OffsetRecord, is_tombstone
from quorumlog.broker.groups.core.requests import Result
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.transaction_markers import TransactionMarker

WriteDone = Callable[[int, ErrorCode], None]
"""Called once with (now_ms, error_code), after the records were applied if it is NONE."""


Apply = Callable[[int], None]
"""Called with the offset after the write, once the write is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingWrite:
    """Records that are being written, and the callback for the end of the write.

    `apply`: applies a write of a transaction to the durable state; None: plain records, which the
    coordinator applies.
    """

    write_id: int
    records: tuple[LogRecord, ...]
    done: WriteDone
    apply: Apply | None = None


class GroupOutbox:
    """Collects the effects of a step. Invariant: writes end in the order in which they began."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._writes: deque[PendingWrite] = deque()
        self._last_write_id = 0

    def reply(self, request_id: int, result: Result | HeartbeatResult) -> None:
        """Complete a request with its result."""
        self._effects.append(AnswerRequest(request_id=request_id, result=result))

    def append(self, records: tuple[LogRecord, ...], done: WriteDone) -> None:
        """Write the records; `done` is called when the write has ended."""
        write_id = self._begin(records, done)
        self._effects.append(AppendRecords(write_id=write_id, records=records))

    def append_transactional(
        self,
        producer_id: int,
        producer_epoch: int,
        records: tuple[LogRecord, ...],
        *,
        apply: Apply,
        done: WriteDone,
    ) -> None:
        """Write the records as a batch of the producer's transaction."""
        write_id = self._begin(records, done, apply)
        append = AppendRecords(
            write_id=write_id,
            records=records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        self._effects.append(append)

    def write_marker(
        self, marker: TransactionMarker, *, transaction_version: int, apply: Apply, done: WriteDone
    ) -> None:
        """Write the marker of a transaction."""
        write = WriteMarker(
            write_id=self._begin((), done, apply),
            marker=marker,
            transaction_version=transaction_version,
        )
        self._effects.append(write)

    def _begin(
        self, records: tuple[LogRecord, ...], done: WriteDone, apply: Apply | None = None
    ) -> int:
        self._last_write_id += 1
        write_id = self._last_write_id
        write = PendingWrite(write_id=write_id, records=records, done=done, apply=apply)
        self._writes.append(write)
        return write_id

    def advance_log_start(self, offset: Offset) -> None:
        """Delete the records below `offset`."""
        self._effects.append(AdvanceLogStart(offset=offset))

    def pass_on(self, effect: VerifyTransaction | MakeTarget | MatchTopics) -> None:
        """Emit an effect for the driver of groups to perform."""
        self._effects.append(effect)

    def finish(self, write_id: int) -> PendingWrite:
        """Remove and return the oldest write. Raises InvariantViolation: it has another id."""
        require(bool(self._writes), f"write {write_id} ended twice")
        write = self._writes.popleft()
        require(write.write_id == write_id, f"write {write_id} ended before {write.write_id}")
        return write

    def is_writing(self, group_id: str) -> bool:
        """Whether a record of the group is being written."""
        return any(
            record.group_id == group_id for write in self._writes for record in write.records
        )

    @property
    def is_deleting(self) -> bool:
        """Whether a tombstone is being written."""
        return any(is_tombstone(record) for write in self._writes for record in write.records)

    def groups_under_way(self) -> frozenset[str]:
        """Return the groups with a record that is being written."""
        return frozenset(record.group_id for write in self._writes for record in write.records)

    def keys_under_way(self) -> frozenset[Key]:
        """Return the keys of the records that are being written."""
        return frozenset(record.subject for write in self._writes for record in write.records)

    def offsets_under_way(self) -> set[tuple[str, TopicPartition]]:
        """Return the groups and partitions of the offsets that are being written."""
        return {
            (record.group_id, record.topic_partition)
            for write in self._writes
            for record in write.records
            if isinstance(record, OffsetRecord)
        }

    def drain(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects, self._effects = self._effects, []
        return effects
