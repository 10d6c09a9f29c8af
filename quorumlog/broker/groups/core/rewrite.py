"""Rewrites the live records of groups, so that a load reads little more than those.

`__consumer_offsets` gets a record for each commit, and its log is not compacted. When it holds
several times as many records as are live, the coordinator notes where its log is applied up to,
appends all that is live once more, in slices, and lets the log start at the noted offset once every
slice is committed. Commits go on meanwhile.

# DEVIATION: Kafka's log cleaner compacts this topic.
# docs/decisions/0028-the-offsets-topic-is-rewritten-by-its-coordinator.md

Why nothing is lost. Of each key that was live at the noted offset, a record at or above that offset
is committed before the start moves: the key's next commit, or a slice. A slice takes a key's value
from `CommittedState`, and only while no record of the key is under way: so no newer value is ahead
of the slice in the log, and what comes after it wins. A slice says nothing new, so half a rewrite
changes nothing for the next leader.

Transactions. A record of an open transaction says nothing yet, and the log below it is needed until
the marker: the start does not move past one. An offset that counts by a marker is at its record,
which may be below the noted offset: then it is written anew, too. A slice of a key of which an
offset is pending would supersede that, so the key waits for the marker.
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

    records_min: int = 10_000  # a log of fewer is left alone: some tenths of a second of loading
    live_factor: int = 4  # a log of fewer records than this times those that are live, too
    slice_records: int = 500
    slice_bytes: int = 64 << 10  # one record at least


DEFAULT_LIMITS: Final = RewriteLimits()


class Rewrite:
    """The rewrite of one partition of `__consumer_offsets`.

    Invariants:
      1. While one is under way, all that is below `_begun_at` was applied when it began.
      2. Each key that was live then is in `_todo` or of a group in `_groups`, until a record of it
         at or above `_begun_at` is committed, or is in a slice that is under way. At most one is.
    """

    def __init__(
        self, committed: CommittedState, outbox: GroupOutbox, limits: RewriteLimits
    ) -> None:
        self._committed: Final = committed
        self._outbox: Final = outbox
        self._limits: Final = limits
        self._log_start = self._applied_end = 0
        self._not_before = 0  # the end of the log that must be reached before the next try
        self._begun_at: int | None = None
        self._groups: list[str] = []  # whose keys are not in `_todo` yet
        self._todo: dict[Key, None] = {}  # what is not written anew yet; in the order of writing
        self._has_slice_under_way = False
        self.has_foreign_records = False

    def note_loaded(self, log_start_offset: int, log_end_offset: int) -> None:
        """Note which offsets were loaded, all committed: [log_start_offset, log_end_offset)."""
        self._log_start, self._applied_end = log_start_offset, log_end_offset

    def note_applied(self, records: Iterable[LogRecord], next_offset: int) -> None:
        """Note records that are committed and applied; the log goes on at next_offset."""
        self._applied_end = max(self._applied_end, next_offset)
        if self._begun_at is not None:
            for record in records:
                self._todo.pop(record.subject, None)

    def note_counted(self, key: Key, log_offset: int) -> None:
        """Note that the record of a transaction counts by now, which is at `log_offset`."""
        if self._begun_at is not None:
            if log_offset < self._begun_at:
                self._todo[key] = None
            else:
                self._todo.pop(key, None)

    def go_on(self) -> None:
        """Begin, write the next slice, or end, if it is time. To be called after each write."""
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
        # Records of other kinds would be lost: this version cannot write them.
        return is_large and self._applied_end >= self._not_before and not self.has_foreign_records

    def _begin(self, applied_end: int) -> None:
        self._begun_at = applied_end
        self._groups = sorted(self._committed.group_ids(), reverse=True)

    def _write_slice(self) -> None:
        """Append what fits of the keys that have no record under way; the others wait."""
        under_way = self._outbox.keys_under_way()
        records: list[LogRecord] = []
        size = 0
        for _ in range(min(self._limits.slice_records, len(self._todo))):
            key = next(iter(self._todo))
            del self._todo[key]
            if key in under_way or self._committed.pending.has(key):
                self._todo[key] = None  # last: if its record is committed, it is done
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
        if error_code is not ErrorCode.NONE:  # half of it does no harm; this is no time to go on
            self._begun_at, self._groups, self._todo = None, [], {}
            self._not_before = self._applied_end + self._limits.records_min

    def _end(self) -> None:
        if self._begun_at is not None:
            self._log_start = self._begun_at
            self._outbox.advance_log_start(Offset(self._begun_at))
            self._begun_at = None
