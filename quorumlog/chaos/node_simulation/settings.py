"""The settings and the result of a run of simulated nodes, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.cluster.layout import BROKER, CONTROLLER, ClusterShape

NODES_MAX: Final = 9
PARTITIONS: Final = 2
JUDGED: Final = frozenset(
    {"damage", "damage_closed", "old_directory", "fsync_loss", "power_loss_several"}
)
"""Faults that destroy copies without limit: a run then judges the loss of all copies together."""
DEFAULT_OPTIONS: Final[Mapping[str, Option]] = {
    "rate": 20.0, "producers": 3, "consumers": 1, "final_readers": 2,
}  # fmt: skip
"""A low load: faults find the bugs, and the cost of a run grows with its records."""
_GROUPS: Final[Mapping[str, Option]] = {
    "rate": 14.0, "producers": 2, "consumers": 3, "static": 1, "polls_per_life": 12.0,
}  # fmt: skip
OPTIONS_OF: Final[Mapping[str, Mapping[str, Option]]] = {
    "idempotent_send": {"rate": 40.0},  # bursts: several batches wait at a broker
    "group_consume": _GROUPS,
    "consumer_group_consume": {**_GROUPS, "consumers": 2, "static": 0, "classic": 0.3},
    "wire_rules": {
        "rate": 60.0, "producers": 2, "final_readers": 1, "sessions": 1, "probers": 1,
        "questions": 15.0,
    },
    "mirror": {"rate": 60.0, "producers": 2, "final_readers": 1, "life_ms": 1_500},
}  # fmt: skip
"""Instead of these, by workload: members come and go while others stay, at the same cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSettings:
    """The settings of one run.

    config: settings of the nodes, on top of a local cluster's settings.
    mutant: the name of a planted bug; see `chaos.mutants`.
    any_power_loss: power is lost, and all nodes are killed, at any time, which no cluster
        promises to survive.
    until_violated: the run ends at its first violated rule, and its history stays unchecked.
    log_level: the least level of the nodes' log lines on the standard error output.
    keep_in: an existing directory in which to keep the history; None: it is deleted after the run.
    """

    schedule: Schedule
    shape: ClusterShape = field(default_factory=ClusterShape)
    partitions: int = PARTITIONS
    config: Mapping[str, str] = field(default_factory=dict)
    mutant: str | None = None
    any_power_loss: bool = False
    until_violated: bool = False
    log_level: str = "critical"
    trace: str | None = None  # a file for one line per event
    keep_in: str | None = None

    def __post_init__(self) -> None:
        if len(self.roles) > NODES_MAX:
            raise ValueError(f"{len(self.roles)} nodes: there may be 1 to {NODES_MAX}")

    @property
    def losses_are_judged(self) -> bool:
        """Whether copies and memories may be lost at any time, and an oracle judges the losses."""
        return bool(JUDGED & {action.fault.name for action in self.schedule.actions})

    @property
    def roles(self) -> Mapping[int, tuple[str, ...]]:
        """The roles of each node, by its id."""
        return dict(enumerate(self.shape.roles, start=1))

    @property
    def broker_ids(self) -> list[int]:
        """The nodes that hold data partitions and serve clients."""
        return [node_id for node_id, roles in self.roles.items() if BROKER in roles]

    @property
    def voter_ids(self) -> list[int]:
        """The nodes that vote in the metadata quorum."""
        return [node_id for node_id, roles in self.roles.items() if CONTROLLER in roles]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesResult:
    """The result of a run.

    losses: records that all copies of a partition have lost together; no violation if reported.
    digest: of all bytes between the processes, of every fault, and of the disks at the end.
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
    losses: tuple[str, ...] = ()
