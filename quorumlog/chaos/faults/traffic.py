"""Faults of traffic: messages are late, lost or doubled, connections slow, reset or refused.

Rates are in parts per million of the messages; delays are in microseconds of one direction.
"""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import (
    ALL,
    LINK_ROLES,
    MILLION,
    Fault,
    LinkFault,
    Scene,
    named,
    ranged,
)
from quorumlog.chaos.faults.links import Delay as DelayEffect
from quorumlog.chaos.faults.links import Effect, LinkRule, Rate, Refuse, Reset

DELAY_US_MAX: Final = 60 * MILLION


@named("delay", "messages take long", targets=LINK_ROLES)
class Delay(LinkFault):
    """Each message takes from `min_us` to `min_us + spread_us` longer: jitter.

    On links to and from the target; the target `all` is every link. A simulated world delays all.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DelayEffect})
    min_us: int = ranged(0, DELAY_US_MAX, default=20_000)
    spread_us: int = ranged(0, DELAY_US_MAX, default=80_000)

    def effect(self) -> Effect:
        """See LinkFault."""
        return DelayEffect(self.min_us, self.spread_us)


@named(
    "slow_link", "few bytes per second pass on the links of a node, or clients", targets=LINK_ROLES
)
class SlowLink(LinkFault):
    """Each connection on the target's links takes `bytes_per_s` in each direction."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Rate})
    bytes_per_s: int = ranged(100, 1000 * MILLION, default=20_000)

    def effect(self) -> Effect:
        """See LinkFault."""
        return Rate(self.bytes_per_s)


@named("reset", "the connections of a node, or clients, are reset repeatedly", targets=LINK_ROLES)
class ResetConnections(LinkFault):
    """All connections of the target are reset at once, and again each `every_us`; 0: only once."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Reset})
    every_us: int = ranged(0, 60 * MILLION, default=700_000)

    def effect(self) -> Effect:
        """See LinkFault."""
        return Reset(self.every_us)


@named("refuse", "connections from and to a node, or clients, are refused", targets=LINK_ROLES)
class RefuseConnections(LinkFault):
    """Resets all connections of the target, and refuses new ones.

    A refused connection looks as if the process had died (decision 0006): a false notice.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Refuse, Reset})

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        links = self.links(scene)
        return (
            LinkRule(scene.rule_id("-refuse"), links, Refuse()),
            LinkRule(scene.rule_id("-reset"), links, Reset()),
        )


@named("loss", "messages are lost", targets=(ALL,))
class Loss(Fault):
    """Each message is lost with this probability."""

    ppm: int = ranged(0, MILLION)


@named("duplication", "messages arrive twice", targets=(ALL,))
class Duplication(Fault):
    """Each message arrives a second time with this probability."""

    ppm: int = ranged(0, MILLION)


@named("reorder", "some messages arrive much later than later messages", targets=(ALL,))
class Reorder(Fault):
    """A message is late by `late_us` beyond its delay, with this probability."""

    ppm: int = ranged(0, MILLION)
    late_us: int = ranged(0, DELAY_US_MAX)
