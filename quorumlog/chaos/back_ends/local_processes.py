"""The nodes of a cluster that the run itself has started: signals, and its own way to start them.

The best-informed node says which nodes hold a role; those that are paused are not asked.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from quorumlog.chaos.back_ends.back_end import (
    GROUPS_TOPIC,
    BackEndFailed,
    NodeUnavailable,
    for_each,
    holders_of,
)
from quorumlog.chaos.faults.fault import StepFault
from quorumlog.chaos.faults.links import EFFECTS, LinkRule
from quorumlog.chaos.network.link_proxy import LinkProxy, ProxyFailed
from quorumlog.chaos.network.routes import detours, plan_routes
from quorumlog.chaos.schedule import Schedule
from quorumlog.cluster import ClusterError, LocalCluster

_START_TIMEOUT_S: Final = 20.0
T = TypeVar("T")


class LocalProcesses:
    """A back end on a LocalCluster. What blocks runs in threads.

    Rules on links need a `proxy` that the nodes' connections go through.
    """

    name = "local processes"
    text = "signals to nodes of this machine, and forwarders between them: no root is needed"
    operations: Final[frozenset[str]] = frozenset({"kill", "start", "stop", "pause", "resume"})

    effects: Final = EFFECTS

    def __init__(self, cluster: LocalCluster, proxy: LinkProxy | None = None) -> None:
        self.cluster: Final = cluster
        self._proxy: Final = proxy
        self._paused: Final[set[int]] = set()  # they would not answer

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, whether they run or not."""
        return tuple(node.id for node in self.cluster.nodes)

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""
        return tuple(node_id for node_id in self.node_ids if self.cluster.pid(node_id) is not None)

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        """Do the operation to all `node_ids`. Raises NodeUnavailable when all were tried."""
        del amount  # of no operation here
        with _translated():
            match operation:
                case "kill":
                    self._paused.difference_update(node_ids)
                    await asyncio.to_thread(self.cluster.kill, *node_ids)
                case "pause":
                    self._paused.update(node_ids)
                    await for_each(node_ids, partial(_in_thread, self.cluster.pause))
                case "resume":
                    self._paused.difference_update(node_ids)
                    await for_each(node_ids, partial(_in_thread, self.cluster.resume))
                case "stop":
                    await for_each(node_ids, partial(_in_thread, self.cluster.stop_node))
                case "start":
                    # `LocalCluster.start` would kill a node that is not ready in time, and that
                    # would look as if it had ended by itself.
                    start = partial(self.cluster.start_node, timeout_s=_START_TIMEOUT_S)
                    stopped = {*node_ids} - {*await self.running()}
                    await for_each(sorted(stopped), partial(_in_thread, start))
                case _:
                    raise BackEndFailed(f"{self.name} have no operation {operation!r}")

    async def impose(self, rule: LinkRule) -> None:
        """Let a rule hold. Raises BackEndFailed."""
        if self._proxy is None:
            raise BackEndFailed(f"the cluster runs without forwarders: rule {rule.id} cannot hold")
        await self._ask(self._proxy.impose, rule)

    async def lift(self, rule_id: str) -> None:
        """Take a rule back. Raises BackEndFailed."""
        if self._proxy is not None:
            await self._ask(self._proxy.lift, rule_id)

    async def _ask(self, ask: Callable[[T], None], what: T) -> None:
        try:
            await asyncio.to_thread(ask, what)
        except ProxyFailed as error:
            raise BackEndFailed(str(error)) from error

    def why_not(self, fault: str) -> str:
        """Say nothing: what signals cannot do is plain."""
        del fault
        return ""

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold the role, as the best-informed node sees it."""
        answering = [node_id for node_id in await self.running() if node_id not in self._paused]
        answers = await asyncio.gather(
            *(asyncio.to_thread(self.cluster.node_status, node_id) for node_id in answering)
        )
        known = [answer for answer in answers if answer is not None]
        if not known:
            return []
        status = max(known, key=lambda answer: int(answer["metadata_offset"]))
        if role == "metadata-leader":
            return [status["controller_id"]]
        if role == "group-coordinator":
            role, topic = "partition-leader", GROUPS_TOPIC
        partitions = status["topics"].get(topic, {"partitions": []})["partitions"]
        return holders_of(role, ((int(one["leader"]), one["isr"]) for one in partitions))

    def last_words(self, node_id: int) -> str:
        """Return the last line of the node's output."""
        return self.cluster.last_words(node_id)

    async def restore(self) -> None:
        """Do nothing: the nodes end with the run."""


def needs_links(schedule: Schedule) -> bool:
    """Tell whether an action imposes rules on links: the nodes must run behind forwarders then."""
    faults = (action.fault for action in schedule.actions)
    return any(isinstance(fault, StepFault) and fault.imposes for fault in faults)


@contextmanager
def started(cluster: LocalCluster, *, with_links: bool, seed: int = 0) -> Iterator[LocalProcesses]:
    """Start a cluster, behind forwarders `with_links`, and stop it. Raises ClusterError."""
    if not with_links:
        with cluster:
            yield LocalProcesses(cluster)
        return
    try:
        with LinkProxy(plan_routes(cluster.nodes), seed=seed) as proxy:
            cluster.take_detours(detours(proxy.routes))
            with cluster:
                yield LocalProcesses(cluster, proxy)
    except ProxyFailed as error:
        raise ClusterError(str(error)) from error


async def _in_thread(act: Callable[[int], object], node_id: int) -> None:
    await asyncio.to_thread(act, node_id)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ClusterError, ProcessLookupError) as error:
        raise NodeUnavailable(str(error)) from error
