"""isolate_role: a node, or the clients, can reach no other party."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.fault import CLIENT, NODE_ROLES, Scene, named
from quorumlog.chaos.faults.link_faults import LinkFault
from quorumlog.chaos.faults.links import Cut, Effect, LinkRule, between


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


FAULTS: Final = (IsolateRole,)
