"""The mutants of the simulated worlds, in whole nodes: the same classes."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.surroundings import Surroundings
from quorumlog.chaos.node_simulation.admin_mutants import with_controller
from quorumlog.chaos.node_simulation.node_mutant import NodeMutant, node_mutants
from quorumlog.chaos.simulation.worlds.brokers.broken import BROKEN_REPLICAS, REPLICA_RULES
from quorumlog.chaos.simulation.worlds.brokers.controller_mutants import CONTROLLER_MUTANTS
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES
from quorumlog.chaos.simulation.worlds.groups.consumer.mixed_mutants import MIXED_MUTANTS
from quorumlog.chaos.simulation.worlds.groups.consumer.mutants import CONSUMER_MUTANTS
from quorumlog.chaos.simulation.worlds.groups.mutants import GROUP_MUTANTS
from quorumlog.chaos.simulation.worlds.groups.transaction_mutants import TRANSACTION_MUTANTS
from quorumlog.chaos.simulation.worlds.log_mutants import LOG_MUTANTS
from quorumlog.chaos.simulation.worlds.logs.damage_mutants import DAMAGE_MUTANTS
from quorumlog.chaos.simulation.worlds.quorum.building import (
    BROKEN_CORES,
    CORE_RULES,
    UncheckedQuorum,
)
from quorumlog.chaos.simulation.worlds.storage_mutants import STORAGE_MUTANTS, Storage
from quorumlog.chaos.simulation.worlds.transactions.broken import BrokenTransactions
from quorumlog.chaos.simulation.worlds.transactions.mutants import (
    BROKEN_TRANSACTIONS,
    TRANSACTION_RULES,
)
from quorumlog.metadata_quorum.io.parts import QuorumParts
from quorumlog.node.substitutes import Substitutes


def world_mutants() -> Iterator[NodeMutant]:
    """Yield all mutants of the worlds."""
    yield from node_mutants(
        "replication",
        REPLICA_RULES,
        {
            name: Substitutes(
                partition_rules=made.partition,
                new_logs=_logs_of(made.storage),
                new_surroundings=partial(Surroundings, new_flusher=made.flusher),
            )
            for name, made in BROKEN_REPLICAS.items()
        },
    )
    yield from node_mutants(
        "controller",
        CONTROLLER_MUTANTS.rules,
        {name: with_controller(made.controller) for name, made in CONTROLLER_MUTANTS.made.items()},
    )
    yield from node_mutants(
        "transactions",
        TRANSACTION_RULES,
        {name: _with_transactions(made) for name, made in BROKEN_TRANSACTIONS.items()},
    )
    yield from node_mutants(
        "metadata quorum",
        CORE_RULES,
        {name: Substitutes(quorum=QuorumParts(quorum=made)) for name, made in BROKEN_CORES.items()},
    )
    for mutants in (GROUP_MUTANTS, TRANSACTION_MUTANTS, CONSUMER_MUTANTS, MIXED_MUTANTS):
        made_of = {name: Substitutes(group_rules=made) for name, made in mutants.made.items()}
        yield from node_mutants("groups", mutants.rules, made_of)
    yield from _of_storage()


def _of_storage() -> Iterator[NodeMutant]:
    rules = STORAGE_MUTANTS.rules | LOG_MUTANTS.rules | DAMAGE_MUTANTS.rules
    made = STORAGE_MUTANTS.made | LOG_MUTANTS.made | DAMAGE_MUTANTS.made
    for name, storage in made.items():
        substitutes = Substitutes(
            partition_rules=replace(
                UNCHECKED_RULES, retention=storage.retention, cleanable=storage.cleanable
            ),
            new_logs=_logs_of(storage),
            quorum=QuorumParts(quorum=UncheckedQuorum, new_log=storage.log),
        )
        yield NodeMutant(
            name=name, of="storage", breaks=rules[name], substitutes=substitutes, disk=storage.disk
        )


def _logs_of(storage: Storage) -> partial[LogDirectory]:
    return partial(storage.directory, new_log=storage.log)


def _with_transactions(made: BrokenTransactions) -> Substitutes:
    return Substitutes(
        transaction_rules=made.coordinator,
        partition_rules=made.brokers.partition,
        new_logs=_logs_of(made.brokers.storage),
    )
