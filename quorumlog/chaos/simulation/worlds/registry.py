"""Every simulated world, by name: a new one is a package beside this file, and an entry."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from quorumlog.chaos.mutants.consumer_groups import CONSUMER_GROUPS, MIXED_GROUPS
from quorumlog.chaos.mutants.controller import CONTROLLERS
from quorumlog.chaos.mutants.groups import GROUPS, TRANSACTIONAL_OFFSETS
from quorumlog.chaos.mutants.parts import Parts
from quorumlog.chaos.mutants.quorum import QUORUMS
from quorumlog.chaos.mutants.replication import FLUSHES, REPLICAS
from quorumlog.chaos.mutants.retention import RETENTION
from quorumlog.chaos.mutants.storage import DAMAGED_LOGS, STORAGE
from quorumlog.chaos.mutants.transaction_logs import TRANSACTION_LOGS
from quorumlog.chaos.mutants.transactions import COORDINATORS
from quorumlog.chaos.mutants.voters import VOTERS
from quorumlog.chaos.registered import registered
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.simulation.kernel.run import World
from quorumlog.chaos.simulation.kernel.swarm import Hunt
from quorumlog.chaos.simulation.worlds.brokers.producers import Producing, draw_producing_options
from quorumlog.chaos.simulation.worlds.brokers.world import BrokersWorld
from quorumlog.chaos.simulation.worlds.groups.consumer.workload import (
    ConsumerProtocolGroup,
    draw_consumer_options,
)
from quorumlog.chaos.simulation.worlds.groups.consumer_group import (
    ConsumerGroup,
    draw_group_options,
)
from quorumlog.chaos.simulation.worlds.logs.world import LogsWorld, draw_log_options
from quorumlog.chaos.simulation.worlds.quorum.world import (
    QuorumWorld,
    draw_quorum_options,
    draw_voters_options,
)
from quorumlog.chaos.simulation.worlds.transactions.workload import (
    Transactions,
    data_places,
    draw_transaction_options,
)
from quorumlog.chaos.simulation.worlds.world_kind import (
    BROKER_FAULTS,
    COMPOSED_FAULTS,
    LOG_FAULTS,
    PARTITION_FAULTS,
    QUORUM_FAULTS,
    WorldKind,
)


def _build_brokers(schedule: Schedule, parts: Parts) -> World:
    return BrokersWorld(schedule, Producing(schedule), parts)


def _build_groups(schedule: Schedule, parts: Parts) -> World:
    return BrokersWorld(schedule, ConsumerGroup(schedule, parts.groups), parts)


def _build_consumer_groups(schedule: Schedule, parts: Parts) -> World:
    return BrokersWorld(schedule, ConsumerProtocolGroup(schedule, parts.groups), parts)


def _build_transactions(schedule: Schedule, parts: Parts) -> World:
    workload = Transactions(schedule, parts.transactions)
    return BrokersWorld(schedule, workload, parts, beside=data_places(schedule))


_QUORUM_HUNT: Final = Hunt(role="metadata-leader", files=("", "quorum-state"))
_BROKER_HUNT: Final = Hunt(role="partition-leader", every_ms=(200, 4_000))
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
        name="partition",
        text="one replicated partition, its ISR and an idempotent producer",
        faults=PARTITION_FAULTS,
        mutants=REPLICAS | FLUSHES | STORAGE,
        options=partial(
            draw_producing_options, partitions=1, min_insync_max=1, flush_acks_share=0.25
        ),
        hunt=_BROKER_HUNT,
        build=_build_brokers,
    ),
    WorldKind(
        name="composed",
        text="the controller with brokers and partitions that need two replicas (KIP-966)",
        faults=COMPOSED_FAULTS,
        mutants=CONTROLLERS,
        options=partial(draw_producing_options, partitions=3, min_insync_max=2, unclean_share=0.25),
        hunt=_BROKER_HUNT,
        build=_build_brokers,
    ),
    WorldKind(
        name="groups",
        text="a consumer group, its coordinators on brokers that fail, and its members",
        faults=BROKER_FAULTS,
        mutants=GROUPS | TRANSACTIONAL_OFFSETS,
        options=draw_group_options,
        hunt=_BROKER_HUNT,
        build=_build_groups,
    ),
    WorldKind(
        name="consumer_groups",
        text="a group of the consumer protocol (KIP-848), and classic members beside it",
        faults=BROKER_FAULTS,
        mutants=CONSUMER_GROUPS | MIXED_GROUPS,
        options=draw_consumer_options,
        hunt=_BROKER_HUNT,
        build=_build_consumer_groups,
    ),
    WorldKind(
        name="transactions",
        text="transactions, their coordinators on brokers that fail, and their producers",
        faults=BROKER_FAULTS,
        mutants=COORDINATORS | TRANSACTION_LOGS,
        options=draw_transaction_options,
        hunt=_BROKER_HUNT,
        build=_build_transactions,
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
