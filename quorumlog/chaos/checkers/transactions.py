"""Transactions as columns, one row per micro-operation, and as objects for the checkers of cycles.

All transactions of a history have the same key, because cycles can span all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.calls import found, nothing_done, refuse_others, told_row, value_of
from quorumlog.chaos.checkers.checker import Checker, Facts
from quorumlog.chaos.checkers.cycles import Cycle, Graph, find_cycles
from quorumlog.chaos.checkers.entries import FAIL, OK
from quorumlog.chaos.checkers.fault_bands import NODE_ENDED_ANOMALY
from quorumlog.chaos.checkers.verdict import Anomaly, Partial, Severity
from quorumlog.chaos.history.model import NEMESIS, OUTCOMES, HistoryError

TXN: Final = "txn"
_ONE_KEY: Final = ""
TRANSACTIONS: Final = pa.schema(
    [
        ("key", pa.string()),
        ("process", pa.int64()),
        ("outcome", pa.int8()),
        ("invoked", pa.int64()),
        ("completed", pa.int64()),
        ("invoked_ns", pa.int64()),
        ("completed_ns", pa.int64()),
        ("ordinal", pa.int64()),  # index in the transaction; -1: it has no micro-operation
        ("f", pa.string()),
        ("object", pa.string()),
        ("value", pa.int64()),
        ("text", pa.string()),
    ]
)
CYCLES: Final = (
    Anomaly("G0", "Transactions overwrote each other in a circle (write cycle)."),
    Anomaly("G1c", "Transactions depend on each other in a circle."),
    Anomaly(
        "G-single", "A transaction read old values although it depends on newer ones (read skew)."
    ),
    Anomaly("G2", "Transactions read, in a circle, values that the next transaction changed."),
)


@dataclass(frozen=True, slots=True)
class Micro:
    """One micro-operation. A list that was read is a tuple; None: no value, or an unknown one."""

    f: str
    object: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction. `number` is its place in the order of invocations."""

    number: int
    outcome: int
    micros: tuple[Micro, ...]
    row: Mapping[str, Any]

    @property
    def is_known(self) -> bool:
        """Whether it certainly happened, so that its reads are valid."""
        return self.outcome == OK


def note_writer(
    writers: dict[Any, Transaction], one: Transaction, micro: Micro, *, verb: str, model: str
) -> None:
    """Note who wrote a value. Raises HistoryError if two transactions may have written it."""
    known = writers.get(micro.value)
    if known is not None and FAIL not in (known.outcome, one.outcome):
        raise HistoryError(
            f"event {one.row['invoked']}: {micro.value} is {verb} to {micro.object} a second "
            f"time; the model {model} needs values that are {verb} once"
        )
    if known is None or known.outcome == FAIL:
        writers[micro.value] = one


class Findings:
    """Collects witnesses by anomaly."""

    def __init__(self) -> None:
        self._told: dict[str, list[dict[str, Any]]] = {}
        self._severity: dict[str, Severity] = {}

    def add(
        self,
        name: str,
        about: str,
        note: str,
        told: Sequence[tuple[str, Transaction]],
        severity: Severity = Severity.INVALID,
    ) -> None:
        """Add a finding about an object, with the transactions that prove it."""
        ops = [_told(role, transaction) for role, transaction in told]
        self._told.setdefault(name, []).append({"key": about, "note": note, "ops": ops})
        self._severity[name] = severity

    def add_cycle(self, cycle: Cycle, transactions: Sequence[Transaction]) -> None:
        """Add a cycle: each transaction with the reason why it comes before the next."""
        told = [(str(step), transactions[step.source]) for step in cycle.steps]
        self.add(cycle.name, "", f"a circle of {len(told)} transactions", told)

    def into(self, partial: Partial) -> None:
        """Write the results into `partial`."""
        partial.results = [
            found(name, told, len(told), self._severity[name]) for name, told in self._told.items()
        ]


Judge = Callable[[Sequence[Transaction], Findings], Graph]


def transactions_checker(
    model: str, text: str, anomalies: Sequence[Anomaly], micros: frozenset[str], judge_them: Judge
) -> Checker:
    """Return a checker of transactions: `judge_them` adds findings, and returns the graph."""
    ranked = (NODE_ENDED_ANOMALY, *anomalies, *CYCLES)

    def explode(table: pa.Table) -> pa.Table:
        return _explode(table, model, micros)

    def check(table: pa.Table, facts: Facts) -> Partial:
        del facts  # no rule here needs facts about the whole history
        transactions, findings = _transactions(table), Findings()
        partial = Partial(counts=_counts(transactions))
        for cycle in find_cycles(judge_them(transactions, findings)):
            findings.add_cycle(cycle, transactions)
        findings.into(partial)
        return partial

    return Checker(
        model=model,
        text=text,
        anomalies=ranked,
        operations=frozenset({TXN}),
        entries=TRANSACTIONS,
        explode=explode,
        check=check,
        missing=nothing_done,
        micros=micros,
    )


def _explode(table: pa.Table, model: str, micros: frozenset[str]) -> pa.Table:
    table = table.filter(pc.not_equal(table.column("process"), NEMESIS)).combine_chunks()
    refuse_others(table, model, {TXN})
    outcomes = {name: code for code, name in enumerate(OUTCOMES)}
    rows: list[dict[str, Any]] = []
    for one in table.to_pylist():
        row = {name: one[name] for name in TRANSACTIONS.names if name in one}
        row |= {"key": _ONE_KEY, "outcome": outcomes[one["type"]]}
        empty = {"f": "", "key": "", "value": 0, "text": ""}
        for ordinal, micro in enumerate(one["micro"] or [empty]):
            if one["micro"] and micro["f"] not in micros:
                raise HistoryError(
                    f"event {one['invoked']}: {micro['f']!r} is no micro-operation of the model "
                    f"{model}, which has {', '.join(sorted(micros))}"
                )
            rows.append(
                row
                | {name: micro[name] for name in ("f", "value", "text")}
                | {"object": micro["key"], "ordinal": ordinal if one["micro"] else -1}
            )
    return pa.Table.from_pylist(rows, schema=TRANSACTIONS)


def _transactions(table: pa.Table) -> list[Transaction]:
    order = np.lexsort((table.column("ordinal").to_numpy(), table.column("invoked").to_numpy()))
    grouped: dict[int, list[dict[str, Any]]] = {}
    for row in table.take(order).to_pylist():
        grouped.setdefault(row["invoked"], []).append(row)
    return [
        Transaction(
            number=number,
            outcome=rows[0]["outcome"],
            micros=tuple(
                Micro(row["f"], row["object"], value_of(row["value"], row["text"]))
                for row in rows
                if row["ordinal"] >= 0
            ),
            row=rows[0],
        )
        for number, rows in enumerate(grouped.values())
    ]


def _counts(transactions: Sequence[Transaction]) -> dict[str, int]:
    counts = {"operations": len(transactions)}
    for code, name in enumerate(OUTCOMES):
        counts[name] = sum(one.outcome == code for one in transactions)
    return counts


def _told(role: str, transaction: Transaction) -> dict[str, Any]:
    micros = ", ".join(f"{one.f} {one.object} {_words(one.value)}" for one in transaction.micros)
    return told_row(role, transaction.row, TXN, micros)


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        shown = " ".join(str(one) for one in value[-8:])
        return f"[... {shown}]" if len(value) > 8 else f"[{shown}]"
    return "nil" if value is None else str(value)
