"""The steps of a verdict that all checkers share: merge, name the faults, take the worst."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from quorumlog.chaos.checkers.checker import Facts
from quorumlog.chaos.checkers.fault_bands import (
    NODE_ENDED,
    Band,
    add_faults,
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

_EFFECTS: Final[Mapping[Severity, Valid]] = {
    Severity.ALLOWED: True,
    Severity.UNKNOWN: "unknown",
    Severity.INVALID: False,
}
_SHOWN: Final = 3  # examples of a gap that the verdict names


def judge(
    partials: Sequence[Partial],
    bands: Sequence[Band],
    facts: Facts,
    *,
    model: str,
    text: str,
    anomalies: Sequence[Anomaly],
    missing: Callable[[Partial], list[str]],
) -> Verdict:
    """Return the verdict; `missing` returns the evidence that the merged result lacks.

    `model`, `text` and `anomalies` are the fields of the checker.
    """
    merged = merge(partials, anomalies)
    for result in merged.results:
        add_faults(result.witnesses, bands)
    results = [*ended_nodes(bands), *merged.results]
    reasons = [*missing(merged), *_gaps(merged)]
    if facts.cut_off:
        reasons.insert(0, "the last line of the history is cut off")
    elif not facts.ended:
        reasons.insert(0, "the history has no end row: it is unfinished")
    counts = dict(sorted(merged.counts.items()))
    verdicts: list[Valid] = [True, *(_EFFECTS[result.severity] for result in results)]
    verdicts += ["unknown" for _ in reasons]
    return Verdict(
        model=model,
        text=text,
        meanings={anomaly.name: anomaly.meaning for anomaly in anomalies},
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


def _gaps(merged: Partial) -> list[str]:
    told = []
    for reason, gap in sorted(merged.gaps.items()):
        more = ", ..." if gap.count > _SHOWN else ""
        told.append(f"{reason}: {gap.count} ({', '.join(gap.examples[:_SHOWN])}{more})")
    return told
