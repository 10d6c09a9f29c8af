"""Rules of groups that commit offsets in transactions: each record is consumed exactly once.

A key with `offsets` in transactions is an input of one group. The records that a transaction polled
from an input, and the offset that it commits there, are one step of the group through the log. Each
key yields its steps; `join_steps` joins them with the evidence of all keys about transactions of
unknown outcome:

  - the steps of committed transactions do not overlap (consumed-twice), and leave no record out
    (unconsumed);
  - a committed offset in a response is at most the highest offset of any transaction, unless
    certainly aborted, that had requested its commit before the response (offset-ahead): the offset
    of an open transaction is not shown (KIP-98); and at least every offset committed before
    the request (offset-lost): a transaction with a successful response is committed, and its group
    waits for it (KIP-447).

Source: KIP-98, KIP-447, KIP-129.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from quorumlog.chaos.checkers.entries import (
    ASKED,
    COMMITTED,
    FAIL,
    INFO,
    OFFSETS,
    OK,
    TXN_FLAG,
    Entries,
    Ints,
    asked_ns,
)
from quorumlog.chaos.checkers.verdict import (
    WITNESSES_MAX,
    CheckResult,
    Gap,
    Partial,
    Severity,
    first_examples,
)
from quorumlog.chaos.checkers.version_order import ABSENT, VersionOrder, acknowledged
from quorumlog.chaos.checkers.witnesses import (
    NO_ENTRY,
    Told,
    Witness,
    first_entry,
    invalid,
    witness,
)
from quorumlog.chaos.history.model import UNKNOWN_OFFSET

STEPS: Final = "steps"  # see Step
INPUTS: Final = "inputs"  # [the key, the number of its places up to the last acknowledged record]
_BEYOND: Final = "acknowledged records that no transaction of the group has consumed"


class Step(NamedTuple):
    """The places [first, after) of one key's version order that one transaction consumed."""

    key: str
    first: int
    after: int
    op: int
    outcome: int
    told: Witness


def offset_anomalies(
    order: VersionOrder, notes: Entries, across: dict[str, list[Any]]
) -> list[CheckResult]:
    """Return the anomalies that these keys alone prove; write their steps into `across`."""
    offsets = notes.take(np.flatnonzero(notes.kind == OFFSETS))
    if not len(offsets):
        return []
    across[STEPS] = [*map(list, _steps(order, offsets))]
    across[INPUTS] = _inputs(order, offsets)
    answers = np.flatnonzero(notes.kind == COMMITTED)
    found = [_ahead(notes, answers), _lost(notes, answers)]
    return [result for result in found if result.count]


def _steps(order: VersionOrder, offsets: Entries) -> list[Step]:
    entries = order.entries
    polled = np.flatnonzero(order.is_poll & ((entries.flags & TXN_FLAG) != 0))
    first: dict[tuple[int, int], int] = {}
    columns = (entries.key[polled], entries.op[polled], order.place_of[polled])
    for key, op, place in zip(*(column.tolist() for column in columns), strict=True):
        if place != ABSENT:
            first[key, op] = min(place, first.get((key, op), place))
    codes = {name: code for code, name in enumerate(entries.keys)}
    steps = []
    for row in range(len(offsets)):
        name, op = offsets.keys[int(offsets.key[row])], int(offsets.op[row])
        if name not in codes:
            continue  # no operation sent or polled there
        start, end = order.key_start[codes[name] : codes[name] + 2].tolist()
        of_key = order.place_offset[start:end]
        after = int(np.searchsorted(of_key, int(offsets.offset[row])))
        begun = first.get((codes[name], op), start + after) - start
        told = witness(offsets, "", [("transaction", row)])
        outcome = int(offsets.outcome[row])
        steps.append(Step(name, begun, max(begun, after), op, outcome, told))
    return steps


def _inputs(order: VersionOrder, offsets: Entries) -> list[list[Any]]:
    """Return each input with the place after its last acknowledged record."""
    entries = order.entries
    names = {offsets.keys[code] for code in np.unique(offsets.key).tolist()}
    found: list[list[Any]] = []
    acked = acknowledged(entries) & (order.place_of != ABSENT)
    for code, name in enumerate(entries.keys):
        if name in names:
            places = order.place_of[acked & (entries.key == code)]
            found.append([name, int(places.max(initial=-1) - order.key_start[code] + 1)])
    return found


def _ahead(notes: Entries, answers: Ints) -> CheckResult:
    """Find responses above every offset that may have been committed when they were sent."""
    may_be = np.flatnonzero((notes.kind == OFFSETS) & (notes.outcome != FAIL))
    requested_ns = notes.invoked_ns.copy()
    known_ns = asked_ns(notes.take(np.flatnonzero(notes.kind == ASKED)), notes, may_be)
    requested_ns[may_be] = np.maximum(requested_ns[may_be], known_ns)
    highest = _highest_before(notes, may_be, requested_ns, answers, notes.completed_ns[answers] + 1)
    told = np.append(notes.offset, UNKNOWN_OFFSET)[highest]  # ABSENT takes the appended item
    wrong = answers[notes.offset[answers] > told]

    def tell(n: int) -> Told:
        answer = int(wrong[n])
        same = (notes.kind == OFFSETS) & (notes.offset == notes.offset[answer])
        same &= (notes.key == notes.key[answer]) & (notes.op < notes.completion[answer])
        pending = first_entry(same & (notes.outcome != FAIL))
        if pending != NO_ENTRY:
            note = "the transaction with this offset had not requested its commit"
            return note, [("answer", answer), ("transaction", pending)]
        note = "no transaction that may be committed has this offset"
        return note, [("answer", answer), ("aborted", first_entry(same))]

    return invalid(notes, "offset-ahead", wrong, tell)


def _lost(notes: Entries, answers: Ints) -> CheckResult:
    """Find responses below an offset that was committed before the request."""
    sure = np.flatnonzero((notes.kind == OFFSETS) & (notes.outcome == OK))
    highest = _highest_before(notes, sure, notes.completion, answers, notes.op[answers])
    told = np.append(notes.offset, UNKNOWN_OFFSET)[highest]
    found = np.flatnonzero(notes.offset[answers] < told)
    wrong, proofs = answers[found], highest[found]

    def tell(n: int) -> Told:
        note = "a higher offset was committed before the question"
        return note, [("answer", int(wrong[n])), ("committed", int(proofs[n]))]

    return invalid(notes, "offset-lost", wrong, tell)


def _highest_before(notes: Entries, rows: Ints, moment: Ints, answers: Ints, until: Ints) -> Ints:
    """Return, for each of `answers`, the row of its key with the highest offset, or ABSENT.

    `moment`: the event or the time of each note; only rows before the answer's `until` count.
    """
    found = np.full(len(answers), ABSENT)
    for key in np.unique(notes.key[answers]).tolist():
        mine = rows[notes.key[rows] == key]
        mine = mine[np.argsort(moment[mine], kind="stable")]
        offsets = notes.offset[mine]
        is_highest = offsets == np.maximum.accumulate(offsets)
        best = np.maximum.accumulate(np.where(is_highest, np.arange(len(mine)), 0))
        asked = np.flatnonzero(notes.key[answers] == key)
        before = np.searchsorted(moment[mine], until[asked])
        found[asked] = np.append(mine[best], ABSENT)[before - 1]
    return found


def join_steps(
    steps: Sequence[Sequence[Any]],
    inputs: Sequence[Sequence[Any]],
    *,
    committed: frozenset[int],
    aborted: frozenset[int],
) -> Partial:
    """Return the anomalies that the steps of all keys prove together.

    `committed`, `aborted`: the transactions of unknown outcome whose outcome the keys have proved.
    """
    joined, by_key = Partial(), dict[str, list[Step]]()
    for one in steps:
        by_key.setdefault(one[0], []).append(Step(*one))
    twice, left_out, beyond = list[Witness](), list[Witness](), list[str]()
    ends: Mapping[str, int] = {str(key): int(end) for key, end in inputs}
    for key, of_key in sorted(by_key.items()):
        sure = [one for one in of_key if one.outcome == OK or one.op in committed]
        maybe = [
            one
            for one in of_key
            if one.outcome == INFO and one.op not in committed and one.op not in aborted
        ]
        sure.sort(key=lambda one: (one.first, one.after, one.op))
        reach = _walk(sure, maybe, twice, left_out)
        reach = max([reach, *(one.after for one in maybe)])
        if reach < ends.get(key, 0):
            beyond.append(key)
    joined.results += [*_found("consumed-twice", twice), *_found("unconsumed", left_out)]
    if beyond:
        joined.gaps[_BEYOND] = Gap(len(beyond), first_examples(beyond))
    return joined


def _walk(
    sure: Sequence[Step], maybe: Sequence[Step], twice: list[Witness], left_out: list[Witness]
) -> int:
    """Follow the committed steps of a key in order; return the place that they reach."""
    reach, last = 0, None
    for one in sure:
        if one.first < min(reach, one.after) and last is not None:
            note = "two committed transactions consumed one record"
            twice.append(_of_two(one.key, note, last, one))
        elif one.first > reach and not _is_covered(reach, one.first, maybe):
            before = one if last is None else last
            note = f"{one.first - reach} records lie between the records that the group consumed"
            left_out.append(_of_two(one.key, note, before, one))
        if one.after >= reach:
            reach, last = one.after, one
    return reach


def _is_covered(start: int, end: int, maybe: Sequence[Step]) -> bool:
    """Return whether transactions that may be committed may have consumed [start, end)."""
    for one in sorted(maybe, key=lambda step: step.first):
        if one.first <= start:
            start = max(start, one.after)
    return start >= end


def _of_two(key: str, note: str, one: Step, other: Step) -> Witness:
    ops = [*one.told["ops"]] if one is other else [*one.told["ops"], *other.told["ops"]]
    return {"key": key, "note": note, "ops": sorted(ops, key=lambda op: op["index"])}


def _found(name: str, told: Sequence[Witness]) -> list[CheckResult]:
    first = sorted(told, key=lambda one: (one["ops"][0]["index"], one["key"]))[:WITNESSES_MAX]
    result = CheckResult(name=name, severity=Severity.INVALID, count=len(told), witnesses=first)
    return [result] if told else []
