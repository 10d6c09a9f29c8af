"""Simulated sockets and listeners, before a transport takes a connection over."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from quorumlog.chaos.node_simulation.process import Process

Address = tuple[str, int]


class SimulatedSocket:
    """The part of `socket.socket` that asyncio, aiohttp and the nodes use."""

    family: Final = 2
    type: Final = 1
    proto: Final = 6

    def __init__(self, take_address: Callable[[Address], Address]) -> None:
        self.address: Address = ("0.0.0.0", 0)  # noqa: S104 - no address yet
        self.connected: Any = None  # the endpoint, after a connect
        self._take_address: Final = take_address

    def setsockopt(self, *_: Any) -> None:
        """Do nothing: the simulation has no socket options."""

    def setblocking(self, _: bool) -> None:
        """Do nothing: no simulated call blocks."""

    def bind(self, address: Address) -> None:
        """Take an address; port 0 takes a free one. Raises OSError."""
        self.address = self._take_address(address)

    def listen(self, backlog: int = 0) -> None:
        """Raise OSError if another socket listens there."""
        del backlog
        self._take_address(self.address)

    def getsockname(self) -> Address:
        """Return the address."""
        return self.address

    def fileno(self) -> int:
        """Return -1, as a closed socket does: there is no file."""
        return -1

    def close(self) -> None:
        """Abort the connection, if no transport has taken it over."""
        if self.connected is not None and self.connected.protocol is None:
            self.connected.abort()


class SimulatedServer(asyncio.AbstractServer):
    """A process's listener."""

    def __init__(
        self,
        factory: Any,
        sock: SimulatedSocket,
        process: Process | None,
        context: Context,
        closed: Callable[["SimulatedServer"], None],
    ) -> None:
        self.factory: Final = factory
        self.sockets: Final = (sock,)
        self.process: Final = process
        self.context: Final = context
        self._closed: Final = closed

    def close(self) -> None:
        """Accept no more connections; existing connections stay."""
        self._closed(self)

    async def wait_closed(self) -> None:
        """Return at once."""

    def is_serving(self) -> bool:
        """Return True: it listens from its creation on."""
        return True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the run."""
        return asyncio.get_event_loop()

    async def start_serving(self) -> None:
        """Do nothing: it serves from the start."""

    async def serve_forever(self) -> None:
        """Raise NotImplementedError: neither the nodes nor aiohttp call it."""
        raise NotImplementedError("serve_forever")
