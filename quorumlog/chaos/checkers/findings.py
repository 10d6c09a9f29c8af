"""Rows and findings of the checkers that check one key after the other."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.calls import refuse_others
from quorumlog.chaos.checkers.checker import Checker, Facts
from quorumlog.chaos.checkers.fault_bands import NODE_ENDED_ANOMALY
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.checkers.verdict import (
    WITNESSES_MAX,
    Anomaly,
    CheckResult,
    Gap,
    Partial,
    first_examples,
)
from quorumlog.chaos.history.model import NEMESIS, NEVER_NS

NEVER: Final = 1 << 62  # the completion event of an operation that did not complete


ENTRIES: Final = pa.schema(
    [
        ("key", pa.string()),
        ("kind", pa.string()),  # the micro-operation's f
        ("f", pa.string()),  # the operation's f
        ("outcome", pa.string()),
        ("process", pa.int64()),
        ("op", pa.int64()),  # the index of the operation
        ("place", pa.int64()),  # index within the operation
        ("invoked", pa.int64()),  # event numbers
        ("completed", pa.int64()),  # NEVER: it did not complete
        ("offset", pa.int64()),
        ("value", pa.int64()),
        ("checksum", pa.int64()),  # of a record's key, headers and timestamp; 0: none
        ("extra", pa.int64()),  # defined by each checker
        ("invoked_ns", pa.int64()),
        ("completed_ns", pa.int64()),
    ]
)
_COLUMNS: Final = (
    *("index", "process", "f", "type", "invoked", "completed"),
    *("invoked_ns", "completed_ns", "micro"),
)


class Row(NamedTuple):
    """A row of ENTRIES: one micro-operation."""

    key: str
    kind: str
    f: str
    outcome: str
    process: int
    op: int
    place: int
    invoked: int
    completed: int
    offset: int
    value: int
    checksum: int
    extra: int
    invoked_ns: int
    completed_ns: int


def rows_of(
    table: pa.Table, kinds: Container[str], model: str, operations: Collection[str]
) -> list[Row]:
    """Return the micro-operations of clients whose f is one of `kinds`; `extra` is 0.

    Raises HistoryError for an operation of a client that is none of `operations` of `model`.
    """
    clients = table.filter(pc.not_equal(table.column("process"), NEMESIS))
    refuse_others(clients, model, operations)
    columns = [clients.column(name).to_pylist() for name in _COLUMNS]
    rows: list[Row] = []
    for index, process, f, outcome, invoked, completed, *times, micro in sorted(
        zip(*columns, strict=True), key=itemgetter(0)
    ):
        ended = completed if completed >= 0 else NEVER
        rows += [
            Row(
                key=one["key"],
                kind=one["f"],
                f=f,
                outcome=outcome,
                process=process,
                op=index,
                place=place,
                invoked=invoked,
                completed=ended,
                offset=one["offset"],
                value=one["value"],
                checksum=one["checksum"],
                extra=0,
                invoked_ns=times[0],
                completed_ns=times[1],
            )
            for place, one in enumerate(micro)
            if one["f"] in kinds
        ]
    return rows


def entries_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table of ENTRIES."""
    columns = zip(*rows, strict=True) if rows else [()] * len(ENTRIES)
    return pa.table([pa.array(column) for column in columns], schema=ENTRIES)


def rows_by_key(entries: pa.Table, partial: Partial) -> Iterator[list[Row]]:
    """Yield the rows of each key in the order of the operations; count the operations."""
    rows = [Row(*row) for row in zip(*(column.to_pylist() for column in entries), strict=True)]
    rows.sort(key=attrgetter("key", "op", "place"))
    # Count the first micro-operation only: an operation on several keys counts once.
    partial.counts["operations"] = sum(row.place == 0 for row in rows)
    for _, of_key in groupby(rows, key=attrgetter("key")):
        yield [*of_key]


def count(partial: Partial, **amounts: int) -> None:
    """Add to the counts of the partial result."""
    for name, amount in amounts.items():
        partial.counts[name] = partial.counts.get(name, 0) + amount


class Findings:
    """Writes the findings about one key into the partial result."""

    def __init__(self, partial: Partial, key: str, anomalies: Sequence[Anomaly]) -> None:
        self._partial: Final = partial
        self._key: Final = key
        self._severities: Final = {anomaly.name: anomaly.severity for anomaly in anomalies}

    def add(self, name: str, note: str, *told: tuple[str, Row]) -> None:
        """Add an anomaly; `told`: the operations that prove it, each with its role."""
        results = self._partial.results
        result = next((one for one in results if one.name == name), None)
        if result is None:
            result = CheckResult(name=name, severity=self._severities[name], count=0)
            results.append(result)
        result.count += 1
        if sum(one["key"] == self._key for one in result.witnesses) < WITNESSES_MAX:
            ops = sorted(told, key=lambda one: one[1].op)
            result.witnesses.append(
                {"key": self._key, "note": note, "ops": [_told(*one) for one in ops]}
            )

    def gap(self, reason: str, examples: Sequence[str]) -> None:
        """Add a reason why the verdict is not valid, unless `examples` is empty."""
        if examples:
            gap = self._partial.gaps.setdefault(reason, Gap(0, []))
            gap.count += len(examples)
            gap.examples = first_examples([*gap.examples, *examples])


def _told(role: str, row: Row) -> dict[str, Any]:
    is_open = row.completed == NEVER
    return {
        "role": role,
        "index": row.invoked,
        "completion": None if is_open else row.completed,
        "process": row.process,
        "f": row.kind,
        "type": row.outcome,
        "invoked_ns": row.invoked_ns,
        "completed_ns": None if is_open or row.completed_ns >= NEVER_NS else row.completed_ns,
        "offset": row.offset,
        "value": row.value,
    }


def rows_checker(
    anomalies: Sequence[Anomaly],
    *,
    model: str,
    operations: frozenset[str],
    explode: Callable[[pa.Table], pa.Table],
    check_key: Callable[[Sequence[Row], Partial], None],
    evidence: Mapping[str, str],
) -> Checker:
    """Return a checker that calls `check_key` with the rows of each key, in order.

    `evidence`: of each count that must not be 0, the reason for an unknown verdict if it is.
    """

    def check(entries: pa.Table, facts: Facts) -> Partial:
        del facts  # no rule here needs facts about the whole history
        partial = Partial()
        for rows in rows_by_key(entries, partial):
            check_key(rows, partial)
        return partial

    def missing(merged: Partial, _: Facts) -> list[str]:
        return [reason for name, reason in evidence.items() if not merged.counts.get(name)]

    return Checker(
        model=model,
        text=TEXTS[model],
        anomalies=(NODE_ENDED_ANOMALY, *anomalies),
        operations=operations,
        entries=ENTRIES,
        explode=explode,
        check=check,
        missing=missing,
    )


T = TypeVar("T")


class Greatest(Generic[T]):
    """The greatest of some things before an event. `event` and `rank` return when and how great."""

    def __init__(
        self, things: Iterable[T], *, event: Callable[[T], int], rank: Callable[[T], int]
    ) -> None:
        ordered = sorted(things, key=event)
        self._events: Final = [event(one) for one in ordered]
        self._greatest: Final[list[T]] = []
        for one in ordered:
            best = self._greatest[-1] if self._greatest else one
            self._greatest.append(one if rank(one) > rank(best) else best)

    def before(self, event: int) -> T | None:
        """Return the greatest thing of an earlier event, or None."""
        place = bisect_left(self._events, event)
        return self._greatest[place - 1] if place else None
