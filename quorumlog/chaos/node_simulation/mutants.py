"""Planted bugs in whole nodes: name -> what it breaks, and the parts of a node that do so.

All mutants of the worlds with cores are here as well: the same classes, in real nodes. A node with
a broken rule does not check itself, so that the history or the oracle must find it. To add one:
write a class that inherits one rule (see the `mutants.py` of the worlds), or a new entry below.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from quorumlog.chaos.node_simulation import (
    directory_mutants,
    flush_mutants,
    near_mutants,
    transaction_mutants,
    voter_mutants,
)
from quorumlog.chaos.node_simulation.admin_mutants import CHURN, MOVES, with_controller
from quorumlog.chaos.registered import registered
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.brokers.controller_mutants import CONTROLLER_MUTANTS
from quorumlog.chaos.simulation.worlds.brokers.mutants import PARTITION_MUTANTS
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES
from quorumlog.chaos.simulation.worlds.groups.consumer.mixed_mutants import MIXED_MUTANTS
from quorumlog.chaos.simulation.worlds.groups.consumer.mutants import CONSUMER_MUTANTS
from quorumlog.chaos.simulation.worlds.groups.mutants import GROUP_MUTANTS, ShardParts
from quorumlog.chaos.simulation.worlds.groups.transaction_mutants import TRANSACTION_MUTANTS
from quorumlog.chaos.simulation.worlds.log_mutants import LOG_MUTANTS
from quorumlog.chaos.simulation.worlds.logs.damage_mutants import DAMAGE_MUTANTS
from quorumlog.chaos.simulation.worlds.quorum.building import (
    BROKEN_CORES,
    CORE_RULES,
    UncheckedQuorum,
)
from quorumlog.chaos.simulation.worlds.storage_mutants import SOUND_STORAGE, STORAGE_MUTANTS
from quorumlog.chaos.simulation.worlds.transactions.broken import BrokenTransactions
from quorumlog.chaos.simulation.worlds.transactions.mutants import (
    BROKEN_TRANSACTIONS,
    TRANSACTION_RULES,
)
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.partition_changes import (
    Located,
    PartitionChanges,
)
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.io.parts import QuorumParts
from quorumlog.node.substitutes import Substitutes
from quorumlog.storage.io.disk import Disk
from quorumlog.wire.codec.identifiers import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMutant:
    """One planted bug. `breaks`: the rule, in a sentence. `of`: the part of the product.

    disk: given the disk of a machine, returns what a node sees of it.
    """

    name: str
    of: str
    breaks: str
    substitutes: Substitutes
    disk: Callable[[Disk], Disk] = SOUND_STORAGE.disk


CONTROLLER: Final = Mutants(with_controller)
"""Controllers with a broken rule that no world of cores has."""


@CONTROLLER.breaks("a controller elects a replica outside the ISR although a member lives")
class _ElectsOutsideTheIsr(PartitionChanges):
    def change(
        self,
        located: Located,
        target_isr: tuple[BrokerId, ...],
        active: Set[BrokerId],
        *others: Any,
        **options: Any,
    ) -> PartitionChange | None:
        partition = located.partition
        if partition.leader_id not in target_isr:
            outside = [
                replica
                for replica in partition.replicas
                if replica in active and replica not in {*target_isr, partition.leader_id}
            ]
            if outside:
                return PartitionChange(
                    topic_id=located.topic_id,
                    partition_id=located.index,
                    isr=(outside[0],),
                    leader=outside[0],
                    elr=None,
                )
        return super().change(located, target_isr, active, *others, **options)


@CONTROLLER.breaks(
    "a broker whose process is gone leaves the ISRs before a silent one (decision 93)"
)
class _LetsTheDeadLeaveFirst(Controller):
    def _may_leave(self, broker_id: BrokerId, now_ms: int) -> bool:  # noqa: ARG002 - as it was
        return True


def _all() -> Mapping[str, NodeMutant]:
    found: list[NodeMutant] = []

    def add(of: str, rules: Mapping[str, str], made: Mapping[str, Substitutes]) -> None:
        found.extend(
            NodeMutant(name=name, of=of, breaks=rules[name], substitutes=made[name])
            for name in rules
        )

    add(
        "replication",
        PARTITION_MUTANTS.rules,
        {
            name: Substitutes(partition_rules=made.partition)
            for name, made in PARTITION_MUTANTS.made.items()
        },
    )
    add(
        "controller",
        CONTROLLER_MUTANTS.rules,
        {name: with_controller(made.controller) for name, made in CONTROLLER_MUTANTS.made.items()},
    )
    add("controller", CONTROLLER.rules, CONTROLLER.made)
    add("controller", CHURN.rules, CHURN.made)
    add("replication", MOVES.rules, MOVES.made)
    for group in (near_mutants.NEAR, flush_mutants.FLUSHES, directory_mutants.DIRECTORIES):
        add("replication", group.rules, group.made)
    transactions = transaction_mutants.TRANSACTIONS
    add("transactions", transactions.rules, transactions.made)
    add(
        "transactions",
        TRANSACTION_RULES,
        {name: _with_transactions(made) for name, made in BROKEN_TRANSACTIONS.items()},
    )
    add(
        "metadata quorum",
        CORE_RULES,
        {name: Substitutes(quorum=QuorumParts(quorum=made)) for name, made in BROKEN_CORES.items()},
    )
    add("metadata quorum", voter_mutants.VOTERS.rules, voter_mutants.VOTERS.made)
    for mutants in (GROUP_MUTANTS, TRANSACTION_MUTANTS, CONSUMER_MUTANTS, MIXED_MUTANTS):
        made_of = {name: _with_coordinator(parts) for name, parts in mutants.made.items()}
        add("groups", mutants.rules, made_of)
    rules = STORAGE_MUTANTS.rules | LOG_MUTANTS.rules | DAMAGE_MUTANTS.rules
    made = STORAGE_MUTANTS.made | LOG_MUTANTS.made | DAMAGE_MUTANTS.made
    for name, storage in made.items():
        substitutes = Substitutes(
            partition_rules=replace(UNCHECKED_RULES, retention=storage.retention),
            new_logs=partial(storage.directory, new_log=storage.log),
            quorum=QuorumParts(quorum=UncheckedQuorum, new_log=storage.log),
        )
        found.append(
            NodeMutant(
                name=name,
                of="storage",
                breaks=rules[name],
                substitutes=substitutes,
                disk=storage.disk,
            )
        )
    return {mutant.name: mutant for mutant in found}


def _with_transactions(made: BrokenTransactions) -> Substitutes:
    storage = made.brokers.storage
    return Substitutes(
        transaction_rules=made.coordinator,
        partition_rules=made.brokers.partition,
        new_logs=partial(storage.directory, new_log=storage.log),
    )


def _with_coordinator(made: ShardParts) -> Substitutes:
    return Substitutes(coordinator_shard=made.shard, coordinator=made.coordinator)


MUTANTS: Final = _all()
SOUND: Final = NodeMutant(name="", of="", breaks="no rule", substitutes=Substitutes())


def mutant_called(name: str | None) -> NodeMutant:
    """Return a mutant; None: what is sound. Raises ValueError with the names there are."""
    if name is None:
        return SOUND
    return registered(MUTANTS, name.replace("-", "_"), "mutant")
