"""The protocol of a back end: operations on nodes, rules on links, and which node holds a role."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from quorumlog.chaos.faults.links import Effect, Link, LinkRule

GROUPS_TOPIC: Final = "__consumer_offsets"
"""The leaders of its partitions coordinate groups."""


class NodeUnavailable(Exception):
    """A node did not perform an operation: it has ended, or it is not ready in time.

    node_ids: the nodes that did not, if others did.
    """

    def __init__(self, text: str, node_ids: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.node_ids: Final = node_ids


class BackEndFailed(Exception):
    """The back end itself does not work: the run ends without a verdict. One line to act on."""


class BackEnd(Protocol):
    """The nodes of one cluster, and what breaks and mends them.

    A fault that needs an operation or an effect that is not there is refused before the run.
    """

    @property
    def name(self) -> str:
        """The name of the back end in error messages."""

    @property
    def operations(self) -> frozenset[str]:
        """The operations that `perform` takes, each on every node."""

    @property
    def effects(self) -> frozenset[type[Effect]]:
        """The effects of the rules that `impose` takes."""

    def why_not(self, fault: str) -> str:
        """Say why it cannot do a fault that needs more than it has, or "" if that is all."""

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, whether they run or not."""

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> str | None:
        """Do the operation to all `node_ids`, as simultaneously as possible.

        Every node is tried; then the first error is raised: NodeUnavailable. `start` leaves a node
        alone that runs, and returns when those it started take part. An operation that takes
        something back leaves a node alone where there is nothing to take back. `amount` is the
        step's. Returns what was drawn, such as the partition that moves, if anything was.
        """

    def times_met(self, operation: str, node_ids: Sequence[int]) -> int | None:
        """Return how often the nodes have met what the operation breaks; None: it is not counted.

        It only grows. A fault meanwhile that it has not grown had no effect.
        """

    def has_links(self, links: Sequence[Link]) -> bool:
        """Tell whether anything is ever sent on one of them; else a rule there breaks nothing."""

    async def impose(self, rule: LinkRule) -> None:
        """Let a rule hold on its links, besides those that hold already."""

    async def lift(self, rule_id: str) -> None:
        """Take a rule back. The others still hold. A rule that is not there is ignored."""

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold a role now, one of one node; none if that is unknown."""

    def last_words(self, node_id: int) -> str:
        """Say how a node that has ended did so, or "" if that is unknown."""

    async def restore(self) -> None:
        """Undo what is left of a run that ended early, if the nodes outlive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackEndKind:
    """A back end for clusters that run already.

    `open` is called with its argument and the bootstrap servers, before the event loop runs; it
    raises ValueError for an argument that makes no sense.
    """

    name: str
    text: str
    open: Callable[[str, str], BackEnd]


class WithoutLinks:
    """What a back end has that owns no network between the nodes."""

    effects: frozenset[type[Effect]] = frozenset()

    def has_links(self, links: Sequence[Link]) -> bool:
        """Tell that there are none."""
        del links
        return False

    async def impose(self, rule: LinkRule) -> NoReturn:
        """Refuse: no schedule with a rule on links passes the check."""
        raise BackEndFailed(f"there are no links here for {rule}")

    async def lift(self, rule_id: str) -> None:
        """Do nothing: no rule holds."""


async def for_each(node_ids: Iterable[int], act: Callable[[int], Awaitable[object]]) -> None:
    """Call `act` for all nodes together; raise the first error when all were tried.

    Of a NodeUnavailable, `node_ids` are all nodes whose `act` raised one.
    """
    all_nodes = tuple(node_ids)
    tried = await asyncio.gather(*map(act, all_nodes), return_exceptions=True)
    unavailable = []
    for node_id, error in zip(all_nodes, tried, strict=True):
        if isinstance(error, NodeUnavailable):
            unavailable.append((node_id, error))
        elif isinstance(error, BaseException):
            raise error
    if unavailable:
        first = unavailable[0][1]
        raise NodeUnavailable(str(first), tuple(node_id for node_id, _ in unavailable)) from first


def holders_of(role: str, partitions: Iterable[tuple[int, Iterable[int]]]) -> list[int]:
    """Return the nodes that hold a role in a topic, from the leader and the ISR of each partition.

    Other roles than `partition-leader` and `isr-follower` are not those of a topic.
    """
    known = [(leader_id, {*isr} - {leader_id}) for leader_id, isr in partitions]
    match role:
        case "partition-leader":
            return sorted({leader_id for leader_id, _ in known})
        case "isr-follower":
            return sorted(set().union(*(followers for _, followers in known)))
        case _:
            return []
