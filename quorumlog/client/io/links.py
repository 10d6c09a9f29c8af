"""One connection per broker, opened when wanted, reopened with backoff.

Nobody waits here: `connected` answers at once, and `on_change` is called when the answer may be
another. A refused connection is known within a round trip, so the death of a process is too.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.client.core.metadata_cache import Node
from quorumlog.client.io.causes import at
from quorumlog.client.settings import Address, CommonSettings
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection, RequestTimedOut

_logger: Final = logging.getLogger(__name__)

_OPEN_ERRORS: Final = (ConnectionLost, RequestTimedOut, TimeoutError)


@dataclass(slots=True, kw_only=True, eq=False)
class _Link:
    """`failures` in a row; 1 also after a connection broke. `cause`: of the last failed opening."""

    address: Address
    connection: KafkaConnection | None = None
    opening: asyncio.Task[None] | None = None
    failures: int = 0
    cause: str = ""
    retry_at_ms: float = 0.0


class Links:
    """Connections to the brokers of one cluster, for one purpose. `close` ends them all."""

    def __init__(self, settings: CommonSettings, on_change: Callable[[], None]) -> None:
        self._settings: Final = settings
        self._on_change: Final = on_change
        self._loop: Final = asyncio.get_running_loop()
        self._links: Final[dict[int, _Link]] = {}
        self._timers: Final[set[asyncio.TimerHandle]] = set()
        self._closing: Final[set[asyncio.Task[None]]] = set()
        self._is_closed = False
        self._backoff: Final = Backoff(
            settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms
        )

    def connected(self, node: Node) -> KafkaConnection | None:
        """Return the live connection to `node`, or None, and then see to it that it comes."""
        link = self._link(node)
        if link.connection is not None:
            return link.connection
        now_ms = self._loop.time() * 1000
        if link.opening is None and now_ms >= link.retry_at_ms and not self._is_closed:
            link.opening = self._loop.create_task(self._open(node.broker_id, link))
        return None

    async def connect(self, node: Node) -> KafkaConnection | None:
        """Return the live connection to `node` when it is made; None if that fails, or just has."""
        connection = self.connected(node)
        opening = self._link(node).opening
        if connection is None and opening is not None:
            await asyncio.wait([opening])
            connection = self._link(node).connection
        return connection

    def is_failing(self, node: Node) -> bool:
        """Tell whether the last attempt to reach `node` failed, or its connection broke."""
        link = self._links.get(node.broker_id)
        return link is not None and link.address == node.address and link.failures > 0

    def why_failing(self, node: Node) -> str:
        """Return the address, and why the last attempt to reach it failed, as far as is known."""
        link = self._links.get(node.broker_id)
        if link is None or link.address != node.address or not link.cause:
            return f"{node.host}:{node.port}"
        return link.cause

    def _link(self, node: Node) -> _Link:
        link = self._links.get(node.broker_id)
        if link is None or link.address != node.address:
            if link is not None:
                self._drop(link)
            link = self._links[node.broker_id] = _Link(address=node.address)
        return link

    async def _open(self, broker_id: int, link: _Link) -> None:
        try:
            async with asyncio.timeout(self._settings.socket_connection_setup_timeout_ms / 1000):
                connection = await KafkaConnection.open(
                    *link.address,
                    client_id=self._settings.client_id,
                    request_timeout_ms=self._settings.request_timeout_ms,
                )
        except _OPEN_ERRORS as error:
            _logger.debug("broker %d at %s:%d: %r", broker_id, *link.address, error)
            self._failed(link, at(link.address, error))
        else:
            link.connection, link.failures, link.cause = connection, 0, ""
            connection.closed.add_done_callback(lambda _: self._lost(link, connection))
        finally:
            link.opening = None
        self._on_change()

    def _failed(self, link: _Link, cause: str) -> None:
        link.failures += 1
        link.cause = cause
        # Not for cryptography: it spreads reconnections.
        delay_ms = self._backoff.delay_ms(link.failures, random.random())  # noqa: S311 - no secret
        link.retry_at_ms = self._loop.time() * 1000 + delay_ms

        def retry() -> None:
            self._timers.discard(timer)
            self._on_change()

        timer = self._loop.call_later(delay_ms / 1000, retry)
        self._timers.add(timer)

    def _lost(self, link: _Link, connection: KafkaConnection) -> None:
        if link.connection is connection:
            link.connection = None
            link.failures = 1  # reconnected at once; should that fail, the next attempt waits
            self._on_change()

    def _drop(self, link: _Link) -> None:
        if link.opening is not None:
            link.opening.cancel()
        connection, link.connection = link.connection, None
        if connection is not None:
            task = self._loop.create_task(connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all connections and wait until they are gone."""
        self._is_closed = True
        for timer in self._timers:
            timer.cancel()
        openings = [link.opening for link in self._links.values() if link.opening is not None]
        for link in self._links.values():
            self._drop(link)
        await asyncio.gather(*openings, *self._closing, return_exceptions=True)
