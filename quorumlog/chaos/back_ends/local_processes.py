"""The nodes of a cluster that the run itself has started, broken by signals, shims and links.

The best-informed node that is not paused reports the holders of a role.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from quorumlog.chaos.back_ends import administrator
from quorumlog.chaos.back_ends.administrator import Administrator
from quorumlog.chaos.back_ends.back_end import (
    GROUPS_TOPIC,
    BackEndFailed,
    NodeUnavailable,
    Tallies,
    for_each,
    holders_of,
)
from quorumlog.chaos.back_ends.voter_changer import OPERATIONS as OF_VOTERS
from quorumlog.chaos.back_ends.voter_changer import VoterChanger
from quorumlog.chaos.faults.answers import ObserveRequests
from quorumlog.chaos.faults.fault import OUTSIDE, UNDOING, StepFault
from quorumlog.chaos.faults.links import EFFECTS, OF_REQUESTS, Effect, Link, LinkRule
from quorumlog.chaos.faults.node_groups import Racks, racks_of
from quorumlog.chaos.faults.registry import STEP_FAULTS, known_step_fault
from quorumlog.chaos.network import namespaces
from quorumlog.chaos.network.link_proxy import LinkProxy
from quorumlog.chaos.network.links import Links, LinksFailed, NetworkKind
from quorumlog.chaos.network.routes import are_used
from quorumlog.chaos.shim import shim as shims
from quorumlog.chaos.shim.orders import Orders
from quorumlog.chaos.shim.shim import Shim
from quorumlog.cluster import ClusterError, LocalCluster, NodeFailed, layout
from quorumlog.cluster.lost_records import lose_records
from quorumlog.cluster.security import has_files
from quorumlog.cluster.shape import CONTROLLER


class LocalVoters(VoterChanger):
    """The voters of a LocalCluster. A file in each directory has the directory's id."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster: Final = cluster
        client = _own_client(cluster)
        super().__init__(
            client.pop("bootstrap_servers"),
            client,
            controllers=[node.id for node in cluster.nodes if CONTROLLER in node.roles],
            directory_of=lambda node_id: layout.directory_id(cluster.directory, node_id),
            now_s=lambda: asyncio.get_running_loop().time(),
        )


def _own_client(cluster: LocalCluster) -> dict[str, Any]:
    """Return the arguments of a client that may do everything.

    A secured cluster that has not started has no login yet: only its schedule is checked.
    """
    security = getattr(getattr(cluster, "spec", None), "security", None)
    if security is not None and not has_files(cluster.directory):
        return {"bootstrap_servers": cluster.bootstrap}
    return cluster.own_client()


def _has_tls(cluster: LocalCluster) -> bool:
    """Whether the listeners of a cluster have TLS; many clusters have no `security`."""
    security = getattr(getattr(cluster, "spec", None), "security", None)
    return security is not None and bool(security.tls)


def why_needed(status: dict[str, Any] | None, node_id: int) -> str:
    """Return why a cluster may need a node's copies, by its best-informed node, or "".

    It needs none if other nodes lead, in sync, every partition that this node has a copy of.
    """
    if status is None or status["controller_id"] in {None, -1, node_id}:
        return "no other node has reported the active controller"
    partitions = [one for topic in status["topics"].values() for one in topic["partitions"]]
    copies = [one for one in partitions if node_id in one["replicas"]]
    if any(one["leader"] in {-1, node_id} or node_id in one["isr"] for one in copies):
        return "it leads a partition, or is in its ISR"
    return ""


_START_TIMEOUT_S: Final = 20.0
_STARVE_PERIOD_S: Final = 0.06
_NOT_NEEDED_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.1
NETWORKS: Final[Mapping[NetworkKind, frozenset[type[Effect]]]] = {
    "proxy": EFFECTS,
    "netns": namespaces.EFFECTS,
}
"""The effects of rules on links, by the kind of network that applies the rules."""
T = TypeVar("T")

ORDERS: Final[Mapping[str, Callable[[Orders, int], None]]] = {
    "fill_disk": lambda orders, left_bytes: orders.fill(left_bytes),
    "free_disk": lambda orders, _: orders.free(),
    "fail_disk": lambda orders, calls: orders.fail(calls),
    "mend_disk": lambda orders, _: orders.fail(0),
    "slow_fsync": lambda orders, longest_us: orders.slow(longest_us),
    "mend_fsync": lambda orders, _: orders.slow(0),
    "step_clock": lambda orders, step_ms: orders.step_clock(step_ms * 1_000_000),
    "reset_clock": lambda orders, _: orders.step_clock(0),
}
"""The orders to the shim in each node."""
_PLAIN: Final = administrator.OPERATIONS | OF_VOTERS | {
    "kill", "start", "stop", "pause", "resume", "starve", "feed", "wipe", "lose_records", OUTSIDE,
}  # fmt: skip
RUN_FAULTS: Final[Mapping[str, type[StepFault]]] = {
    name: kind for name, kind in STEP_FAULTS.items() if kind.needs <= _PLAIN | ORDERS.keys()
}
"""The faults of processes, by name. The machine may lack a tool for some: see `missing`."""


class LocalProcesses:
    """A back end on a LocalCluster. Blocking calls run in threads.

    Rules on links need `links` that the nodes' connections go through; broken disks and clocks need
    a `shim` that the nodes were started with.
    """

    name = "local processes"
    text = (
        "signals, broken disks and clocks, an administrator, and forwarders between nodes: "
        "no root is needed"
    )

    def __init__(
        self,
        cluster: LocalCluster,
        links: Links | None = None,
        shim: Shim | None = None,
        *,
        network: NetworkKind = "proxy",
        topic: str = "chaos",
    ) -> None:
        """`network`: the kind of `links`, also if there are none. `topic`: of the workload."""
        self.cluster: Final = cluster
        self._has_tls: Final = _has_tls(cluster)
        self.effects: Final = NETWORKS[network] - (OF_REQUESTS if self._has_tls else frozenset())
        self._network: Final = network
        self._links: Final = links
        self._shim: Final = shim
        client = _own_client(cluster)
        self._administrator: Final = Administrator(
            client.pop("bootstrap_servers"),
            client,
            topic=topic,
            brokers=len([node for node in cluster.nodes if node.is_broker]),
            fewer=1,
        )
        self._voters: Final = LocalVoters(cluster)
        self._for_each: Final[Mapping[str, Callable[[int], Awaitable[None]]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "resume": self._resume,
            "feed": self._feed,
            "wipe": self._wipe,
            "lose_records": self._lose_records,
        }
        self._paused: Final[set[int]] = set()  # they would not respond
        self._starved: Final[dict[int, asyncio.Task[None]]] = {}

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, running or not."""
        return tuple(node.id for node in self.cluster.nodes)

    @property
    def racks(self) -> Racks:
        """The nodes of each rack, running or not."""
        spec = getattr(self.cluster, "spec", None)
        return {} if spec is None else racks_of({node.id: spec.rack(node) for node in spec.nodes})

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""
        return tuple(node_id for node_id in self.node_ids if self.cluster.pid(node_id) is not None)

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> str | None:
        """Do the operation to all `node_ids`. Raises NodeUnavailable when all were tried."""
        match operation:
            case "start":
                await self._start(node_ids)
            case "starve":
                self._starve(node_ids, share_percent=amount)
            case _ if operation in administrator.OPERATIONS:
                return await self._administrator.perform(operation, amount)
            case _ if operation in OF_VOTERS:
                await self._voters.perform(operation, node_ids)
            case _ if operation in ORDERS:
                self._order(operation, node_ids, amount)
            case _ if operation in self._for_each:
                await for_each(node_ids, self._for_each[operation])
            case _:
                raise BackEndFailed(f"{self.name} have no operation {operation!r}")
        return None

    def times_met(self, operation: str, node_ids: Sequence[int]) -> int | None:
        """Return the changes of an administrator, or the calls that a shim broke."""
        if operation == "churn":
            return self._administrator.changes
        if operation == "remove_voter":
            return self._voters.changes
        if self._shim is not None and operation in {"fail_disk", "fill_disk", "slow_fsync"}:
            return sum(orders.hit for orders in self._shim.of(node_ids))
        return None

    @property
    def operations(self) -> frozenset[str]:
        """The operations of a run on this machine, each on every node."""
        can = _PLAIN if shims.why_not() else _PLAIN | ORDERS.keys()
        return can if self._all_have_logs else can - {"lose_records"}

    @property
    def _all_have_logs(self) -> bool:
        return all(node.is_broker for node in self.cluster.nodes)

    def _order(self, operation: str, node_ids: Sequence[int], amount: int) -> None:
        if self._shim is None:
            if operation not in UNDOING:
                raise BackEndFailed(
                    f"{operation}: the nodes started without the library that breaks disks and "
                    "clocks; start the cluster with `quorumlog up --control 0 --breakable`, or in "
                    "a test with breakable=True in quorumlog_cluster_options"
                )
            return
        for node_id, orders in zip(node_ids, self._shim.of(node_ids), strict=True):
            obeys = orders.are_read or self.cluster.pid(node_id) is None
            if not obeys and operation not in UNDOING:
                raise BackEndFailed(
                    f"node {node_id} has not loaded the shim: {operation} cannot be done"
                )
            ORDERS[operation](orders, amount)

    async def _kill(self, node_id: int) -> None:
        self._paused.discard(node_id)
        self._end_starving(node_id)
        await _in_thread(self.cluster.kill, node_id)

    async def _pause(self, node_id: int) -> None:
        self._paused.add(node_id)
        await _at_once(self.cluster.pause, node_id)

    async def _resume(self, node_id: int) -> None:
        self._paused.discard(node_id)
        await _at_once(self.cluster.resume, node_id)

    async def _lose_records(self, node_id: int) -> None:
        await _in_thread(partial(lose_records, self.cluster.directory), node_id)

    async def _stop(self, node_id: int) -> None:
        """Shut a node down, or kill it if it does not end: else it might end at any later time."""
        with _translated():
            try:
                await asyncio.to_thread(self.cluster.stop_node, node_id)
            except NodeFailed:
                with suppress(ClusterError):  # it has just ended
                    await asyncio.to_thread(self.cluster.kill, node_id)
        self._end_starving(node_id)

    async def _start(self, node_ids: Sequence[int]) -> None:
        # `LocalCluster.start` would kill a node that is not ready in time, and that would look as
        # if it had ended by itself.
        start = partial(self.cluster.start_node, timeout_s=_START_TIMEOUT_S)
        stopped = {*node_ids} - {*await self.running()}
        if self._shim is not None:
            for orders in self._shim.of(stopped):
                orders.note_start()
        self._paused.difference_update(stopped)  # a new process is not paused
        await for_each(sorted(stopped), partial(_in_thread, start))

    async def _wipe(self, node_id: int) -> None:
        await self._until_not_needed(node_id)
        self._voters.note_wipe(node_id)
        await _in_thread(self.cluster.wipe_node, node_id)

    def _starve(self, node_ids: Sequence[int], *, share_percent: int) -> None:
        for node_id in node_ids:
            self._end_starving(node_id)
            work = self._pause_in_turns(node_id, share_percent=share_percent)
            self._starved[node_id] = asyncio.create_task(work)

    def _end_starving(self, node_id: int) -> None:
        """End the starving of a node: its next process runs at full speed."""
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
        """Return when the cluster needs no data that only this node has. Raises NodeUnavailable."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _NOT_NEEDED_TIMEOUT_S
        while why := why_needed(await self._status(), node_id) or (
            await self._voters.why_not_wipe(node_id)
        ):
            if loop.time() > deadline_s:
                raise NodeUnavailable(f"node {node_id} is not wiped: {why}")
            await asyncio.sleep(_POLL_S)

    def has_links(self, links: Sequence[Link]) -> bool:
        """Return whether nodes send on any of these links."""
        return are_used(self.cluster.nodes, links)

    async def impose(self, rule: LinkRule) -> None:
        """Impose a rule. Raises BackEndFailed."""
        if self._links is None:
            raise BackEndFailed(f"the cluster runs without forwarders: rule {rule.id} cannot hold")
        await self._ask(self._links.impose, rule)

    async def lift(self, rule_id: str) -> None:
        """Lift a rule. Raises BackEndFailed."""
        if self._links is not None:
            await self._ask(self._links.lift, rule_id)

    async def tallies(self) -> Tallies:
        """Return the counts of the rules that answer or observe requests. Raises BackEndFailed."""
        if not isinstance(self._links, LinkProxy):
            return {}
        try:
            return await asyncio.to_thread(self._links.tallies)
        except LinksFailed as error:
            raise BackEndFailed(str(error)) from error

    def record_responses(self, file: Path, started_ns: int) -> None:
        """Write responses with errors to clients into a new file, if forwarders can read them.

        `started_ns`: the monotonic time at which the history began. Raises BackEndFailed.
        """
        if isinstance(self._links, LinkProxy) and not self._has_tls:
            try:
                self._links.record_responses(file, started_ns)
            except LinksFailed as error:
                raise BackEndFailed(str(error)) from error

    async def _ask(self, ask: Callable[[T], None], what: T) -> None:
        try:
            await asyncio.to_thread(ask, what)
        except LinksFailed as error:
            raise BackEndFailed(str(error)) from error

    @staticmethod
    def missing(kind: type[StepFault], network: NetworkKind = "proxy") -> str:
        """Return why this machine cannot do a fault, or ""."""
        if not kind.imposes <= NETWORKS[network]:
            return "the kernel cannot match or refuse requests: use --network proxy"
        if network == "netns" and kind.imposes and (reason := namespaces.why_not()):
            return f"network namespaces: {reason}"
        lacking = sorted(kind.needs - _PLAIN - ORDERS.keys())
        if lacking:
            return f"there is no operation {lacking[0]} on the processes of a run"
        return shims.why_not() if kind.needs & ORDERS.keys() else ""

    def why_not(self, fault: str) -> str:
        """See `missing`."""
        by_hand = ObserveRequests if fault == ObserveRequests.name else None
        kind = known_step_fault(fault) or by_hand
        if kind is not None and "lose_records" in kind.needs and not self._all_have_logs:
            return "it may hit controllers alone, which have no logs to lose: use --nodes"
        if kind is not None and self._has_tls and kind.imposes & OF_REQUESTS:
            return (
                "its links are encrypted, and forwarders cannot read requests: use a cluster"
                " without --tls; links can be cut, delayed and slowed down with it"
            )
        return "" if kind is None else self.missing(kind, self._network)

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold the role, from the view of the best-informed node."""
        status = await self._status()
        if status is None:
            return []
        if role == "metadata-leader":
            return [status["controller_id"]]
        if role == "group-coordinator":
            role, topic = "partition-leader", GROUPS_TOPIC
        partitions = status["topics"].get(topic, {"partitions": []})["partitions"]
        return holders_of(role, ((int(one["leader"]), one["isr"]) for one in partitions))

    async def behind(self, topic: str) -> Sequence[int]:
        """Return the nodes with a replica outside its ISR, from the view of `_status`."""
        del topic
        status = await self._status()
        partitions = (
            one
            for known in ({} if status is None else status["topics"]).values()
            for one in known["partitions"]
        )
        return sorted(set().union(*({*one["replicas"]} - {*one["isr"]} for one in partitions)))

    async def _status(self) -> dict[str, Any] | None:
        """Return the view of the best-informed node that responds."""
        answering = [node_id for node_id in await self.running() if node_id not in self._paused]
        answers = await asyncio.gather(
            *(asyncio.to_thread(self.cluster.node_status, node_id) for node_id in answering)
        )
        known = [answer for answer in answers if answer is not None]
        return max(known, key=lambda answer: int(answer["metadata_offset"]), default=None)

    def last_words(self, node_id: int) -> str:
        """Return the last line of the node's output; "" if it has been started again."""
        try:
            return self.cluster.last_words(node_id)
        except ClusterError:
            return ""

    async def restore(self) -> None:
        """End the starving of nodes and the changes of topics with the run."""
        await self._administrator.stop()
        for node_id in [*self._starved]:
            with suppress(ClusterError):
                await self._feed(node_id)


async def _in_thread(act: Callable[[int], object], node_id: int) -> None:
    with _translated():
        await asyncio.to_thread(act, node_id)


async def _at_once(act: Callable[[int], object], node_id: int) -> None:
    # No thread: a pause and a resume of two faults take effect in the order of the calls.
    with _translated():
        act(node_id)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ClusterError, ProcessLookupError) as error:
        raise NodeUnavailable(str(error)) from error
