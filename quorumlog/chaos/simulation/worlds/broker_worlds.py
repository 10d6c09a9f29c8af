"""The worlds with brokers: replication alone, and coordinators on replicated logs."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.simulation.kernel.run import World
from quorumlog.chaos.simulation.kernel.swarm import Hunt
from quorumlog.chaos.simulation.worlds.brokers.broken import BROKEN_PARTITIONS, PARTITION_RULES
from quorumlog.chaos.simulation.worlds.brokers.controller_mutants import CONTROLLER_MUTANTS
from quorumlog.chaos.simulation.worlds.brokers.producers import Producing, draw_producing_options
from quorumlog.chaos.simulation.worlds.brokers.rules import BrokenRules
from quorumlog.chaos.simulation.worlds.brokers.world import BrokersWorld
from quorumlog.chaos.simulation.worlds.drawn_faults import (
    BROKER_FAULTS,
    COMPOSED_FAULTS,
    PARTITION_FAULTS,
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
)
from quorumlog.chaos.simulation.worlds.transactions.broken import BrokenTransactions
from quorumlog.chaos.simulation.worlds.transactions.mutants import (
    BROKEN_TRANSACTIONS,
    TRANSACTION_RULES,
)
from quorumlog.chaos.simulation.worlds.transactions.options import draw_transaction_options
from quorumlog.chaos.simulation.worlds.transactions.workload import Transactions, data_places
from quorumlog.chaos.simulation.worlds.world_kind import WorldKind


def _build_brokers(
    mutants: Mapping[str, BrokenRules], schedule: Schedule, mutant: str | None
) -> World:
    rules = BrokenRules() if mutant is None else mutants[mutant]
    return BrokersWorld(schedule, Producing(schedule), rules)


def _build_groups(schedule: Schedule, mutant: str | None) -> World:
    rules = GROUP_RULES if mutant is None else ALL_MADE[mutant]
    return BrokersWorld(schedule, ConsumerGroup(schedule, rules))


def _build_consumer_groups(schedule: Schedule, mutant: str | None) -> World:
    rules = GROUP_RULES if mutant is None else _CONSUMER_GROUPS_MADE[mutant]
    return BrokersWorld(schedule, ConsumerProtocolGroup(schedule, rules))


def _build_transactions(schedule: Schedule, mutant: str | None) -> World:
    sound = BrokenTransactions()
    broken = sound if mutant is None else BROKEN_TRANSACTIONS[mutant]
    workload = Transactions(schedule, broken.coordinator)
    return BrokersWorld(schedule, workload, broken.brokers, beside=data_places(schedule))


_CONSUMER_GROUPS_MADE: Final = CONSUMER_MUTANTS.made | MIXED_MUTANTS.made
_BROKER_HUNT: Final = Hunt(role="partition-leader", every_ms=(200, 4_000))
BROKER_WORLDS: Final = (
    WorldKind(
        name="partition",
        text="one replicated partition, its ISR and an idempotent producer",
        faults=PARTITION_FAULTS,
        mutants=PARTITION_RULES,
        options=partial(
            draw_producing_options, partitions=1, min_insync_max=1, flush_acks_share=0.25
        ),
        hunt=_BROKER_HUNT,
        build=partial(_build_brokers, BROKEN_PARTITIONS),
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
)
