"""Anomalies of a log's end, and of the offsets below it.

`log-end-regression`: after a log has shown a record, or an end, no response may give a lower end
(Kafka: the high watermark that a client can see does not go back, KIP-207). `hole`: in a log of a
workload that leaves no offset unused, every offset below the end holds a record.
"""

import numpy as np

from quorumlog.chaos.checkers.entries import FINAL_END, INFO, OK, Codes, Ints
from quorumlog.chaos.checkers.final_reads import FinalReads
from quorumlog.chaos.checkers.verdict import CheckResult
from quorumlog.chaos.checkers.version_order import ABSENT, VersionOrder, acknowledged
from quorumlog.chaos.checkers.witnesses import Told, first_entry, invalid


def end_anomalies(order: VersionOrder, finals: FinalReads, *, dense: bool) -> list[CheckResult]:
    """Return the anomalies of the ends. `dense`: every offset below an end holds a record."""
    results = [_regressed(order, finals)]
    if dense:
        results.append(_holes(order, finals))
    return [result for result in results if result.count]


def _regressed(order: VersionOrder, finals: FinalReads) -> CheckResult:
    """Find end offsets in responses that are below an earlier record or end."""
    entries = order.entries
    is_end = (entries.kind == FINAL_END) & (entries.offset >= 0) & (entries.outcome != INFO)
    asked = np.flatnonzero(is_end)
    told = np.concatenate([asked, _first_seen(order)]) if len(asked) else asked
    reach = entries.offset + ~is_end  # a record at an offset: the log ends after it
    highest = _highest_before(
        key=entries.key,
        moment=entries.completion,
        reach=reach,
        told=told,
        asked=asked,
        op=entries.op,
    )
    low = highest != ABSENT
    low[low] = reach[highest[low]] > entries.offset[asked[low]]
    found, proof = asked[low], highest[low]

    def tell(n: int) -> Told:
        end, known = int(entries.offset[found[n]]), int(reach[proof[n]])
        note = f"the log ends at {end}, but had reached {known} before"
        return note, [("too low", int(found[n])), ("known before", int(proof[n]))]

    result = invalid(entries, "log-end-regression", found, tell)
    value = order.value_of[proof]
    gone = (value != ABSENT) & (np.append(finals.missing_from, ABSENT)[value] != ABSENT)
    result.explained = int(np.count_nonzero(gone))
    return result


def _first_seen(order: VersionOrder) -> Ints:
    """Return, for each place with an acknowledgement or an ok poll, the first such entry."""
    entries = order.entries
    seen = order.place_of != ABSENT
    seen &= acknowledged(entries) | (order.is_poll & (entries.outcome == OK))
    rows = np.flatnonzero(seen)
    rows = rows[np.argsort(-entries.completion[rows], kind="stable")]  # the earliest stays
    first = np.full(len(order.place_key), ABSENT)
    first[order.place_of[rows]] = rows
    found: Ints = first[first != ABSENT]
    return found


def _highest_before(
    *, key: Codes, moment: Ints, reach: Ints, told: Ints, asked: Ints, op: Ints
) -> Ints:
    """Return for each of `asked` the entry of `told` with the highest reach before it, or ABSENT.

    "Before": of the same key, and its moment (of completion) is before the op (the invocation).
    """
    told = told[np.lexsort((moment[told], key[told]))]
    rank = np.empty(len(told), np.int64)
    rank[np.argsort(reach[told], kind="stable")] = np.arange(len(told))
    lift = key[told].astype(np.int64) * len(told)  # keys follow each other
    best = np.maximum.accumulate(rank + lift) - lift
    holder = np.empty(len(told), np.int64)
    holder[rank] = told
    span = int(max(moment[told].max(initial=0), op[asked].max(initial=0))) + 2
    wide = key.astype(np.int64) * span
    at = np.searchsorted(wide[told] + moment[told], wide[asked] + op[asked]) - 1
    found = np.full(len(asked), ABSENT)
    inside = at >= 0
    inside[inside] = key[told[at[inside]]] == key[asked[inside]]
    found[inside] = holder[best[at[inside]]]
    return found


def _holes(order: VersionOrder, finals: FinalReads) -> CheckResult:
    """Find runs of offsets below a final reader's end at which no operation saw a record."""
    entries = order.entries
    end = np.full(len(entries.keys), ABSENT)
    np.maximum.at(end, finals.key, finals.end_offset)
    # The offset after each place, and the offset of the next place, or the end of the log.
    after = order.place_offset + 1
    last = np.append(order.place_key[1:] != order.place_key[:-1], True)[: len(after)]
    following = np.where(last, end[order.place_key], np.append(order.place_offset[1:], 0))
    below = np.minimum(following, end[order.place_key])
    gaps = [
        (int(order.place_key[place]), int(after[place]), int(below[place]))
        for place in np.flatnonzero(below > after).tolist()
    ]
    starts = order.key_start[:-1]
    first = np.append(order.place_offset, 0)[starts]
    has_places = order.key_start[1:] > starts
    first = np.minimum(np.where(has_places, first, end), end)
    gaps += [(key, 0, int(first[key])) for key in np.flatnonzero(first > 0).tolist()]
    gaps.sort()
    ends = [
        first_entry((entries.kind == FINAL_END) & (entries.key == key) & (entries.outcome == OK))
        for key, *_ in gaps
    ]

    def tell(n: int) -> Told:
        _, start, stop = gaps[n]
        note = (
            f"no record at offset {start}"
            if stop == start + 1
            else (f"no record at offsets {start} to {stop - 1}")
        )
        return f"{note}, below the end of the log", [("read to the end", ends[n])]

    return invalid(entries, "hole", np.array(ends, np.int64), tell)
