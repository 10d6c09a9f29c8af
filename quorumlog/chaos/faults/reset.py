"""reset: the connections of a node, or of the clients, are reset again and again."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import MILLION, Scene, named, ranged
from quorumlog.chaos.faults.link_faults import LINK_ROLES, LinkFault
from quorumlog.chaos.faults.links import Effect, LinkRule, Reset, between


@named("reset", "the connections of a node, or clients, are reset repeatedly", targets=LINK_ROLES)
class ResetConnections(LinkFault):
    """All connections of the target are reset at once, and again each `every_us`; 0: only once."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Reset})
    every_us: int = ranged(0, 60 * MILLION, default=700_000)

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        links = between(scene.parties, scene.everybody)
        return (LinkRule(scene.rule_id(), links, Reset(self.every_us)),)


FAULTS: Final = (ResetConnections,)
