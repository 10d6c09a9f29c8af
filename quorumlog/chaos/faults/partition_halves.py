"""partition_halves: the nodes fall into two groups that cannot reach each other."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL, Scene, named
from quorumlog.chaos.faults.link_faults import LinkFault
from quorumlog.chaos.faults.links import Cut, Effect, LinkRule, between


@named(
    "partition_halves",
    "the nodes fall into a random majority and a minority that cannot reach each other",
    targets=(ALL,),
)
class PartitionHalves(LinkFault):
    """Cuts all links between a random majority and the others; clients reach all."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        nodes = [str(node_id) for node_id in scene.all_nodes]
        scene.rng.shuffle(nodes)
        majority = len(nodes) // 2 + 1
        return (LinkRule(scene.rule_id(), between(nodes[:majority], nodes[majority:]), Cut()),)


FAULTS: Final = (PartitionHalves,)
