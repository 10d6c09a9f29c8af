"""Joins the evidence of a key's ranges: the key is clean, or must be checked as a whole.

A key is clean if `check` finds neither an anomaly, not even an allowed one, nor a gap in it. Then
its result consists of figures alone, equal to those of `check`. In doubt the result is None.
docs/decisions/0055-hot-keys.md
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from quorumlog.chaos.checkers.checker import Doubt, Facts
from quorumlog.chaos.checkers.entries import Flags, Ints
from quorumlog.chaos.checkers.key_ranges import (
    Blocks,
    Evidence,
    Sends,
    Shared,
    Stretches,
    operation_of,
    unpacked,
)
from quorumlog.chaos.checkers.order_anomalies import INTERLEAVED_SENDS
from quorumlog.chaos.checkers.reader_lag import LATE_NS
from quorumlog.chaos.checkers.verdict import Partial
from quorumlog.chaos.checkers.version_order import ABSENT
from quorumlog.chaos.history.model import NEVER_NS

_Columns = TypeVar("_Columns", Stretches, Sends, Blocks)


def stitch(evidence: Sequence[Evidence | Doubt], facts: Facts) -> Partial | None:
    """Join the evidence of all ranges of a key, in the order of their offsets.

    Returns the result of `check` for the key if it is proved clean, else None.
    """
    shown = [one for one in evidence if isinstance(one, Evidence)]
    ranges = [one for one in shown if one.places]
    if len(shown) < len(evidence) or not ranges:
        return None
    shared = ranges[0].shared
    starts = np.cumsum([0, *(one.places for one in ranges)])
    stretches, of_stretch = _joined([one.stretches for one in ranges])
    sends, of_send = _joined([one.sends for one in ranges])
    unknown = _joined([one.unknown for one in ranges])
    clean = (
        _values_differ(ranges)
        and _is_linearizable(ranges)
        and _operations_ascend(*unknown)
        and _polls_follow(stretches, starts, of_stretch)
        and _sends_ascend(sends, of_send)
        and _is_read_to_the_end(stretches, starts, of_stretch, shared)
        and not (facts.dense and _has_holes(ranges, shared))
        and not _stopped_early(ranges, shared)
    )
    worst = _worst_lag(ranges, shared)
    if not clean or worst > LATE_NS:
        return None
    counts = {"keys": 1, **shared.counts}
    for one in ranges:
        for name, count in one.counts.items():
            counts[name] = counts.get(name, 0) + count
    for blocks in (unknown, _joined([one.answered for one in ranges])):
        counts[INTERLEAVED_SENDS] += _interleaved_at_borders(*blocks, starts)
    return Partial(counts=counts, peaks={"worst_lag_ns": worst})


def _joined(parts: Sequence[_Columns]) -> tuple[_Columns, Ints]:
    """Join the rows of all ranges; return them with the range of each row."""
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return type(parts[0])(*columns), np.repeat(
        np.arange(len(parts)), [len(one[0]) for one in parts]
    )


def _values_differ(ranges: Sequence[Evidence]) -> bool:
    """Return whether no value lies in two ranges."""
    values = np.concatenate([unpacked(one) for one in ranges])
    values.sort(kind="stable")  # they are sorted runs
    return not (values[1:] == values[:-1]).any()


def _is_linearizable(ranges: Sequence[Evidence]) -> bool:
    """Return whether each record was first seen after every record of a lower range was sent."""
    lower = np.maximum.accumulate([one.lower_max for one in ranges])
    return bool((lower[:-1] <= [one.upper_min for one in ranges[1:]]).all())


def _operations_ascend(unknown: Blocks, of: Ints) -> bool:
    """Return whether the messages of a send of unknown outcome ascend from range to range."""
    before, after = _neighbours(unknown, of)
    return bool((unknown.last[before] < unknown.first[after]).all())


def _neighbours(blocks: Blocks, of: Ints) -> tuple[Ints, Ints]:
    """Return consecutive blocks of a name in different ranges, as (earlier, later)."""
    rows = np.lexsort((of, blocks.name))
    same = blocks.name[rows[:-1]] == blocks.name[rows[1:]]
    return rows[:-1][same], rows[1:][same]


def _polls_follow(stretches: Stretches, starts: Ints, of: Ints) -> bool:
    """Return whether each stretch goes on at the first place of the next range, with a later poll.

    A reader from the beginning must begin at the first place of the first range.
    """
    order = np.lexsort((of, stretches.final, stretches.segment, stretches.process))
    before, after = order[:-1], order[1:]
    same = np.ones(len(before), np.bool_)
    for column in (stretches.process, stretches.segment, stretches.final):
        same &= column[before] == column[after]
    follows = (of[after] == of[before] + 1) & (stretches.first_place[after] == 0)
    follows &= stretches.last_place[before] == (starts[of + 1] - starts[of] - 1)[before]
    follows &= stretches.last_moment[before] < stretches.first_moment[after]
    begins = order[np.append(True, ~same)[: len(order)]]
    begins = begins[_from_start(stretches)[begins]]
    late = (of[begins] > 0) | (stretches.first_place[begins] > 0)
    return bool((follows | ~same).all()) and not late.any()


def _from_start(stretches: Stretches) -> Flags:
    found: Flags = (stretches.segment == 0) & (stretches.alone != 0)
    return found


def _sends_ascend(sends: Sends, of: Ints) -> bool:
    """Return whether no process sent to a lower range after an acknowledgement in a higher one."""
    order = np.lexsort((of, sends.process))
    process = sends.process[order]
    # A running maximum per process, over the lower ranges.
    latest = ABSENT
    for place, row in enumerate(order.tolist()):
        if place and process[place] != process[place - 1]:
            latest = ABSENT
        if latest >= sends.first_settled[row]:
            return False
        latest = max(latest, int(sends.last[row]))
    return True


def _interleaved_at_borders(blocks: Blocks, of: Ints, starts: Ints) -> int:
    """Count the sends whose next message is in a higher range, with records of others between."""
    before, after = _neighbours(blocks, of)
    same = operation_of(blocks.last[before]) == operation_of(blocks.first[after])
    step = starts[of[after]] + blocks.first_place[after]
    step -= starts[of[before]] + blocks.last_place[before]
    return int(np.count_nonzero(same & (step > 1)))


def _is_read_to_the_end(stretches: Stretches, starts: Ints, of: Ints, shared: Shared) -> bool:
    """Return whether a final reader has the last record, and none claims an end beyond its own."""
    final = (stretches.final != 0) & _from_start(stretches)
    if not (starts[of[final]] + stretches.last_place[final] == starts[-1] - 1).any():
        return False
    last: dict[int, int] = {}
    for process, offset in zip(
        stretches.process[final].tolist(), stretches.last_offset[final].tolist(), strict=True
    ):
        last[process] = max(last.get(process, ABSENT), offset)
    return all(
        end <= last.get(process, ABSENT) + 1
        for process, end in zip(*(column.tolist() for column in shared.ends), strict=True)
    )


def _has_holes(ranges: Sequence[Evidence], shared: Shared) -> bool:
    """Return whether offsets are missing before, between or after the ranges."""
    first = np.array([one.first_offset for one in ranges] + [int(shared.ends[1].max(initial=0))])
    after = np.array([0] + [one.last_offset + 1 for one in ranges])
    return bool((first > after).any())


def _stopped_early(ranges: Sequence[Evidence], shared: Shared) -> bool:
    """Return whether most records were acknowledged after the last successful poll of a reader."""
    if not len(shared.lives.process) or any(one.has_group for one in ranges):
        return False
    late = sum(one.acked_late for one in ranges)
    acked = sum(one.counts["acknowledged"] for one in ranges)
    return 2 * late > acked


def _worst_lag(ranges: Sequence[Evidence], shared: Shared) -> int:
    """Return the worst lag of any reader in ns. Polls follow each other: see `_polls_follow`."""
    lives = {
        process: (since, until)
        for process, since, until in zip(*(one.tolist() for one in shared.lives), strict=True)
    }
    worst, above = 0, NEVER_NS
    # Readers not yet found in a higher range: they stopped here, or in a lower one.
    waiting = dict(lives)
    for place in reversed(range(len(ranges))):
        one = ranges[place]
        known, lags = one.worst_lags
        settled = int(np.searchsorted(known, above, side="right"))
        worst = max(worst, int(lags[settled - 1]) if settled else 0)
        for process, until, last_known, next_known in zip(
            *(column.tolist() for column in one.lags), strict=True
        ):
            since, end = lives[process]
            if last_known > above:
                worst = max(worst, until - max(above, since))
            if waiting.pop(process, None) is not None:
                known_from = min(next_known, above)
                worst = max(worst, end - max(known_from, since))
        above = min(above, one.upper_min)
    for since, end in waiting.values():  # readers without a record
        worst = max(worst, end - max(above, since))
    return worst
