"""Waits of tests: for the leaders of a topic, and for a group without lag."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from quorumlog.client.sync import SyncAdmin, SyncConsumer

if TYPE_CHECKING:
    from quorumlog.cluster import LocalCluster

TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.02


class TookTooLong(Exception):
    """A condition did not hold in time; the message has the last state."""


def wait_until(condition: Callable[[], bool], reason: Callable[[], str], timeout_s: float) -> None:
    """Return when the condition holds. Raises TookTooLong with `reason()` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TookTooLong(f"{reason()}, after {timeout_s:g} s")
        time.sleep(_POLL_S)


def wait_for_leaders(
    cluster: "LocalCluster", topic: str, *, timeout_s: float = TIMEOUT_S
) -> list[int]:
    """Return the leaders of all partitions once all running brokers agree on running leaders.

    Raises TookTooLong.
    """
    views: dict[int, list[int]] = {}

    def are_known() -> bool:
        running = {node.id for node in cluster.nodes if node.is_broker} & {*cluster.running()}
        views.clear()
        for node_id in sorted(running):
            views[node_id] = _leaders(cluster.node_status(node_id), topic)
        leaders = [*views.values()]
        return (
            bool(leaders)
            and bool(leaders[0])
            and all(one == leaders[0] for one in leaders)
            and running.issuperset(leaders[0])
        )

    reason = f"not every broker has the leaders of {topic}: "
    wait_until(are_known, lambda: f"{reason}{views}", timeout_s)
    return next(iter(views.values()))


def wait_until_lag_is_zero(
    cluster: "LocalCluster", group_id: str, *, timeout_s: float = TIMEOUT_S
) -> None:
    """Return when the group's committed offsets are the ends of their partitions.

    The ends are the high watermarks (`read_uncommitted`). Raises TookTooLong with the lags.
    """
    lags: dict[str, int] = {}
    with SyncAdmin(cluster.bootstrap) as admin, SyncConsumer(cluster.bootstrap) as consumer:

        def is_zero() -> bool:
            committed = admin.list_consumer_group_offsets(group_id)
            ends = consumer.end_offsets(committed)
            lags.clear()
            for name, place in committed.items():
                lags[str(name)] = ends[name] - place.offset
            return bool(lags) and not any(lags.values())

        wait_until(is_zero, lambda: f"group {group_id} lags: {lags or 'no commit'}", timeout_s)


def _leaders(status: Mapping[str, Any] | None, name: str) -> list[int]:
    """Return the leaders in a broker's status; an empty list if one is missing."""
    known = [] if status is None else status["topics"].get(name, {"partitions": []})["partitions"]
    leaders = [int(partition["leader"]) for partition in known]
    return leaders if all(leader >= 0 for leader in leaders) else []
