"""reply_lost: requests are carried out, and their connection is reset instead of the answer."""

from typing import ClassVar, Final

from quorumlog.chaos.faults.apis import find_api
from quorumlog.chaos.faults.fault import MILLION, Fault, Scene, named, ranged
from quorumlog.chaos.faults.link_faults import LINK_ROLES, LinkFault
from quorumlog.chaos.faults.links import DropReply, Effect, LinkRule
from quorumlog.chaos.faults.requests import Sender, request_links


@named("reply_lost", "requests are carried out, but no answer arrives", targets=LINK_ROLES)
class ReplyLost(LinkFault):
    """Answers to a share of the requests of the kind `api` are lost with their connection.

    sender: whose requests; by default, those of clients to the target.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DropReply})
    api: str = "Produce"
    sender: Sender = "clients"
    share_ppm: int = ranged(1, MILLION, default=300_000)

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        find_api(self.api)

    def rules(self, scene: Scene) -> tuple[LinkRule, ...]:
        """See LinkFault."""
        api = find_api(self.api)
        links = request_links(scene, api, self.sender)
        return (LinkRule(scene.rule_id(), links, DropReply(api.name, self.share_ppm)),)


FAULTS: Final = (ReplyLost,)
