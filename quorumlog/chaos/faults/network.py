"""Faults of a simulated network: messages are lost, doubled, late, or cut off.

Rates are in parts per million of the messages; delays are in microseconds of one direction. A
fault without a target applies to every link: its target is `all`.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from quorumlog.chaos.faults.delay import DELAY_US_MAX, Delay
from quorumlog.chaos.faults.fault import (
    ALL,
    MILLION,
    AnyStep,
    Fault,
    Impose,
    Lift,
    Scene,
    StepFault,
    named,
    ranged,
)
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


@named("partition", "some nodes and the others cannot reach each other")
class Partition(StepFault):
    """No message passes between the target nodes and all others, in either direction."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Cut all links between the victims and the other nodes."""
        links = between(scene.parties, scene.other_nodes)
        return (Impose(rule=LinkRule(scene.rule_id(), links, Cut())),)

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Heal them."""
        return (Lift(rule_id=scene.rule_id()),)


@named("one_way_cut", "what a node sends is lost, or what is sent to it")
class OneWayCut(StepFault):
    """All messages from the target nodes to the others are lost (`out`), or the reverse (`in`)."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Cut})
    direction: Literal["in", "out"]

    def inflict(self, scene: Scene) -> Sequence[AnyStep]:
        """Cut the links of one direction."""
        links = between(scene.parties, scene.other_nodes, self.direction)
        return (Impose(rule=LinkRule(scene.rule_id(), links, Cut())),)

    def take_back(self, scene: Scene) -> Sequence[AnyStep]:
        """Heal them."""
        return (Lift(rule_id=scene.rule_id()),)


FAULTS: Final = (Loss, Duplication, Delay, Reorder, Partition, OneWayCut)
