"""Reads of groups of keys that see two writes in opposite orders: Jepsen's long-fork.

Each key is written once, by a transaction of one write; other transactions read several keys. Reads
of the same keys must form a chain, in which each sees the writes that the one before it saw: else
one read saw x without y, and another y without x, which snapshot isolation forbids. A key that is
written twice, or read with two values, leaves no order to compare: the verdict is unknown. The
model rw-register finds the same forks as cycles, and others. Source: jepsen.tests.long-fork.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from quorumlog.chaos.checkers.cycles import Graph
from quorumlog.chaos.checkers.entries import FAIL
from quorumlog.chaos.checkers.transactions import Findings, Transaction, transactions_checker
from quorumlog.chaos.checkers.verdict import Anomaly, Severity
from quorumlog.chaos.history.model import HistoryError

LONG_FORK: Final = "long-fork"
WRITE: Final = "w"
READ: Final = "r"
_ANOMALIES: Final = (
    Anomaly("G1a", "A value was read whose transaction failed (aborted read)."),
    Anomaly(LONG_FORK, "Two reads of the same keys saw two writes in opposite orders."),
    Anomaly(
        "unwritten-read",
        "A value was read that no transaction wrote: it may be the initial value.",
        Severity.ALLOWED,
    ),
)


@dataclass(slots=True)
class _Seen:
    """The writes of each key, the values read, and the reads by the set of their keys."""

    writers: dict[str, list[Transaction]] = field(default_factory=dict)
    values: dict[str, set[Any]] = field(default_factory=dict)
    groups: dict[frozenset[str], list[tuple[Transaction, frozenset[str]]]] = field(
        default_factory=dict
    )


def _judge(transactions: Sequence[Transaction], findings: Findings) -> Graph:
    seen = _Seen()
    for one in transactions:
        _add(one, seen)
    doubted = {key for key, writers in seen.writers.items() if len(writers) > 1}
    findings.doubt("a key was written more than once", doubted)
    several = {key for key, values in seen.values.items() if len(values) > 1}
    findings.doubt("a key was read with more than one value", several - doubted)
    for reads in seen.groups.values():
        for reader, _ in reads:
            _check_writers(reader, seen, findings)
    for keys, reads in sorted(seen.groups.items(), key=lambda group: sorted(group[0])):
        if not keys & (doubted | several):
            for first, second in _forks(reads):
                _report(first, second, seen, findings)
    return Graph()


def _add(one: Transaction, seen: _Seen) -> None:
    writes = [micro for micro in one.micros if micro.f == WRITE]
    if writes and len(one.micros) > 1:
        raise HistoryError(
            f"event {one.row['invoked']}: a transaction of the model {LONG_FORK} is one write, or "
            "reads alone"
        )
    for micro in writes:
        seen.writers.setdefault(micro.object, []).append(one)
    if one.is_known and not writes and one.micros:
        there = {micro.object: micro.value for micro in one.micros if micro.value is not None}
        for key, value in there.items():
            seen.values.setdefault(key, set()).add(value)
        keys = frozenset(micro.object for micro in one.micros)
        seen.groups.setdefault(keys, []).append((one, frozenset(there)))


def _check_writers(reader: Transaction, seen: _Seen, findings: Findings) -> None:
    for micro in reader.micros:
        if micro.value is None:
            continue
        told = [("read", reader)]
        writers = [
            one for one in seen.writers.get(micro.object, ()) if one.micros[0].value == micro.value
        ]
        note = f"value {micro.value}"
        if not writers:
            findings.add("unwritten-read", micro.object, note, told, Severity.ALLOWED)
        elif all(one.outcome == FAIL for one in writers):
            findings.add("G1a", micro.object, note, [("failed write", writers[0]), *told])


def _forks(
    reads: Sequence[tuple[Transaction, frozenset[str]]],
) -> Iterator[tuple[tuple[Transaction, frozenset[str]], tuple[Transaction, frozenset[str]]]]:
    """Yield two reads for each place at which the reads, by the number of keys seen, are no chain.

    Sets of growing size form a chain if and only if each contains the one before it.
    """
    first_of: dict[frozenset[str], Transaction] = {}
    for reader, there in reads:
        first_of.setdefault(there, reader)
    ordered = sorted(first_of.items(), key=lambda one: (len(one[0]), one[1].number))
    for (less, earlier), (more, later) in pairwise(ordered):
        if not less <= more:
            yield (earlier, less), (later, more)


def _report(
    first: tuple[Transaction, frozenset[str]],
    second: tuple[Transaction, frozenset[str]],
    seen: _Seen,
    findings: Findings,
) -> None:
    (one, there), (other, elsewhere) = first, second
    x, y = min(there - elsewhere), min(elsewhere - there)
    told = [(f"read {x} without {y}", one), (f"read {y} without {x}", other)]
    told += [("write", writer) for key in (x, y) for writer in seen.writers.get(key, ())]
    findings.add(LONG_FORK, f"{x}, {y}", "each read lacks the other's write", told)


# rw-register judges the same operations, and finds more.
CHECKER: Final = replace(
    transactions_checker(LONG_FORK, _ANOMALIES, frozenset({WRITE, READ}), _judge), is_guessed=False
)
