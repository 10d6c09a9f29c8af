"""Transactions as columns, one row per micro-operation, and as objects for the checkers of cycles.

All transactions of a history have the same key, because cycles can span all of them. A checker is
of one consistency: serializability; strict serializability, Elle's default, in which the order in
real time counts as well; or snapshot isolation, which allows write skew.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.calls import (
    found,
    gap,
    nothing_done,
    refuse_others,
    told_row,
    value_of,
)
from quorumlog.chaos.checkers.checker import Checker, Facts
from quorumlog.chaos.checkers.cycles import (
    REAL_TIME,
    Cycle,
    Graph,
    find_cycles,
    find_cycles_of_snapshots,
)
from quorumlog.chaos.checkers.entries import FAIL, OK
from quorumlog.chaos.checkers.fault_bands import NODE_ENDED_ANOMALY
from quorumlog.chaos.checkers.texts import TEXTS, TEXTS_OF
from quorumlog.chaos.checkers.verdict import Anomaly, Gap, Partial, Severity
from quorumlog.chaos.history.model import NEMESIS, OUTCOMES, HistoryError

TXN: Final = "txn"
SERIALIZABLE: Final = "serializable"
STRICT_SERIALIZABLE: Final = "strict-serializable"
SNAPSHOT_ISOLATION: Final = "snapshot-isolation"
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
_G2: Final = "G2"
_CYCLES_OF: Final[Mapping[str, tuple[Anomaly, ...]]] = {
    SERIALIZABLE: CYCLES,
    STRICT_SERIALIZABLE: (
        *CYCLES,
        *(
            Anomaly(
                f"{one.name}{REAL_TIME}", f"{one.meaning} The order in real time closes the circle."
            )
            for one in CYCLES
        ),
    ),
    SNAPSHOT_ISOLATION: (
        *(one for one in CYCLES if one.name != _G2),
        Anomaly(
            "G-nonadjacent",
            "Transactions read old values in a circle, though no two of them in a row.",
        ),
        Anomaly(
            _G2,
            "Transactions read, in a circle, values that the next changed (write skew).",
            Severity.ALLOWED,
        ),
    ),
}


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
        self._doubts: dict[str, Gap] = {}

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

    def add_cycle(
        self, cycle: Cycle, transactions: Sequence[Transaction], severity: Severity
    ) -> None:
        """Add a cycle: each transaction with the reason why it comes before the next."""
        told = [(str(step), transactions[step.source]) for step in cycle.steps]
        self.add(cycle.name, "", f"a circle of {len(told)} transactions", told, severity)

    def doubt(self, reason: str, examples: Iterable[str]) -> None:
        """Add a reason why the verdict is not valid, unless there are no examples."""
        if (found_gap := gap(examples)).count:
            self._doubts[reason] = found_gap

    def into(self, partial: Partial) -> None:
        """Write the results into `partial`."""
        partial.gaps |= self._doubts
        partial.results = [
            found(name, told, len(told), self._severity[name]) for name, told in self._told.items()
        ]


Judge = Callable[[Sequence[Transaction], Findings], Graph]


def transactions_checker(
    model: str,
    anomalies: Sequence[Anomaly],
    micros: frozenset[str],
    judge_them: Judge,
    *,
    consistency: str = SERIALIZABLE,
) -> Checker:
    """Return a checker of transactions: `judge_them` adds findings, and returns the graph.

    With STRICT_SERIALIZABLE, a transaction that ended before another began must precede it. A
    consistency other than SERIALIZABLE is a part of the model's name.
    """
    text = TEXTS_OF.get(consistency, TEXTS[model])
    model = model if consistency == SERIALIZABLE else f"{model}={consistency}"
    cycles = {one.name: one for one in _CYCLES_OF[consistency]}
    ranked = (NODE_ENDED_ANOMALY, *anomalies, *cycles.values())
    find = find_cycles_of_snapshots if consistency == SNAPSHOT_ISOLATION else find_cycles

    def explode(table: pa.Table) -> pa.Table:
        return _explode(table, model, micros)

    def check(table: pa.Table, facts: Facts) -> Partial:
        del facts  # no rule here needs facts about the whole history
        transactions, findings = _transactions(table), Findings()
        partial = Partial(counts=_counts(transactions))
        graph = judge_them(transactions, findings)
        if consistency == STRICT_SERIALIZABLE:
            graph.after = order_in_real_time(transactions)
        for cycle in find(graph):
            findings.add_cycle(cycle, transactions, cycles[cycle.name].severity)
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


def order_in_real_time(transactions: Sequence[Transaction]) -> dict[int, list[int]]:
    """Return for each transaction the transactions that began after its end.

    Transactions that follow from others are left out: only the last ones that had ended count. A
    failed one happened never, and one of unknown outcome never ended.
    """
    events = [(one.row["invoked"], one, False) for one in transactions if one.outcome != FAIL]
    events += [(one.row["completed"], one, True) for one in transactions if one.is_known]
    last: list[int] = []  # ended, and none of them before another one of them began
    before: dict[int, set[int]] = {}  # of each open transaction: `last` when it began
    after: dict[int, list[int]] = {}
    for _, one, is_end in sorted(events, key=lambda event: event[0]):
        if is_end:
            followed = before.pop(one.number)
            last = [*(other for other in last if other not in followed), one.number]
            continue
        if one.is_known:
            before[one.number] = {*last}
        for other in last:
            after.setdefault(other, []).append(one.number)
    return after


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
