"""delay_request: requests of one kind are late."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.apis import find_api
from quorumlog.chaos.faults.delay import DELAY_US_MAX
from quorumlog.chaos.faults.fault import Fault, Scene, named, ranged
from quorumlog.chaos.faults.link_faults import LINK_ROLES, LinkFault
from quorumlog.chaos.faults.links import DelayRequest, Effect, LinkRule
from quorumlog.chaos.faults.requests import Sender, request_links


@named("delay_request", "requests of one kind are late: an AlterPartition", targets=LINK_ROLES)
class DelayRequests(LinkFault):
    """Requests of the kind `api`, and what follows on the same connection, are late by `us`."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DelayRequest})
    api: str = "AlterPartition"
    sender: Sender = "target"
    us: int = ranged(1, DELAY_US_MAX, default=1_500_000)

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        find_api(self.api)

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        api = find_api(self.api)
        links = request_links(scene, api, self.sender)
        return (LinkRule(scene.rule_id(), links, DelayRequest(api.name, self.us)),)


FAULTS: Final = (DelayRequests,)
