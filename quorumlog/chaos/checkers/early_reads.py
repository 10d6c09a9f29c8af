"""Reads of a transaction's records before its commit was requested.

In our own histories, a transaction records when its commit was requested. A record that a poll
returned before that moment was visible while the transaction was open, whether it was committed
later or not. That is Adya's G1b, seen through time: a read of an intermediate state. If the
transaction failed, it is G1a.
"""

import numpy as np

from quorumlog.chaos.checkers.entries import FAIL, OK, Entries, Ints
from quorumlog.chaos.checkers.verdict import CheckResult
from quorumlog.chaos.checkers.version_order import ABSENT, VersionOrder, earliest
from quorumlog.chaos.checkers.witnesses import Told, invalid

_ORDINAL_BITS = 24


def early_reads(order: VersionOrder, asked: Entries) -> list[CheckResult]:
    """Return the polls that were too early. `asked`: the entries of kind ASKED of these keys."""
    if not len(asked):
        return []
    entries, values = order.entries, order.values
    asked_ns = _asked_ns(order, asked)
    sends = np.append(values.send_entry, ABSENT)[order.value_of]  # ABSENT takes the appended item
    early = order.is_poll & (entries.outcome == OK)
    early &= entries.completed_ns < np.append(asked_ns, ABSENT)[order.value_of]
    early &= np.append(entries.outcome, FAIL)[sends] != FAIL
    polls = earliest(order.value_of, early, len(values.key))
    polls = polls[polls != ABSENT]
    if not len(polls):
        return []

    def tell(n: int) -> Told:
        poll = int(polls[n])
        before_ns = int(asked_ns[order.value_of[poll]] - entries.completed_ns[poll])
        note = f"polled {before_ns / 1e6:.3f} ms before the commit was requested"
        return note, [("sent", int(sends[poll])), ("polled", poll)]

    return [invalid(entries, "G1b", sends[polls], tell)]


def _asked_ns(order: VersionOrder, asked: Entries) -> Ints:
    """Return when each value's commit was requested, in ns; -1: unknown, or sent repeatedly."""
    entries, values = order.entries, order.values
    moments = _moments(asked)
    by_moment = np.argsort(moments, kind="stable")
    moments, told_ns = moments[by_moment], asked.invoked_ns[by_moment]
    sent = np.flatnonzero((values.send_entry != ABSENT) & ~values.resent)
    wanted = _moments(entries)[values.send_entry[sent]]
    at = np.minimum(np.searchsorted(moments, wanted), len(moments) - 1)
    found = np.full(len(values.key), ABSENT)
    found[sent] = np.where(moments[at] == wanted, told_ns[at], ABSENT)
    return found


def _moments(entries: Entries) -> Ints:
    moments: Ints = (entries.op << _ORDINAL_BITS) | entries.ordinal
    return moments
