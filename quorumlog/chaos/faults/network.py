"""Faults of a simulated network: messages are lost, doubled, late, or cut off.

Rates are in parts per million of the messages; delays are in microseconds of one direction. A
fault without a target applies to every link: its target is `all`.
"""

from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.delay import DELAY_US_MAX, Delay
from quorumlog.chaos.faults.fault import ALL, MILLION, Fault, Scene, named, ranged
from quorumlog.chaos.faults.link_faults import LinkFault
from quorumlog.chaos.faults.links import Cut, Effect, LinkRule, between


@named("loss", "messages are lost", targets=(ALL,))
class Loss(Fault):
    """Each message is lost with this probability."""

    ppm: int = ranged(0, MILLION)


@named("duplication", "messages arrive twice", targets=(ALL,))
class Duplication(Fault):
    """Each message arrives a second time with this probability."""

    ppm: int = ranged(0, MILLION)


@named("reorder", "some messages arrive much later than those sent after them", targets=(ALL,))
class Reorder(Fault):
    """A message is `late_us` later than its delay says, with this probability."""

    ppm: int = ranged(0, MILLION)
    late_us: int = ranged(0, DELAY_US_MAX)


@named("partition", "the simulator's name of partition_one")
class Partition(LinkFault):
    """No message passes between the target nodes and all others, in either direction."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        return (LinkRule(scene.rule_id(), between(scene.parties, scene.other_nodes), Cut()),)


@named("one_way_cut", "the simulator's name of partition_one_way; direction: in or out")
class OneWayCut(LinkFault):
    """All messages from the target nodes to the others are lost (`out`), or the reverse (`in`)."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})
    direction: Literal["in", "out"]

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        links = between(scene.parties, scene.other_nodes, self.direction)
        return (LinkRule(scene.rule_id(), links, Cut()),)


FAULTS: Final = (Loss, Duplication, Delay, Reorder, Partition, OneWayCut)
