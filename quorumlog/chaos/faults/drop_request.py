"""drop_request: requests of one kind are lost."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.apis import find_api
from quorumlog.chaos.faults.fault import MILLION, Fault, Scene, named, ranged
from quorumlog.chaos.faults.link_faults import LINK_ROLES, LinkFault
from quorumlog.chaos.faults.links import DropRequest, Effect, LinkRule
from quorumlog.chaos.faults.requests import Sender, request_links


@named("drop_request", "requests of one kind are lost: a follower's Fetch", targets=LINK_ROLES)
class DropRequests(LinkFault):
    """Requests of the kind `api` are lost, and what follows on the same connection.

    sender: whose requests. share_ppm: of how many, in millionths.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DropRequest})
    api: str = "Fetch"
    sender: Sender = "target"
    share_ppm: int = ranged(1, MILLION, default=MILLION)

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        find_api(self.api)

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        api = find_api(self.api)
        links = request_links(scene, api, self.sender)
        return (LinkRule(scene.rule_id(), links, DropRequest(api.name, self.share_ppm)),)


FAULTS: Final = (DropRequests,)
