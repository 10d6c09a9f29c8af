"""partition_ring: every node sees a majority, and no two nodes see the same one."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import ALL, Scene, named
from quorumlog.chaos.faults.link_faults import LinkFault
from quorumlog.chaos.faults.links import Cut, Effect, Link, LinkRule, between


@named(
    "partition_ring",
    "every node sees a majority of all, each another one",
    targets=(ALL,),
)
class PartitionRing(LinkFault):
    """Puts the nodes into a random ring; each reaches the fewest neighbours that are a majority.

    Where that would be everybody (of three or four nodes), one random pair is cut: of three, the
    third one is a bridge between them.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        ring = [str(node_id) for node_id in scene.all_nodes]
        scene.rng.shuffle(ring)
        count = len(ring)
        reach = (count // 2 + 1) // 2  # neighbours on each side
        links: list[Link] = []
        for place, node in enumerate(ring):
            for other_place in range(place + 1, count):
                steps = other_place - place
                if min(steps, count - steps) > reach:
                    links += between([node], [ring[other_place]])
        if not links:
            links += between(ring[:1], ring[1:2])
        return (LinkRule(scene.rule_id(), tuple(links), Cut()),)


FAULTS: Final = (PartitionRing,)
