"""Transactions on several registers, each at one moment of its run: Knossos' multi-register.

A transaction reads and writes registers in its own order; values may be written again and again, so
the order is searched (`wgl`). Registers that no transaction connects are searched apart, because
linearizability is local. The first values are a parameter of the model. Without it, any are
possible: only a read that began before any write of its register had ended can have a first value,
so the values of these reads are tried. A read of nil means that the register has no value; in
Knossos it would mean nothing. Source: knossos.model/multi-register.
"""

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.calls import CALLS, refuse_others, value_of
from quorumlog.chaos.checkers.checker import Checker, Facts
from quorumlog.chaos.checkers.entries import OK
from quorumlog.chaos.checkers.linearizable import ANOMALIES, linearizable
from quorumlog.chaos.checkers.model import Call, State
from quorumlog.chaos.checkers.texts import TEXTS
from quorumlog.chaos.checkers.transactions import TXN
from quorumlog.chaos.checkers.verdict import Partial, merge
from quorumlog.chaos.history.model import NEMESIS, OUTCOMES, HistoryError

MULTI_REGISTER: Final = "multi-register"
_READS: Final = frozenset({"r", "read"})
_WRITES: Final = frozenset({"w", "write"})
_GUESSES_MAX: Final = 32  # of the first values of connected registers
_READ_ALONE: Final = "read"  # f of a transaction of reads alone


@dataclass(frozen=True, slots=True)
class Registers:
    """Registers by name; a state is their pairs of name and value, sorted by name.

    values: the first values; a register that it lacks is nil. None: they are unknown, so that a
        read may change the state.
    """

    values: Mapping[str, Any] | None = None
    name: str = MULTI_REGISTER
    operations: frozenset[str] = frozenset({TXN, _READ_ALONE})

    @property
    def reads(self) -> frozenset[str]:
        """Transactions of reads alone, if they cannot fix a first value."""
        return frozenset() if self.values is None else frozenset({_READ_ALONE})

    @property
    def initial(self) -> State:
        """The first values."""
        return tuple(sorted((self.values or {}).items()))

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return the values after the transaction; none if it read others."""
        registers = dict(state)
        for f, name, value in call.values[0]:
            if f in _WRITES:
                registers[name] = value
            elif not call.is_known:
                continue
            elif name not in registers and self.values is None:
                registers[name] = value
            elif registers.get(name) != value:
                return ()
        return (tuple(sorted(registers.items())),)

    def leads_to(self, state: Any, read: Call) -> bool:
        """Return whether the state has the values: they stay until they are overwritten."""
        registers = dict(state)
        return all(registers.get(name) == value for _, name, value in read.values[0])

    def serves(self, call: Call, read: Call) -> bool:
        """Return whether the transaction writes one of the values that were read."""
        wanted = {(name, value) for _, name, value in read.values[0]}
        return any(f in _WRITES and (name, value) in wanted for f, name, value in call.values[0])


def multi_register(values: Mapping[str, Any] | None = None) -> Checker:
    """Return the checker. `values`: the first values by register, hashable; None: unknown."""

    def check(calls: pa.Table, facts: Facts) -> Partial:
        calls = _apart(calls.combine_chunks())
        if values is None:
            return _check_any(calls, facts)
        return linearizable(Registers(values)).check(calls, facts)

    return replace(
        linearizable(Registers(values)),
        text=TEXTS[MULTI_REGISTER],
        operations=frozenset({TXN}),
        micros=_READS | _WRITES,
        explode=_explode,
        check=check,
    )


def _check_any(calls: pa.Table, facts: Facts) -> Partial:
    """Check calls with some first values, at first those of the earliest reads, in all keys."""
    firsts = _first_values(calls)
    earliest = {name: found[0] for name, found in firsts.items()}
    partial = linearizable(Registers(earliest)).check(calls, facts)
    if not partial.results and not partial.gaps:
        return partial
    keys = calls.column("key")
    parts = (calls.filter(pc.equal(keys, key)) for key in pc.unique(keys).to_pylist())
    return merge([_check_part(part, firsts, facts) for part in parts], ANOMALIES)


def _check_part(calls: pa.Table, firsts: Mapping[str, Sequence[Any]], facts: Facts) -> Partial:
    """Check the registers of one key: valid if it is so with some first values."""
    texts = calls.column("text").to_pylist()
    names = sorted({name for text in texts for _, name, _ in value_of(0, text)} & firsts.keys())
    found: Partial | None = None
    if math.prod(len(firsts[name]) for name in names) > _GUESSES_MAX:
        return linearizable(Registers()).check(calls, facts)
    for values in itertools.product(*(firsts[name] for name in names)):
        model = Registers(dict(zip(names, values, strict=True)))
        partial = linearizable(model).check(calls, facts)
        if not partial.results and not partial.gaps:
            return partial
        if found is None or partial.gaps:  # a search without an answer may have missed an order
            found = partial
    return found or Partial()


def _first_values(calls: pa.Table) -> dict[str, list[Any]]:
    """Return by register the values that it may have had at first, in the order of the reads.

    They are those of reads that began before any write had ended; later ones read a written value.
    """
    rows = [
        (row["invoked"], row["completed"], value_of(0, row["text"]))
        for row in calls.select(["invoked", "completed", "outcome", "text"]).to_pylist()
        if row["outcome"] == OK
    ]
    written: dict[str, int] = {}  # the first event at which a write had ended
    for _, completed, micros in rows:
        for f, name, _ in micros:
            if f in _WRITES:
                written[name] = min(completed, written.get(name, completed))
    found: dict[str, list[Any]] = {}
    for invoked, _, micros in sorted(rows, key=lambda row: row[0]):
        for f, name, value in micros:
            if f in _READS and invoked < written.get(name, invoked + 1):
                values = found.setdefault(name, [])
                values += [value] * (value not in values)
    return found


def _explode(table: pa.Table) -> pa.Table:
    """Return CALLS of one key: the registers that belong together show only in all of them."""
    table = table.filter(pc.not_equal(table.column("process"), NEMESIS)).combine_chunks()
    refuse_others(table, MULTI_REGISTER, {TXN})
    outcomes = {name: code for code, name in enumerate(OUTCOMES)}
    rows = []
    for one in table.to_pylist():
        micros = [_micro(micro, one["invoked"]) for micro in one["micro"]]
        rows.append(
            {name: one[name] for name in CALLS.names if name in one}
            | {
                "key": "",
                "f": _READ_ALONE if all(f in _READS for f, _, _ in micros) else TXN,
                "outcome": outcomes[one["type"]],
                "value": 0,
                "text": json.dumps(micros),
                "second": 0,
                "second_text": "",
                "values": 1,
            }
        )
    return pa.Table.from_pylist(rows, schema=CALLS)


def _micro(micro: Mapping[str, Any], event: int) -> tuple[str, str, Any]:
    if micro["f"] not in _READS | _WRITES:
        raise HistoryError(
            f"event {event}: {micro['f']!r} is no micro-operation of the model {MULTI_REGISTER}, "
            f"which has {', '.join(sorted(_READS | _WRITES))}"
        )
    value = json.loads(micro["text"]) if micro["text"] else micro["value"]
    return micro["f"], micro["key"], value


def _apart(calls: pa.Table) -> pa.Table:
    """Return the calls with the first register of those that belong together as their key."""
    names = [
        [name for _, name, _ in value_of(0, text)] for text in calls.column("text").to_pylist()
    ]
    joined = _Joined()
    for one in names:
        joined.join(one)
    keys = [joined.first(one[0]) if one else "" for one in names]
    place = calls.schema.get_field_index("key")
    return calls.set_column(place, "key", pa.array(keys, pa.string()))


class _Joined:
    """Sets of registers that transactions connect, each named by its first register."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def first(self, name: str) -> str:
        """Return the first register of the set of this one."""
        while (above := self._above.setdefault(name, name)) != name:
            self._above[name] = self._above[above]
            name = above
        return name

    def join(self, names: Sequence[str]) -> None:
        """Make one set of the sets of these registers."""
        firsts = sorted({self.first(name) for name in names})
        for name in firsts[1:]:
            self._above[name] = firsts[0]
