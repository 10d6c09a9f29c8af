"""Requests for the views of nodes: GET /api/v1/status of their control listeners."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final, Self

from quorumlog.addresses import host_and_port

_TIMEOUT_S: Final = 2.0  # beyond the time for which the node itself waits


class NodeViews:
    """One connection to each node, kept open between requests. Not for several threads at once."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        """`addresses`: `host:port` of the control listeners, by node id."""
        self._addresses: Final = addresses
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
            host, port = host_and_port(self._addresses[node_id])
            connection = http.client.HTTPConnection(host, port)
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


def view_at(address: str) -> dict[str, Any] | None:
    """Return the view of the node whose control listener is at `host:port`; None: no answer."""
    with NodeViews({0: address}) as views:
        return views.request(0)
