"""A schedule of faults: which, when, against whom by role, for how long. One seed gives one.

Targets are roles, because who leads is not known when the schedule is drawn. A role that nobody
holds when its turn comes (all leaders are down) falls back to any running node.
"""

import itertools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

FORMAT: Final = 1

FAULTS: Final[Mapping[str, str]] = {
    "kill": "SIGKILL a node, start it again after a while",
    "kill-all": "SIGKILL every node at once, start them again after a while",
    "pause-kill": "SIGSTOP everybody but a partition leader, SIGKILL it a moment later, SIGCONT",
    "pause": "SIGSTOP a node, SIGCONT it after a while: its connections stay open",
}
ROLES: Final = ("partition-leader", "metadata-leader", "isr-follower", "any")

_FIXED_TARGETS: Final = {"kill-all": "all", "pause-kill": "partition-leader"}
_DOWN_MS: Final = (1_000, 4_000)
_PAUSE_MS: Final = (500, 5_000)
_QUIET_MS: Final = 1_500  # from the end of one fault to the next: recovery must be possible


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultAction:
    """One fault. Times count from the start of the fault phase."""

    t_us: int
    fault: str
    target: str  # one of ROLES, or "all"
    duration_us: int

    @property
    def end_us(self) -> int:
        """When the fault is taken back."""
        return self.t_us + self.duration_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Fault actions in order of time; none overlaps the next, so a majority always lives."""

    seed: int
    actions: tuple[FaultAction, ...]

    def save(self, path: Path) -> None:
        """Write the schedule as JSON."""
        document = {
            "format": FORMAT,
            "seed": self.seed,
            "actions": [asdict(action) for action in self.actions],
        }
        path.write_text(json.dumps(document, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Schedule":
        """Read a schedule. Raises ValueError with what is wrong: the file is somebody's input."""
        document = json.loads(path.read_text())
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"{path} is not a fault schedule of format {FORMAT}")
        try:
            actions = tuple(FaultAction(**action) for action in document["actions"])
            seed = int(document["seed"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a fault schedule: {error}") from error
        for action in actions:
            check_names([action.fault])
        return cls(seed=seed, actions=actions)


def check_names(faults: Iterable[str]) -> None:
    """Raise ValueError, naming those there are, if a fault is not known."""
    for name in faults:
        if name not in FAULTS:
            raise ValueError(f"no fault is called {name!r}; there are {', '.join(FAULTS)}")


def draw(seed: int, *, faults: Sequence[str], duration_ms: int, mean_gap_ms: int) -> Schedule:
    """Draw a schedule that fits `duration_ms`. The same arguments give the same schedule.

    Faults take turns, and so do roles, in orders drawn per seed: a short run meets each of them.
    """
    check_names(faults)
    rng = random.Random(seed)  # noqa: S311 - a schedule must be reproducible, not secret
    turns = itertools.cycle(rng.sample(list(faults), len(faults)))
    roles = itertools.cycle(rng.sample(ROLES, len(ROLES)))
    actions: list[FaultAction] = []
    now_ms = rng.randint(500, 1_500)
    while faults:
        fault = next(turns)
        low_ms, high_ms = _PAUSE_MS if fault == "pause" else _DOWN_MS
        lasts_ms = rng.randint(low_ms, high_ms)
        if now_ms + lasts_ms > duration_ms:
            break
        target = _FIXED_TARGETS.get(fault) or next(roles)
        actions.append(
            FaultAction(t_us=now_ms * 1000, fault=fault, target=target, duration_us=lasts_ms * 1000)
        )
        now_ms += lasts_ms + _QUIET_MS + int(rng.expovariate(1 / mean_gap_ms))
    return Schedule(seed=seed, actions=tuple(actions))
