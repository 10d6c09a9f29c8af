"""The settings of a run, and its summary."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from quorumlog.chaos.back_ends.local_processes import RUN_FAULTS
from quorumlog.chaos.faults.registry import fault_and_role
from quorumlog.chaos.network.links import NetworkKind
from quorumlog.chaos.run.figures import OfferedLoad
from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import options_of
from quorumlog.cluster import ClusterShape


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The workload, the cluster and the faults of a run, and the directory of its results.

    Raises ValueError for invalid settings, before anything is started or removed.
    """

    out: Path
    workload: str = "append_read"
    options: Mapping[str, Option] = field(default_factory=dict)  # of the workload
    faults: tuple[str, ...] = ("kill",)
    duration_s: float = 60.0
    overlap: bool = True  # of the drawn faults: one may begin while others last
    seed: int = 0
    shape: ClusterShape = field(default_factory=ClusterShape)  # of the cluster that the run starts
    network: NetworkKind = "proxy"  # how links are broken
    driver: str = "client"
    bootstrap: str | None = None  # a cluster that the run does not start
    control: str | None = None  # how to break it: NAME:ARGUMENT of back_ends.registry
    schedule: Schedule | None = None  # instead of drawing one from the seed
    config: Mapping[str, str] = field(default_factory=dict)
    node_module: str = "quorumlog.node"
    topic: str = "chaos"
    partitions: int = 3
    replication_factor: int = 3
    command: tuple[str, ...] = ()  # as it was typed; kept beside the history

    def __post_init__(self) -> None:
        find_workload(self.workload).read_options(self.options)
        if not 0 < self.duration_s < inf:
            raise ValueError(f"--duration {self.duration_s:g} s: it must be above 0")
        for name in self.faults:
            fault_and_role(name, RUN_FAULTS)

    @property
    def all_options(self) -> dict[str, Option]:
        """The given options of the workload, and defaults for the others."""
        return options_of(find_workload(self.workload).read_options(self.options))

    @property
    def model(self) -> str:
        """The name of the checker for the history."""
        return find_workload(self.workload).model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The facts about a run, before any check of it."""

    figures: str  # operations of the clients, by outcome
    sends_ok: int
    faults: int  # carried out
    not_met: tuple[str, ...]  # requested faults that were not carried out
    reads_complete: bool
    seconds: float
    load: OfferedLoad
    topic_settings: Mapping[str, str]  # in force, as the cluster reports them
