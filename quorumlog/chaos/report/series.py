"""The data of the plots: operations as columns, in seconds, and aggregates over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.entries import FINAL_POLL, OK, POLL, SEND, Codes, Entries, Flags, Ints
from quorumlog.chaos.checkers.explode import IN_TXN, OPERATIONS, explode
from quorumlog.chaos.checkers.fault_bands import Band, fault_bands
from quorumlog.chaos.checkers.rows import Rows, rows_of
from quorumlog.chaos.checkers.transactions import TXN
from quorumlog.chaos.history.model import NEVER_NS

Floats = npt.NDArray[np.float64]
QUANTILES: Final = (0.5, 0.95, 0.99)
_S: Final = 1e9


@dataclass(slots=True, kw_only=True)
class RunSeries:
    """One row per operation, in seconds since the start; an open operation ends with the run."""

    duration_s: float
    bands: list[Band]
    process: Ints
    fs: tuple[str, ...]
    f: Codes
    outcome: Codes
    start_s: Floats
    end_s: Floats
    records: Ints
    entries: Entries

    def is_f(self, *names: str) -> Flags:
        """Return which operations have one of these `f`."""
        found: Flags = np.isin(self.f, [self.fs.index(name) for name in names if name in self.fs])
        return found

    def keys_with_offsets(self) -> frozenset[str]:
        """Return the partitions with at least one offset."""
        codes = np.unique(self.entries.key[self.entries.offset >= 0]).tolist()
        return frozenset(self.entries.keys[code] for code in codes)


def run_series(table: pa.Table) -> RunSeries:
    """Return the columns of a history's table."""
    rows = rows_of(table)
    ended = rows.completed >= 0
    begun = int(table.column("invoked_ns").to_numpy().max(initial=0))  # the nemesis's, too
    last_ns = int(rows.completed_ns[ended].max(initial=begun))
    return RunSeries(
        duration_s=max(last_ns / _S, 1e-3),
        bands=fault_bands(table),
        process=rows.process,
        fs=rows.fs,
        f=rows.f,
        outcome=rows.outcome,
        start_s=rows.invoked_ns / _S,
        end_s=np.where(ended, rows.completed_ns, last_ns) / _S,
        records=np.where(ended, rows.lengths(), 0),
        entries=explode(table.filter(pc.field("f").isin(sorted(_of_log(rows))))),
    )


def _of_log(rows: Rows) -> frozenset[str]:
    """Return the operations of a log: transactions on objects are not part of one."""
    of_txn = np.repeat(rows.is_f(TXN), rows.lengths())
    micros = {rows.micro_fs[code] for code in np.unique(rows.micro_f[of_txn])}
    return OPERATIONS if micros <= {*IN_TXN} else OPERATIONS - {TXN}


def quantiles_over_time(
    time_s: Floats, values: Floats, duration_s: float, bins: int
) -> list[tuple[float, tuple[float, ...]]]:
    """Return (middle of the bin, QUANTILES of the values in it) for each bin that has any."""
    place = np.minimum((time_s / duration_s * bins).astype(np.int64), bins - 1)
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(bins + 1))
    found = []
    for n in range(bins):
        inside = values[order[edges[n] : edges[n + 1]]]
        if len(inside):
            cuts = tuple(float(cut) for cut in np.quantile(inside, QUANTILES))
            found.append(((n + 0.5) * duration_s / bins, cuts))
    return found


def rate_over_time(
    time_s: Floats, weights: Ints | Flags, duration_s: float, bins: int
) -> list[tuple[float, float]]:
    """Return (middle of the bin, weight per second) for each bin."""
    place = np.minimum((time_s / duration_s * bins).astype(np.int64), bins - 1)
    sums = np.bincount(place, weights=weights, minlength=bins)
    width = duration_s / bins
    return [((n + 0.5) * width, float(total) / width) for n, total in enumerate(sums)]


@dataclass(slots=True, kw_only=True)
class KeyPoints:
    """Offsets of one key over time: kinds, seconds, offsets, and values for a tooltip."""

    key: str
    kinds: list[str]  # "sent", "polled", "finally polled"
    seconds: Floats
    offsets: Ints
    values: Ints
    total: int  # points before sampling


def key_points(series: RunSeries, key: str, most: int, keep: Sequence[int]) -> KeyPoints:
    """Return at most about `most` points of `key`, among them all at the offsets `keep`."""
    entries = series.entries
    code = entries.keys.index(key) if key in entries.keys else -1
    polled = (entries.kind == POLL) | (entries.kind == FINAL_POLL)
    shown = (entries.key == code) & (polled | (entries.kind == SEND)) & (entries.offset >= 0)
    shown &= (entries.outcome == OK) | polled
    rows = np.flatnonzero(shown)
    total = len(rows)
    if total > most:
        wanted = np.isin(entries.offset[rows], keep)
        for kind in (SEND, POLL, FINAL_POLL):  # separately: kinds may alternate as the samples do
            mine = np.flatnonzero(entries.kind[rows] == kind)
            wanted[mine[:: -(-total // most)]] = True
        rows = rows[wanted][: 2 * most]
    names = {SEND: "sent", POLL: "polled", FINAL_POLL: "finally polled"}
    done_ns = entries.completed_ns[rows]
    done_ns = np.where(done_ns >= NEVER_NS, entries.invoked_ns[rows], done_ns)
    return KeyPoints(
        key=key,
        kinds=[names[kind] for kind in entries.kind[rows].tolist()],
        seconds=done_ns / _S,
        offsets=entries.offset[rows],
        values=entries.value[rows],
        total=total,
    )
