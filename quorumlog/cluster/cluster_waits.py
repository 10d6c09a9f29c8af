"""Waits for states of a local cluster: `LocalCluster.wait` and `LocalCluster.settled`.

The metadata is not polled: a node answers as soon as a newer record is applied. The state of a
group is in no metadata: its coordinator is requested every GROUP_POLL_S.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from quorumlog.cluster import cluster_status
from quorumlog.cluster.cluster_status import NodeState, View
from quorumlog.cluster.conditions import REBALANCING, GroupCondition, TopicCondition, settled_lack
from quorumlog.cluster.control_connections import operator_context
from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.node_views import NodeViews
from quorumlog.cluster.waits import POLL_S, Seen, TookTooLong, WaitEnded

if TYPE_CHECKING:
    from quorumlog.client.sync import SyncAdmin
    from quorumlog.cluster.local_cluster import LocalCluster

GROUP_POLL_S: Final = 0.01
_METADATA_WAIT_MS: Final = 500  # of one request; then the processes are looked at again
_SETTLED_WAIT_MS: Final = 50  # a node may get ready without a record
_OFFSETS_TOPIC: Final = "__consumer_offsets"
IsCancelled = Callable[[], bool]


class _Look(NamedTuple):
    """The views of the running nodes, by id, and the states of all processes."""

    views: Mapping[int, View]
    states: Mapping[int, NodeState]
    newest_id: int

    @property
    def newest(self) -> View:
        return self.views[self.newest_id]

    def agreeing(self) -> list[int]:
        """Return the node with the newest metadata, then the other unfenced brokers."""
        fenced = self.newest["fenced"]
        others = (one for one in self.views if fenced.get(str(one)) is False)
        return [self.newest_id, *(one for one in others if one != self.newest_id)]


class _Watcher:
    """Looks at a cluster again and again, until a deadline."""

    def __init__(
        self, cluster: "LocalCluster", timeout_s: float, is_cancelled: IsCancelled
    ) -> None:
        if timeout_s <= 0:
            raise InvalidArgument(f"timeout_s={timeout_s:g}: it must be above 0")
        self._cluster: Final = cluster
        self._timeout_s: Final = timeout_s
        self._deadline_s: Final = time.monotonic() + timeout_s
        self._is_cancelled: Final = is_cancelled
        self._addresses: Final = {
            node.id: cluster.spec.control_address(node) for node in cluster.nodes
        }
        self._views: Final = NodeViews(self._addresses, operator_context(cluster.directory))
        self._opened: Final = ExitStack()
        self._admin: SyncAdmin | None = None

    def __enter__(self) -> Self:
        self._opened.enter_context(self._views)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def admin(self) -> "SyncAdmin":
        """A client that gives up at the deadline."""
        from quorumlog.client.sync import SyncAdmin

        if self._admin is None:
            left_ms = max(1, round(1000 * (self._deadline_s - time.monotonic())))
            admin = SyncAdmin(**self._cluster.own_client(), default_api_timeout_ms=left_ms)
            self._admin = self._opened.enter_context(admin)
        return self._admin

    def look(self) -> _Look:
        """Return the views and states now. Raises ClusterError if no process runs."""
        while True:
            states = {one: self._cluster.state(one) for one in self._addresses}
            if all(state.is_dead for state in states.values()):
                raise ClusterError("no node of the cluster runs; start() starts them")
            views = {}
            for node_id, state in states.items():
                if state is NodeState.NO_ANSWER and (view := self._views.request(node_id)):
                    views[node_id] = view
                    states[node_id] = NodeState.RUNNING
            newest_id = cluster_status.best_view(
                {one: view for one, view in views.items() if _is_controller(view)} or views
            )
            if newest_id is not None:
                return _Look(views, states, newest_id)
            self.pause("no node answers", POLL_S)

    def metadata(self, lack: Callable[[_Look, View], str | None], wait_ms: int) -> _Look:
        """Return once the newest metadata and that of each unfenced broker lack nothing.

        Raises TookTooLong with the last lack.
        """
        while True:
            look = self.look()
            for node_id in look.agreeing():
                reason = lack(look, look.views[node_id])
                if reason is not None:
                    left_ms = self.check(reason)
                    after = look.views[node_id]["metadata_offset"]
                    self._views.request(node_id, after=after, wait_ms=min(wait_ms, left_ms))
                    break
            else:
                return look

    def check(self, reason: str) -> int:
        """Return the milliseconds left. Raises TookTooLong with this reason, WaitEnded."""
        if self._is_cancelled():
            raise WaitEnded
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TookTooLong(f"{reason}, after {self._timeout_s:g} s")
        return max(1, round(left_s * 1000))

    def pause(self, reason: str, pause_s: float) -> None:
        """Sleep before the next look. Raises TookTooLong, WaitEnded."""
        left_ms = self.check(reason)
        time.sleep(min(pause_s, left_ms / 1000))


def _is_controller(view: View) -> bool:
    return bool(view["quorum"]["is_active_controller"])


def wait(
    cluster: "LocalCluster",
    topic: TopicCondition | None,
    group: GroupCondition | None,
    *,
    timeout_s: float,
) -> Seen:
    """Wait until both conditions hold at one moment. See LocalCluster.wait."""
    for node_id in (topic.leader, topic.moved_from) if topic else ():
        if isinstance(node_id, int):
            cluster.spec.node(node_id)
    brokers = sum(node.is_broker for node in cluster.nodes)
    if topic and topic.isr is not None and not 0 < topic.isr <= brokers:
        raise InvalidArgument(f"isr={topic.isr}: the cluster has {brokers} brokers")

    return Seen(partial(_wait, cluster, topic, group, timeout_s))


def wait_here(
    cluster: "LocalCluster",
    topic: TopicCondition | None,
    group: GroupCondition | None,
    *,
    timeout_s: float,
) -> dict[str, Any]:
    """Wait in this thread, even if it runs an event loop, as all other methods of a cluster do."""
    return _wait(cluster, topic, group, timeout_s, lambda: False)


def _wait(
    cluster: "LocalCluster",
    topic: TopicCondition | None,
    group: GroupCondition | None,
    timeout_s: float,
    is_cancelled: IsCancelled,
) -> dict[str, Any]:
    with _Watcher(cluster, timeout_s, is_cancelled) as watcher:
        return _until_both(watcher, topic, group)


def _until_both(
    watcher: _Watcher, topic: TopicCondition | None, group: GroupCondition | None
) -> dict[str, Any]:
    while True:
        seen: dict[str, Any] = {}
        if topic is not None:
            look = watcher.metadata(partial(_topic_lack, topic), _METADATA_WAIT_MS)
            seen |= topic.seen(look.newest)
        if group is None:
            return seen
        of_group, groups = _group_seen(watcher, group)
        reason = group.lack(of_group, groups)
        if reason is None:
            return seen | of_group
        watcher.pause(reason, GROUP_POLL_S)


def _topic_lack(wanted: TopicCondition, look: _Look, view: View) -> str | None:
    reason = wanted.lack(view, look.states)
    if reason is None and wanted.seen(view) != wanted.seen(look.newest):
        return f"node {view['node_id']} has older metadata of {wanted.topic}"
    return reason


def _group_seen(watcher: _Watcher, wanted: GroupCondition) -> tuple[dict[str, Any], list[str]]:
    """Return the group's state as plain values, and the ids of all groups if it does not exist."""
    from quorumlog.client import KafkaError

    try:
        return _described(watcher.admin, wanted)
    except KafkaError as error:
        watcher.check(f"group {wanted.group} has no coordinator that answers ({error})")
        raise


def _described(admin: "SyncAdmin", wanted: GroupCondition) -> tuple[dict[str, Any], list[str]]:
    group = admin.describe_consumer_groups([wanted.group])[wanted.group]
    seen: dict[str, Any] = {
        "group": wanted.group,
        "state": group.state,
        "members": len(group.members),
    }
    if wanted.committed is not None:
        seen |= _offsets(admin, wanted)
    exists = group.state != "Dead"
    return seen, [] if exists else [one.group_id for one in admin.list_consumer_groups()]


def _offsets(admin: "SyncAdmin", wanted: GroupCondition) -> dict[str, Any]:
    """Return the committed offsets and lags, by `topic-partition`.

    The committed offsets are requested first: a lag is never below zero. The end is the high
    watermark (`read_uncommitted`).
    """
    from quorumlog.client import TopicPartition

    found = admin.list_consumer_group_offsets(wanted.group)
    committed = {
        partition: place.offset
        for partition, place in found.items()
        if wanted.topic in {None, partition.topic}
        and wanted.partition in {None, partition.partition}
    }
    chosen = {*committed}
    if wanted.topic is not None and wanted.topic in admin.list_topics(include_internal=True):
        count = len(admin.describe_topics([wanted.topic])[wanted.topic].partitions)
        every = range(count) if wanted.partition is None else [wanted.partition]
        chosen |= {TopicPartition(wanted.topic, index) for index in every}
    ends = admin.list_offsets(dict.fromkeys(sorted(chosen), "latest"))
    return {
        "committed": {str(one): offset for one, offset in sorted(committed.items())},
        "lag": {str(one): end.offset - committed.get(one, 0) for one, end in sorted(ends.items())},
    }


def settled(cluster: "LocalCluster", timeout_s: float) -> Seen:
    """Wait until the cluster is at rest. See LocalCluster.settled."""
    brokers = {node.id for node in cluster.nodes if node.is_broker}

    def lack(look: _Look, view: View) -> str | None:
        if view is look.newest:
            voters = cluster_status.voters_of(view, ())
            quorum = cluster_status.describe_quorum(voters, look.views)
            if cluster_status.active_controller(quorum, look.views) is None:
                return "there is no active controller"
        return settled_lack(look.newest, look.views, look.states, brokers)

    def work(is_cancelled: IsCancelled) -> dict[str, Any]:
        with _Watcher(cluster, timeout_s, is_cancelled) as watcher:
            while True:
                look = watcher.metadata(lack, _SETTLED_WAIT_MS)
                busy = _rebalancing(watcher, look.newest["topics"])
                if not busy:
                    return _summary(look)
                watcher.pause(f"group {busy[0]} rebalances", GROUP_POLL_S)

    return Seen(work)


def _rebalancing(watcher: _Watcher, topics: Iterable[str]) -> list[str]:
    if _OFFSETS_TOPIC not in topics:
        return []
    groups = watcher.admin.list_consumer_groups()
    return [one.group_id for one in groups if one.state in REBALANCING]


def _summary(look: _Look) -> dict[str, Any]:
    topics = look.newest["topics"]
    return {
        "nodes": {str(one): state.value for one, state in look.states.items()},
        "controller_id": look.newest_id if _is_controller(look.newest) else None,
        "metadata_offset": look.newest["metadata_offset"],
        "partitions": sum(len(topic["partitions"]) for topic in topics.values()),
    }


def caught_up(cluster: "LocalCluster", timeout_s: float) -> None:
    """Wait, in this thread, until every unfenced broker has the metadata that is committed now.

    Raises TookTooLong, ClusterError.
    """
    with _Watcher(cluster, timeout_s, lambda: False) as watcher:
        committed: list[int] = []

        def lack(look: _Look, view: View) -> str | None:
            if not committed:  # at the first look
                committed.append(look.newest["metadata_offset"])
            is_behind = view["metadata_offset"] < committed[0]
            return f"node {view['node_id']} has older metadata" if is_behind else None

        watcher.metadata(lack, _METADATA_WAIT_MS)
