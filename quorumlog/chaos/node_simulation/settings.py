"""What a run of simulated nodes is asked for, and what came of it. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.chaos.schedule import Option, Schedule

NODES_MAX: Final = 9
DEFAULT_OPTIONS: Final[Mapping[str, Option]] = {
    "rate": 20.0, "producers": 3, "consumers": 1, "final_readers": 2,
}  # fmt: skip
"""Faults find bugs, not load: a run costs what it sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSettings:
    """One run.

    config: settings of the nodes, laid over those of a local cluster.
    mutant: the name of a planted bug; see mutants.py.
    log_level: what of the nodes' logs goes to the standard error output.
    keep_in: an existing directory in which the history stays; None: it goes with the run.
    """

    schedule: Schedule
    nodes: int = 3
    partitions: int = 2
    config: Mapping[str, str] = field(default_factory=dict)
    mutant: str | None = None
    log_level: str = "critical"
    trace: str | None = None  # a file for one line per event
    keep_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesResult:
    """What a run showed.

    digest: of all that passed between the processes, of every fault, and of the disks at the end.
    valid: False if the history has an anomaly or a rule was violated; else the verdict's.
    """

    seed: int
    digest: str
    valid: bool | str
    verdict: Mapping[str, Any]
    anomalies: tuple[str, ...]
    violations: tuple[str, ...]
    virtual_s: float
    cpu_s: float
    start_cpu_s: float
    operations: int
    faults: tuple[str, ...]
    schedule: Schedule
    mutant: str | None = None
