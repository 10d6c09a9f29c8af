"""Logs alone, one on each machine: retention, deletion of records, compaction, and crashes.

The logs are independent, and no message is sent: the work of one replica alone is simulated.
"""

from typing import Final

from quorumlog.chaos.mutants.parts import REAL_PARTS, Parts
from quorumlog.chaos.schedule import Action, Option, Schedule
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.run import CALM_US_MAX, Environment
from quorumlog.chaos.simulation.kernel.swarm import Options
from quorumlog.chaos.simulation.worlds.logs.log_node import LogNode
from quorumlog.storage.core.retention import UNLIMITED


def draw_log_options(rng: Rng, nodes: int) -> tuple[int, dict[str, Option]]:
    """Draw the options of a run. A log that is not compacted has a limit at least."""
    retention_bytes, retention_ms = rng.randrange(500, 5_000), rng.randrange(200, 3_000)
    unlimited = rng.randrange(3)
    return nodes, {
        "nodes": nodes,
        "is_compacted": rng.random() < 0.5,
        "step_us": rng.randrange(4_000, 15_000),
        "segment_bytes": rng.choice((300, 800, 2_000)),
        "index_interval_bytes": rng.choice((0, 200, 4_096)),
        "retention_bytes": UNLIMITED if unlimited == 1 else retention_bytes,
        "retention_ms": UNLIMITED if unlimited == 2 else retention_ms,
        "delete_retention_ms": rng.randrange(100, 2_000),
        "min_lag_ms": rng.choice((0, rng.randrange(100, 1_500))),
        "is_damaged": rng.random() < 0.25,
    }


class LogsWorld:
    """A World."""

    def __init__(self, schedule: Schedule, parts: Parts = REAL_PARTS) -> None:
        options = Options(schedule)
        machines = range(1, options.number("nodes") + 1)
        self.environment: Final = Environment(schedule.seed, tuple(machines))
        self.left_down_max: Final = 0
        self.calm_us_max: Final = CALM_US_MAX
        self.elections: Final = 0
        self.nodes: Final[dict[int, LogNode]] = {}
        for node_id, machine in self.environment.machines.items():
            machine.process = self.nodes[node_id] = LogNode(
                machine, self.environment, parts, options
            )

    def begin(self) -> None:
        """Nothing: there are no clients beside the processes."""

    def members_of(self, role: str) -> list[int]:  # noqa: ARG002 - there are no roles
        """Return all: each has a log."""
        return [*self.nodes]

    def inflict(self, action: Action, machine: Machine) -> None:
        """Never called: all faults of this world are the kernel's."""

    def has_settled(self) -> bool:
        """Look at all logs once more."""
        if not all(node.machine.is_up for node in self.nodes.values()):
            return False
        for node in self.nodes.values():
            node.finish()
        return all(node.machine.is_up for node in self.nodes.values())

    def describe(self) -> str:
        """Return which logs do not open."""
        down = [node_id for node_id, node in self.nodes.items() if not node.machine.is_up]
        return f"the logs of {down} cannot be opened"

    def committed(self) -> int:
        """Return how many records are committed in all logs."""
        return sum(node.oracle.committed for node in self.nodes.values())
