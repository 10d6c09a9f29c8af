"""Rules that transactions add to those of a log: either all of their records are visible, or none.

A transaction spans keys. Each key yields its part, and `join_keys` joins the parts:
  - a reader at read_committed sees committed records only: if transactions polled each other's
    records in a circle, one of them saw an uncommitted record (Adya's G1c, with write-read edges
    alone: Kafka does not isolate writes);
  - if any record of a transaction of unknown outcome was polled, the transaction was committed, and
    none of its records may be missing; its own polls then prove as much as those of any other;
  - transactions overwrite each other in a circle (G0): legal, as Kafka does not isolate writes;
  - the transactions of a group consume each record exactly once: see `exactly_once`.

Source: jepsen.tests.kafka, precommitted-read-cases, wr-graph, and writes-by-type.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from quorumlog.chaos.checkers.cycles import WR, WW, Graph, find_cycles
from quorumlog.chaos.checkers.entries import (
    ASKED,
    FAIL,
    INFO,
    OK,
    SEND,
    SOUGHT_FLAG,
    TXN_FLAG,
    Entries,
    Flags,
    Ints,
    asked_ns,
)
from quorumlog.chaos.checkers.exactly_once import INPUTS, STEPS, join_steps, offset_anomalies
from quorumlog.chaos.checkers.final_reads import FinalReads, is_from_start
from quorumlog.chaos.checkers.verdict import WITNESSES_MAX, CheckResult, Partial, Severity
from quorumlog.chaos.checkers.version_order import ABSENT, VersionOrder, earliest
from quorumlog.chaos.checkers.witnesses import Told, Witness, invalid, witness

_READ_FROM: Final = "read from"  # [the sender's event, the reader's event, a witness, OK or INFO]
_UNSETTLED: Final = "unsettled"  # [event of a reader of unknown outcome, an anomaly, a witness]
_WROTE: Final = "wrote before"  # [event, event of the next record's transaction, key, place]
_UNREAD: Final = "unread"  # event of a transaction of unknown outcome, missing in a final read
_COMMITTED: Final = "committed"  # event of a transaction of unknown outcome, seen committed
_MISSING: Final = "missing"  # [its event, a witness]: one of its records that readers got past


_OWN_READ: Final = "precommitted-read"
_NOTES: Final = {
    "G1a": "polled by a transaction that is committed, as its record was polled",
    _OWN_READ: "a transaction polled its own record before its commit",
}


def of_transactions(
    order: VersionOrder,
    finals: FinalReads,
    notes: Entries,
    *,
    marked: bool,
    across: dict[str, list[Any]],
) -> list[CheckResult]:
    """Return the anomalies of transactions in these keys; write the other evidence into `across`.

    `notes`: the entries of `_transaction_notes` of these keys.
    """
    entries, values = order.entries, order.values
    in_txn = (entries.flags & TXN_FLAG) != 0
    found = offset_anomalies(order, notes, across)
    found += _early_reads(order, notes.take(np.flatnonzero(notes.kind == ASKED)))
    if not in_txn.any():
        return found
    in_doubt = in_txn & (entries.outcome == INFO)
    polls = np.flatnonzero(order.is_poll & ((entries.outcome == OK) | in_doubt))
    sends = values.send_entry[order.value_of[polls]]
    known = (sends != ABSENT) & ~values.resent[order.value_of[polls]]
    polls, sends = polls[known], sends[known]
    aborted = entries.outcome[sends] == FAIL
    by_txn, is_sure = in_txn[sends] & ~aborted, ~in_doubt[polls]
    own = entries.op[sends] == entries.op[polls]
    both = by_txn & in_txn[polls] & ~own
    across[_READ_FROM] = [*_read_from(order, sends[both], polls[both])]
    seen = by_txn & (entries.outcome[sends] == INFO) & is_sure
    across[_COMMITTED] = np.unique(entries.op[sends[seen]]).tolist()
    across[_UNSETTLED] = [
        *_unsettled(order, "G1a", sends[aborted & ~is_sure], polls[aborted & ~is_sure]),
        *_unsettled(order, _OWN_READ, sends[own & ~is_sure], polls[own & ~is_sure]),
    ]
    across[_MISSING] = [*_missing(order, in_txn, marked=marked)]
    across[_WROTE] = _wrote_before(order, in_txn)
    across[_UNREAD] = _unread(order, finals, in_txn)
    return [*found, *_precommitted(order, sends[own & is_sure], polls[own & is_sure])]


def join_keys(partials: Sequence[Partial]) -> Partial:
    """Return the anomalies that the parts of transactions in all keys prove together."""
    joined = Partial()
    kinds = (_READ_FROM, _COMMITTED, _UNSETTLED, _MISSING, _WROTE, _UNREAD, STEPS, INPUTS)
    across = {kind: _all(partials, kind) for kind in kinds}
    committed = _committed(across[_COMMITTED], across[_READ_FROM])
    for name in ("G1a", _OWN_READ):
        proofs = [one for op, kind, one in across[_UNSETTLED] if kind == name and op in committed]
        joined.results += _result(name, proofs)
    lost = [proof for transaction, proof in across[_MISSING] if transaction in committed]
    joined.results += _result("lost-write", lost)
    sure = [edge for edge in across[_READ_FROM] if edge[3] == OK or edge[1] in committed]
    joined.results += _result("G1c", _circles(sure))
    joined.results += _result("G0", _write_circles(across[_WROTE]), Severity.ALLOWED)
    aborted = frozenset(across[_UNREAD]) - committed
    steps = join_steps(across[STEPS], across[INPUTS], committed=committed, aborted=aborted)
    joined.results += steps.results
    joined.gaps |= steps.gaps
    return joined


def _committed(seen: Sequence[int], read_from: Sequence[Sequence[Any]]) -> frozenset[int]:
    """Return the transactions whose records were polled: by `seen`, or by one of these in turn."""
    senders: dict[int, list[int]] = {}
    for sender, reader, *_ in read_from:
        senders.setdefault(reader, []).append(sender)
    found, left = set(seen), [*seen]
    while left:
        new = [sender for sender in senders.get(left.pop(), ()) if sender not in found]
        found.update(new)
        left += new
    return frozenset(found)


def _all(partials: Sequence[Partial], kind: str) -> list[Any]:
    return [one for partial in partials for one in partial.across.get(kind, ())]


def _result(
    name: str, told: Sequence[Witness], severity: Severity = Severity.INVALID
) -> list[CheckResult]:
    first = sorted(told, key=lambda one: (one["ops"][0]["index"], one["key"]))[:WITNESSES_MAX]
    result = CheckResult(name=name, severity=severity, count=len(told), witnesses=first)
    return [result] if told else []


def _precommitted(order: VersionOrder, sends: Ints, polls: Ints) -> list[CheckResult]:
    if not len(sends):
        return []

    def tell(n: int) -> Told:
        return _NOTES[_OWN_READ], [("sent", int(sends[n])), ("polled", int(polls[n]))]

    return [invalid(order.entries, _OWN_READ, sends, tell)]


def _unsettled(order: VersionOrder, name: str, sends: Ints, polls: Ints) -> Iterator[list[Any]]:
    """Yield polls of transactions of unknown outcome: anomalies if the transaction is committed."""
    for send, poll in zip(sends.tolist(), polls.tolist(), strict=True):
        told = witness(order.entries, _NOTES[name], [("sent", send), ("polled", poll)])
        yield [int(order.entries.op[poll]), name, told]


def _read_from(order: VersionOrder, sends: Ints, polls: Ints) -> Iterator[list[Any]]:
    """Yield one edge for each pair of transactions."""
    entries = order.entries
    pairs = np.stack([entries.op[sends], entries.op[polls]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    for place in first.tolist():
        send, poll = int(sends[place]), int(polls[place])
        told = witness(entries, "", [("sent", send), ("polled", poll)])
        yield [int(entries.op[send]), int(entries.op[poll]), told, int(entries.outcome[poll])]


def _missing(order: VersionOrder, in_txn: Flags, *, marked: bool) -> Iterator[list[Any]]:
    """Yield the records of transactions of unknown outcome that readers got past.

    The broker has returned their offset, and a reader that read all from the beginning (in Jepsen's
    model: that has not sought) polled a higher one.
    """
    entries, values = order.entries, order.values
    reads = order.is_poll & (entries.outcome == OK)
    sought = (entries.flags & SOUGHT_FLAG) != 0
    reads &= is_from_start(entries) if marked else ~sought
    furthest = np.full(len(entries.keys), ABSENT)  # key -> the read of the highest offset
    rows = np.flatnonzero(reads)
    rows = rows[np.argsort(entries.offset[rows], kind="stable")]
    furthest[entries.key[rows]] = rows  # the last write stays
    reached = np.append(entries.offset, ABSENT)[furthest]  # ABSENT takes the appended item
    sent = (entries.kind == SEND) & (entries.outcome == INFO) & in_txn & (entries.offset >= 0)
    sent &= entries.offset < reached[entries.key]
    sent &= ~values.polled[order.value_of] & ~values.resent[order.value_of]
    for send in np.flatnonzero(sent).tolist():
        proof = int(furthest[entries.key[send]])
        note = "committed, as another record of its transaction was polled; no poll returned it"
        told = witness(entries, note, [("lost send", send), ("read past", proof)])
        yield [int(entries.op[send]), told]


def _circles(edges: Sequence[list[Any]]) -> list[Witness]:
    """Return the shortest circle of each group of transactions that form one."""
    graph, proofs = Graph(), dict[tuple[int, int], Mapping[str, Any]]()
    for sender, reader, told, _ in sorted(edges, key=lambda edge: (*edge[:2], edge[2]["key"])):
        graph.add(sender, WR, reader, told["key"])
        proofs.setdefault((sender, reader), told)
    found = []
    for cycle in find_cycles(graph):
        told = [proofs[step.source, step.target] for step in cycle.steps]
        sent = [{**one["ops"][0], "role": f"polled by the next: {one['key']}"} for one in told]
        note = f"a circle of {len(sent)} transactions: each was polled by the next"
        found.append({"key": told[0]["key"], "note": note, "ops": sent})
    return found


def _wrote_before(order: VersionOrder, in_txn: Flags) -> list[list[Any]]:
    """Return one edge for each pair of transactions that wrote adjacent records."""
    entries, values = order.entries, order.values
    send_at = np.full(len(order.place_key), ABSENT)
    known = np.flatnonzero((values.last != ABSENT) & (values.send_entry != ABSENT))
    known = known[~values.disputed[known] & ~values.resent[known]]
    send_at[values.last[known]] = values.send_entry[known]
    one, other = send_at[:-1], send_at[1:]
    both = (one != ABSENT) & (other != ABSENT) & (order.place_key[:-1] == order.place_key[1:])
    both &= in_txn[one] & in_txn[other] & (entries.op[one] != entries.op[other])
    one, other = one[both], other[both]
    pairs = np.stack([entries.op[one], entries.op[other]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    return [
        [int(entries.op[source]), int(entries.op[target]), *_told_send(entries, source)]
        for source, target in zip(one[first].tolist(), other[first].tolist(), strict=True)
    ]


def _told_send(entries: Entries, send: int) -> tuple[str, Witness]:
    told = witness(entries, "", [("wrote before the next", send)])
    return told["key"], told["ops"][0]


def _write_circles(edges: Sequence[list[Any]]) -> list[Witness]:
    """Return the shortest circle of each group of transactions that overwrote each other."""
    graph, proofs = Graph(), dict[tuple[int, int], Witness]()
    for one, other, key, told in sorted(edges, key=lambda edge: edge[:3]):
        graph.add(one, WW, other, key)
        proofs.setdefault((one, other), {**told, "role": f"wrote before the next: {key}"})
    found = []
    for cycle in find_cycles(graph):
        if cycle.name == "G0":
            ops = [proofs[step.source, step.target] for step in cycle.steps]
            note = f"a circle of {len(ops)} transactions: each wrote before the next"
            found.append({"key": cycle.steps[0].about, "note": note, "ops": ops})
    return found


def _unread(order: VersionOrder, finals: FinalReads, in_txn: Flags) -> list[int]:
    """Return the transactions of unknown outcome with a record missing in a complete final read.

    Such a read has passed the last stable offset, so the transaction is no longer open.
    """
    entries, values = order.entries, order.values
    absent = (entries.kind == SEND) & (entries.outcome == INFO) & in_txn
    absent &= finals.complete[entries.key] & ~values.polled_at_all[order.value_of]
    found: list[int] = np.unique(entries.op[absent]).tolist()
    return found


def _early_reads(order: VersionOrder, asked: Entries) -> list[CheckResult]:
    """Return the polls of a transaction's records before its commit was requested.

    `asked`: the entries of kind ASKED of these keys, from our own histories alone. Such a record
    was visible while the transaction was open, whether it was committed later or not: that is
    Adya's G1b, a read of an intermediate state, seen through time. If the transaction failed, it is
    G1a.
    """
    if not len(asked):
        return []
    entries, values = order.entries, order.values
    requested_ns = _asked_ns(order, asked)
    sends = np.append(values.send_entry, ABSENT)[order.value_of]  # ABSENT takes the appended item
    early = order.is_poll & (entries.outcome == OK)
    early &= entries.completed_ns < np.append(requested_ns, ABSENT)[order.value_of]
    early &= np.append(entries.outcome, FAIL)[sends] != FAIL
    polls = earliest(order.value_of, early, len(values.key))
    polls = polls[polls != ABSENT]
    if not len(polls):
        return []

    def tell(n: int) -> Told:
        poll = int(polls[n])
        before_ns = int(requested_ns[order.value_of[poll]] - entries.completed_ns[poll])
        note = f"polled {before_ns / 1e6:.3f} ms before the commit was requested"
        return note, [("sent", int(sends[poll])), ("polled", poll)]

    return [invalid(entries, "G1b", sends[polls], tell)]


def _asked_ns(order: VersionOrder, asked: Entries) -> Ints:
    """Return when each value's commit was requested, in ns; -1: unknown, or sent repeatedly."""
    values = order.values
    sent = np.flatnonzero((values.send_entry != ABSENT) & ~values.resent)
    found = np.full(len(values.key), ABSENT)
    found[sent] = asked_ns(asked, order.entries, values.send_entry[sent])
    return found
