"""Anomalies of the order in which one process read or wrote.

Values are compared by their last place in the version order, never by offset + 1: holes are legal.
Sources: jepsen.tests.kafka, poll-skip+nonmonotonic-cases and nonmonotonic-send-cases (external:
last of one operation against first of the next; `int-`: neighbours within one operation).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from quorumlog.chaos.checkers.entries import (
    FAIL,
    FINAL_POLL,
    GROUP_FLAG,
    OK,
    REBALANCED_FLAG,
    SEND,
    TXN_FLAG,
    Entries,
    Flags,
    Ints,
)
from quorumlog.chaos.checkers.final_reads import is_from_start
from quorumlog.chaos.checkers.verdict import CheckResult, Severity
from quorumlog.chaos.checkers.version_order import ABSENT, VersionOrder, acknowledged, sorted_pairs
from quorumlog.chaos.checkers.witnesses import Told, first_entry, invalid

INTERLEAVED_SENDS: Final = "interleaved_sends"  # Jepsen's int-send-skip: legal, so only a figure


@dataclass(slots=True, kw_only=True)
class Steps:
    """From one entry to the next of the same process and key."""

    before: Ints
    after: Ints
    delta: Ints  # in places: 1 is the next record
    within: Flags  # both in one operation


def order_anomalies(
    order: VersionOrder, *, marked: bool
) -> tuple[list[CheckResult], dict[str, int]]:
    """Return the anomalies, and counts of legal cases.

    `marked`: the history is one of our own, in which a seek marks each reader that does not begin
    at the first record. Jepsen's histories do not show where a reader begins.
    """
    entries = order.entries
    read = order.is_poll & (entries.outcome == OK)
    polls = _steps(order, np.flatnonzero(read), settled=read)
    starts = _late_starts(order, np.flatnonzero(read)) if marked else []
    sends = _steps(
        order,
        np.flatnonzero((entries.kind == SEND) & (entries.outcome != FAIL)),
        settled=acknowledged(entries),
    )
    still = (entries.flags[polls.after] & REBALANCED_FLAG) == 0
    alone = (entries.flags[polls.after] & GROUP_FLAG) == 0
    skips, backs, backs_sent = polls.delta > 1, polls.delta < 1, sends.delta < 1
    across, invalid, allowed = ~polls.within, Severity.INVALID, Severity.ALLOWED
    cases: list[tuple[str, Severity, Steps, Flags]] = [
        ("int-poll-skip", invalid, polls, skips & polls.within & still),
        ("int-nonmonotonic-poll", invalid, polls, backs & polls.within & still),
        ("poll-skip", invalid, polls, skips & across & alone),
        ("poll-skip", allowed, polls, skips & across & ~alone),
        ("nonmonotonic-poll", invalid, polls, backs & across & alone),
        ("nonmonotonic-poll", allowed, polls, backs & across & ~alone),
        ("nonmonotonic-send", invalid, sends, backs_sent & ~sends.within),
        ("int-nonmonotonic-send", invalid, sends, backs_sent & sends.within),
    ]
    by_txn = (entries.flags[sends.after] & TXN_FLAG) != 0
    cases.append(("int-send-skip", allowed, sends, (sends.delta > 1) & sends.within & by_txn))
    results = [*starts, *(_result(order, *case) for case in cases if case[3].any())]
    return results, {INTERLEAVED_SENDS: int(np.count_nonzero(sends.within & (sends.delta > 1)))}


def _late_starts(order: VersionOrder, rows: Ints) -> list[CheckResult]:
    """Find readers from the beginning that begin after the first record of the log.

    It is a `poll-skip` whose first side is the beginning.
    """
    entries = order.entries
    rows = rows[is_from_start(entries)[rows]]
    rows = rows[np.argsort(entries.kind[rows] == FINAL_POLL, kind="stable")]
    rows = rows[sorted_pairs(entries.process[rows], entries.key[rows])]
    first = np.append(True, ~_same(entries, rows[:-1], rows[1:]))[: len(rows)]
    begins = rows[first]
    start = order.key_start[entries.key[begins]]
    late = order.place_of[begins] > start  # False for ABSENT
    found, start = begins[late], start[late]
    high = order.place_of[found]
    if not len(found):
        return []

    def tell(n: int) -> Told:
        lowest = (order.place_of >= start[n]) & (order.place_of < high[n])
        note = f"a reader from the beginning began behind {int(high[n] - start[n])} record(s)"
        return note, [("polled first", int(found[n])), ("skipped", first_entry(lowest))]

    result = invalid(entries, "poll-skip", found, tell)
    polled = np.concatenate([[0], np.cumsum(order.polled_place)])
    unread = polled[high] == polled[start]
    result.explained = int(np.count_nonzero(unread | order.values.disputed[order.value_of[found]]))
    return [result]


def _steps(order: VersionOrder, rows: Ints, *, settled: Flags) -> Steps:
    """Pair the entries at `rows` that follow each other, leaving out values of unknown place.

    `rows` are in order, so by operation, then ordinal. From one operation to the next, only
    `settled` entries have a next: a send of unknown outcome may take effect at any later time.
    Values that were sent twice have no unique place.
    """
    entries, last = order.entries, order.values.last
    known = (last != ABSENT) & ~order.values.resent
    rows = rows[known[order.value_of[rows]]]
    rows = rows[sorted_pairs(entries.process[rows], entries.key[rows])]
    here = np.arange(len(rows))
    latest = np.maximum.accumulate(np.where(settled[rows], here, ABSENT))
    within = entries.op[rows[1:]] == entries.op[rows[:-1]]
    within &= entries.key[rows[1:]] == entries.key[rows[:-1]]
    previous = np.where(within, here[:-1], latest[:-1])
    before, after = rows[previous], rows[1:]
    follows = (previous != ABSENT) & _same(entries, before, after)
    before, after = before[follows], after[follows]
    return Steps(
        before=before,
        after=after,
        delta=last[order.value_of[after]] - last[order.value_of[before]],
        within=entries.op[before] == entries.op[after],
    )


def _same(entries: Entries, before: Ints, after: Ints) -> Flags:
    """Return where process and key are equal, and no operation moved the position in between."""
    final = entries.kind == FINAL_POLL
    same: Flags = (
        (entries.process[before] == entries.process[after])
        & (entries.key[before] == entries.key[after])
        & (entries.segment[before] == entries.segment[after])
        & (final[before] == final[after])  # the last phase starts again from the beginning
    )
    return same


def _result(
    order: VersionOrder, name: str, severity: Severity, steps: Steps, found: Flags
) -> CheckResult:
    is_skip = name.endswith("skip")
    before, after = steps.before[found], steps.after[found]
    noun = "sent" if name.endswith("send") else "polled"

    def tell(n: int) -> Told:
        first, second = int(before[n]), int(after[n])
        roles = [(f"{noun} first", first), (f"{noun} next", second)]
        if not is_skip:
            return f"{noun} in this order, but the first is not before the second in the log", roles
        hidden = int(steps.delta[found][n]) - 1
        note = f"{hidden} record(s) between these two were not returned"
        return note, [*roles, ("skipped", _between(order, first, second))]

    result = invalid(order.entries, name, before, tell)
    result.severity = severity
    result.explained = int(np.count_nonzero(_explained(order, before, after, is_skip=is_skip)))
    return result


def _between(order: VersionOrder, first: int, second: int) -> int:
    """Return the first operation that showed a record between two polled ones."""
    low, high = (int(order.values.last[order.value_of[row]]) for row in (first, second))
    return first_entry((order.place_of > low) & (order.place_of < high))


def _explained(order: VersionOrder, before: Ints, after: Ints, *, is_skip: bool) -> Flags:
    """Return which steps touch a disputed value, or skip only values never polled (lost)."""
    disputed, last = order.values.disputed, order.values.last
    explained: Flags = disputed[order.value_of[before]] | disputed[order.value_of[after]]
    if is_skip:
        polled = np.concatenate([[0], np.cumsum(order.polled_place)])
        low, high = last[order.value_of[before]] + 1, last[order.value_of[after]]
        explained = explained | (polled[high] == polled[low])
    return explained
