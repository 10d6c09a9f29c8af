"""Planted bugs in whole nodes: name -> what it breaks, and the parts of a node that do so.

All mutants of the worlds with cores are here as well: the same classes, in real nodes. A node with
a broken rule does not check itself, so that the history or the oracle must find it. To add one:
write a class that inherits one rule (see the `mutants.py` of the worlds), or a new entry below.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from quorumlog.broker.partitions.core.partition import KAFKA_RULES
from quorumlog.chaos.registered import registered
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.brokers.mutants import (
    CONTROLLER_MUTANTS,
    PARTITION_MUTANTS,
    Unchecked,
)
from quorumlog.chaos.simulation.worlds.groups.mutants import GROUP_MUTANTS
from quorumlog.chaos.simulation.worlds.quorum.mutants import MUTANTS as QUORUM_MUTANTS
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.partitions import Located, PartitionDecisions
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.io.parts import QuorumParts
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.identifiers import BrokerId

UNCHECKED: Final = replace(KAFKA_RULES, invariants=Unchecked)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMutant:
    """One planted bug. `breaks`: the rule, in a sentence. `of`: the part of the product."""

    name: str
    of: str
    breaks: str
    substitutes: Substitutes


def _with_controller(controller: type[Controller]) -> Substitutes:
    return Substitutes(partition_rules=UNCHECKED, quorum=QuorumParts(controller=controller))


def _with_decisions(broken: type[Any]) -> Substitutes:
    class Mutant(Controller):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]  # handed on
            self._partitions = broken(self.cluster)  # type: ignore[misc]  # it replaces the rule

    return _with_controller(Mutant)


CONTROLLER: Final = Mutants(_with_decisions)
"""Controllers with a broken rule that no world of cores has."""


@CONTROLLER.breaks("a controller elects a replica outside the ISR although a member lives")
class _ElectsOutsideTheIsr(PartitionDecisions):
    def _change(
        self,
        located: Located,
        target_isr: tuple[BrokerId, ...],
        active: Set[BrokerId],
        barred: Set[BrokerId] = frozenset(),
        *,
        prefers_first: bool = False,
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
        return super()._change(located, target_isr, active, barred, prefers_first=prefers_first)


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
        {name: _with_controller(made.controller) for name, made in CONTROLLER_MUTANTS.made.items()},
    )
    add("controller", CONTROLLER.rules, CONTROLLER.made)
    add(
        "metadata quorum",
        QUORUM_MUTANTS.rules,
        {
            name: Substitutes(quorum=QuorumParts(quorum=made))
            for name, made in QUORUM_MUTANTS.made.items()
        },
    )
    add(
        "groups",
        GROUP_MUTANTS.rules,
        {name: _with_coordinator(made) for name, made in GROUP_MUTANTS.made.items()},
    )
    return {mutant.name: mutant for mutant in found}


def _with_coordinator(made: Any) -> Substitutes:
    """Return the parts of a shard that `worlds.groups.mutants.shards_of` has made."""
    return Substitutes(coordinator_shard=made.func, coordinator=made.args[0].func)


MUTANTS: Final = _all()


def substitutes_of(name: str | None) -> Substitutes:
    """Return the parts of a mutant, or the real ones. Raises ValueError."""
    if name is None:
        return Substitutes()
    return registered(MUTANTS, name.replace("-", "_"), "mutant").substitutes
