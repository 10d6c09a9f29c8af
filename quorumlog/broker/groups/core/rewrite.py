"""Rewrites the live records of groups, so that a load reads few superseded records.

`__consumer_offsets` gets a record for each commit, and its log is not compacted. When the log has
several times as many records as are live, the coordinator takes the end of the applied log as the
begin offset, appends all live records again, in slices, and moves the log start to the begin offset
once every slice is committed. Commits go on meanwhile.

# DEVIATION: Kafka's log cleaner compacts this topic.
# docs/decisions/0030-offsets-rewrite.md

Why no state is lost. For each key live at the begin offset, a record at or above that offset is
committed before the log start moves: the key's next commit, or its record in a slice. A slice has a
key's value from `CommittedState`, written only while no other record of the key is being written:
so no newer value precedes the slice in the log, and later values win. A slice repeats committed
values, so half a rewrite changes nothing for the next leader.

Transactions. The records of an open transaction are needed until its marker, so the log start does
not move past them. An offset that a marker commits may have its record below the begin offset: then
the key is rewritten, too. A slice of a key with a pending offset would supersede that offset: the
key waits for the marker.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import Key, LogRecord, encode
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteLimits:
    """When to rewrite, and how much at once."""

    records_min: int = 10_000  # a smaller log loads in some tenths of a second
    live_factor: int = 4  # a log must have more records than this multiple of the live records
    slice_records: int = 500
    slice_bytes: int = 64 << 10  # but at least one record


DEFAULT_LIMITS: Final = RewriteLimits()


class Rewrite:
    """The rewrite of one partition of `__consumer_offsets`.

    Invariants:
      1. All records below `_begun_at` (the begin offset) were applied when the rewrite began.
      2. Each key live at that time is in `_todo`, of a group in `_groups`, or in the slice being
         written (at most one), until a record of it at or above `_begun_at` is committed.
    """

    def __init__(
        self, committed: CommittedState, outbox: GroupOutbox, limits: RewriteLimits
    ) -> None:
        self._committed: Final = committed
        self._outbox: Final = outbox
        self._limits: Final = limits
        self._log_start = self._applied_end = 0
        self._not_before = 0  # the log end offset at which the next rewrite may begin
        self._begun_at: int | None = None
        self._groups: list[str] = []  # groups whose keys are not in `_todo` yet
        self._todo: dict[Key, None] = {}  # keys still to be rewritten, in the order of writing
        self._has_slice_under_way = False
        self.has_foreign_records = False

    def note_loaded(self, log_start_offset: int, log_end_offset: int) -> None:
        """Record the range of loaded, committed offsets: [log_start_offset, log_end_offset)."""
        self._log_start, self._applied_end = log_start_offset, log_end_offset

    def note_applied(self, records: Iterable[LogRecord], next_offset: int) -> None:
        """Remove the keys of applied records from the rewrite; the log ends at `next_offset`."""
        self._applied_end = max(self._applied_end, next_offset)
        if self._begun_at is not None:
            for record in records:
                self._todo.pop(record.subject, None)

    def note_counted(self, key: Key, log_offset: int) -> None:
        """Record that a marker has committed the offset record at `log_offset`."""
        if self._begun_at is not None:
            if log_offset < self._begun_at:
                self._todo[key] = None
            else:
                self._todo.pop(key, None)

    def resume(self) -> None:
        """Begin a due rewrite, write its next slice, or end it. To be called after each write."""
        if self._begun_at is None:
            if not self._is_due():
                return
            self._begin(self._applied_end)
        if self._has_slice_under_way:
            return
        while self._groups and len(self._todo) < self._limits.slice_records:
            self._todo.update(dict.fromkeys(self._committed.keys_of(self._groups.pop())))
        if self._todo:
            self._write_slice()
        elif not self._is_held_by_a_transaction():
            self._end()

    def _is_held_by_a_transaction(self) -> bool:
        first = self._committed.pending.first_log_offset
        return first is not None and self._begun_at is not None and first < self._begun_at

    def _is_due(self) -> bool:
        size = self._applied_end - self._log_start
        is_large = size > max(
            self._limits.records_min, self._limits.live_factor * self._committed.live_records
        )
        # Records of unknown kinds would be lost: this version cannot write them.
        return is_large and self._applied_end >= self._not_before and not self.has_foreign_records

    def _begin(self, applied_end: int) -> None:
        self._begun_at = applied_end
        self._groups = sorted(self._committed.group_ids(), reverse=True)

    def _write_slice(self) -> None:
        """Append one slice of keys without a write under way or a pending offset; others wait."""
        under_way = self._outbox.keys_under_way()
        records: list[LogRecord] = []
        size = 0
        for _ in range(min(self._limits.slice_records, len(self._todo))):
            key = next(iter(self._todo))
            del self._todo[key]
            if key in under_way or self._committed.pending.has(key):
                self._todo[key] = None  # to the end: the commit of its record may remove it
                continue
            record = self._record_of(key)
            size += sum(len(part or b"") for part in encode(record))
            if records and size > self._limits.slice_bytes:
                self._todo[key] = None
                break
            records.append(record)
        if records:
            self._has_slice_under_way = True
            self._outbox.append(tuple(records), self._slice_written)

    def _record_of(self, key: Key) -> LogRecord:
        return self._committed.record_of(key)

    def _slice_written(self, _now_ms: int, error_code: ErrorCode) -> None:
        self._has_slice_under_way = False
        if error_code is not ErrorCode.NONE:  # give up: half a rewrite does no harm
            self._begun_at, self._groups, self._todo = None, [], {}
            self._not_before = self._applied_end + self._limits.records_min

    def _end(self) -> None:
        if self._begun_at is not None:
            self._log_start = self._begun_at
            self._outbox.advance_log_start(Offset(self._begun_at))
            self._begun_at = None
