"""Network partitions: links that are cut, in one direction or in both."""

from typing import ClassVar, Literal

from quorumlog.chaos.faults.fault import ALL, CLIENT, NODE_ROLES, LinkFault, Scene, named
from quorumlog.chaos.faults.links import Cut, Effect, Link, LinkRule, between


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


@named("partition_ring", "every node reaches a majority, each node a different one", targets=(ALL,))
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


@named(
    "partition_one_way",
    "a node cannot reach the other nodes, but they reach it; or the reverse",
    targets=NODE_ROLES,
)
class PartitionOneWay(LinkFault):
    """Cuts the links from the target to other nodes (`out`) or to it (`in`); `either`: drawn."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})
    direction: Literal["in", "out", "either"] = "either"

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        drawn: Literal["in", "out"] = "in" if scene.rng.random() < 0.5 else "out"
        direction = drawn if self.direction == "either" else self.direction
        links = between(scene.parties, scene.other_nodes, direction)
        return (LinkRule(scene.rule_id(), links, Cut()),)


@named(
    "isolate_role",
    "a node reaches neither nodes nor clients; or no client reaches any node",
    targets=(*NODE_ROLES, CLIENT),
)
class IsolateRole(LinkFault):
    """Cuts all links of the target, those to clients too."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        return (LinkRule(scene.rule_id(), between(scene.parties, scene.others), Cut()),)


@named("partition", "the simulator's name of partition_one")
class Partition(PartitionOne):
    """No message passes between the target nodes and all others, in either direction."""


@named("one_way_cut", "the simulator's name of partition_one_way; direction: in or out")
class OneWayCut(LinkFault):
    """All messages from the target nodes to the others are lost (`out`), or the reverse (`in`)."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})
    direction: Literal["in", "out"]

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        links = between(scene.parties, scene.other_nodes, self.direction)
        return (LinkRule(scene.rule_id(), links, Cut()),)
