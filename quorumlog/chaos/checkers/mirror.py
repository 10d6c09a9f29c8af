"""The check of a mirror: the copies against the log that they were copied from, and group offsets.

A key is a partition of the source. Its log consists of the acknowledged sends and of the records
that readers received, by offset. `copy` has the records of its copy, read once to their end after
the mirror has copied the last acknowledged record of each partition and has stopped. Rules:

  each record up to the last acknowledged one has a copy, with its key, headers and timestamp;
  the first copies of records have the order of the source;
  exactly once: there is no second copy; at least once: there may be;
  each copy is of a record in the log.

`commit` moves the group at the source; `translated` is an offset that the mirror has committed for
it at the target. A consumer that goes on there must miss no record that the group had not committed
at the source. So below a translated offset there is no last copy of a record at or above the
greatest offset that the group had requested to commit by then. The operations of the mirror's
positions are no part of the history: this checker is an oracle of records alone.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
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
from quorumlog.chaos.history.model import COPIED_ONCE

ANOMALIES: Final = (
    Anomaly("lost-copy", "A record has no copy, although later records of its partition have one."),
    Anomaly(
        "reordered-copy", "The first copies of two records have another order than the source."
    ),
    Anomaly("copied-twice", "A record has two copies, although the mirror copies exactly once."),
    Anomaly("altered-copy", "A copy has another key, other headers or another time."),
    Anomaly("phantom-copy", "A copy is of a record that the source does not have."),
    Anomaly(
        "translated-ahead",
        "A group's offset at the target lies beyond a record that the group had not committed at"
        " the source.",
    ),
    Anomaly(
        "copied-again",
        "A record has two copies; the mirror copies at least once.",
        Severity.ALLOWED,
    ),
)
_MODEL: Final = "mirror"
_OWN: Final = frozenset({"copy", "commit", "translated", "mirror"})
_COPIES: Final = frozenset({"copy", COPIED_ONCE})
_LOG: Final = frozenset({"send", "poll", "final_poll"})
_KINDS: Final = frozenset({*_LOG, *_COPIES, "commit", "translated"})
_EVIDENCE: Final = {"copied": "no copy was read", "translated": "no translated offset was read"}


def explode(table: pa.Table) -> pa.Table:
    """Return an entry for each micro-operation of sends, reads, copies and offsets."""
    return entries_of(rows_of(table, _KINDS, _MODEL, OPERATIONS | _OWN))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    """The rows of one partition, by kind, and the place of each value in the log."""

    sends: Mapping[int, Row]
    places: Mapping[int, int]
    copies: Sequence[Row]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Partition":
        known = [row for row in rows if row.outcome == "ok" or row.offset >= 0]
        log = [row for row in known if row.kind in _LOG]
        return cls(
            sends={row.value: row for row in rows if row.kind == "send"},
            places={row.value: row.offset for row in log if row.offset >= 0},
            copies=sorted(
                (row for row in rows if row.kind in _COPIES and row.outcome == "ok"),
                key=attrgetter("offset"),
            ),
        )

    @property
    def last_acknowledged(self) -> int:
        ok = (row.offset for row in self.sends.values() if row.outcome == "ok")
        return max(ok, default=-1)


def _check_key(rows: Sequence[Row], partial: Partial) -> None:
    findings = Findings(partial, rows[0].key, ANOMALIES)
    found = _Partition.of(rows)
    first: dict[int, Row] = {}
    last: dict[int, Row] = {}
    for row in found.copies:
        if row.value in first:
            name = "copied-twice" if row.kind == COPIED_ONCE else "copied-again"
            note = f"offset {found.places.get(row.value, -1)}"
            findings.add(name, note, ("one", first[row.value]), ("other", row))
        first.setdefault(row.value, row)
        last[row.value] = row
    _check_contents(found, first, findings)
    _check_log(found, first, findings)
    translated = [row for row in rows if row.kind == "translated" and row.outcome == "ok"]
    translated = [row for row in translated if row.offset >= 0]
    _check_translated(found, last, translated, rows, findings)
    highest = max((found.places.get(value, -1) for value in first), default=-1)
    if highest < found.last_acknowledged:
        findings.gap("the copies were not read up to the last acknowledged record", [rows[0].key])
    count(
        partial,
        acknowledged=sum(row.outcome == "ok" for row in found.sends.values()),
        polled=sum(row.kind in {"poll", "final_poll"} for row in rows),
        copied=len(first),
        copied_again=len(found.copies) - len(first),
        translated=len(translated),
    )


def _check_contents(found: _Partition, first: Mapping[int, Row], findings: Findings) -> None:
    for value, copy in first.items():
        sent = found.sends.get(value)
        if value not in found.places:
            if sent is None or sent.outcome == "fail":
                told = [] if sent is None else [("sent", sent)]
                findings.add("phantom-copy", f"value {value}", *told, ("copy", copy))
        elif sent is not None and sent.checksum not in (0, copy.checksum):
            findings.add("altered-copy", f"value {value}", ("sent", sent), ("copy", copy))


def _check_log(found: _Partition, first: Mapping[int, Row], findings: Findings) -> None:
    """Find the lost copies below the highest copied record, and copies out of order."""
    copied = {found.places[value]: row for value, row in first.items() if value in found.places}
    highest = max(copied, default=-1)
    for value, place in sorted(found.places.items(), key=lambda one: one[1]):
        if place < min(highest, found.last_acknowledged + 1) and place not in copied:
            sent = found.sends.get(value)
            told = [] if sent is None else [("sent", sent)]
            findings.add("lost-copy", f"offset {place}", *told, ("later", copied[highest]))
    in_target = sorted(copied.items(), key=lambda one: one[1].offset)
    for (place, row), (next_place, next_row) in pairwise(in_target):
        if next_place < place:
            note = f"offset {next_place} follows {place}"
            findings.add("reordered-copy", note, ("one", row), ("other", next_row))


def _check_translated(
    found: _Partition,
    last: Mapping[int, Row],
    translated: Sequence[Row],
    rows: Sequence[Row],
    findings: Findings,
) -> None:
    commits = Greatest(
        (row for row in rows if row.kind == "commit"),
        event=attrgetter("invoked"),
        rank=attrgetter("offset"),
    )
    placed = sorted(
        (found.places[value], row) for value, row in last.items() if value in found.places
    )
    least = [*accumulate((row for _, row in reversed(placed)), _lower)][::-1]
    places = [place for place, _ in placed]
    for row in translated:
        commit = commits.before(row.completed)
        committed = 0 if commit is None else commit.offset
        index = bisect_left(places, committed)
        if index < len(places) and least[index].offset < row.offset:
            told = [] if commit is None else [("committed", commit)]
            note = f"offset {row.offset} for {committed}"
            findings.add("translated-ahead", note, *told, ("skipped", least[index]), ("read", row))


def _lower(one: Row, other: Row) -> Row:
    return other if other.offset < one.offset else one


CHECKER: Final = rows_checker(
    ANOMALIES,
    model=_MODEL,
    operations=OPERATIONS | _OWN,
    explode=explode,
    check_key=_check_key,
    evidence=_EVIDENCE,
)
