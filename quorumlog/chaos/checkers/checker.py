"""The protocol of a checker: one model, checked in steps that any engine can run.

  explode    from operations to entries with a column `key`; input: any set of whole processes;
  check      all rules for some keys; input: all entries of those keys;
  conclude   the verdict, from the partial results of all keys.

A history may be split by process before `explode`, and by `key` before `check`. A checker with
`runs` can also explode a history that is split between any two operations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.chaos.checkers.fault_bands import (
    FINDINGS,
    REPLICAS_DIFFER_ANOMALY,
    Band,
    add_faults,
    differing_replicas,
    ended_nodes,
)
from quorumlog.chaos.checkers.verdict import (
    Anomaly,
    Partial,
    Severity,
    Valid,
    Verdict,
    merge,
    worst,
)
from quorumlog.chaos.history.schema import CUT_OFF, DENSE, ENDED, FINAL_READS, WORKLOAD

SHARED: Final = -1  # position of an entry that every range receives: see Ranges
APART: Final = -2  # position of an entry that no range receives
_EFFECTS: Final[Mapping[Severity, Valid]] = {
    Severity.ALLOWED: True,
    Severity.UNKNOWN: "unknown",
    Severity.INVALID: False,
}
_SHOWN: Final = 3  # examples of a gap that the verdict names


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about the whole history; every part of it is checked with the same facts.

    final_reads_marked: final reads are distinct from other reads; Jepsen does not distinguish them.
    cut_off: the last line of the file is incomplete.
    ended: the end row is present, or the format has none.
    dense: the workload leaves no offset unused (no transactions, no compaction).
    workload: its name in the history's header; "" without one.
    """

    final_reads_marked: bool = True
    cut_off: bool = False
    ended: bool = True
    dense: bool = False
    workload: str = ""


def facts_of(metadata: Mapping[bytes, bytes] | None) -> Facts:
    """Return the facts in the metadata of a history's table."""
    known = metadata or {}
    return Facts(
        final_reads_marked=known.get(FINAL_READS, b"marked") == b"marked",
        cut_off=CUT_OFF in known,
        ended=ENDED in known,
        dense=DENSE in known,
        workload=known.get(WORKLOAD, b"").decode(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Explodes a run of operations in which no process needs to be complete.

    context: returns the few operations of a run on which other entries depend; applied to the
        joined contexts of all runs, it returns the context of the whole history.
    explode: from a run, and the context of the whole history, to entries.
    explode_context: the entries that span runs.
    """

    context: Callable[[pa.Table], pa.Table]
    explode: Callable[[pa.Table, pa.Table], pa.Table]
    explode_context: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Doubt:
    """The reason why a range is inconclusive, so that its key must be checked as a whole."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Proves a key clean from ranges of its entries, without the whole key.

    positions: the position of each entry in its key: from 0 on, SHARED (every range receives it),
        or APART (no range receives it: it is checked with the other keys).
    examine: from a range and all shared entries to evidence, which can be pickled, or a Doubt.
    stitch: from the evidence of all ranges, in order, to the result of `check` for the key; None:
        the key must be checked as a whole.
    """

    positions: Callable[[pa.Table], npt.NDArray[np.int64]]
    examine: Callable[[pa.Table, Facts], Any]
    stitch: Callable[[Sequence[Any], Facts], Partial | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """One model: the rules that a history must satisfy.

    model: its name.
    text: the property that a valid verdict proves, in one line.
    anomalies: the anomalies that it can report. Root causes come first: one often causes others
        after it.
    operations: every `f` that it accepts; a history with any other `f` is refused.
    micros: every micro-operation of its transactions (f = "txn").
    entries: the schema of the result of `explode`. It has a column `key` of strings.
    missing: the reasons why the merged result lacks evidence for a verdict, in plain words.
    join: one more partial result, from evidence that lies across keys.
    runs: how it explodes runs; None: only whole processes.
    ranges: how it proves a large key clean in ranges; None: a key is checked as a whole.
    is_guessed: whether it judges a history that names no model, if no other model fits.
    """

    model: str
    text: str
    anomalies: tuple[Anomaly, ...]
    operations: frozenset[str]
    entries: pa.Schema
    explode: Callable[[pa.Table], pa.Table]
    check: Callable[[pa.Table, Facts], Partial]
    missing: Callable[[Partial, Facts], list[str]]
    join: Callable[[Sequence[Partial]], Partial] | None = None
    micros: frozenset[str] = frozenset()
    runs: Runs | None = None
    ranges: Ranges | None = None
    is_guessed: bool = True

    def conclude(self, partials: Sequence[Partial], bands: Sequence[Band], facts: Facts) -> Verdict:
        """Merge the partial results and return the verdict. `bands`: when each fault was active."""
        joined = [] if self.join is None else [self.join(partials)]
        merged = merge([*partials, *joined], self.anomalies)
        for result in merged.results:
            add_faults(result.witnesses, bands)
        results = [*ended_nodes(bands), *merged.results, *differing_replicas(bands)]
        reasons = [*self.missing(merged, facts), *_gaps(merged)]
        if facts.cut_off:
            reasons.insert(0, "the last line of the history is cut off")
        elif not facts.ended:
            reasons.insert(0, "the history has no end row: it is unfinished")
        counts = dict(sorted(merged.counts.items()))
        verdicts: list[Valid] = [True, *(_EFFECTS[result.severity] for result in results)]
        verdicts += ["unknown" for _ in reasons]
        return Verdict(
            model=self.model,
            text=self.text,
            meanings={one.name: one.meaning for one in (*self.anomalies, REPLICAS_DIFFER_ANOMALY)},
            valid=worst(verdicts),
            operations=counts.pop("operations", 0),
            results=results,
            unknown_because=reasons,
            figures={
                **counts,
                **merged.peaks,
                "faults": sum(band.fault not in FINDINGS for band in bands),
            },
        )


def _gaps(merged: Partial) -> list[str]:
    told = []
    for reason, gap in sorted(merged.gaps.items()):
        more = ", ..." if gap.count > _SHOWN else ""
        told.append(f"{reason}: {gap.count} ({', '.join(gap.examples[:_SHOWN])}{more})")
    return told
