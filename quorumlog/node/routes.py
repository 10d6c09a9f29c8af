"""Routes of the control listener for users and monitors: health, readiness, status as JSON."""

from collections.abc import Callable
from typing import Any

from aiohttp import web


def add_routes(
    app: web.Application, *, is_ready: Callable[[], bool], describe: Callable[[], dict[str, Any]]
) -> None:
    """Add these routes to those of the quorum's RPCs."""

    async def healthz(_: web.Request) -> web.Response:
        """Return 200 as long as the process works."""
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        """Return 200 once the node is ready: its broker is unfenced, or its quorum has a leader."""
        if is_ready():
            return web.Response(text="ready\n")
        return web.Response(text="not ready\n", status=503)

    async def status(_: web.Request) -> web.Response:
        """Return this node's view of the cluster."""
        return web.json_response(describe())

    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/api/v1/status", status),
        ]
    )
