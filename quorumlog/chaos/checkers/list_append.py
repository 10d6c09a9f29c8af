"""Transactions that append to lists and read them: reads show the order of the versions.

Each value is appended once per list. The longest read of a list gives the order of its values;
every other read must be a prefix of it. An appended value that is in no read comes after all read
values. From this order follow the dependencies, and with `cycles` the anomalies. Source:
elle.list-append.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from quorumlog.chaos.checkers.cycles import RW, WR, WW, Graph
from quorumlog.chaos.checkers.entries import FAIL, OK
from quorumlog.chaos.checkers.transactions import (
    SNAPSHOT_ISOLATION,
    STRICT_SERIALIZABLE,
    Findings,
    Micro,
    Transaction,
    note_writer,
    transactions_checker,
)
from quorumlog.chaos.checkers.verdict import Anomaly
from quorumlog.chaos.history.model import HistoryError

APPEND: Final = "append"
READ: Final = "r"
_READERS_MAX: Final = 64  # readers of the longest list with edges to unread values

_ANOMALIES: Final = (
    Anomaly("phantom", "A read returned a value that no transaction appended."),
    Anomaly("G1a", "A read returned a value of a failed transaction (aborted read)."),
    Anomaly("duplicate-elements", "One read returned a value twice."),
    Anomaly(
        "incompatible-order",
        "Two reads, or a read and a transaction, disagree about the order of a list.",
    ),
    Anomaly("internal", "A transaction does not see its own earlier operations."),
    Anomaly("G1b", "A read returned a part of a transaction (intermediate read)."),
)


@dataclass(slots=True)
class _List:
    """One list: the writer of each value, its reads by committed transactions, its longest read."""

    writers: dict[Any, Transaction] = field(default_factory=dict)
    appended: dict[int, list[Any]] = field(default_factory=dict)  # by transaction, in its order
    reads: list[tuple[Transaction, tuple[Any, ...]]] = field(default_factory=list)
    longest: tuple[Any, ...] = ()
    longest_by: Transaction | None = None


def _judge(transactions: Sequence[Transaction], findings: Findings) -> Graph:
    lists: dict[str, _List] = {}
    for one in transactions:
        _take(one, lists, findings)
    graph, happened = Graph(), _happened(transactions, lists)
    for name, each in sorted(lists.items()):
        sound = [
            (one, read) for one, read in each.reads if _is_sound(name, each, one, read, findings)
        ]
        _check_own_order(name, each, transactions, findings)
        _connect(name, each, sound, happened, graph)
    return graph


def _happened(transactions: Sequence[Transaction], lists: Mapping[str, _List]) -> set[int]:
    """Return the transactions that succeeded, or of which a value was read."""
    known = {one.number for one in transactions if one.outcome == OK}
    return known | {
        each.writers[value].number
        for each in lists.values()
        for value in each.longest
        if value in each.writers
    }


def _check_own_order(
    name: str, each: _List, transactions: Sequence[Transaction], findings: Findings
) -> None:
    """Report a list in which the values of one transaction are in another order than its own."""
    place = {value: n for n, value in enumerate(each.longest)}
    for number, values in each.appended.items():
        one, places = transactions[number], [place.get(value) for value in values]
        while places and places[-1] is None:
            places.pop()
        known = [at for at in places if at is not None]
        if one.outcome != FAIL and (len(known) != len(places) or known != sorted(known)):
            told = [("appended", one)]
            if each.longest_by is not None:
                told.append(("read", each.longest_by))
            note = "the values of one transaction are not in its order"
            findings.add("incompatible-order", name, note, told)


def _take(one: Transaction, lists: dict[str, _List], findings: Findings) -> None:
    """Process the operations of one transaction, and check that it sees its own."""
    seen: dict[str, tuple[Any, ...]] = {}  # the whole list, as the transaction last saw it
    own: dict[str, tuple[Any, ...]] = {}  # values that it appended before it first read the list
    for micro in one.micros:
        name, each = micro.object, lists.setdefault(micro.object, _List())
        if micro.f == APPEND:
            _append(one, micro, each)
            if micro.value in seen.get(name, ()):
                note = f"it read {micro.value} before it appended it"
                findings.add("internal", name, note, [("transaction", one)])
            if name in seen:
                seen[name] = (*seen[name], micro.value)
            own[name] = (*own.get(name, ()), micro.value)
        elif one.is_known:
            known = seen.get(name), own.get(name, ())
            seen[name] = _read(one, micro, each, known, findings)


def _read(
    one: Transaction,
    micro: Micro,
    each: _List,
    known: tuple[tuple[Any, ...] | None, tuple[Any, ...]],
    findings: Findings,
) -> tuple[Any, ...]:
    """Compare a read with its transaction's earlier operations, and add the prefix before them.

    `known`: the expected list, if the transaction has read it before; the values that it appended.
    """
    name, (expected, own), read = micro.object, known, _elements(one, micro)
    words, told = f"[{' '.join(map(str, read))}]", [("transaction", one)]
    is_own = not own or read[len(read) - len(own) :] == own
    if expected is not None:
        is_own = read == expected
    if not is_own:
        note = f"it read {words} after its own operations on the list"
        findings.add("internal", name, note, told)
    if len({*read}) != len(read):
        findings.add("duplicate-elements", name, words, told)
    elif expected is None and is_own:
        each.reads.append((one, read[: len(read) - len(own)]))
        if len(read) > len(each.longest):
            each.longest, each.longest_by = read, one
    return read


def _append(one: Transaction, micro: Micro, each: _List) -> None:
    note_writer(each.writers, one, micro, verb="appended", model="list-append")
    each.appended.setdefault(one.number, []).append(micro.value)


def _elements(one: Transaction, micro: Micro) -> tuple[Any, ...]:
    if micro.value is None:
        return ()
    if not isinstance(micro.value, tuple):
        raise HistoryError(f"event {one.row['invoked']}: a read of a list returned {micro.value!r}")
    return micro.value


def _is_sound(
    name: str, each: _List, one: Transaction, read: tuple[Any, ...], findings: Findings
) -> bool:
    """Report the anomalies of one read; return whether it is a prefix of the longest read."""
    for value in read:
        writer = each.writers.get(value)
        if writer is None:
            findings.add("phantom", name, f"value {value}", [("read", one)])
        elif writer.outcome == FAIL:
            told = [("failed append", writer), ("read", one)]
            findings.add("G1a", name, f"value {value}", told)
    if each.longest[: len(read)] != read:
        told = [("one read", one)]
        if each.longest_by is not None:
            told.append(("other read", each.longest_by))
        findings.add("incompatible-order", name, "neither is a prefix of the other", told)
        return False
    last_writer = each.writers.get(read[-1]) if read else None
    if last_writer is not None and last_writer is not one:
        final = each.appended[last_writer.number][-1]
        if final != read[-1] and final not in read:
            note = f"value {read[-1]}, though the same transaction appended {final} later"
            findings.add("G1b", name, note, [("append", last_writer), ("read", one)])
    return True


def _connect(
    name: str,
    each: _List,
    reads: Sequence[tuple[Transaction, tuple[Any, ...]]],
    happened: set[int],
    graph: Graph,
) -> None:
    """Add the edges that follow from the order of a list's values."""
    order = each.longest
    writers = [each.writers.get(value) for value in order]
    place = {value: n for n, value in enumerate(order)}
    unread = [
        (value, writer)
        for value, writer in each.writers.items()
        if value not in place and writer.number in happened
    ]
    for one, other in pairwise(order):
        if one in each.writers and other in each.writers:
            before, after = each.writers[one], each.writers[other]
            graph.add(before.number, WW, after.number, f"{name}: {one} lies before {other}")
    if writers and writers[-1] is not None:
        for value, later in unread:
            about = f"{name}: {value} came after {order[-1]}"
            graph.add(writers[-1].number, WW, later.number, about)
    _connect_reads(name, each, reads, unread, graph)


def _connect_reads(
    name: str,
    each: _List,
    reads: Sequence[tuple[Transaction, tuple[Any, ...]]],
    unread: Sequence[tuple[Any, Transaction]],
    graph: Graph,
) -> None:
    order, of_all = each.longest, 0
    for reader, read in reads:
        if read and (writer := each.writers.get(read[-1])) is not None:
            graph.add(writer.number, WR, reader.number, f"{name}: {read[-1]}")
        if len(read) < len(order):
            following = each.writers.get(order[len(read)])
            if following is not None:
                about = f"{name}: without {order[len(read)]}"
                graph.add(reader.number, RW, following.number, about)
        elif of_all < _READERS_MAX:
            of_all += 1
            for value, later in unread:
                graph.add(reader.number, RW, later.number, f"{name}: without {value}")


_MICROS: Final = frozenset({APPEND, READ})
CHECKER: Final = transactions_checker("list-append", _ANOMALIES, _MICROS, _judge)
OTHERS: Final = tuple(
    transactions_checker("list-append", _ANOMALIES, _MICROS, _judge, consistency=one)
    for one in (STRICT_SERIALIZABLE, SNAPSHOT_ISOLATION)
)
"""The checkers of other consistencies than serializability."""
