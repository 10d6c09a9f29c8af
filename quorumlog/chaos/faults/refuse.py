"""refuse: the connections of a node, or of the clients, are reset once, and then refused."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import Scene, named
from quorumlog.chaos.faults.link_faults import LINK_ROLES, LinkFault
from quorumlog.chaos.faults.links import Effect, LinkRule, Refuse, Reset, between


@named("refuse", "connections from and to a node, or clients, are refused", targets=LINK_ROLES)
class RefuseConnections(LinkFault):
    """Resets all connections of the target, and refuses new ones.

    A refused connection looks as if the process had died (decision 0009): a false notice.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({Refuse, Reset})

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        links = between(scene.parties, scene.everybody)
        return (
            LinkRule(scene.rule_id("-refuse"), links, Refuse()),
            LinkRule(scene.rule_id("-reset"), links, Reset()),
        )


FAULTS: Final = (RefuseConnections,)
