"""Every simulated world, by name: a new one is a package beside this file, and an entry below."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.faults import disks, machines
from quorumlog.chaos.faults.fault import ALL, Fault
from quorumlog.chaos.faults.partitions import OneWayCut, Partition
from quorumlog.chaos.faults.processes import Kill, Pause
from quorumlog.chaos.faults.quorum import FalseNotice, Resign
from quorumlog.chaos.faults.traffic import Delay, Duplication, Loss, Reorder
from quorumlog.chaos.mutants.mutant import Mutant
from quorumlog.chaos.mutants.parts import Parts
from quorumlog.chaos.mutants.quorum import QUORUMS
from quorumlog.chaos.mutants.retention import RETENTION
from quorumlog.chaos.mutants.storage import DAMAGED_LOGS, STORAGE
from quorumlog.chaos.mutants.voters import VOTERS
from quorumlog.chaos.registered import registered
from quorumlog.chaos.schedule import Schedule, ScheduleError
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.run import World
from quorumlog.chaos.simulation.kernel.swarm import DrawOptions, Hunt, draw_actions
from quorumlog.chaos.simulation.worlds.logs.world import LogsWorld, draw_log_options
from quorumlog.chaos.simulation.worlds.quorum.world import (
    QuorumWorld,
    draw_quorum_options,
    draw_voters_options,
)

_ON_MESSAGES: Final = (Loss, Duplication, Delay, Reorder, Partition, OneWayCut)
# The order counts: each kind of fault draws in its turn.
QUORUM_FAULTS: Final[tuple[type[Fault], ...]] = (
    *_ON_MESSAGES, Kill, machines.PowerLoss, Pause, machines.ClockDrift, disks.SlowDisk,
    disks.FsyncError, Resign, FalseNotice, machines.InterruptedWrite, disks.DiskStall,
)  # fmt: skip
LOG_FAULTS: Final[tuple[type[Fault], ...]] = (
    Kill, machines.PowerLoss, Pause, disks.FsyncError, machines.InterruptedWrite,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldKind:
    """A kind of world.

    nodes: the least and the greatest number of nodes.
    mutants: name -> mutant.
    options: draws the options of a run.
    hunt: the targets of the drawn faults.
    build: makes the world of a schedule, with these parts.
    """

    name: str
    text: str
    nodes: tuple[int, int] = (1, 9)
    faults: tuple[type[Fault], ...]
    mutants: Mapping[str, Mutant]
    options: DrawOptions
    hunt: Hunt
    build: Callable[[Schedule, Parts], World]

    def draw(
        self, seed: int, *, nodes: int, duration_us: int, faults: Collection[str] | None
    ) -> Schedule:
        """Return the schedule of a seed; `faults`: exactly these kinds, None: a random choice.

        Nodes are numbered from 1, the machines that are no nodes after them.
        """
        machine_count, options = self.options(seeded("options", seed), nodes)
        actions = draw_actions(
            seed,
            kinds=self.faults,
            chosen=faults,
            node_ids=range(1, machine_count + 1),
            duration_us=duration_us,
            hunt=self.hunt,
        )
        return Schedule(
            seed=seed, duration_us=duration_us, actions=actions, workload=self.name, options=options
        )

    def check_schedule(self, schedule: Schedule) -> None:
        """Raise ScheduleError (a ValueError) unless the schedule, perhaps of a file, fits."""
        names = [fault.name for fault in self.faults]
        schedule.check_supported(back_end=f"the world {self.name}", can=names)
        for action in schedule.actions:
            if isinstance(action.fault, Delay) and action.target != ALL:
                raise ScheduleError(f"the world {self.name} delays all messages: target {ALL!r}")
        known = self.draw(0, nodes=self.nodes[0], duration_us=0, faults=()).options
        if known.keys() != schedule.options.keys():
            raise ScheduleError(f"the options of the world {self.name} are {', '.join(known)}")
        for name, value in schedule.options.items():
            if type(value) is not type(known[name]):
                raise ScheduleError(f"option {name}: {value!r} is not like {known[name]!r}")


_QUORUM_HUNT: Final = Hunt(role="metadata-leader", files=("", "quorum-state"))
_KINDS: Final = (
    WorldKind(
        name="quorum",
        text="the metadata quorum: Raft as KIP-595 has it",
        faults=QUORUM_FAULTS,
        mutants=QUORUMS | STORAGE,
        options=draw_quorum_options,
        hunt=_QUORUM_HUNT,
        build=QuorumWorld,
    ),
    WorldKind(
        name="voters",
        text="the metadata quorum while its voters change (KIP-853), and disks are lost",
        faults=QUORUM_FAULTS,
        mutants=VOTERS,
        options=draw_voters_options,
        hunt=_QUORUM_HUNT,
        build=QuorumWorld,
    ),
    WorldKind(
        name="logs",
        text="logs alone: retention, deletion of records, compaction, and crashes",
        faults=LOG_FAULTS,
        mutants=RETENTION | STORAGE | DAMAGED_LOGS,
        options=draw_log_options,
        hunt=Hunt(role="any", files=("", ".log", "-checkpoint")),
        build=LogsWorld,
    ),
)
WORLDS: Final[Mapping[str, WorldKind]] = {kind.name: kind for kind in _KINDS}


def world_kind(name: str) -> WorldKind:
    """Return the kind of this name. Raises ValueError."""
    return registered(WORLDS, name, "world")
