"""The check of objects against a sequential model: each key must be linearizable.

Linearizability is local: a history is linearizable if each key's part is (Herlihy and Wing, 1990).
So keys are checked one by one. Registers that write every value once need no search (`zones`). The
other keys are searched (`wgl`), the easy ones first; a hard key has a second search with a large
budget, unless another key has failed already: that settles the verdict. An undecided search makes
the verdict unknown.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.calls import calls_checker, count_calls, found, gap, value_of, witness
from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.checkers.entries import FAIL, OK, Flags, Ints, sorted_codes
from quorumlog.chaos.checkers.model import Call, Model
from quorumlog.chaos.checkers.models import CAS_REFUSED, Register
from quorumlog.chaos.checkers.texts import linearizable_text
from quorumlog.chaos.checkers.verdict import Anomaly, Partial
from quorumlog.chaos.checkers.wgl import Answer, Budget, Searched, Timed, search
from quorumlog.chaos.checkers.zones import (
    CAS,
    OPEN,
    READ,
    WRITE,
    Registers,
    check_zones,
    matter,
    repeats_values,
)

NONLINEARIZABLE: Final = "nonlinearizable"
ANOMALIES: Final = (
    Anomaly(
        NONLINEARIZABLE,
        "No order of a key's operations, each at a moment of its run, explains them.",
    ),
)
_EASY: Final = Budget(steps=200_000, held_bytes=64 << 20)
_HARD: Final = Budget(steps=6_000_000, held_bytes=768 << 20)  # of a second search: about 10 s
_KINDS: Final = {"read": READ, "write": WRITE, "cas": CAS}


def linearizable(model: Model) -> Checker:
    """Return the checker of a sequential model."""
    return calls_checker(
        model.name,
        linearizable_text(model.name),
        ANOMALIES,
        model.operations,
        lambda calls: _Check(model, calls).partial(),
    )


@dataclass(slots=True)
class _Found:
    """The finding about one key: the note, and rows with their roles."""

    key: int
    note: str
    told: list[tuple[str, int]]


class _Check:
    """The check of some keys, with all calls of those keys."""

    def __init__(self, model: Model, calls: pa.Table) -> None:
        self._model, self._calls = model, calls
        self._keys, codes = sorted_codes(calls.column("key"))
        self._key = codes.astype(np.int64)
        self._outcome = calls.column("outcome").to_numpy()
        self._invoked = calls.column("invoked").to_numpy()
        is_open = self._outcome != OK
        self._completed = np.where(is_open, OPEN, calls.column("completed").to_numpy())
        fs, f = sorted_codes(calls.column("f"))
        self._fs, self._f = fs, f
        is_read = np.array([name in model.reads for name in fs] or [False])[f]
        self._counts: Flags = (self._outcome != FAIL) & ~(is_read & is_open)

    def partial(self) -> Partial:
        partial = Partial(counts=count_calls(self._calls))
        rows = np.flatnonzero(self._counts)
        bad: list[_Found] = []
        if isinstance(self._model, Register) and len(rows):
            bad, rows = self._by_zones(self._model, rows)
        bad += self._by_search(rows, partial)
        if bad:
            told = [
                witness(self._calls, self._keys[one.key], one.note, one.told)
                for one in sorted(bad, key=lambda one: one.key)
            ]
            partial.results = [found(NONLINEARIZABLE, told, len(told))]
        return partial

    def _by_zones(self, model: Register, rows: Ints) -> tuple[list[_Found], Ints]:
        """Check the registers that need no search; return findings, and the rows of the others."""
        registers = self._registers(model, rows)
        refused = self._is(CAS_REFUSED)[rows]
        hard = np.union1d(repeats_values(registers), registers.key[refused])
        easy = ~np.isin(registers.key, hard)
        chosen = rows[easy]
        findings = check_zones(registers.take(easy))
        found_here = [
            _Found(one.key, one.note, [(role, int(chosen[op])) for role, op in one.told])
            for one in findings
        ]
        # A refused compare-and-set may owe its value to a write that no other operation saw.
        rest = np.isin(registers.key, hard) & (
            matter(registers) | np.isin(registers.key, registers.key[refused])
        )
        return found_here, rows[rest]

    def _registers(self, model: Register, rows: Ints) -> Registers:
        first, second, initial = self._codes(model.initial)
        kinds = np.array([_KINDS.get(name, READ) for name in self._fs], np.int8)
        kind = kinds[self._f[rows]]
        return Registers(
            key=self._key[rows],
            kind=kind,
            seen=first[rows],
            made=np.where(kind == CAS, second[rows], first[rows]),
            invoked=self._invoked[rows],
            completed=self._completed[rows],
            initial=initial,
        )

    def _codes(self, initial: Any) -> tuple[Ints, Ints, int]:
        """Return codes of the first values, the second values, and the initial value."""
        columns = ["value", "text", "second", "second_text"]
        value, text, second, second_text = (self._calls.column(name) for name in columns)
        texts = [
            pc.if_else(pc.equal(words, ""), pc.cast(number, pa.string()), words).combine_chunks()
            for number, words in ((value, text), (second, second_text))
        ]
        names, codes = sorted_codes(pa.chunked_array(texts))
        wanted = json.dumps(initial, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
        place = names.index(wanted) if wanted in names else len(names)
        rows = self._calls.num_rows
        return codes[:rows].astype(np.int64), codes[rows:].astype(np.int64), place

    def _is(self, f: str) -> Flags:
        code = self._fs.index(f) if f in self._fs else -1
        chosen: Flags = self._f == code
        return chosen

    def _by_search(self, rows: Ints, partial: Partial) -> list[_Found]:
        keys, counts = np.unique(self._key[rows], return_counts=True)
        order = np.argsort(counts, kind="stable")
        bad, hard = [], []
        for key in keys[order].tolist():
            mine = rows[self._key[rows] == key]
            answer = self._search(mine, _EASY)
            if answer.answer is Answer.UNDECIDED:
                hard.append((key, mine))
            elif answer.answer is Answer.NO:
                bad.append(self._told(key, mine, answer))
        undecided = []
        for key, mine in hard:
            if bad:
                partial.counts["keys_not_searched"] = len(hard)
                break
            answer = self._search(mine, _HARD)
            if answer.answer is Answer.UNDECIDED:
                undecided.append(self._keys[key] or "the only key")
            elif answer.answer is Answer.NO:
                bad.append(self._told(key, mine, answer))
        if undecided:
            reason = "the search of a key ended without an answer, at its limit of steps or memory"
            partial.gaps[reason] = gap(undecided)
        return bad

    def _search(self, rows: Ints, budget: Budget) -> Searched:
        return search(
            self._model, [_timed(one) for one in self._calls.take(rows).to_pylist()], budget
        )

    def _told(self, key: int, rows: Ints, searched: Searched) -> _Found:
        note = "no order explains this operation"
        if searched.states:
            note += f"; before it, the value could be {' or '.join(searched.states)}"
        told = [("cannot be explained", int(rows[searched.stuck]))]
        told += [("open meanwhile", int(rows[op])) for op in searched.waiting]
        return _Found(key, note, told)


def _timed(one: dict[str, Any]) -> Timed:
    values = [value_of(one["value"], one["text"])]
    if one["values"] > 1:
        values.append(value_of(one["second"], one["second_text"]))
    is_known = one["outcome"] == OK
    call = Call(f=one["f"], values=tuple(values), is_known=is_known)
    return Timed(call, one["invoked"], one["completed"] if is_known else None)
