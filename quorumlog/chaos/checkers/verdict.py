"""The result of a check: a verdict of three values, anomalies with witnesses, and gaps.

The worst verdict wins: False, then "unknown", then True. A history is checked in parts (by key),
and `merge` joins the partial results: it adds the counts, and keeps the first witnesses by
operation index. So the same history gives the same verdict for every split.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, Literal

WITNESSES_MAX: Final = 32  # kept per anomaly: Jepsen's figure

SILENT_PERCENT_MAX: Final = 50
"""With more silence among the faults, the verdict is unknown."""
SHORT_S: Final = 12.0
"""A shorter phase of faults is not judged: a single pause or full disk may take most of it."""
_PERCENT: Final = 100

Valid = bool | Literal["unknown"]


class Severity(IntEnum):
    """The effect of an anomaly on the verdict."""

    ALLOWED = 0  # legal, but reported
    UNKNOWN = 1
    INVALID = 2


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A kind of anomaly: its name, its meaning in one sentence, and its severity."""

    name: str
    meaning: str
    severity: Severity = Severity.INVALID


@dataclass(slots=True, kw_only=True)
class CheckResult:
    """One anomaly: its count, its severity, the first witnesses.

    `explained` counts the findings that touch a value or an offset of an anomaly of an earlier
    rank: if all of them do, this anomaly is most likely only a consequence.
    """

    name: str
    severity: Severity
    count: int
    explained: int = 0
    witnesses: list[dict[str, Any]] = field(default_factory=list)

    @property
    def explained_part(self) -> str:
        """The explained share, in words."""
        return "all" if self.explained == self.count else f"{self.explained:,} of them"


@dataclass(slots=True)
class Gap:
    """A reason why the verdict is not valid: its count, and the first examples."""

    count: int
    examples: list[str]


@dataclass(slots=True)
class Partial:
    """The findings in a part of the history that holds every entry of its keys.

    `across`: by kind, evidence that proves an anomaly only with that of other keys; `conclude`
    joins it.
    """

    results: list[CheckResult] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    gaps: dict[str, Gap] = field(default_factory=dict)
    across: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPhase:
    """The silence of the faults of a run, in seconds.

    seconds: the whole phase. silent_s: in gaps without an acknowledgement that are longer than
    `gap_s`; longest_s: the longest time without one. majority_s: while a majority of the voters and
    of the brokers was not killed, paused or cut off. judged_s: without faults that take most nodes
    by definition; untested_s: the silent part of it. gaps_s: the silent gaps, from and until.
    """

    seconds: float
    silent_s: float
    longest_s: float
    majority_s: float
    judged_s: float
    untested_s: float
    gap_s: float
    gaps_s: tuple[tuple[float, float], ...] = ()

    @property
    def silent_percent(self) -> int:
        """The silent share of the phase."""
        return self._percent(self.silent_s)

    @property
    def majority_percent(self) -> int:
        """The share of the phase in which a majority was untouched."""
        return self._percent(self.majority_s)

    @property
    def meant_percent(self) -> int:
        """The share of the phase in which a single fault took most nodes by definition."""
        return self._percent(self.seconds - self.judged_s)

    def _percent(self, part_s: float) -> int:
        return round(_PERCENT * part_s / self.seconds) if self.seconds else 0

    @property
    def text(self) -> str:
        """The figures in one line, for a person."""
        meant = f"; {self.meant_percent} % passed in faults that take most nodes by definition"
        return (
            f"faults of {self.seconds:.1f} s: no acknowledgement in {self.silent_percent} % of it "
            f"(gaps of more than {self.gap_s:g} s, the longest {self.longest_s:.1f} s); "
            f"a majority of the nodes was untouched for {self.majority_percent} %"
            f"{meant if self.meant_percent else ''}"
        )

    @property
    def doubt(self) -> str:
        """Why the phase proves too little, or ""."""
        share = _PERCENT * self.untested_s / self.judged_s if self.judged_s else 0.0
        if self.judged_s < SHORT_S or share <= SILENT_PERCENT_MAX:
            return ""
        return (
            f"the cluster acknowledged nothing for {share:.0f} % of the faults, without those that "
            f"hit most nodes by definition, and at most {SILENT_PERCENT_MAX} % may be silent"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the object `fault_phase` of a verdict and of meta.json."""
        return {
            "seconds": round(self.seconds, 1),
            "silent_percent": self.silent_percent,
            "longest_silence_s": round(self.longest_s, 1),
            "untouched_majority_percent": self.majority_percent,
            "taken_by_definition_percent": self.meant_percent,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result. `valid` is True only if every check was conclusive.

    model, text: the checker's name, and its statement about a valid history.
    fault_phase: how much of the faults was tested; None: the history has no such phase.
    meanings: by the name of an anomaly, its meaning in one sentence.
    library_doubts: operations whose result the brokers' responses contradict.
    """

    valid: Valid
    operations: int
    results: list[CheckResult]
    unknown_because: list[str]
    figures: dict[str, int]
    model: str
    text: str
    meanings: Mapping[str, str] = field(default_factory=dict)
    library_doubts: Sequence[str] = ()
    engine: str = "local"
    seconds: float = 0.0
    fault_phase: FaultPhase | None = None

    def with_fault_phase(self, phase: FaultPhase | None) -> "Verdict":
        """Return the verdict with this phase, and unknown if most of it was silent."""
        if phase is None:
            return self
        verdict = replace(self, fault_phase=phase)
        return verdict.doubted(phase.doubt) if phase.doubt else verdict

    def doubted(self, reason: str) -> "Verdict":
        """Return the verdict with one more reason to be unknown; an invalid one stays invalid."""
        reasons = [*self.unknown_because, reason]
        return replace(self, valid=worst([self.valid, "unknown"]), unknown_because=reasons)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `verify --json` prints; its keys are stable."""
        return {
            "valid": self.valid,
            "operations": self.operations,
            "engine": self.engine,
            "seconds": round(self.seconds, 3),
            "anomalies": {
                result.name: {
                    "count": result.count,
                    "severity": result.severity.name.lower(),
                    "explained": result.explained,
                    "witnesses": result.witnesses,
                }
                for result in self.results
            },
            "unknown_because": self.unknown_because,
            "figures": self.figures,
            "model": self.model,
            "library_may_be_at_fault": [*self.library_doubts],
            "fault_phase": None if self.fault_phase is None else self.fault_phase.as_json(),
        }


def worst(verdicts: Iterable[Valid]) -> Valid:
    """Return False if any is False, else "unknown" if any is or there is none, else True."""
    seen = list(verdicts)
    if any(valid is False for valid in seen):
        return False
    return True if seen and all(valid is True for valid in seen) else "unknown"


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of several checkers on one history; the first is its model's own.

    The worst verdict counts. The anomalies and the reasons of all are listed, those of the last
    checker first: it judges the log, on which the others rely. The figures are the first's.
    """
    results = {one.name: one for verdict in reversed(verdicts) for one in verdict.results}
    reasons = dict.fromkeys(why for verdict in verdicts for why in verdict.unknown_because)
    meanings: dict[str, str] = {}
    for verdict in verdicts:
        meanings |= verdict.meanings
    return replace(
        verdicts[0],
        valid=worst(verdict.valid for verdict in verdicts),
        results=[*results.values()],
        unknown_because=[*reasons],
        meanings=meanings,
    )


def first_examples(examples: Iterable[str]) -> list[str]:
    """Return the first examples. Short ones come before long ones, so 9 comes before 10."""
    return sorted(examples, key=lambda text: (len(text), text))[:WITNESSES_MAX]


def merge(partials: Sequence[Partial], ranking: Sequence[Anomaly]) -> Partial:
    """Merge parts: the result is the same for any split between keys, in any order.

    `ranking` gives the order of the anomalies, and names all of them.
    """
    merged = Partial()
    for partial in partials:
        for name, count in partial.counts.items():
            merged.counts[name] = merged.counts.get(name, 0) + count
        for name, peak in partial.peaks.items():
            merged.peaks[name] = max(merged.peaks.get(name, 0), peak)
        for reason, gap in partial.gaps.items():
            known = merged.gaps.setdefault(reason, Gap(0, []))
            known.count += gap.count
            known.examples = first_examples([*known.examples, *gap.examples])
    results = _merge_results([result for part in partials for result in part.results])
    rank = {anomaly.name: place for place, anomaly in enumerate(ranking)}
    merged.results = sorted(results, key=lambda result: rank[result.name])
    return merged


def _merge_results(results: Sequence[CheckResult]) -> list[CheckResult]:
    """Merge by name. If results of a name differ in severity, keep only those of the worst."""
    by_name: dict[str, CheckResult] = {}
    for result in results:
        known = by_name.get(result.name)
        if known is None or result.severity > known.severity:
            by_name[result.name] = replace(result, witnesses=[*result.witnesses])
        elif result.severity == known.severity:
            known.count += result.count
            known.explained += result.explained
            known.witnesses.extend(result.witnesses)
    for result in by_name.values():
        # Stable: the witnesses of one key come from one part, in order.
        result.witnesses.sort(key=_place)
        del result.witnesses[WITNESSES_MAX:]
    return list(by_name.values())


def _place(witness: dict[str, Any]) -> tuple[int, str]:
    return witness["ops"][0]["index"], witness["key"]
