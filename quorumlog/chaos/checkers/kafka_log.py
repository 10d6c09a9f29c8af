"""The check of a Kafka history, in two steps that any engine can run.

  check_keys   everything about some keys, from all entries of those keys;
  conclude     the verdict, from what was found about all keys.
Anomalies of severity INVALID make the verdict False. Missing evidence (nothing acknowledged, no
final reads, rows that do not fit the model) makes it "unknown", never True.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from quorumlog.chaos.checkers.checker import Checker
from quorumlog.chaos.checkers.entries import (
    COUNT,
    FAIL,
    FINAL_POLL,
    INFO,
    OK,
    PROBLEM,
    SEND,
    Entries,
    Flags,
)
from quorumlog.chaos.checkers.explode import explode
from quorumlog.chaos.checkers.fault_bands import (
    NODE_ENDED,
    Band,
    add_faults,
    ended_nodes,
)
from quorumlog.chaos.checkers.final_reads import final_reads
from quorumlog.chaos.checkers.linearizability import bounds_of, check_log, worst_lag
from quorumlog.chaos.checkers.log_anomalies import gaps_of, log_anomalies
from quorumlog.chaos.checkers.log_ends import end_anomalies
from quorumlog.chaos.checkers.order_anomalies import order_anomalies
from quorumlog.chaos.checkers.verdict import (
    Gap,
    Partial,
    Severity,
    Valid,
    Verdict,
    first_examples,
    merge,
    worst,
)
from quorumlog.chaos.checkers.version_order import VersionOrder, acknowledged, order_versions

_EFFECTS: Final[Mapping[Severity, Valid]] = {
    Severity.ALLOWED: True,
    Severity.UNKNOWN: "unknown",
    Severity.INVALID: False,
}
_SHOWN: Final = 3  # examples of a gap that the verdict names


def check_keys(entries: Entries, *, final_reads_marked: bool, dense: bool = False) -> Partial:
    """Check all keys of `entries`; each key's entries must all be there, in any order."""
    partial = Partial()
    _take_notes(entries, partial)
    entries = entries.take(np.flatnonzero(entries.kind < COUNT))
    entries = entries.take(np.lexsort((entries.ordinal, entries.op)))
    order = order_versions(entries)
    finals, bounds = final_reads(order), bounds_of(order)
    marked = final_reads_marked
    ordered, figures = order_anomalies(order, marked=marked)
    partial.results += [
        *log_anomalies(order, finals, marked=marked),
        *end_anomalies(order, bounds, finals, dense=dense),
        *check_log(order, bounds),
        *ordered,
    ]
    partial.counts |= figures | _figures(order)
    partial.peaks["worst_lag_ns"] = worst_lag(order, bounds)
    for reason, examples in gaps_of(order, finals, marked=marked).items():
        if examples:
            partial.gaps[reason] = _gap(examples)
    return partial


def conclude(
    partials: Sequence[Partial],
    bands: Sequence[Band],
    *,
    final_reads_marked: bool,
    cut_off: bool = False,
) -> Verdict:
    """Merge what was found, and judge. `cut_off`: the file's last line was incomplete."""
    merged = merge(partials)
    for result in merged.results:
        add_faults(result.witnesses, bands)
    results = [*ended_nodes(bands), *merged.results]
    reasons = _reasons(merged, final_reads_marked=final_reads_marked, cut_off=cut_off)
    verdicts: list[Valid] = [True, *(_EFFECTS[result.severity] for result in results)]
    verdicts += ["unknown" for _ in reasons]
    counts = dict(sorted(merged.counts.items()))
    return Verdict(
        valid=worst(verdicts),
        operations=counts.pop("operations", 0),
        results=results,
        unknown_because=reasons,
        figures={
            **counts,
            **merged.peaks,
            "faults": sum(band.fault != NODE_ENDED for band in bands),
        },
    )


def _reasons(merged: Partial, *, final_reads_marked: bool, cut_off: bool) -> list[str]:
    """Return why the verdict cannot be True, in plain words."""
    counts, reasons = merged.counts, []
    if not counts.get("operations"):
        reasons.append("the history is empty")
    elif not counts.get("acknowledged"):
        reasons.append("no send was acknowledged")
    elif not counts.get("polled"):
        reasons.append("nothing was polled")
    elif final_reads_marked and not counts.get("finally_polled"):
        reasons.append("there are no final reads")
    if cut_off:
        reasons.append("the last line of the history is cut off")
    if any(r.severity == Severity.UNKNOWN and r.explained < r.count for r in merged.results):
        reasons.append("acknowledged values were not read, and no read got past them")
    for reason, gap in sorted(merged.gaps.items()):
        more = ", ..." if gap.count > _SHOWN else ""
        reasons.append(f"{reason}: {gap.count} ({', '.join(gap.examples[:_SHOWN])}{more})")
    return reasons


def _take_notes(entries: Entries, partial: Partial) -> None:
    """Collect the counts of `explode`, and the problems that it found in the history."""
    notes = entries.take(np.flatnonzero(entries.kind >= COUNT))
    found: dict[str, list[str]] = {}
    for kind, key, value, op in zip(
        notes.kind.tolist(),
        notes.key.tolist(),
        notes.value.tolist(),
        notes.op.tolist(),
        strict=True,
    ):
        name = entries.keys[key]
        if kind == COUNT:
            partial.counts[name] = partial.counts.get(name, 0) + value
        elif kind == PROBLEM:
            gap = partial.gaps.setdefault(name, Gap(0, []))
            gap.count += value
            found.setdefault(name, []).append(f"index {op}")
    for name, examples in found.items():
        partial.gaps[name].examples = first_examples(examples)


def _gap(examples: Iterable[str]) -> Gap:
    known = list(examples)
    return Gap(len(known), first_examples(known))


def _figures(order: VersionOrder) -> dict[str, int]:
    entries = order.entries
    sent, polled = entries.kind == SEND, order.is_poll & (entries.outcome == OK)

    def count(chosen: Flags) -> int:
        return int(np.count_nonzero(chosen))

    return {
        "keys": len(np.unique(entries.key)),
        "acknowledged": count(acknowledged(entries)),
        "indeterminate": count(sent & (entries.outcome == INFO) & (entries.offset < 0)),
        "refused": count(sent & (entries.outcome == FAIL)),
        "polled": count(polled),
        "finally_polled": count((entries.kind == FINAL_POLL) & (entries.outcome == OK)),
    }


CHECKER: Final = Checker(
    model="kafka_log",
    text="every partition is one log: what was acknowledged is there, once, in order",
    explode=explode,
    check_keys=check_keys,
    conclude=conclude,
)
