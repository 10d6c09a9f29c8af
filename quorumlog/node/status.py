"""The routes of a node's state: /healthz, /readyz, /api/v1/status, /metrics.

`GET /api/v1/status?after=OFFSET&wait_ms=MS` answers once the metadata image of this node ends above
OFFSET, or after MS: a caller learns of a record as soon as it is applied, without a poll.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage

WAIT_MAX_MS: Final = 30_000


class MetadataArrivals:
    """An ImagePublisher on which requests wait for a newer image."""

    def __init__(self) -> None:
        self._end_offset = 0
        self._is_closed = False
        self._arrived = asyncio.Event()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Wake all waits; each compares its own offset."""
        del delta
        self._end_offset = image.end_offset
        self._wake()

    def close(self) -> None:
        """End all waits, now and later: the node stops."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def wait_above(self, offset: int, duration_ms: int) -> None:
        """Return when the image ends above `offset`, at the latest after `duration_ms`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(duration_ms / 1000):
                while self._end_offset <= offset and not self._is_closed:
                    await self._arrived.wait()


def add_routes(
    app: web.Application,
    *,
    is_ready: Callable[[], bool],
    describe: Callable[[], dict[str, Any]],
    arrivals: MetadataArrivals,
    scrape: Callable[[web.Request], Awaitable[web.Response]],
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

    async def status(request: web.Request) -> web.Response:
        """Return this node's view of the cluster, after the wait that the query describes."""
        if request.query:
            after, wait_ms = _number(request, "after", -1), _number(request, "wait_ms", 0)
            if wait_ms > WAIT_MAX_MS:
                raise web.HTTPBadRequest(text=f"wait_ms={wait_ms}: at most {WAIT_MAX_MS}\n")
            await arrivals.wait_above(after, wait_ms)
        return web.json_response(describe())

    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/api/v1/status", status),
            web.get("/metrics", scrape),
        ]
    )


def _number(request: web.Request, name: str, default: int) -> int:
    """Return a whole number of the query. Raises HTTPBadRequest with the name."""
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise web.HTTPBadRequest(text=f"{name}={text}: a whole number is expected\n")
    return int(text)
