"""The check of offsets by time (ListOffsets) against the sends and the final reads.

A key is a partition. No record is deleted, and the value of a record is its timestamp. Rules, where
"in time" means that the response (to a send or a query) arrived before the query was sent:

  earliest       is 0.
  latest         is never above the end that the final reads reached, never goes back for one
                 client, and in the final queries it is that end. A replaced leader may respond
                 until it notices, so an end below an offset acknowledged to another client in time
                 is stale, which is legal while there are faults.
  by_time        names the first record in the log at or after that time, with its own timestamp. If
                 it names none: no record acknowledged in time is at or after that time (stale, as
                 above), and in the final queries no record at all.
  max_timestamp  names a record with a greater timestamp than every record below it; in the final
                 queries, than any other. A broker names no record while the one with the greatest
                 timestamp is not committed.

A broker responds for a prefix of the log, and every prefix has all records below the record that it
names: so a response that names a record can be checked exactly, whenever it was sent.
Sources: KIP-79, KIP-207, KIP-734.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

import pyarrow as pa

from quorumlog.chaos.checkers.explode import OPERATIONS
from quorumlog.chaos.checkers.findings import (
    Findings,
    Greatest,
    Row,
    count,
    entries_of,
    rows_checker,
    rows_of,
)
from quorumlog.chaos.checkers.verdict import Anomaly, Partial, Severity

ANOMALIES: Final = (
    Anomaly("start-moved", "The log starts above offset 0 although no record was deleted."),
    Anomaly("end-went-back", "One client received a lower end than before."),
    Anomaly(
        "end-too-low", "After all faults, the returned end was below the end of the final reads."
    ),
    Anomaly("end-too-high", "The returned end was above the log's end."),
    Anomaly("no-such-record", "The response named an offset without a record."),
    Anomaly("wrong-timestamp", "The response named a record with a wrong timestamp."),
    Anomaly("too-old", "The response named a record older than the requested time."),
    Anomaly(
        "not-the-first",
        "The response skipped an earlier record that also matches the requested time.",
    ),
    Anomaly("not-found", "After all faults, the response named no record although one matches."),
    Anomaly(
        "stale-answer",
        "The response missed records acknowledged before the request: a replaced leader"
        " may send it until it learns of its successor.",
        Severity.ALLOWED,
    ),
)
_MODEL: Final = "list_offsets"
_QUESTIONS: Final = frozenset({"earliest", "latest", "by_time", "max_timestamp"})
_KINDS: Final = _QUESTIONS | {"send", "final_poll", "final_end", "found"}
_OPERATIONS: Final = OPERATIONS | {"list_offsets", "final_list_offsets"}
_FINAL: Final = "final_list_offsets"
_UNREAD: Final = "final reads did not read a log from 0 to its end"
_completed, _offset, _value = map(attrgetter, ("completed", "offset", "value"))
_EVIDENCE: Final = {
    "acknowledged": "no send was acknowledged",
    "answers": "no request was answered",
    "final_answers": "no request was answered after all faults",
}


def explode(table: pa.Table) -> pa.Table:
    """Return an entry for each micro-operation; `extra`: the timestamp in the response."""
    rows = rows_of(table, _KINDS, _MODEL, _OPERATIONS)
    told = {(row.op, row.key): row.value for row in rows if row.kind == "found"}
    return entries_of(
        [row._replace(extra=told.get((row.op, row.key), -1)) for row in rows if row.kind != "found"]
    )


class _Key:
    """The check of one key."""

    def __init__(self, rows: Sequence[Row], partial: Partial) -> None:
        self._rows: Final = rows
        self._partial: Final = partial
        self._key: Final = rows[0].key
        self._findings: Final = Findings(partial, self._key, ANOMALIES)
        self._sent: Final = [
            row for row in self._of("send") if row.outcome != "fail" and row.offset >= 0
        ]
        read = {row.offset: row.value for row in self._of("final_poll") if row.outcome == "ok"}
        self._ends: Final = [row for row in self._of("final_end") if row.outcome == "ok"]
        self._end: Final = max((row.offset for row in self._ends), default=0)
        self._is_read: Final = bool(self._ends) and all(at in read for at in range(self._end))
        self._times: Final = [read.get(offset, -1) for offset in range(self._end)]
        self._greatest: Final = [*accumulate(self._times, max)]  # of each prefix of the log
        self._acknowledged: Final = Greatest(self._sent, event=_completed, rank=_offset)
        self._youngest: Final = Greatest(self._sent, event=_completed, rank=_value)

    def _of(self, kind: str) -> Iterator[Row]:
        return (row for row in self._rows if row.kind == kind)

    def check(self) -> None:
        asked = [row for row in self._rows if row.kind in _QUESTIONS and row.outcome == "ok"]
        count(
            self._partial,
            acknowledged=len(self._sent),
            polled=sum(row.outcome == "ok" for row in self._of("final_poll")),
            answers=len(asked),
            final_answers=sum(row.f == _FINAL for row in asked),
        )
        if not self._is_read:
            self._findings.gap(_UNREAD, [self._key])
            return
        for row in asked:
            if row.kind == "earliest":
                if row.offset != 0:
                    self._findings.add("start-moved", f"{row.offset}", ("answer", row))
            elif row.kind == "latest":
                self._check_end(row)
            elif row.offset < 0:
                self._check_none(row)
            else:
                self._check_named(row)
        self._check_sessions([row for row in asked if row.kind == "latest"])

    def _check_end(self, row: Row) -> None:
        before = self._acknowledged.before(row.invoked)
        if row.offset > self._end:
            note = f"{row.offset}, and the log ends at {self._end}"
            self._findings.add("end-too-high", note, ("answer", row), ("end", self._ends[0]))
        elif row.f == _FINAL and row.offset < self._end:
            note = f"{row.offset}, and the log ends at {self._end}"
            self._findings.add("end-too-low", note, ("answer", row), ("end", self._ends[0]))
        elif before is not None and row.offset <= before.offset:
            note = f"{row.offset}, and offset {before.offset} was acknowledged"
            self._findings.add("stale-answer", note, ("sent", before), ("answer", row))

    def _check_sessions(self, latest: Sequence[Row]) -> None:
        last: dict[int, Row] = {}
        for row in latest:
            before = last.get(row.process)
            if before is not None and row.offset < before.offset:
                note = f"{row.offset} after {before.offset}"
                self._findings.add("end-went-back", note, ("before", before), ("after", row))
            last[row.process] = row

    def _check_none(self, row: Row) -> None:
        """Check a response without a record. `value` of a query by_time: the requested time."""
        note = "no record was named"
        if row.f == _FINAL and self._greatest and self._greatest[-1] >= row.value:
            self._findings.add("not-found", note, ("answer", row))
            return
        before = self._youngest.before(row.invoked)
        if row.kind == "by_time" and before is not None and before.value >= row.value:
            self._findings.add("stale-answer", note, ("sent", before), ("answer", row))

    def _check_named(self, row: Row) -> None:
        if row.offset >= self._end:
            note = f"offset {row.offset}, and the log ends at {self._end}"
            self._findings.add("no-such-record", note, ("answer", row))
            return
        time_ms = self._times[row.offset]
        if row.extra != time_ms:
            note = f"offset {row.offset}: timestamp {row.extra} returned, {time_ms} in the log"
            self._findings.add("wrong-timestamp", note, ("answer", row))
        wanted = row.value if row.kind == "by_time" else self._greatest[row.offset]
        first = bisect_left(self._greatest, wanted)
        if time_ms < wanted:
            note = f"offset {row.offset} has timestamp {time_ms}, below {wanted}"
            name = "too-old" if row.kind == "by_time" else "not-the-first"
            self._findings.add(name, note, ("answer", row))
        elif first < row.offset:
            note = f"offset {row.offset}, and offset {first} is of {self._times[first]}"
            self._findings.add("not-the-first", note, ("answer", row))
        elif row.kind == "max_timestamp":
            self._check_greatest(row, time_ms)

    def _check_greatest(self, row: Row, time_ms: int) -> None:
        if row.f == _FINAL and time_ms < self._greatest[-1]:
            note = f"{time_ms}, and the log has {self._greatest[-1]}"
            self._findings.add("not-the-first", note, ("answer", row))
            return
        before = self._youngest.before(row.invoked)
        if before is not None and before.value > time_ms:
            note = f"{time_ms}, and {before.value} was acknowledged"
            self._findings.add("stale-answer", note, ("sent", before), ("answer", row))


CHECKER: Final = rows_checker(
    ANOMALIES,
    model=_MODEL,
    operations=_OPERATIONS,
    explode=explode,
    check_key=lambda rows, partial: _Key(rows, partial).check(),
    evidence=_EVIDENCE,
)
