"""Every simulated world, by name: a new one is a package beside this file and a line here."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from quorumlog.chaos.faults.fault import Fault
from quorumlog.chaos.schedule import Schedule, ScheduleError
from quorumlog.chaos.simulation.kernel.run import World
from quorumlog.chaos.simulation.worlds.brokers.mutants import (
    BROKEN_RULES,
    CONTROLLER_MUTANTS,
    PARTITION_MUTANTS,
)
from quorumlog.chaos.simulation.worlds.brokers.options import (
    BROKER_FAULTS,
    draw_composed_schedule,
    draw_partition_schedule,
)
from quorumlog.chaos.simulation.worlds.brokers.producers import Producing
from quorumlog.chaos.simulation.worlds.brokers.world import BrokersWorld
from quorumlog.chaos.simulation.worlds.groups.consumer_group import ConsumerGroup
from quorumlog.chaos.simulation.worlds.groups.mutants import GROUP_MUTANTS, GROUP_SHARDS
from quorumlog.chaos.simulation.worlds.groups.options import draw_groups_schedule
from quorumlog.chaos.simulation.worlds.quorum.mutants import MUTANT_CLASSES, MUTANTS
from quorumlog.chaos.simulation.worlds.quorum.options import (
    QUORUM_FAULTS,
    draw_schedule,
)
from quorumlog.chaos.simulation.worlds.quorum.world import QuorumWorld
from quorumlog.metadata_quorum.core.quorum import Quorum


class DrawSchedule(Protocol):
    """Draws the faults and the options of a run."""

    def __call__(
        self, seed: int, *, nodes: int, duration_us: int, faults: Collection[str] | None
    ) -> Schedule:
        """Return the schedule of a seed; `faults`: exactly these kinds, None: a random choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldKind:
    """What can be simulated.

    nodes: the least and the greatest number of nodes.
    mutants: name -> the rule that it breaks.
    build: makes the world of a schedule, with one rule broken if a mutant is named.
    """

    name: str
    text: str
    nodes: tuple[int, int]
    faults: tuple[type[Fault], ...]
    mutants: Mapping[str, str]
    draw: DrawSchedule
    build: Callable[[Schedule, str | None], World]

    def check_schedule(self, schedule: Schedule) -> None:
        """Raise ScheduleError (a ValueError) unless the schedule, perhaps of a file, fits."""
        names = [fault.name for fault in self.faults]
        schedule.check_supported(back_end=f"the world {self.name}", can=names)
        known = self.draw(0, nodes=self.nodes[0], duration_us=0, faults=()).options
        if known.keys() != schedule.options.keys():
            raise ScheduleError(f"the options of the world {self.name} are {', '.join(known)}")
        for name, value in schedule.options.items():
            if type(value) is not type(known[name]):
                raise ScheduleError(f"option {name}: {value!r} is not like {known[name]!r}")


def _build_quorum(schedule: Schedule, mutant: str | None) -> World:
    return QuorumWorld(schedule, Quorum if mutant is None else MUTANT_CLASSES[mutant])


def _build_brokers(schedule: Schedule, mutant: str | None) -> World:
    rules = None if mutant is None else BROKEN_RULES[mutant]
    return BrokersWorld(schedule, Producing(schedule), rules)


def _build_groups(schedule: Schedule, mutant: str | None) -> World:
    return BrokersWorld(schedule, ConsumerGroup(schedule, GROUP_SHARDS[mutant]))


_KINDS: Final = (
    WorldKind(
        name="quorum",
        text="the metadata quorum: Raft as KIP-595 has it",
        nodes=(1, 9),
        faults=QUORUM_FAULTS,
        mutants=MUTANTS,
        draw=draw_schedule,
        build=_build_quorum,
    ),
    WorldKind(
        name="partition",
        text="one replicated partition, its ISR and an idempotent producer",
        nodes=(1, 9),
        faults=BROKER_FAULTS,
        mutants=PARTITION_MUTANTS,
        draw=draw_partition_schedule,
        build=_build_brokers,
    ),
    WorldKind(
        name="composed",
        text="the controller with brokers and partitions that need two replicas (KIP-966)",
        nodes=(1, 9),
        faults=BROKER_FAULTS,
        mutants=CONTROLLER_MUTANTS,
        draw=draw_composed_schedule,
        build=_build_brokers,
    ),
    WorldKind(
        name="groups",
        text="a consumer group, its coordinators on brokers that fail, and its members",
        nodes=(1, 9),
        faults=BROKER_FAULTS,
        mutants=GROUP_MUTANTS,
        draw=draw_groups_schedule,
        build=_build_groups,
    ),
)

WORLDS: Final[Mapping[str, WorldKind]] = MappingProxyType({kind.name: kind for kind in _KINDS})


def world_kind(name: str) -> WorldKind:
    """Return the kind of this name. Raises ValueError."""
    if name not in WORLDS:
        raise ValueError(f"there is no world {name!r}; there are {', '.join(WORLDS)}")
    return WORLDS[name]
