"""The table of what servers kept and lost: the schedule for all of them, and a row for each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.schedule import Schedule

_ENOUGH_MS: Final = 60_000  # of a drawn schedule, for each kind of fault to have its turn
_MICROS: Final = 1_000_000
_COLUMNS: Final = (
    "server",
    "nodes",
    "runs",
    "verdicts",
    "acknowledged",
    "longest silence",
    "what was found",
)


def spread(faults: Sequence[str], seed: int, *, calm_s: float) -> Schedule:
    """Return a schedule in which each fault has one turn, and is followed by `calm_s` of calm."""
    drawn = draw_schedule(seed, faults=faults, duration_ms=_ENOUGH_MS * len(faults))
    actions = []
    now_us = calm_us = round(calm_s * _MICROS)
    for action in drawn.actions[: len(faults)]:
        actions.append(replace(action, t_us=now_us))
        now_us += action.duration_us + calm_us
    return replace(drawn, actions=tuple(actions), duration_us=now_us, workload="append_read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run.

    silence_s: the longest time between two acknowledgements, or from the last one to the end of
    the load. found: how often each anomaly was found that refutes a promise. unknown_because: what
    kept the verdict from being valid. error: why there was no verdict, or "".
    """

    valid: bool | str = "no run"
    acknowledged: int = 0
    silence_s: float = 0.0
    found: Mapping[str, int] = field(default_factory=dict)
    unknown_because: tuple[str, ...] = ()
    error: str = ""

    @classmethod
    def of(cls, verdict: Mapping[str, Any], operations: pa.Table) -> Self:
        """Take what a row needs from the verdict (as JSON) and the history of a run."""
        return cls(
            valid=verdict["valid"],
            acknowledged=verdict["figures"].get("acknowledged", 0),
            silence_s=_longest_silence_s(operations),
            found={
                name: result["count"]
                for name, result in verdict["anomalies"].items()
                if result["severity"] == "invalid"
            },
            unknown_because=tuple(verdict["unknown_because"]),
        )


def _longest_silence_s(operations: pa.Table) -> float:
    sends = operations.filter(pc.field("f") == "send")
    acknowledged = sends.filter(pc.field("type") == "ok").column("completed_ns").to_pylist()
    last_tried_ns = pc.max(sends.column("invoked_ns")).as_py()
    if last_tried_ns is None:
        return 0.0
    moments: list[int] = sorted([0, *acknowledged, last_tried_ns])
    return max(later - before for before, later in pairwise(moments)) / 1e9


def table_head() -> str:
    """Return the first two lines of the table."""
    return f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def row_of(name: str, nodes: int, outcomes: Sequence[Outcome]) -> str:
    """Return the line of a server, over all its runs."""
    verdicts = Counter(_word(outcome) for outcome in outcomes)
    found = Counter[str]()
    for outcome in outcomes:
        found.update(outcome.found)
    told = [f"{anomaly} x {count}" for anomaly, count in found.items()]
    told += dict.fromkeys(reason for one in outcomes for reason in one.unknown_because)
    told += dict.fromkeys(one.error for one in outcomes if one.error)
    cells = [
        name,
        nodes,
        len(outcomes),
        ", ".join(f"{count} {word}" for word, count in verdicts.items()),
        f"{sum(outcome.acknowledged for outcome in outcomes):,}",
        f"{max(outcome.silence_s for outcome in outcomes):.1f} s",
        "; ".join(told) or "nothing",
    ]
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _word(outcome: Outcome) -> str:
    if isinstance(outcome.valid, bool):
        return "valid" if outcome.valid else "invalid"
    return outcome.valid
