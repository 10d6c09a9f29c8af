"""Checks that each key's log is linearizable: each record could have been appended at one moment.

Offsets give the order of the appends, so no search is needed. With, for the record at place j,
  L_j = the invocation of its send,
  U_j = the earliest completion that proves its presence: its acknowledgement, or a poll that
        returned any offset >= j,
the log is linearizable if and only if max(L_0..L_j) <= U_j for all j: a greedy choice in the order
of the offsets then finds a moment for each record. Otherwise some record was seen, or acknowledged,
before a record below it was sent. An indeterminate send that was polled counts from its invocation
on. The check leaves out disputed offsets (two values, or a value elsewhere too): other anomalies
report them. Source: the log with offsets as a special case of Wing and Gong's problem.
"""

from dataclasses import dataclass

import numpy as np

from quorumlog.chaos.checkers.entries import SEND, TXN_FLAG, Entries, Ints
from quorumlog.chaos.checkers.verdict import CheckResult, Severity
from quorumlog.chaos.checkers.version_order import ABSENT, VersionOrder, acknowledged
from quorumlog.chaos.checkers.witnesses import Told, invalid
from quorumlog.chaos.history.model import NEVER_NS


@dataclass(slots=True, kw_only=True)
class Bounds:
    """Per place: `lower` and `upper` in ns, and the entries they come from (or ABSENT)."""

    lower: Ints
    upper: Ints
    lower_entry: Ints
    upper_entry: Ints


def check_log(order: VersionOrder, bounds: Bounds) -> list[CheckResult]:
    """Return `nonlinearizable-log`, if some record became visible too early.

    If a transaction sent one of the two, it is Jepsen's `G0-realtime`, and allowed; but a record
    polled before its own send is `G1c-realtime`, which is never allowed. A process whose later send
    went below its own earlier one is left out, because `nonmonotonic-send` always finds that.
    """
    entries = order.entries
    at, culprit = violations(bounds.lower, bounds.upper, order.key_start)
    late, early = bounds.lower_entry[culprit], bounds.upper_entry[at]
    own = (entries.process[late] == entries.process[early]) & (entries.kind[early] == SEND)
    own &= ~order.values.resent[order.value_of[late]] & ~order.values.resent[order.value_of[early]]
    late, early = late[~own], early[~own]
    by_txn = ((entries.flags[late] | entries.flags[early]) & TXN_FLAG) != 0
    itself = order.value_of[late] == order.value_of[early]
    cases = (
        ("nonlinearizable-log", Severity.INVALID, ~by_txn),
        ("G1c-realtime", Severity.INVALID, by_txn & itself),
        ("G0-realtime", Severity.ALLOWED, by_txn & ~itself),
    )
    return [
        _too_early(entries, name, severity, early[chosen], late[chosen])
        for name, severity, chosen in cases
        if chosen.any()
    ]


def _too_early(
    entries: Entries, name: str, severity: Severity, early: Ints, late: Ints
) -> CheckResult:
    def tell(n: int) -> Told:
        note = "seen or acknowledged before a record below it was sent"
        return note, [("seen first", int(early[n])), ("sent later", int(late[n]))]

    result = invalid(entries, name, early, tell)
    result.severity = severity
    return result


def violations(lower: Ints, upper: Ints, key_start: Ints) -> tuple[Ints, Ints]:
    """Return the places j where max(L_0..L_j) > U_j, and for each the place of that maximum.

    Places of one key lie together, from key_start[k] to key_start[k + 1], in offset order.
    """
    rank = np.empty(len(lower), np.int64)
    rank[np.argsort(lower, kind="stable")] = np.arange(len(lower))
    # A running maximum per key in one pass: each key's ranks are lifted above the last one's.
    lift = np.repeat(np.arange(len(key_start) - 1), np.diff(key_start)) * len(lower)
    highest = np.maximum.accumulate(rank + lift) - lift
    holder = np.empty(len(lower), np.int64)
    holder[rank] = np.arange(len(lower))
    culprit = holder[highest]
    at = np.flatnonzero(lower[culprit] > upper)
    return at, culprit[at]


def bounds_of(order: VersionOrder) -> Bounds:
    """Return L and U of every place."""
    entries, places = order.entries, len(order.place_key)
    placed = order.place_of != ABSENT
    sound = placed.copy()
    sound[placed] = ~order.values.disputed[order.value_of[placed]]
    lower, upper = np.full(places, -NEVER_NS), np.full(places, NEVER_NS)
    lower_entry, upper_entry = np.full(places, ABSENT), np.full(places, ABSENT)
    # A send without an offset, whose value was polled, takes the place of its value.
    sends = np.flatnonzero(entries.kind == SEND)
    values = order.value_of[sends]
    sends = sends[(order.values.last[values] != ABSENT) & ~order.values.disputed[values]]
    sends = sends[np.argsort(-entries.invoked_ns[sends], kind="stable")]  # the earliest stays
    at = order.values.last[order.value_of[sends]]
    lower[at], lower_entry[at] = entries.invoked_ns[sends], sends
    seen = (placed & order.is_poll) | (sound & acknowledged(entries))
    rows = np.flatnonzero(seen)
    rows = rows[np.argsort(-entries.completed_ns[rows], kind="stable")]
    upper[order.place_of[rows]] = entries.completed_ns[rows]
    upper_entry[order.place_of[rows]] = rows
    return Bounds(lower=lower, upper=upper, lower_entry=lower_entry, upper_entry=upper_entry)


def known_from(order: VersionOrder, bounds: Bounds) -> Ints:
    """Return for each place the moment, in ns, at which a record there or beyond was first seen.

    The result has one value more than there are places: NEVER_NS, for the log end.
    """
    upper = np.append(bounds.upper, NEVER_NS)
    key = np.append(order.place_key, len(order.entries.keys))
    # From the end, a running minimum per key: as in `violations`.
    return _running_minimum(upper[::-1], key[::-1])[::-1]


def _running_minimum(numbers: Ints, key: Ints) -> Ints:
    """Return the running minimum of each run of equal, descending keys."""
    found = numbers.copy()
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])).tolist()
    for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
        np.minimum.accumulate(found[start:end], out=found[start:end])
    return found
