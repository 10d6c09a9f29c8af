"""How much of the faults of a run was tested: the gaps without an acknowledgement. Pure.

A cluster that acknowledges nothing cannot break a promise, and its history is valid. A run of ours
writes a row at the begin of its faults and one after them (`faults.rows`), so that its silence is
computed from the history alone, by any engine. A history without these rows has no fault phase, and
its verdict does not depend on silence.

A fault that takes most nodes by definition (`kill_all`, or a cut between all) must silence the
cluster. That time counts as silent, but the verdict depends on the rest of the phase alone: if the
cluster was silent for most of it, because it was slow or because faults overlapped, the verdict is
unknown.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.checkers.entries import Ints
from quorumlog.chaos.checkers.fault_bands import NODE_ENDED, Band, fault_bands, nemesis_of
from quorumlog.chaos.checkers.verdict import FaultPhase
from quorumlog.chaos.faults.fault import TAKING
from quorumlog.chaos.faults.links import CLIENTS
from quorumlog.chaos.faults.registry import known_step_fault
from quorumlog.chaos.faults.rows import PHASE, PHASE_OVER, PhaseTerms, read_phase_details
from quorumlog.chaos.history.model import NEMESIS

_BIN_NS: Final = 100_000_000
_S: Final = 1e9
_TAKES: Final = TAKING | {"gave-up", NODE_ENDED}

Acks = Mapping[str, Ints]
"""Operation (`f`) -> times of its acknowledgements in ns, thinned by `thinned`."""
Spans = Sequence[tuple[int, int]]
"""Intervals in ns, in order, that do not overlap."""


def _takes_nodes(f: str) -> bool:
    """Return whether nodes are killed, paused or cut off by the fault of a row."""
    if f in _TAKES:
        return True
    kind = known_step_fault(f)
    return kind is not None and bool(kind.imposes) and kind.takes_nodes()


def acks_of(part: pa.Table) -> Acks:
    """Return the acknowledgements in a part of a history."""
    is_ok = pc.and_(
        pc.equal(part.column("type"), "ok"), pc.not_equal(part.column("process"), NEMESIS)
    )
    fs, completed_ns = (part.column(name).filter(is_ok) for name in ("f", "completed_ns"))
    return {
        f: thinned(completed_ns.filter(pc.equal(fs, f)).to_numpy())
        for f in pc.unique(fs).to_pylist()
    }


def joined(parts: Iterable[Acks]) -> Acks:
    """Join the acknowledgements of parts: the gaps are those of the whole history."""
    found: dict[str, list[Ints]] = {}
    for acks in parts:
        for f, times_ns in acks.items():
            found.setdefault(f, []).append(times_ns)
    return {f: thinned(np.concatenate(times)) for f, times in found.items()}


def thinned(times_ns: Ints) -> Ints:
    """Return the first and the last time of each tenth of a second: all longer gaps remain."""
    ordered = np.sort(times_ns)
    if not len(ordered):
        return ordered
    starts = np.flatnonzero(np.diff(ordered // _BIN_NS, prepend=-1))
    ends = np.append(starts[1:], len(ordered)) - 1
    kept: Ints = ordered[np.union1d(starts, ends)]
    return kept


def fault_phase_of(table: pa.Table) -> FaultPhase | None:
    """Return the fault phase of a whole history; None: it has none."""
    nemesis = nemesis_of(table)
    if not nemesis.num_rows:
        return None
    return fault_phase(nemesis, fault_bands(nemesis), acks_of(table))


def fault_phase(nemesis: pa.Table, bands: Sequence[Band], acks: Acks) -> FaultPhase | None:
    """Return the fault phase, from the nemesis's rows; None: no such phase has ended."""
    is_phase = pc.is_in(nemesis.column("f"), pa.array([PHASE, PHASE_OVER]))
    rows = sorted(nemesis.filter(is_phase).to_pylist(), key=lambda row: row["index"])
    if [row["f"] for row in rows[:2]] != [PHASE, PHASE_OVER]:
        return None
    terms = read_phase_details(rows[0]["details"])
    if terms is None:
        return None
    times_ns = np.sort(
        np.concatenate([np.zeros(0, np.int64), *(acks.get(f, []) for f in terms.acks)])
    )
    return _measured(rows[0]["invoked_ns"], rows[1]["invoked_ns"], terms, bands, times_ns)


def _measured(
    begin_ns: int, end_ns: int, terms: PhaseTerms, bands: Sequence[Band], times_ns: Ints
) -> FaultPhase:
    inside = times_ns[(times_ns > begin_ns) & (times_ns < end_ns)].astype(np.int64)
    points = np.concatenate([[begin_ns], inside, [end_ns]])
    lengths = np.diff(points)
    silent = np.flatnonzero(lengths > terms.gap_ms * 1_000_000)
    gaps = [(int(points[place]), int(points[place + 1])) for place in silent]
    few, meant = _touched_spans(begin_ns, end_ns, terms, bands)
    seconds = (end_ns - begin_ns) / _S
    return FaultPhase(
        seconds=seconds,
        silent_s=_length_s(gaps),
        longest_s=float(lengths.max()) / _S,
        majority_s=seconds - _length_s(few),
        judged_s=seconds - _length_s(meant),
        untested_s=_length_s(gaps) - _shared_s(gaps, meant),
        gap_s=terms.gap_ms / 1000,
        gaps_s=tuple((start_ns / _S, stop_ns / _S) for start_ns, stop_ns in gaps),
    )


def _touched_spans(
    begin_ns: int, end_ns: int, terms: PhaseTerms, bands: Sequence[Band]
) -> tuple[Spans, Spans]:
    """Return when no majority is untouched, and when a single action leaves none."""
    everybody = frozenset((*terms.voters, *terms.brokers))
    held = [
        (
            max(band.start_ns, begin_ns),
            min(band.end_ns, end_ns),
            band.action,
            _nodes(band, everybody),
        )
        for band in bands
        if _takes_nodes(band.fault)
    ]
    times = sorted({begin_ns, end_ns, *(at for start, stop, *_ in held for at in (start, stop))})
    few: list[tuple[int, int]] = []
    meant: list[tuple[int, int]] = []
    for start_ns, stop_ns in pairwise(at for at in times if begin_ns <= at <= end_ns):
        by_action: dict[int, frozenset[int]] = {}
        for start, stop, action, nodes in held:
            if start <= start_ns and stop_ns <= stop:
                by_action[action] = by_action.get(action, frozenset()) | nodes
        touched = frozenset[int]().union(*by_action.values())
        if not _is_majority_left(terms, touched):
            few.append((start_ns, stop_ns))
        # Action 0 is no action of the schedule: a node that has ended by itself.
        if any(n and not _is_majority_left(terms, nodes) for n, nodes in by_action.items()):
            meant.append((start_ns, stop_ns))
    return few, meant


def _nodes(band: Band, everybody: frozenset[int]) -> frozenset[int]:
    """Return the nodes of a band; clients that are cut off reach no node."""
    names = band.node.split(",")
    return (
        everybody if CLIENTS in names else frozenset(int(one) for one in names if one.isdecimal())
    )


def _is_majority_left(terms: PhaseTerms, touched: frozenset[int]) -> bool:
    return all(
        2 * len({*members} - touched) > len(members)
        for members in (terms.voters, terms.brokers)
        if members
    )


def _length_s(spans: Spans) -> float:
    return sum(stop - start for start, stop in spans) / _S


def _shared_s(ones: Spans, others: Spans) -> float:
    """Return the common length of two sets of spans."""
    shared = (
        min(stop, other_stop) - max(start, other_start)
        for start, stop in ones
        for other_start, other_stop in others
    )
    return sum(length for length in shared if length > 0) / _S
