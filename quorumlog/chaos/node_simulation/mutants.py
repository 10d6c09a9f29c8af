"""Planted bugs in whole nodes: name -> the broken rule, and the parts of a node that break it.

All mutants of the simulated worlds run here as well: the same classes, in real nodes. A node with a
broken rule does not check its own invariants, so that the history or the oracle must find the bug.
To add a mutant: write a class that inherits one rule (see the `mutants.py` of the worlds), or a new
entry below.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from quorumlog.chaos.node_simulation import (
    directory_mutants,
    loss_mutants,
    near_mutants,
    room_mutants,
    transaction_mutants,
    voter_mutants,
)
from quorumlog.chaos.node_simulation.admin_mutants import CHURN, MOVES, with_controller
from quorumlog.chaos.node_simulation.node_mutant import NodeMutant, node_mutants
from quorumlog.chaos.node_simulation.world_mutants import world_mutants
from quorumlog.chaos.registered import registered
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.partition_changes import (
    Located,
    PartitionChanges,
)
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.identifiers import BrokerId

CONTROLLER: Final = Mutants(with_controller)
"""Controllers with a broken rule that no simulated world covers."""


@CONTROLLER.breaks("a controller elects a replica outside the ISR although a member is alive")
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
    "a broker with an ended process leaves the ISRs before an unheard broker (decision 6)"
)
class _LetsTheDeadLeaveFirst(Controller):
    def _may_leave(self, broker_id: BrokerId, now_ms: int) -> bool:  # noqa: ARG002 - as it was
        return True


def _all() -> Iterator[NodeMutant]:
    yield from world_mutants()
    yield from node_mutants("controller", CONTROLLER.rules, CONTROLLER.made)
    yield from node_mutants("controller", CHURN.rules, CHURN.made)
    yield from node_mutants("replication", MOVES.rules, MOVES.made)
    for group in (
        near_mutants.NEAR,
        directory_mutants.DIRECTORIES,
        loss_mutants.LOSSES,
    ):
        yield from node_mutants("replication", group.rules, group.made)
    transactions, voters = transaction_mutants.TRANSACTIONS, voter_mutants.VOTERS
    yield from node_mutants("transactions", transactions.rules, transactions.made)
    for quorum in (voters, room_mutants.ROOM):
        yield from node_mutants("metadata quorum", quorum.rules, quorum.made)


MUTANTS: Final[Mapping[str, NodeMutant]] = {mutant.name: mutant for mutant in _all()}
SOUND: Final = NodeMutant(name="", of="", breaks="no rule", substitutes=Substitutes())


def mutant_called(name: str | None) -> NodeMutant:
    """Return a mutant; None: the node without a bug. Raises ValueError with all valid names."""
    if name is None:
        return SOUND
    return registered(MUTANTS, name.replace("-", "_"), "mutant")
