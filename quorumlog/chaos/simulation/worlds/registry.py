"""Every simulated world, by name: a new one is a package beside this file and a line here."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from quorumlog.chaos.faults.delay import Delay
from quorumlog.chaos.faults.fault import ALL, Fault
from quorumlog.chaos.registered import registered
from quorumlog.chaos.schedule import Schedule, ScheduleError
from quorumlog.chaos.simulation.kernel.options import DrawOptions
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.run import World
from quorumlog.chaos.simulation.kernel.swarm import Hunt, draw_actions
from quorumlog.chaos.simulation.worlds.brokers.controller_mutants import CONTROLLER_MUTANTS
from quorumlog.chaos.simulation.worlds.brokers.mutants import PARTITION_MUTANTS
from quorumlog.chaos.simulation.worlds.brokers.producers import Producing, draw_producing_options
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES, BrokenRules
from quorumlog.chaos.simulation.worlds.brokers.world import BrokersWorld
from quorumlog.chaos.simulation.worlds.drawn_faults import (
    BROKER_FAULTS,
    COMPOSED_FAULTS,
    LOG_FAULTS,
    QUORUM_FAULTS,
)
from quorumlog.chaos.simulation.worlds.groups.consumer.mixed_mutants import MIXED_MUTANTS
from quorumlog.chaos.simulation.worlds.groups.consumer.mutants import CONSUMER_MUTANTS
from quorumlog.chaos.simulation.worlds.groups.consumer.workload import (
    ConsumerProtocolGroup,
    draw_consumer_options,
)
from quorumlog.chaos.simulation.worlds.groups.consumer_group import (
    ConsumerGroup,
    draw_group_options,
)
from quorumlog.chaos.simulation.worlds.groups.transaction_mutants import (
    ALL_MADE,
    ALL_RULES,
    shards_of,
)
from quorumlog.chaos.simulation.worlds.logs.world import (
    BROKEN_RULES_OF_LOGS,
    build_logs,
    draw_log_options,
)
from quorumlog.chaos.simulation.worlds.quorum.building import (
    QUORUM_RULES,
    VOTER_RULES,
    build_quorum,
    build_voters,
)
from quorumlog.chaos.simulation.worlds.quorum.world import draw_quorum_options, draw_voters_options
from quorumlog.chaos.simulation.worlds.storage_mutants import STORAGE_MUTANTS
from quorumlog.chaos.simulation.worlds.transactions.broken import BrokenTransactions
from quorumlog.chaos.simulation.worlds.transactions.mutants import (
    BROKEN_TRANSACTIONS,
    TRANSACTION_RULES,
)
from quorumlog.chaos.simulation.worlds.transactions.workload import (
    build_transactions,
    draw_transaction_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldKind:
    """What can be simulated.

    nodes: the least and the greatest number of nodes.
    mutants: name -> the rule that it breaks.
    options: draws the options of a run.
    hunt: what the drawn faults aim at.
    build: makes the world of a schedule, with one rule broken if a mutant is named.
    """

    name: str
    text: str
    nodes: tuple[int, int] = (1, 9)
    faults: tuple[type[Fault], ...]
    mutants: Mapping[str, str]
    options: DrawOptions
    hunt: Hunt
    build: Callable[[Schedule, str | None], World]

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
            seed=seed,
            duration_us=duration_us,
            actions=actions,
            workload=self.name,
            options=options,
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


def _build_brokers(
    mutants: Mapping[str, BrokenRules], schedule: Schedule, mutant: str | None
) -> World:
    rules = BrokenRules() if mutant is None else mutants[mutant]
    return BrokersWorld(schedule, Producing(schedule), rules)


def _build_groups(schedule: Schedule, mutant: str | None) -> World:
    parts = shards_of() if mutant is None else ALL_MADE[mutant]
    return BrokersWorld(schedule, ConsumerGroup(schedule, parts.new_shard))


def _build_consumer_groups(schedule: Schedule, mutant: str | None) -> World:
    parts = shards_of() if mutant is None else _CONSUMER_GROUPS_MADE[mutant]
    return BrokersWorld(schedule, ConsumerProtocolGroup(schedule, parts.new_shard))


def _build_transactions(schedule: Schedule, mutant: str | None) -> World:
    sound = BrokenTransactions()
    broken = sound if mutant is None else BROKEN_TRANSACTIONS[mutant]
    return build_transactions(schedule, broken)


_CONSUMER_GROUPS_MADE: Final = CONSUMER_MUTANTS.made | MIXED_MUTANTS.made
_BROKEN_STORAGE: Final = {
    name: BrokenRules(partition=UNCHECKED_RULES, storage=made)
    for name, made in STORAGE_MUTANTS.made.items()
}
_BROKER_HUNT: Final = Hunt(role="partition-leader", every_ms=(200, 4_000))
_KINDS: Final = (
    WorldKind(
        name="quorum",
        text="the metadata quorum: Raft as KIP-595 has it",
        faults=QUORUM_FAULTS,
        mutants=QUORUM_RULES,
        options=draw_quorum_options,
        hunt=Hunt(role="metadata-leader", files=("", "quorum-state")),
        build=build_quorum,
    ),
    WorldKind(
        name="voters",
        text="the metadata quorum while its voters change (KIP-853), and disks are lost",
        faults=QUORUM_FAULTS,
        mutants=VOTER_RULES,
        options=draw_voters_options,
        hunt=Hunt(role="metadata-leader", files=("", "quorum-state")),
        build=build_voters,
    ),
    WorldKind(
        name="partition",
        text="one replicated partition, its ISR and an idempotent producer",
        faults=BROKER_FAULTS,
        mutants=PARTITION_MUTANTS.rules | STORAGE_MUTANTS.rules,
        options=partial(draw_producing_options, partitions=1, min_insync_max=1),
        hunt=_BROKER_HUNT,
        build=partial(_build_brokers, PARTITION_MUTANTS.made | _BROKEN_STORAGE),
    ),
    WorldKind(
        name="composed",
        text="the controller with brokers and partitions that need two replicas (KIP-966)",
        faults=COMPOSED_FAULTS,
        mutants=CONTROLLER_MUTANTS.rules,
        options=partial(draw_producing_options, partitions=3, min_insync_max=2, unclean_share=0.25),
        hunt=_BROKER_HUNT,
        build=partial(_build_brokers, CONTROLLER_MUTANTS.made),
    ),
    WorldKind(
        name="groups",
        text="a consumer group, its coordinators on brokers that fail, and its members",
        faults=BROKER_FAULTS,
        mutants=ALL_RULES,
        options=draw_group_options,
        hunt=_BROKER_HUNT,
        build=_build_groups,
    ),
    WorldKind(
        name="consumer_groups",
        text="a group of the consumer protocol (KIP-848), and classic members beside it",
        faults=BROKER_FAULTS,
        mutants=CONSUMER_MUTANTS.rules | MIXED_MUTANTS.rules,
        options=draw_consumer_options,
        hunt=_BROKER_HUNT,
        build=_build_consumer_groups,
    ),
    WorldKind(
        name="transactions",
        text="transactions, their coordinators on brokers that fail, and their producers",
        faults=BROKER_FAULTS,
        mutants=TRANSACTION_RULES,
        options=draw_transaction_options,
        hunt=_BROKER_HUNT,
        build=_build_transactions,
    ),
    WorldKind(
        name="logs",
        text="logs alone: retention, deletion of records, compaction, and crashes",
        faults=LOG_FAULTS,
        mutants=BROKEN_RULES_OF_LOGS,
        options=draw_log_options,
        hunt=Hunt(role="any", files=("", ".log", "-checkpoint")),
        build=build_logs,
    ),
)

WORLDS: Final[Mapping[str, WorldKind]] = {kind.name: kind for kind in _KINDS}


def world_kind(name: str) -> WorldKind:
    """Return the kind of this name. Raises ValueError."""
    return registered(WORLDS, name, "world")
