"""The time that readers went without records that were certain to exist.

A record is certain to exist from its acknowledgement, or from a poll that showed it or a later one.
The lag of a reader in a record is the time from then to the first poll that brought this reader to
it or past it, or to the end of the reader's life. The lag of a reader that was assigned later
starts at its assignment. Polls that are empty, or fail, end no lag.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from quorumlog.chaos.checkers.entries import GROUP_FLAG, OK, POLL, Entries, Flags, Ints
from quorumlog.chaos.checkers.final_reads import is_from_start
from quorumlog.chaos.checkers.linearizability import Bounds, known_from
from quorumlog.chaos.checkers.verdict import CheckResult, Severity
from quorumlog.chaos.checkers.version_order import ABSENT, VersionOrder, acknowledged, distinct
from quorumlog.chaos.checkers.witnesses import NO_ENTRY, Told, invalid
from quorumlog.chaos.history.model import NEVER_NS

LATE_NS: Final = 10_000_000_000  # above: `late-read`; no lab fault holds a leader so long


@dataclass(slots=True, kw_only=True)
class _Lags:
    """Runs of places that a reader got (or did not get) at one moment."""

    lag: Ints
    first: Ints  # the lowest place of the run
    known: Ints  # when an operation first proved the log to reach it
    poll: Ints  # the entry that brought the reader there, or NO_ENTRY
    process: Ints


def reader_lag(
    order: VersionOrder, bounds: Bounds, lives: Entries
) -> tuple[int, list[CheckResult]]:
    """Return the worst lag in ns, and `late-read` if some lag is above LATE_NS.

    `lives`: entries of kind READER, with the keys of `order`.
    """
    if not len(lives) or not len(order.place_key):
        return 0, []
    lags = _lags(order, known_from(order, bounds), lives)
    late = np.flatnonzero(lags.lag > LATE_NS)
    worst = int(lags.lag.max(initial=0))
    if not len(late):
        return worst, []
    sends = np.array([_record(order, bounds, lags, int(one)) for one in late], np.int64)

    def tell(n: int) -> Told:
        one = late[n]
        seconds, process = lags.lag[one] / 1e9, int(lags.process[one])
        poll = int(lags.poll[one])
        when = (
            "without receiving the record"
            if poll == NO_ENTRY
            else "until a poll returned the record"
        )
        note = f"reader {process} ran for {seconds:.1f} s after the acknowledgement {when}"
        return note, [("known by", int(sends[n])), ("polled at last", poll)]

    result = invalid(order.entries, "late-read", sends, tell)
    result.severity = Severity.ALLOWED
    return worst, [result]


def _record(order: VersionOrder, bounds: Bounds, lags: _Lags, one: int) -> int:
    """Return the entry that proved the first record of a run, or a later one of its key."""
    first = int(lags.first[one])
    end = int(order.key_start[order.place_key[first] + 1])
    place = first + int((bounds.upper[first:end] == lags.known[one]).argmax())
    return int(bounds.upper_entry[place])


def _lags(order: VersionOrder, known: Ints, lives: Entries) -> _Lags:
    entries = order.entries
    read = (entries.kind == POLL) & (entries.outcome == OK) & (order.place_of != ABSENT)
    rows = np.flatnonzero(read & is_from_start(entries))
    count = len(lives)
    number, _ = distinct(
        np.concatenate([lives.key, entries.key[rows]]),
        np.concatenate([lives.process, entries.process[rows]]),
    )
    life = np.full(int(number.max()) + 1, ABSENT)
    life[number[:count]] = np.arange(count)
    of = life[number[count:]]
    rows, of = rows[of != ABSENT], of[of != ABSENT]
    sequence = np.lexsort((entries.completed_ns[rows], order.place_of[rows], of))
    rows, of = rows[sequence], of[sequence]
    place = order.place_of[rows]
    starts = np.append(True, of[1:] != of[:-1])[: len(of)]
    # The first moment at which the reader had this place or a higher one.
    best = _earliest_from_here(entries.completed_ns[rows], starts)
    begin = order.key_start[lives.key]
    lowest = np.where(starts, begin[of], np.append(0, place[:-1] + 1)[: len(place)])
    lowest = np.minimum(lowest, place)
    reached = begin - 1
    np.maximum.at(reached, of, place)
    unread = np.flatnonzero(reached + 1 < order.key_start[lives.key + 1])
    first = np.concatenate([lowest, reached[unread] + 1])
    until = np.concatenate([entries.completed_ns[rows][best], lives.completed_ns[unread]])
    since = np.concatenate([lives.invoked_ns[of], lives.invoked_ns[unread]])
    return _Lags(
        lag=np.maximum(until - np.maximum(known[first], since), 0),
        first=first,
        known=known[first],
        poll=np.concatenate([rows[best], np.full(len(unread), NO_ENTRY)]),
        process=np.concatenate([lives.process[of], lives.process[unread]]),
    )


def _earliest_from_here(moment: Ints, starts: Flags) -> Ints:
    """Return for each row the row of the earliest moment from it to the end of its run."""
    count = len(moment)
    rank = np.empty(count, np.int64)
    rank[np.argsort(moment, kind="stable")] = np.arange(count)
    # From the end, a running minimum per run in one pass: a later run's ranks are lifted higher.
    lift = np.cumsum(starts) * count
    least = np.minimum.accumulate((rank + lift)[::-1])[::-1] - lift
    holder = np.empty(count, np.int64)
    holder[rank] = np.arange(count)
    found: Ints = holder[least]
    return found


def stopped_early(order: VersionOrder, lives: Entries) -> Iterable[str]:
    """Name the keys with most acknowledgements after the last successful poll of a reader."""
    entries, keys = order.entries, len(order.entries.keys)
    last = np.full(keys, ABSENT)
    np.maximum.at(last, lives.key, lives.value)
    members = (entries.kind == POLL) & ((entries.flags & GROUP_FLAG) != 0)
    last[entries.key[members]] = NEVER_NS
    acked = np.flatnonzero(acknowledged(entries) & (last[entries.key] != ABSENT))
    after = acked[entries.completed_ns[acked] > last[entries.key[acked]]]
    total, late = (np.bincount(entries.key[one], minlength=keys) for one in (acked, after))
    return [entries.keys[key] for key in np.flatnonzero(2 * late > total).tolist()]
