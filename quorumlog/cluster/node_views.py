"""The views of nodes (GET /api/v1/status of their control listeners), and a status made of them."""

import http.client
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self

from quorumlog.cluster import cluster_status
from quorumlog.cluster.cluster_status import NodeState
from quorumlog.cluster.control_connections import open_connection, operator_context

if TYPE_CHECKING:
    from ssl import SSLContext

    from quorumlog.cluster.local_cluster import LocalCluster

_TIMEOUT_S: Final = 2.0  # beyond the time for which the node itself waits


class NodeViews:
    """One connection to each node, kept open between requests. Not for several threads at once."""

    def __init__(self, addresses: Mapping[int, str], tls: "SSLContext | None") -> None:
        """`addresses`: `host:port` of the control listeners, by node id. `tls`: None: plain."""
        self._addresses: Final = addresses
        self._tls: Final = tls
        self._connections: Final[dict[int, http.client.HTTPConnection]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def request(
        self, node_id: int, *, after: int | None = None, wait_ms: int = 0
    ) -> dict[str, Any] | None:
        """Return a node's view; None: it gives no answer.

        `after`: wait in the node, at most `wait_ms`, for metadata that ends above this offset.
        """
        path = "/api/v1/status"
        if after is not None:
            path += f"?after={max(0, after)}&wait_ms={wait_ms}"
        is_kept = node_id in self._connections
        view = self._request(node_id, path, _TIMEOUT_S + wait_ms / 1000)
        if view is None and is_kept:  # the node may have closed it, or be another process now
            view = self._request(node_id, path, _TIMEOUT_S + wait_ms / 1000)
        return view

    def _request(self, node_id: int, path: str, timeout_s: float) -> dict[str, Any] | None:
        connection = self._connections.pop(node_id, None)
        if connection is None:
            connection = open_connection(self._addresses[node_id], self._tls)
        try:
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request("GET", path)
            view: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            connection.close()
            return None
        self._connections[node_id] = connection
        return view


def view_at(address: str, tls: "SSLContext | None") -> dict[str, Any] | None:
    """Return the view of the node whose control listener is at `host:port`; None: no answer."""
    with NodeViews({0: address}, tls) as views:
        return views.request(0)


def describe(cluster: "LocalCluster") -> dict[str, Any]:
    """Return the status of a cluster. See LocalCluster.status."""
    states = {node.id: cluster.state(node.id) for node in cluster.spec.nodes}
    asked = {
        node.id: cluster.spec.control_address(node)
        for node in cluster.spec.nodes
        if states[node.id] is NodeState.NO_ANSWER
    }
    tls = operator_context(cluster.directory)
    views = _views(asked, tls)
    best_id = cluster_status.best_view(views)
    best = None if best_id is None else views[best_id]
    configured = [node.id for node in cluster.spec.nodes if "controller" in node.roles]
    voters = cluster_status.voters_of(best, configured)
    views |= _views(  # voters that were added by hand
        {node_id: at for node_id, at in voters.items() if at and node_id not in states}, tls
    )
    states |= dict.fromkeys(views, NodeState.RUNNING)
    quorum = cluster_status.describe_quorum(voters, views)
    topics = best["topics"] if best else {}
    return {
        "dir": str(cluster.directory.resolve()),
        "cluster_id": cluster.spec.cluster_id,
        "bootstrap": cluster.bootstrap,
        "controller_id": cluster_status.active_controller(quorum, views),
        "quorum": quorum,
        "nodes": [
            {
                **cluster.describe_node(node),
                "state": states[node.id].value,
                "answers": node.id in views,
                "native_lane": views.get(node.id, {}).get("native_lane"),
                "fenced": None if best is None else best["fenced"].get(str(node.id)),
            }
            for node in cluster.spec.nodes
        ],
        "partitions": cluster_status.describe_partitions(topics, states),
        "topics": topics,
    }


def _views(addresses: Mapping[int, str], tls: "SSLContext | None") -> dict[int, dict[str, Any]]:
    """Request the views of nodes, all at once; nodes without an answer are left out."""
    with ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
        given = pool.map(view_at, addresses.values(), [tls] * len(addresses))
        answers = dict(zip(addresses, given, strict=True))
    return {node_id: answer for node_id, answer in answers.items() if answer is not None}
