"""Judges the findings of 2017, claims C1 to C9, by the results of the scenarios. Pure.

C5 to C8 are about safety: a cluster for which one is false loses, doubles or refuses records. The
others compare speeds, which depend on the machine; each ratio has its spread: from the least to the
greatest ratio of the runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from quorumlog.bench.load import Kept, LatencyResult, Mode, ProduceResult
from quorumlog.bench.scenarios import KILLS, Cell, KillCase

SAFETY: Final = ("C5", "C6", "C7", "C8")
TEXTS: Final[Mapping[str, str]] = {
    "C1": "acks=0 is faster than acks=1, and that than acks=all",
    "C2": "More replicas cost throughput with acks=all only",
    "C3": "min.insync.replicas costs no throughput",
    "C4": "More partitions help first, and hurt later",
    "C5": "With half of the brokers killed, sending continues",
    "C6": "Below min.insync.replicas sending stops, and resumes when brokers are back",
    "C7": "Every acknowledged record is in the log",
    "C8": "Retries without idempotence duplicate records, and with idempotence they do not",
    "C9": "99 of 100 latencies are below 10 ms: to the acknowledgement, and to the consumer",
}
CLAIMS_OF: Final[Mapping[int, Sequence[str]]] = {
    1: ("C1", "C2", "C3", "C7"),
    2: ("C2", "C3", "C7"),
    3: ("C1", "C2", "C7"),
    4: ("C4", "C7"),
    5: ("C5", "C6", "C7", "C8"),
    6: ("C9",),
}
NEAR: Final = 0.2
"""Medians that differ by less, or ranges that overlap, count as equal."""
P99_MS_MAX: Final = 10.0
_LEAST: Final = 1e-9  # in place of a rate of 0
_SHORT_OF_REPLICAS: Final = {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim: it holds, does not, or the runs do not show it (None): their ranges overlap.

    evidence: a line for each comparison, or for each run.
    """

    holds: bool | None
    evidence: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Rates:
    """The messages/s of the runs of a cell."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        """Return the median; 0 without runs."""
        return median(self.values) if self.values else 0.0

    def ratio(self, other: "Rates") -> float:
        """Return the ratio of the medians."""
        return self.median / other.median if other.median else 0.0

    def over(self, other: "Rates") -> str:
        """Return the ratio to another cell with its spread."""
        least = min(self.values) / (max(other.values) or _LEAST)
        most = max(self.values) / (min(other.values) or _LEAST)
        return f"{self.ratio(other):.2f} ({least:.2f} to {most:.2f})"

    def overlaps(self, other: "Rates") -> bool:
        """Return whether the ranges of the runs have a rate in common."""
        return min(self.values) <= max(other.values) and min(other.values) <= max(self.values)

    def is_near(self, other: "Rates") -> bool:
        """Return whether the two count as equal."""
        return self.overlaps(other) or abs(self.ratio(other) - 1) < NEAR

    def exceeds(self, other: "Rates") -> bool | None:
        """Return whether this is faster; None: the ranges of the runs overlap."""
        return None if self.overlaps(other) else self.median > other.median


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRun:
    """One run of a case of scenario 5.

    killed_s, started_s: when the brokers were dead, and when they were started again, from the
    begin of the load; None: not while it ran. killed: their node ids.
    """

    case: KillCase
    produced: ProduceResult
    kept: Kept
    killed_s: float
    started_s: float | None = None
    killed: Sequence[int] = ()


@dataclass(slots=True, kw_only=True)
class Results:
    """All results of a bench: rates by cell and mode, the runs of scenarios 5 and 6."""

    throughput: dict[tuple[Cell, Mode], list[ProduceResult]] = field(default_factory=dict)
    kills: list[KillRun] = field(default_factory=list)
    latency: LatencyResult | None = None

    def rates(self, cell: Cell, mode: Mode) -> Rates | None:
        """Return the messages/s of a cell; None: it was not run."""
        runs = self.throughput.get((cell, mode))
        return Rates([run.rate_per_s for run in runs]) if runs else None


def judge(results: Results, scenario: int, cells: Sequence[Cell]) -> dict[str, Judged]:
    """Return the claims of a scenario, by name, judged by its own cells."""
    rates = {
        (cell, mode): Rates([run.rate_per_s for run in runs])
        for (cell, mode), runs in results.throughput.items()
        if cell in cells
    }
    kills = sorted(results.kills, key=lambda run: run.case.name)
    judges: dict[str, Any] = {
        "C1": lambda: _all_hold(_acks_order(rates)),
        "C2": lambda: _all_hold(_replicas_cost(rates)),
        "C3": lambda: _all_hold(_min_isr_is_free(rates)),
        "C4": lambda: _all_hold(_partitions(rates)),
        "C5": lambda: _all_hold(_goes_on(kills)),
        "C6": lambda: _all_hold(_stops_and_resumes(kills)),
        "C7": lambda: _all_hold(_keeps(kills) if scenario == KILLS else _stores(results, cells)),
        "C8": lambda: _duplicates(kills),
        "C9": lambda: _all_hold(_latencies(results.latency)),
    }
    return {name: judges[name]() for name in CLAIMS_OF[scenario]}


_Found = Iterator[tuple[bool | None, str]]
_RateMap = Mapping[tuple[Cell, Mode], Rates]


def _all_hold(found: _Found) -> Judged:
    """Judge a claim by its parts: one that does not hold decides, then one that is not shown."""
    pairs = list(found)
    if not pairs:
        return Judged(holds=None, evidence=["no run shows it"])
    parts = {holds for holds, _ in pairs}
    holds = False if False in parts else None if None in parts else True
    return Judged(holds=holds, evidence=[text for _, text in pairs])


def _acks_order(rates: _RateMap) -> _Found:
    """C1, per mode and number of replicas; of acks=all, the cell with the least min ISR."""
    groups: dict[tuple[Mode, int, int], dict[object, Rates]] = {}
    for (cell, mode), seen in rates.items():
        if cell.min_isr == 1:
            groups.setdefault((mode, cell.partitions, cell.replicas), {})[cell.acks] = seen
    for (mode, _, replicas), by_acks in sorted(groups.items()):
        if len(by_acks) == 3:
            none, one, everyone = by_acks[0], by_acks[1], by_acks["all"]
            name = f"{mode}, {replicas} replica{'s' * (replicas > 1)}"
            yield none.exceeds(one), f"{name}, acks 0 to 1: {none.over(one)}"
            yield one.exceeds(everyone), f"{name}, acks 1 to all: {one.over(everyone)}"


def _replicas_cost(rates: _RateMap) -> _Found:
    """C2: the most replicas beside the fewest, at min ISR 1."""
    groups: dict[tuple[Mode, str], dict[int, Rates]] = {}
    for (cell, mode), seen in rates.items():
        if cell.min_isr == 1:
            groups.setdefault((mode, str(cell.acks)), {})[cell.replicas] = seen
    for (mode, acks), by_replicas in sorted(groups.items()):
        few, many = min(by_replicas), max(by_replicas)
        if few == many:
            continue
        less, more = by_replicas[many], by_replicas[few]
        holds = more.exceeds(less) if acks == "all" else less.is_near(more)
        yield holds, f"{mode}, acks={acks}, {many} to {few} replicas: {less.over(more)}"


def _min_isr_is_free(rates: _RateMap) -> _Found:
    """C3: cells of acks=all that differ in min ISR alone."""
    groups: dict[tuple[Mode, int], dict[int, Rates]] = {}
    for (cell, mode), seen in rates.items():
        if cell.acks == "all":
            groups.setdefault((mode, cell.replicas), {})[cell.min_isr] = seen
    for (mode, replicas), by_minimum in sorted(groups.items()):
        low, high = min(by_minimum), max(by_minimum)
        if low != high:
            strict, free = by_minimum[high], by_minimum[low]
            text = f"{mode}, {replicas} replicas, min ISR {high} to {low}: {strict.over(free)}"
            yield strict.is_near(free), text


def _partitions(rates: _RateMap) -> _Found:
    """C4: the best number of partitions in between beside the least, and beside the greatest."""
    for mode in sorted({mode for _, mode in rates}):
        by_count = {cell.partitions: seen for (cell, one), seen in rates.items() if one == mode}
        if len(by_count) < 3 or mode == "one-by-one":  # one record in flight uses one partition
            continue
        fewest, *between, most = sorted(by_count)
        best = max(between, key=lambda count: by_count[count].median)
        top = by_count[best]
        for count in (fewest, most):
            other = by_count[count]
            yield top.exceeds(other), f"{mode}, {count} to {best} partitions: {top.over(other)}"


def _goes_on(runs: Sequence[KillRun]) -> _Found:
    """C5: records are acknowledged after the kill, and each has an outcome in the end."""
    for run in runs:
        if run.case.starts_again:
            continue
        settled = run.produced.acknowledged + sum(run.produced.failed.values())
        after = _acknowledged_between(run, run.killed_s, run.produced.seconds)
        longest = max(_gaps(run), default=0.0)
        holds = after > 0 and settled == run.produced.sent
        yield holds, f"{run.case.name}: {after:,} after the kill, longest gap {longest:.2f} s"


def _stops_and_resumes(runs: Sequence[KillRun]) -> _Found:
    """C6: no acknowledgement from a moment after the kill to the start; then all the rest.

    The codes are shown, not required: since KIP-966 no record is committed below min ISR, so a
    request that was appended before waits for its timeout, without an error.
    """
    for run in runs:
        if not run.case.starts_again or run.started_s is None:
            continue
        stopped_s = _last_before(run, run.started_s)
        after = _acknowledged_between(run, run.started_s, run.produced.seconds)
        silent = run.started_s - stopped_s
        attempts = run.produced.attempts
        short = _SHORT_OF_REPLICAS & set(attempts or ())
        settled = run.produced.acknowledged == run.produced.sent
        # Acknowledgements that were under way at the kill may come a moment later.
        holds = silent > (run.started_s - run.killed_s) / 2 and after > 0 and settled
        codes = ", ".join(sorted(short)) or "no such error"
        codes = codes if attempts is not None else "the library reports no attempts"
        yield holds, f"{run.case.name}: silent for {silent:.1f} s ({codes}), then {after:,} records"


def _keeps(runs: Sequence[KillRun]) -> _Found:
    """C7: acknowledged records are in the logs."""
    for run in runs:
        kept, acknowledged = run.kept, run.produced.acknowledged
        text = f"{run.case.name}: {acknowledged:,} acknowledged, {kept.lost:,} of them lost"
        if kept.failed_stored:
            text += f"; {kept.failed_stored:,} that failed are stored"
        yield kept.lost == 0, text


def _stores(results: Results, cells: Sequence[Cell]) -> _Found:
    """C7 without kills: of runs with acks=1 and acks=all, the logs grew by the acknowledged."""
    runs = [
        run
        for (cell, _), found in results.throughput.items()
        for run in found
        if cell in cells and cell.acks != 0 and run.stored is not None
    ]
    if runs:
        lost = sum(max(run.acknowledged - (run.stored or 0), 0) for run in runs)
        acknowledged = sum(run.acknowledged for run in runs)
        text = f"{len(runs)} runs, acks 1 and all: {acknowledged:,} acknowledged, {lost:,} lost"
        yield lost == 0, text


def _duplicates(runs: Sequence[KillRun]) -> Judged:
    """C8: with idempotence, and without retries, no duplicates; with retries alone, allowed."""
    if not runs:
        return Judged(holds=None, evidence=["no run shows it"])
    plain = [run for run in runs if not run.case.idempotent and run.case.retries]
    others = [run for run in runs if run.case.idempotent or not run.case.retries]
    shown = sum(run.kept.duplicates for run in plain)
    wrong = sum(run.kept.duplicates for run in others)
    evidence = [f"{run.case.name}: {run.kept.duplicates:,} duplicates" for run in (*plain, *others)]
    if plain and not shown:
        evidence.append("retries without idempotence made no duplicate in these runs, by chance")
    return Judged(holds=wrong == 0, evidence=evidence)


def _latencies(result: LatencyResult | None) -> _Found:
    """C9."""
    if result is None:
        return
    for name, seen in (("producer", result.producer), ("end to end", result.end_to_end)):
        p99_ms = seen.percentile_ms(99)
        yield p99_ms < P99_MS_MAX, f"{name}: average {seen.average_ms:.2f} ms, p99 {p99_ms:.2f} ms"


def _acknowledged_between(run: KillRun, from_s: float, until_s: float) -> int:
    moments = run.produced.moments
    return sum(one.acknowledged for one in moments if from_s < one.at_s <= until_s + 1e-3)


def _last_before(run: KillRun, until_s: float) -> float:
    """Return when the last record before `until_s` was acknowledged."""
    times = [one.at_s for one in run.produced.moments if one.acknowledged and one.at_s <= until_s]
    return max(times, default=0.0)


def _gaps(run: KillRun) -> Iterator[float]:
    """Yield the times between acknowledgements, from the kill on."""
    last_s = run.killed_s
    for one in run.produced.moments:
        if one.acknowledged and one.at_s > run.killed_s:
            yield one.at_s - last_s
            last_s = one.at_s
