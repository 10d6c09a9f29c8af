"""Network partitions: links that are cut, in one direction or in both."""

from typing import ClassVar, Literal

from quorumlog.chaos.faults.fault import ALL, CLIENT, NODE_ROLES, LinkFault, Scene, named
from quorumlog.chaos.faults.links import Cut, Effect, Link, between


class CutFault(LinkFault):
    """A fault that cuts links. A subclass returns them."""

    __slots__ = ()
    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})

    def effect(self) -> Effect:
        """See LinkFault."""
        return Cut()


@named(
    "partition_one",
    "a node and the other nodes cannot reach each other; clients reach all of them",
    targets=NODE_ROLES,
)
class PartitionOne(CutFault):
    """Cuts all links between the target and the other nodes, in both directions."""

    def links(self, scene: Scene) -> tuple[Link, ...]:
        """See LinkFault."""
        return between(scene.parties, scene.other_nodes)


@named(
    "partition_halves",
    "the nodes fall into a random majority and a minority that cannot reach each other",
    targets=(ALL,),
)
class PartitionHalves(CutFault):
    """Cuts all links between a random majority and the others; clients reach all."""

    def links(self, scene: Scene) -> tuple[Link, ...]:
        """See LinkFault."""
        nodes = [str(node_id) for node_id in scene.all_nodes]
        scene.rng.shuffle(nodes)
        majority = len(nodes) // 2 + 1
        return between(nodes[:majority], nodes[majority:])


@named("partition_ring", "every node reaches a majority, each node a different one", targets=(ALL,))
class PartitionRing(CutFault):
    """Puts the nodes into a random ring; each reaches the fewest neighbours that are a majority.

    Where that would be everybody (of three or four nodes), one random pair is cut: of three, the
    third one is a bridge between them.
    """

    def links(self, scene: Scene) -> tuple[Link, ...]:
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
        return tuple(links)


@named(
    "partition_one_way",
    "a node cannot reach the other nodes, but they reach it; or the reverse",
    targets=NODE_ROLES,
)
class PartitionOneWay(CutFault):
    """Cuts the links from the target to other nodes (`out`) or to it (`in`); `either`: drawn."""

    direction: Literal["in", "out", "either"] = "either"

    def links(self, scene: Scene) -> tuple[Link, ...]:
        """See LinkFault."""
        drawn: Literal["in", "out"] = "in" if scene.rng.random() < 0.5 else "out"
        direction = drawn if self.direction == "either" else self.direction
        return between(scene.parties, scene.other_nodes, direction)


@named(
    "isolate_role",
    "a node reaches neither nodes nor clients; or no client reaches any node",
    targets=(*NODE_ROLES, CLIENT),
)
class IsolateRole(CutFault):
    """Cuts all links of the target, those to clients too."""

    def links(self, scene: Scene) -> tuple[Link, ...]:
        """See LinkFault."""
        return between(scene.parties, scene.others)


@named("partition", "the simulator's name of partition_one")
class Partition(PartitionOne):
    """No message passes between the target nodes and all others, in either direction."""


@named("one_way_cut", "the simulator's name of partition_one_way; direction: in or out")
class OneWayCut(CutFault):
    """All messages from the target nodes to the others are lost (`out`), or the reverse (`in`)."""

    direction: Literal["in", "out"]

    def links(self, scene: Scene) -> tuple[Link, ...]:
        """See LinkFault."""
        return between(scene.parties, scene.other_nodes, self.direction)
