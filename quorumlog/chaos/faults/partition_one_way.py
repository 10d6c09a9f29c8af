"""partition_one_way: what a node sends to the others is stuck, or what they send to it."""

from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.fault import NODE_ROLES, Scene, named
from quorumlog.chaos.faults.link_faults import LinkFault
from quorumlog.chaos.faults.links import Cut, Effect, LinkRule, between


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


FAULTS: Final = (PartitionOneWay,)
