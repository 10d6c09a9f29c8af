"""The protocol of a back end: operations on nodes, rules on links, and the holders of roles."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from quorumlog.chaos.faults.answers import ERRORS, AnswerRequests
from quorumlog.chaos.faults.links import Effect, Link, LinkRule
from quorumlog.chaos.faults.node_groups import Racks, require_rack
from quorumlog.chaos.faults.registry import faults_made_of
from quorumlog.chaos.schedule import Schedule
from quorumlog.client.errors import DEFINITE

Tallies = Mapping[str, Mapping[str, Any]]
"""By rule id: `matched` and `answered` requests, and the requests `seen` since the rule began, as
lists of API, client id and count."""
GROUPS_TOPIC: Final = "__consumer_offsets"
"""The leaders of its partitions coordinate groups."""


class NodeUnavailable(Exception):
    """A node did not perform an operation: it has ended, or it is not ready in time.

    node_ids: the nodes that failed, if others succeeded.
    """

    def __init__(self, text: str, node_ids: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.node_ids: Final = node_ids


class BackEndFailed(Exception):
    """The back end itself does not work: the run ends without a verdict. One line to act on."""


class BackEnd(Protocol):
    """The nodes of one cluster, and the operations that break and mend them.

    A fault that needs a missing operation or effect is refused before the run.
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
        """Return which requirement of a fault the back end lacks, or ""."""

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, running or not."""

    @property
    def racks(self) -> Racks:
        """The nodes of each rack, running or not."""

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> str | None:
        """Do the operation to all `node_ids`, as simultaneously as possible.

        Every node is tried; then the first error is raised: NodeUnavailable. `start` skips running
        nodes, and returns when the nodes that it started take part. An operation that undoes a
        fault skips nodes without that fault. `amount` is the step's. Returns the drawn request,
        such as the reassigned partition, if one was drawn.
        """

    def times_met(self, operation: str, node_ids: Sequence[int]) -> int | None:
        """Return how often the operation has affected the nodes; None: it is not counted.

        The number only grows. A fault during which it did not grow had no effect.
        """

    def has_links(self, links: Sequence[Link]) -> bool:
        """Return whether nodes send on any of these links; else a rule there has no effect."""

    async def impose(self, rule: LinkRule) -> None:
        """Impose a rule on its links, in addition to the rules in force."""

    async def lift(self, rule_id: str) -> None:
        """Lift a rule; the others stay in force. An unknown rule is ignored."""

    async def tallies(self) -> Tallies:
        """Return the counts of the rules that answer or observe requests, lifted ones included."""

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold a role now; empty if that is unknown."""

    async def behind(self, topic: str) -> Sequence[int]:
        """Return the nodes with a replica outside its ISR; empty if that is unknown.

        A back end that sees one topic at a time looks at this `topic` alone.
        """

    def last_words(self, node_id: int) -> str:
        """Return the last output of a node that has ended, or "" if that is unknown."""

    async def restore(self) -> None:
        """Undo the remaining faults of a run that ended early, if the nodes outlive it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackEndKind:
    """A back end for clusters that run already.

    `open` is called with its argument, the bootstrap servers and the arguments of quorumlog's
    clients for TLS and SASL, before the event loop runs. It raises ValueError for an invalid
    argument.
    """

    name: str
    text: str
    open: Callable[[str, str, Mapping[str, Any]], BackEnd]


class WithoutLinks:
    """The members of a back end without a network between the nodes."""

    effects: frozenset[type[Effect]] = frozenset()

    def has_links(self, links: Sequence[Link]) -> bool:
        """Return False: there are no links."""
        del links
        return False

    async def impose(self, rule: LinkRule) -> NoReturn:
        """Refuse: no schedule with a rule on links passes the check."""
        raise BackEndFailed(f"there are no links here for {rule}")

    async def lift(self, rule_id: str) -> None:
        """Do nothing: no rule is in force."""

    async def tallies(self) -> Tallies:
        """Return {}: no rule is in force."""
        return {}


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

    Roles other than `partition-leader` and `isr-follower` are not roles in a topic: the list is
    empty.
    """
    known = [(leader_id, {*isr} - {leader_id}) for leader_id, isr in partitions]
    match role:
        case "partition-leader":
            return sorted({leader_id for leader_id, _ in known})
        case "isr-follower":
            return sorted(set().union(*(followers for _, followers in known)))
        case _:
            return []


def check_schedule(schedule: Schedule, back_end: BackEnd) -> None:
    """Raise FaultUnsupported or ValueError if the back end cannot carry the schedule out."""
    kinds = {type(action.fault) for action in schedule.actions}
    can = faults_made_of(back_end.operations, back_end.effects, kinds)
    schedule.check_supported(back_end=back_end.name, can=can, why_not=back_end.why_not)
    for action in schedule.actions:
        if isinstance(action.fault, AnswerRequests):
            _check_judged(action.fault)
    node_ids = back_end.node_ids
    for action in schedule.actions:
        require_rack(action.target, back_end.racks)
        named = () if isinstance(action.target, str) else action.target
        for node_id in named:
            if node_id not in node_ids:
                nodes = ",".join(map(str, node_ids))
                raise ValueError(f"the schedule names node {node_id}; the nodes are {nodes}")


def _check_judged(fault: AnswerRequests) -> None:
    """Raise ValueError for an error that proves to clients that nothing was written."""
    if fault.after == "appended" and ERRORS[fault.error] in DEFINITE:
        raise ValueError(
            f"{fault.api} with {fault.error} after it is appended: brokers send this error only"
            " before they write, so the verdict would accuse the cluster of the written records"
        )
