"""Transactions that write and read registers: the order of the versions is only partly certain.

Each value is written once per register. If a transaction read one value and wrote the next, these
two follow each other; a read of no value (nil) comes before all writes. From this follow the
dependencies, and with `cycles` the anomalies. A value that no transaction wrote may be the initial
value. A transaction of unknown outcome happened if a value of it was read.
Source: elle.rw-register.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.chaos.checkers.cycles import RW, WR, WW, Graph
from quorumlog.chaos.checkers.entries import FAIL, OK
from quorumlog.chaos.checkers.transactions import (
    STRICT_SERIALIZABLE,
    Findings,
    Micro,
    Transaction,
    note_writer,
    transactions_checker,
)
from quorumlog.chaos.checkers.verdict import Anomaly, Severity

WRITE: Final = "w"
READ: Final = "r"
_READERS_MAX: Final = 64  # readers of nil with edges to all writes

_ANOMALIES: Final = (
    Anomaly("G1a", "A value was read whose transaction failed (aborted read)."),
    Anomaly("internal", "A transaction does not see its own operations before."),
    Anomaly("G1b", "A read saw a value that its own transaction overwrote."),
    Anomaly(
        "unwritten-read",
        "A value was read that no transaction wrote: it may be the initial value.",
        Severity.ALLOWED,
    ),
)


@dataclass(slots=True)
class _Register:
    """One register: the writer of each value, and the first reads of committed transactions."""

    writers: dict[Any, Transaction] = field(default_factory=dict)
    last_of: dict[int, Any] = field(default_factory=dict)  # a transaction's last value here
    first_of: dict[int, Any] = field(default_factory=dict)
    reads: list[tuple[Transaction, Any]] = field(default_factory=list)


def _judge(transactions: Sequence[Transaction], findings: Findings) -> Graph:
    registers: dict[str, _Register] = {}
    for one in transactions:
        _take(one, registers, findings)
    graph, happened = Graph(), _happened(transactions, registers)
    for name, each in sorted(registers.items()):
        for reader, value in each.reads:
            _check_read(name, each, reader, value, findings)
        _connect(name, each, happened, graph)
    return graph


def _happened(
    transactions: Sequence[Transaction], registers: Mapping[str, _Register]
) -> frozenset[int]:
    """Return the transactions that succeeded, or of which a value was read."""
    read_from = (each.writers.get(value) for each in registers.values() for _, value in each.reads)
    seen = {writer.number for writer in read_from if writer is not None}
    return frozenset(seen | {one.number for one in transactions if one.outcome == OK})


def _take(one: Transaction, registers: dict[str, _Register], findings: Findings) -> None:
    """Process the operations of one transaction, and check that it sees its own."""
    seen: dict[str, Any] = {}
    for micro in one.micros:
        each = registers.setdefault(micro.object, _Register())
        if micro.f == WRITE:
            _write(one, micro, each)
            seen[micro.object] = micro.value
        elif one.is_known:
            if micro.object not in seen:
                each.reads.append((one, micro.value))
            elif seen[micro.object] != micro.value:
                note = f"it read {micro.value} after {seen[micro.object]}"
                findings.add("internal", micro.object, note, [("transaction", one)])
            seen[micro.object] = micro.value


def _write(one: Transaction, micro: Micro, each: _Register) -> None:
    note_writer(each.writers, one, micro, verb="written", model="rw-register")
    each.first_of.setdefault(one.number, micro.value)
    each.last_of[one.number] = micro.value


def _check_read(
    name: str, each: _Register, reader: Transaction, value: Any, findings: Findings
) -> None:
    writer = each.writers.get(value)
    if value is None:
        return
    if writer is None:
        told = [("read", reader)]
        findings.add("unwritten-read", name, f"value {value}", told, Severity.ALLOWED)
    elif writer.outcome == FAIL:
        findings.add("G1a", name, f"value {value}", [("failed write", writer), ("read", reader)])
    elif writer is reader:
        note = f"it read {value} before it wrote it"
        findings.add("internal", name, note, [("transaction", reader)])
    elif each.last_of[writer.number] != value:
        final = each.last_of[writer.number]
        note = f"value {value}, though the same transaction wrote {final} later"
        findings.add("G1b", name, note, [("write", writer), ("read", reader)])


def _connect(name: str, each: _Register, happened: frozenset[int], graph: Graph) -> None:
    """Add the edges that follow from reads, and from writes after a read."""
    next_writers: dict[Any, list[Transaction]] = {}  # value -> readers that wrote the next
    for reader, value in each.reads:
        if reader.number in each.first_of:
            next_writers.setdefault(value, []).append(reader)
    first_readers = 0
    for reader, value in each.reads:
        writer = each.writers.get(value)
        if writer is not None and value is not None:
            graph.add(writer.number, WR, reader.number, f"{name}: {value}")
        for following in next_writers.get(value, ()):
            written = each.first_of[following.number]
            graph.add(reader.number, RW, following.number, f"{name}: {value}, before {written}")
            if writer is not None and value is not None:
                about = f"{name}: {value} before {written}"
                graph.add(writer.number, WW, following.number, about)
        if value is None and None not in each.writers and first_readers < _READERS_MAX:
            first_readers += 1
            for written, other in each.writers.items():
                if other.number in happened and other.outcome != FAIL:
                    graph.add(reader.number, RW, other.number, f"{name}: nil, before {written}")


_MICROS: Final = frozenset({WRITE, READ})
CHECKER: Final = transactions_checker("rw-register", _ANOMALIES, _MICROS, _judge)
OTHERS: Final = tuple(
    transactions_checker("rw-register", _ANOMALIES, _MICROS, _judge, consistency=one)
    for one in (STRICT_SERIALIZABLE,)
)
"""The checkers of other consistencies than serializability."""
