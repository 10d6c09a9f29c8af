"""The lag of each reader over time, and the number of records not yet read."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from quorumlog.chaos.checkers.entries import FINAL_POLL, OK, POLL, SEND, Entries, Flags, Ints
from quorumlog.chaos.report.series import Floats, RunSeries

_S: Final = 1e9
_NEVER_S: Final = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a plot: (seconds, value) for each bin."""

    label: str
    points: list[tuple[float, float]]


def lag_lines(series: RunSeries, *, bins: int, readers_max: int) -> list[Line]:
    """Return the lag of each ordinary reader, in seconds; the worst readers come first.

    The lag at a moment is the age of the oldest acknowledged record that the reader had not read by
    then. The lag of a reader that stops reading grows until the load ends.
    """
    polled = series.entries.take(_places(series.entries, POLL))
    ids, acknowledged_s = _acknowledged(series.entries)
    until_s = _load_ends_s(series)
    lines = []
    for process in np.unique(series.process[series.is_f("poll")]).tolist():
        read_s = _first_seen_s(polled.take(np.flatnonzero(polled.process == process)), ids)
        ages = _oldest_unread_s(acknowledged_s, read_s, series.duration_s, until_s, bins)
        lines.append(Line(label=f"reader {process}", points=ages))
    lines.sort(key=lambda line: max((age for _, age in line.points), default=0.0), reverse=True)
    return lines[:readers_max]


def unseen_lines(series: RunSeries, *, bins: int) -> list[Line]:
    """Return the number of unread acknowledged records: by ordinary polls, and by any polls.

    A line that stays above 0 to the end of the run counts records that were never read.
    """
    ids, acknowledged_s = _acknowledged(series.entries)
    lines = []
    for label, kinds in (("by ordinary readers", (POLL,)), ("by any", (POLL, FINAL_POLL))):
        seen_s = _first_seen_s(series.entries.take(_places(series.entries, *kinds)), ids)
        grown = _counted_by(acknowledged_s, series.duration_s, bins)
        seen = _counted_by(np.maximum(seen_s, acknowledged_s), series.duration_s, bins)
        moments = _moments(series.duration_s, bins).tolist()
        lines.append(
            Line(label=label, points=list(zip(moments, (grown - seen).tolist(), strict=True)))
        )
    return lines


def _places(entries: Entries, *kinds: int) -> Ints:
    """Return the indexes of the records in ok polls of these kinds."""
    chosen: Flags = np.isin(entries.kind, kinds) & (entries.outcome == OK)
    return np.flatnonzero(chosen)


def _identity(entries: Entries) -> Ints:
    """Return one number per (key, value): the same in all entries of the run."""
    return (entries.key.astype(np.int64) << 48) ^ entries.value


def _acknowledged(entries: Entries) -> tuple[Ints, Floats]:
    """Return the acknowledged records, sorted by identity, and when each was acknowledged."""
    sent = (entries.kind == SEND) & (entries.offset >= 0)
    mine = entries.take(np.flatnonzero(sent))
    ids, first = np.unique(_identity(mine), return_index=True)
    return ids, mine.completed_ns[first] / _S


def _first_seen_s(polled: Entries, ids: Ints) -> Floats:
    """Return for each of `ids`, which are sorted, when it was first polled; inf: never."""
    seen_s = np.full(len(ids), _NEVER_S)
    if not len(ids):
        return seen_s
    found = _identity(polled)
    place = np.minimum(np.searchsorted(ids, found), len(ids) - 1)
    known = ids[place] == found
    np.minimum.at(seen_s, place[known], polled.completed_ns[known] / _S)
    return seen_s


def _load_ends_s(series: RunSeries) -> float:
    """Return when the last ordinary operation ended: the final reads come after it."""
    ordinary = series.is_f("send", "poll")
    return float(series.end_s[ordinary].max(initial=0.0))


def _moments(duration_s: float, bins: int) -> Floats:
    moments: Floats = (np.arange(bins, dtype=np.float64) + 1.0) * (duration_s / bins)
    return moments


def _oldest_unread_s(
    acknowledged_s: Floats, read_s: Floats, duration_s: float, until_s: float, bins: int
) -> list[tuple[float, float]]:
    """Return (moment, age of the oldest unread record at it), for moments up to `until_s`."""
    moments = _moments(duration_s, bins)
    oldest_s = np.full(bins, _NEVER_S)
    first = np.searchsorted(moments, acknowledged_s)  # the first moment at which it exists
    last = np.searchsorted(moments, read_s)  # the first at which it is read
    waiting = np.flatnonzero(last > first)
    # A record that waits over many moments is rare: most are read between two of them.
    for place in waiting[np.argsort(-acknowledged_s[waiting], kind="stable")].tolist():
        oldest_s[first[place] : last[place]] = acknowledged_s[place]
    ages = np.where(np.isfinite(oldest_s), moments - oldest_s, 0.0)
    shown = moments <= until_s
    return list(zip(moments[shown].tolist(), ages[shown].tolist(), strict=True))


def _counted_by(times_s: Floats, duration_s: float, bins: int) -> Ints:
    """Return the number of times before each moment."""
    return np.searchsorted(np.sort(times_s), _moments(duration_s, bins), side="right")
