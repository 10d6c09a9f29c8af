"""Detects a dead process by its closed connection, not by a timeout.

Every node keeps one connection (a WebSocket without messages) to the leader of the quorum. When it
closes, either end connects to the other's control listener: if that is refused, no process listens
there any more. Any other outcome proves nothing, and the timeouts handle it: the process may be
paused, or cut off, or already replaced by its successor.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp
from aiohttp import web

from quorumlog.addresses import host_and_port
from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction
from quorumlog.tasks import Tasks, log_failure
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId

PATH: Final = "/presence"
PROBE_TIMEOUT_S: Final = 1.0
PROBES: Final = 3  # a dying process closes its connections one after the other
PROBE_PAUSE_S: Final = 0.02
RECONNECT: Final = Backoff(50, 1000)
_logger: Final = logging.getLogger(__name__)


async def no_process_listens(address: str) -> bool:
    """Return whether a connection to `host:port` is refused, on every address of the host."""
    host, port = host_and_port(address)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
            for *_, target in found:
                try:
                    _, writer = await asyncio.open_connection(str(target[0]), int(target[1]))
                except ConnectionRefusedError:
                    continue
                writer.close()
                return False
    except (OSError, TimeoutError):
        return False
    return True


async def has_died(address: str) -> bool:
    """Return whether the process at `address`, whose connection has just closed, is gone."""
    for probe in range(PROBES):
        if probe:
            await asyncio.sleep(PROBE_PAUSE_S)
        if await no_process_listens(address):
            return True
    return False


class PresenceServer:
    """The leader's end: it reports each node whose connection closes."""

    def __init__(
        self,
        *,
        check: Callable[[web.Request], None],
        disconnected: Callable[[BrokerId], Awaitable[None]],
    ) -> None:
        """`check` raises the HTTP answer to a node that may not connect."""
        self._check = check
        self._disconnected = disconnected
        self._connections: dict[web.WebSocketResponse, None] = {}  # in the order of their arrival

    def add_routes(self, app: web.Application) -> None:
        """Serve from `app`."""
        app.router.add_get(PATH, self._serve)

    async def close(self) -> None:
        """Close every connection; report none of them."""
        connections, self._connections = self._connections, {}
        for connection in connections:
            await connection.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self._check(request)
        try:
            node_id = BrokerId(int(request.query["node_id"]))
        except (KeyError, ValueError):
            raise web.HTTPBadRequest(text="node_id is missing\n") from None
        connection = web.WebSocketResponse(compress=False, timeout=0.1)
        try:
            await connection.prepare(request)
        except ConnectionError:  # disconnected already, and never counted as present
            return web.Response()  # aiohttp cannot close an unprepared one
        self._connections[connection] = None
        async for _ in connection:
            pass  # there are no messages
        if connection in self._connections:
            del self._connections[connection]
            await self._disconnected(node_id)
        return connection


class PresenceClient:
    """A follower's end: the connection to the leader."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        scheme: str = "http",
        query: Mapping[str, str],
        addresses: Callable[[BrokerId], str | None],
        leader_died: Callable[[BrokerId], Awaitable[None]],
    ) -> None:
        self._session = session
        self._scheme = scheme
        self._query = query
        self._addresses = addresses
        self._leader_died = leader_died
        self._leader_id = NO_LEADER
        self._tasks: Final = Tasks(log_failure(_logger, "watching the leader's process"))
        self._following: asyncio.Task[None] | None = None

    def follow(self, leader_id: BrokerId) -> None:
        """Connect to this leader, and to no other; NO_LEADER: to none."""
        if leader_id == self._leader_id:
            return
        self._leader_id = leader_id
        if self._following is not None:
            self._following.cancel()
            self._following = None
        if leader_id != NO_LEADER:
            self._following = self._tasks.start(self._keep(leader_id))

    async def close(self) -> None:
        """Disconnect."""
        await self._tasks.stop()

    async def _keep(self, leader_id: BrokerId) -> None:
        failures, has_reported = 0, False
        while True:
            address = self._addresses(leader_id)  # it may be unknown yet, and may change
            if address is not None and await self._connect(address):
                failures, has_reported = 0, False
            if address is not None and not has_reported and await has_died(address):
                _logger.info("the process of leader %d, at %s, is gone", leader_id, address)
                has_reported = True
                await self._leader_died(leader_id)
            failures += 1
            await asyncio.sleep(RECONNECT.delay_ms(failures, random_fraction()) / 1000)

    async def _connect(self, address: str) -> bool:
        """Connect, and wait until the connection ends; return whether there was one."""
        options: dict[str, Any] = {"params": dict(self._query), "compress": 0}
        try:
            url = f"{self._scheme}://{address}{PATH}"
            async with self._session.ws_connect(url, **options) as connection:
                async for _ in connection:
                    pass  # there are no messages
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        return True
