"""The nodes of a cluster that the run itself has started: signals, and its own way to start them.

The best-informed node says which nodes hold a role; those that are paused are not asked.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from quorumlog.chaos.back_ends.back_end import (
    GROUPS_TOPIC,
    BackEndFailed,
    NodeUnavailable,
    for_each,
    holders_of,
)
from quorumlog.chaos.faults.fault import StepFault
from quorumlog.chaos.faults.links import EFFECTS, LinkRule
from quorumlog.chaos.faults.registry import STEP_FAULTS
from quorumlog.chaos.network.link_proxy import LinkProxy, ProxyFailed
from quorumlog.chaos.network.routes import detours, plan_routes
from quorumlog.chaos.schedule import Schedule
from quorumlog.cluster import ClusterError, LocalCluster, NodeFailed

_START_TIMEOUT_S: Final = 20.0
_STARVE_PERIOD_S: Final = 0.06
_NOT_NEEDED_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.1
T = TypeVar("T")


class LocalProcesses:
    """A back end on a LocalCluster. What blocks runs in threads.

    Rules on links need a `proxy` that the nodes' connections go through.
    """

    name = "local processes"
    text = "signals to nodes of this machine, and forwarders between them: no root is needed"
    operations: Final[frozenset[str]] = frozenset(
        {"kill", "start", "stop", "pause", "resume", "starve", "feed", "wipe"}
    )

    effects: Final = EFFECTS

    def __init__(self, cluster: LocalCluster, proxy: LinkProxy | None = None) -> None:
        self.cluster: Final = cluster
        self._proxy: Final = proxy
        self._paused: Final[set[int]] = set()  # they would not answer
        self._starved: Final[dict[int, asyncio.Task[None]]] = {}

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, whether they run or not."""
        return tuple(node.id for node in self.cluster.nodes)

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""
        return tuple(node_id for node_id in self.node_ids if self.cluster.pid(node_id) is not None)

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        """Do the operation to all `node_ids`. Raises NodeUnavailable when all were tried."""
        match operation:
            case "kill":
                self._paused.difference_update(node_ids)
                self._end_starving(node_ids)
                await for_each(node_ids, partial(_in_thread, self.cluster.kill))
            case "stop":
                await for_each(node_ids, self._stop)
            case "start":
                await self._start(node_ids)
            case "pause":
                self._paused.update(node_ids)
                await for_each(node_ids, partial(_at_once, self.cluster.pause))
            case "resume":
                self._paused.difference_update(node_ids)
                await for_each(node_ids, partial(_at_once, self.cluster.resume))
            case "starve":
                self._starve(node_ids, share_percent=amount)
            case "feed":
                await for_each(node_ids, self._feed)
            case "wipe":
                await for_each(node_ids, self._wipe)
            case _:
                raise BackEndFailed(f"{self.name} have no operation {operation!r}")

    async def _stop(self, node_id: int) -> None:
        """Stop a node in order, or kill it: else it might end at any later time."""
        with _translated():
            try:
                await asyncio.to_thread(self.cluster.stop_node, node_id)
            except NodeFailed:
                with suppress(ClusterError):  # it has ended in this moment
                    await asyncio.to_thread(self.cluster.kill, node_id)
        self._end_starving((node_id,))

    async def _start(self, node_ids: Sequence[int]) -> None:
        # `LocalCluster.start` would kill a node that is not ready in time, and that would look as
        # if it had ended by itself.
        start = partial(self.cluster.start_node, timeout_s=_START_TIMEOUT_S)
        stopped = {*node_ids} - {*await self.running()}
        await for_each(sorted(stopped), partial(_in_thread, start))

    async def _wipe(self, node_id: int) -> None:
        await self._until_not_needed(node_id)
        await _in_thread(self.cluster.wipe_node, node_id)

    def _starve(self, node_ids: Sequence[int], *, share_percent: int) -> None:
        for node_id in node_ids:
            work = self._pause_in_turns(node_id, share_percent=share_percent)
            self._starved[node_id] = asyncio.create_task(work)

    def _end_starving(self, node_ids: Sequence[int]) -> None:
        """Forget what starved: the next process of the node does not."""
        for node_id in node_ids:
            if (starving := self._starved.pop(node_id, None)) is not None:
                starving.cancel()

    async def _pause_in_turns(self, node_id: int, *, share_percent: int) -> None:
        """Let the process run for a share of each period, until it ends or is fed."""
        with suppress(ClusterError):
            while True:
                if node_id not in self._paused:
                    self.cluster.pause(node_id)
                await asyncio.sleep(_STARVE_PERIOD_S * (100 - share_percent) / 100)
                if node_id not in self._paused:
                    self.cluster.resume(node_id)
                await asyncio.sleep(_STARVE_PERIOD_S * share_percent / 100)

    async def _feed(self, node_id: int) -> None:
        starving = self._starved.pop(node_id, None)
        if starving is not None:
            starving.cancel()
            await asyncio.wait([starving])
            if node_id not in self._paused and self.cluster.pid(node_id) is not None:
                await _at_once(self.cluster.resume, node_id)

    async def _until_not_needed(self, node_id: int) -> None:
        """Return when other nodes lead, in sync, every partition that this one has a copy of.

        Raises NodeUnavailable: the cluster needs the copy.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _NOT_NEEDED_TIMEOUT_S
        while not await self._is_not_needed(node_id):
            if loop.time() > deadline_s:
                raise NodeUnavailable(f"the cluster needs what node {node_id} has: not wiped")
            await asyncio.sleep(_POLL_S)

    async def _is_not_needed(self, node_id: int) -> bool:
        status = await self._status()
        if status is None or status["controller_id"] in {None, -1, node_id}:
            return False
        partitions = [one for topic in status["topics"].values() for one in topic["partitions"]]
        return all(
            one["leader"] not in {-1, node_id} and node_id not in one["isr"]
            for one in partitions
            if node_id in one["replicas"]
        )

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

    @classmethod
    def missing(cls, kind: type[StepFault]) -> str:
        """Say why this machine cannot do a fault, or "" if it can."""
        lacking = sorted(kind.needs - cls.operations)
        if lacking:
            return f"there is no operation {lacking[0]} on the processes of a run"
        return ""

    def why_not(self, fault: str) -> str:
        """See `missing`."""
        kind = STEP_FAULTS.get(fault)
        return "" if kind is None else self.missing(kind)

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold the role, as the best-informed node sees it."""
        status = await self._status()
        if status is None:
            return []
        if role == "metadata-leader":
            return [status["controller_id"]]
        if role == "group-coordinator":
            role, topic = "partition-leader", GROUPS_TOPIC
        partitions = status["topics"].get(topic, {"partitions": []})["partitions"]
        return holders_of(role, ((int(one["leader"]), one["isr"]) for one in partitions))

    async def _status(self) -> dict[str, Any] | None:
        """Return the view of the best-informed node that answers."""
        answering = [node_id for node_id in await self.running() if node_id not in self._paused]
        answers = await asyncio.gather(
            *(asyncio.to_thread(self.cluster.node_status, node_id) for node_id in answering)
        )
        known = [answer for answer in answers if answer is not None]
        return max(known, key=lambda answer: int(answer["metadata_offset"]), default=None)

    def last_words(self, node_id: int) -> str:
        """Return the last line of the node's output."""
        return self.cluster.last_words(node_id)

    async def restore(self) -> None:
        """Let no node starve: all end with the run."""
        for node_id in [*self._starved]:
            with suppress(ClusterError):
                await self._feed(node_id)


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
    with _translated():
        await asyncio.to_thread(act, node_id)


async def _at_once(act: Callable[[int], object], node_id: int) -> None:
    # No thread: a pause and a resume of two faults have their effect in the order of the calls.
    with _translated():
        act(node_id)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ClusterError, ProcessLookupError) as error:
        raise NodeUnavailable(str(error)) from error
