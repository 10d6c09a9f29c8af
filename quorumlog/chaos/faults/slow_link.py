"""slow_link: few bytes per second pass on the links of a node, or of the clients."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import MILLION, Scene, named, ranged
from quorumlog.chaos.faults.link_faults import LINK_ROLES, LinkFault
from quorumlog.chaos.faults.links import Effect, LinkRule, Rate, between


@named(
    "slow_link", "few bytes per second pass on the links of a node, or clients", targets=LINK_ROLES
)
class SlowLink(LinkFault):
    """Each connection on the target's links takes `bytes_per_s` in each direction."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Rate})
    bytes_per_s: int = ranged(100, 1000 * MILLION, default=20_000)

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        links = between(scene.parties, scene.everybody)
        return (LinkRule(scene.rule_id(), links, Rate(self.bytes_per_s)),)


FAULTS: Final = (SlowLink,)
