"""Counts of a run in words: operations of clients, faults, and the acknowledged share of the load.

A verdict does not depend on the load: a history with nearly no operations is valid, too.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

_PERCENT: Final = 100


def figures(messages: Mapping[tuple[str, str], int]) -> str:
    """Count by outcome. `messages`: the number in a history by (type, f); zeros may be left out.

    A workload that sends is described by its sends and by the records that polls returned; any
    other workload by each kind of its operations.
    """
    kinds = sorted({f for type_, f in messages if type_ == "invoke" and messages[type_, f]})
    if not kinds or "send" in kinds:
        return (
            f"{_outcomes(messages, 'send', 'sends acknowledged')}; {_read(messages)} records read"
        )
    return "; ".join(_outcomes(messages, f, f"{f} done") for f in kinds)


def faults_text(faults: int, steps: int) -> str:
    """Return the number of faults carried out, and of their steps (kill, start, ...)."""
    nouns = "fault" if faults == 1 else "faults", "step" if steps == 1 else "steps"
    return f"{faults} {nouns[0]} ({steps} {nouns[1]})"


def _outcomes(messages: Mapping[tuple[str, str], int], f: str, done: str) -> str:
    ok, info, fail = (messages.get((type_, f), 0) for type_ in ("ok", "info", "fail"))
    return f"{ok} {done}, {info} unknown, {fail} failed"


def _read(messages: Mapping[tuple[str, str], int]) -> int:
    return messages.get(("ok", "poll"), 0) + messages.get(("ok", "final_poll"), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """The load of a run while its clients worked.

    offered: operations at the workload's rate. acknowledged: operations that succeeded. silent_s:
    the longest time without an acknowledgement.
    """

    offered: int
    acknowledged: int
    silent_s: float

    @classmethod
    def from_json(cls, document: object) -> Self | None:
        """Read `load` of meta.json; None if it is no load, as in a file of another tool."""
        if not isinstance(document, Mapping):
            return None
        offered, acknowledged = document.get("offered"), document.get("acknowledged")
        silent_s = document.get("silent_s")
        if not isinstance(offered, int) or not isinstance(acknowledged, int):
            return None
        if not isinstance(silent_s, int | float):
            return None
        return cls(offered=offered, acknowledged=acknowledged, silent_s=silent_s)

    def as_json(self) -> dict[str, Any]:
        """Return `load` of meta.json."""
        return {**asdict(self), "silent_s": round(self.silent_s, 1)}

    @property
    def percent(self) -> int:
        """The share that was acknowledged, rounded down: 99.9 % is not all."""
        return min(_PERCENT, self.acknowledged * _PERCENT // max(self.offered, 1))

    def text(self) -> str:
        """Return the load in one line, for a person."""
        return (
            f"the cluster acknowledged {self.percent} % of the offered operations; "
            f"the longest time without an acknowledgement was {self.silent_s:.1f} s"
        )

    def doubt(self, least_percent: float) -> str:
        """Return why the run proves too little; "" if at least that share was acknowledged."""
        if self.acknowledged * _PERCENT >= least_percent * self.offered:
            return ""
        return (
            f"the cluster acknowledged {self.percent} % of the offered operations, and at least "
            f"{least_percent:g} % are required"
        )


def silent_after_ms(rate: float) -> int:
    """Return the time without an acknowledgement that counts as silence: 1 s, or ten operations."""
    return max(1_000, round(10_000 / rate))


class LoadMeter:
    """Measures a load from counts of acknowledged operations, observed at intervals.

    The measured silence is exact up to the time between two observations.
    """

    def __init__(self, rate: float, now_s: float) -> None:
        """`rate`: offered operations per second."""
        self._rate: Final = rate
        self._started_s: Final = now_s
        self._now_s = self._last_s = now_s  # of the last observation; of the last increase
        self._acknowledged = 0
        self._silent_s = 0.0

    def observe(self, now_s: float, acknowledged: int) -> None:
        """Record the number of operations that have been acknowledged so far."""
        self._now_s = now_s
        self._silent_s = max(self._silent_s, now_s - self._last_s)
        if acknowledged > self._acknowledged:
            self._acknowledged, self._last_s = acknowledged, now_s

    def load(self) -> OfferedLoad:
        """Return the load until the last observation."""
        return OfferedLoad(
            offered=round(self._rate * (self._now_s - self._started_s)),
            acknowledged=self._acknowledged,
            silent_s=self._silent_s,
        )
