"""What is bound, listens, or is connected before a transport takes it over."""

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
        self.connected: Any = None  # the endpoint, once it is connected
        self._take_address: Final = take_address

    def setsockopt(self, *_: Any) -> None:
        """Ignore it: nothing here depends on an option."""

    def setblocking(self, _: bool) -> None:
        """Ignore it: nothing here blocks."""

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
        """Return what a closed socket returns: there is no file."""
        return -1

    def close(self) -> None:
        """Give up a connection that no transport has taken over."""
        if self.connected is not None and self.connected.protocol is None:
            self.connected.abort()


class SimulatedServer(asyncio.AbstractServer):
    """A listener of a process."""

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
        """Accept nothing more; connections that exist stay."""
        self._closed(self)

    async def wait_closed(self) -> None:
        """Return at once."""

    def is_serving(self) -> bool:
        """Return whether it was made: it listens from then on."""
        return True

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the run."""
        return asyncio.get_event_loop()

    async def start_serving(self) -> None:
        """Do nothing: it serves from the start."""

    async def serve_forever(self) -> None:
        """Refuse: neither the nodes nor aiohttp wait for their listener."""
        raise NotImplementedError("serve_forever")
