"""Sets that grow: each acknowledged element must be read.

`set` checks the last read of each set alone; `set-full` follows every element through all reads. An
`add` names one element, a `read` returns all of them. Source: jepsen.checker, set and set-full.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from quorumlog.chaos.checkers.calls import (
    by_key,
    calls_checker,
    count_calls,
    found,
    gap,
    value_of,
    witness,
)
from quorumlog.chaos.checkers.entries import FAIL, OK, Ints
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.checkers.verdict import Anomaly, CheckResult, Partial, Severity

_OPERATIONS: Final = frozenset({"add", "read"})
_NEVER: Final = -1
_ANOMALIES: Final = (
    Anomaly("phantom", "An element was read that was never added."),
    Anomaly("duplicate", "One read returned an element more than once."),
    Anomaly("lost", "An acknowledged element was missing when the set was last read."),
    Anomaly(
        "stale",
        "A read missed an acknowledged element that a later read returned.",
        Severity.ALLOWED,
    ),
)
_EFFECT: Final = {anomaly.name: anomaly.severity for anomaly in _ANOMALIES}


@dataclass(slots=True)
class _Elements:
    """The adds and reads of one set; columns by element. Events by their numbers, or _NEVER."""

    names: list[Any] = field(default_factory=list)
    place: dict[Any, int] = field(default_factory=dict)
    adder: list[int] = field(default_factory=list)  # the row of its add that did not fail
    known: list[int] = field(default_factory=list)  # the event that proved its presence
    reads: list[tuple[int, Ints]] = field(default_factory=list)  # the row, its elements
    again: list[tuple[int, Any]] = field(default_factory=list)  # the row, its doubled element

    def of(self, name: Any) -> int:
        """Return the index of an element; add a new one if needed."""
        if name not in self.place:
            self.place[name] = len(self.names)
            self.names.append(name)
            self.adder.append(_NEVER)
            self.known.append(_NEVER)
        return self.place[name]


def _elements(calls: list[dict[str, Any]], rows: Ints) -> _Elements:
    elements = _Elements()
    for row in rows.tolist():
        one = calls[row]
        value = value_of(one["value"], one["text"])
        if one["f"] == "add" and one["outcome"] != FAIL:
            place = elements.of(value)
            elements.adder[place] = row
            if one["outcome"] == OK:
                elements.known[place] = one["completed"]
        elif one["f"] == "read" and one["outcome"] == OK:
            returned = [elements.of(name) for name in value or ()]
            once = np.unique(np.array(returned, np.int64))
            if len(once) != len(returned):
                twice = next(name for n, name in enumerate(returned) if name in returned[:n])
                elements.again.append((row, elements.names[twice]))
            elements.reads.append((row, once))
    return elements


def _check(calls: pa.Table, *, is_full: bool) -> Partial:
    partial = Partial(counts=count_calls(calls))
    told: dict[str, list[dict[str, Any]]] = {}
    plain, unread = calls.to_pylist(), []
    for key, rows in by_key(calls):
        elements = _elements(plain, rows)
        for row, name in elements.again:
            note = f"element {name!r} was returned more than once"
            told.setdefault("duplicate", []).append(witness(calls, key, note, [("read", row)]))
        if not elements.reads:
            unread.append(key or "the only one")
            continue
        reads = elements.reads if is_full else elements.reads[-1:]
        for name, note, ops in _follow(plain, elements, reads):
            told.setdefault(name, []).append(witness(calls, key, note, ops))
    if unread:
        partial.gaps["a set was never read"] = gap(unread)
    partial.results = [_result(name, witnesses) for name, witnesses in told.items()]
    return partial


def _result(name: str, witnesses: list[dict[str, Any]]) -> CheckResult:
    return found(name, witnesses, len(witnesses), _EFFECT[name])


def _follow(
    calls: list[dict[str, Any]], elements: _Elements, reads: list[tuple[int, Ints]]
) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Return the anomalies of the elements, each with a note, and rows with their roles."""
    size = len(elements.names)
    adder, known = np.array(elements.adder, np.int64), np.array(elements.known, np.int64)
    present, absent, missed = (np.full(size, _NEVER, np.int64) for _ in range(3))
    returned_by, last = np.full(size, _NEVER, np.int64), np.zeros(size, np.bool_)
    for row, returned in reads:  # in the order of invocations
        is_there = np.zeros(size, np.bool_)
        is_there[returned] = True
        returned_by[is_there & (returned_by == _NEVER)] = row
        first_proof = is_there & (known == _NEVER)
        known[first_proof] = calls[row]["completed"]
        late = ~is_there & (known != _NEVER) & (known < calls[row]["invoked"])
        present[is_there], absent[late] = row, row
        last[is_there], last[late] = True, False
        missed[late & (missed == _NEVER)] = row
    found_here: list[tuple[str, str, list[tuple[str, int]]]] = []
    for place in np.flatnonzero((adder == _NEVER) & (returned_by != _NEVER)).tolist():
        note = f"element {elements.names[place]!r} was never added"
        found_here.append(("phantom", note, [("read", int(returned_by[place]))]))
    for place in np.flatnonzero(absent != _NEVER).tolist():
        name = "stale" if last[place] else "lost"
        ops = [("add", int(adder[place])), ("read without it", int(missed[place]))]
        if present[place] != _NEVER:
            ops.append(("read with it", int(present[place])))
        note = f"element {elements.names[place]!r}"
        found_here.append((name, note, [(role, row) for role, row in ops if row != _NEVER]))
    return found_here


SET: Final = calls_checker(
    "set", TEXTS["set"], _ANOMALIES, _OPERATIONS, lambda calls: _check(calls, is_full=False)
)
SET_FULL: Final = calls_checker(
    "set-full",
    TEXTS["set-full"],
    _ANOMALIES,
    _OPERATIONS,
    lambda calls: _check(calls, is_full=True),
)
