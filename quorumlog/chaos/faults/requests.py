"""Faults of requests of one kind: they are lost or late, or their answers are lost.

`ack_kill` is two steps at one node, which independent draws seldom bring together.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from quorumlog.chaos.faults.apis import Api, find_api
from quorumlog.chaos.faults.fault import (
    ALL,
    LINK_ROLES,
    MILLION,
    AnyStep,
    Fault,
    Impose,
    Lift,
    LinkFault,
    Scene,
    Step,
    StepFault,
    named,
    ranged,
)
from quorumlog.chaos.faults.links import (
    CLIENTS,
    DelayRequest,
    DropReply,
    DropRequest,
    Effect,
    Link,
    LinkRule,
)
from quorumlog.chaos.faults.traffic import DELAY_US_MAX

Sender = Literal["target", "nodes", "clients"]
"""Whose requests: the target's own to all nodes, or those that others send to the target."""


def request_links(scene: Scene, api: Api, sender: Sender) -> tuple[Link, ...]:
    """Return the links on which the requests of this kind pass."""
    match sender:
        case "target":
            return _links(scene.parties, map(str, scene.all_nodes), api)
        case "nodes":
            return _links(map(str, scene.all_nodes), map(str, scene.victims), api)
        case "clients":
            return _links([CLIENTS], map(str, scene.victims or scene.all_nodes), api)


def _links(sources: Iterable[str], destinations: Iterable[str], api: Api) -> tuple[Link, ...]:
    targets = list(destinations)
    return tuple(
        Link(source, destination, api.plane)
        for source in sources
        for destination in targets
        if source != destination
    )


class RequestFault(LinkFault):
    """A fault of the requests of the kind `api`. A subclass has the parameters.

    sender: the source of the requests.
    """

    __slots__ = ()
    api: str
    sender: Sender

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        find_api(self.api)

    def links(self, scene: Scene) -> tuple[Link, ...]:
        """See LinkFault."""
        return request_links(scene, find_api(self.api), self.sender)


@named("drop_request", "requests of one kind are lost: a follower's Fetch", targets=LINK_ROLES)
class DropRequests(RequestFault):
    """Requests of the kind `api` are lost, and all later bytes of the same connection.

    share_ppm: the lost share, in millionths.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DropRequest})
    api: str = "Fetch"
    sender: Sender = "target"
    share_ppm: int = ranged(1, MILLION, default=MILLION)

    def effect(self) -> Effect:
        """See LinkFault."""
        return DropRequest(find_api(self.api).name, self.share_ppm)


@named("delay_request", "requests of one kind are late: an AlterPartition", targets=LINK_ROLES)
class DelayRequests(RequestFault):
    """Requests of the kind `api`, and all later bytes of the connection, are late by `us`."""

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DelayRequest})
    api: str = "AlterPartition"
    sender: Sender = "target"
    us: int = ranged(1, DELAY_US_MAX, default=1_500_000)

    def effect(self) -> Effect:
        """See LinkFault."""
        return DelayRequest(find_api(self.api).name, self.us)


@named("reply_lost", "requests are carried out, but no response arrives", targets=LINK_ROLES)
class ReplyLost(RequestFault):
    """Answers to a share of the requests of the kind `api` are lost with their connection.

    sender: whose requests; by default, those of clients to the target.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DropReply})
    api: str = "Produce"
    sender: Sender = "clients"
    share_ppm: int = ranged(1, MILLION, default=300_000)

    def effect(self) -> Effect:
        """See LinkFault."""
        return DropReply(find_api(self.api).name, self.share_ppm)


@named(
    "ack_kill",
    "no answer of a partition leader to its producers arrives, a moment later SIGKILL",
    targets=("partition-leader", ALL),
)
class AckKill(StepFault):
    """Batches are replicated, their answers are lost, and their leader is gone.

    The producers send these batches again, to the next leader or, with the target `all`, to nodes
    that have all started again: there they must be recognized (KIP-98).
    unanswered_us: from the first lost answer to the SIGKILL.
    """

    imposes: ClassVar[frozenset[type[Effect]]] = frozenset({DropReply})
    breaks: ClassVar[str] = "kill"
    drawn_duration_ms: ClassVar[tuple[int, int]] = (600, 1_500)  # producers try for 5 s
    unanswered_us: int = ranged(0, 60 * MILLION, default=500_000)

    def inject(self, scene: Scene) -> Sequence[AnyStep]:
        """Lose the answers, kill the victims, and let answers pass again."""
        api = find_api("Produce")
        links = request_links(scene, api, "clients")
        rule = LinkRule(scene.rule_id(), links, DropReply(api.name, MILLION))
        return (
            Impose(rule=rule, wait_us=self.unanswered_us),
            Step(operation="kill", node_ids=scene.victims),
            Lift(rule_id=rule.id),
        )
