"""delay: what some nodes send, and what is sent to them, takes long."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import MILLION, Scene, named, ranged
from quorumlog.chaos.faults.link_faults import LINK_ROLES, LinkFault
from quorumlog.chaos.faults.links import Delay as DelayEffect
from quorumlog.chaos.faults.links import Effect, LinkRule, between

DELAY_US_MAX: Final = 60 * MILLION


@named("delay", "messages take long", targets=LINK_ROLES)
class Delay(LinkFault):
    """Each message takes from `min_us` to `min_us + spread_us` longer: jitter.

    On links to and from the target; the target `all` is every link. A simulated world delays all.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DelayEffect})
    min_us: int = ranged(0, DELAY_US_MAX, default=20_000)
    spread_us: int = ranged(0, DELAY_US_MAX, default=80_000)

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        links = between(scene.parties, scene.everybody)
        return (LinkRule(scene.rule_id(), links, DelayEffect(self.min_us, self.spread_us)),)


FAULTS: Final = (Delay,)
