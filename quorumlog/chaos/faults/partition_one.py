"""partition_one: some nodes and all others cannot reach each other; clients reach all."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import NODE_ROLES, Scene, named
from quorumlog.chaos.faults.link_faults import LinkFault
from quorumlog.chaos.faults.links import Cut, Effect, LinkRule, between


@named(
    "partition_one",
    "a node and the other nodes cannot reach each other; clients reach all of them",
    targets=NODE_ROLES,
)
class PartitionOne(LinkFault):
    """Cuts all links between the target and the other nodes, in both directions."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        return (LinkRule(scene.rule_id(), between(scene.parties, scene.other_nodes), Cut()),)


FAULTS: Final = (PartitionOne,)
