"""The transport of a driver's requests to the other nodes: one background task for each."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from quorumlog.metadata_quorum.core.messages import Request
from quorumlog.metadata_quorum.io.rpc_client import RpcFailed
from quorumlog.tasks import OnError, Tasks
from quorumlog.wire.codec.identifiers import BrokerId

Reply = tuple[Any, bytes | None]


class Caller(Protocol):
    """`RpcClient`, or its substitute in a test."""

    async def call(self, address: str, request: object, *, timeout_ms: int) -> Reply:
        """Return the response and the records beside it. Raises RpcFailed."""


class Peers:
    """A `Transport`. `on_error` is called for a failure that is our bug. `close` it."""

    def __init__(
        self,
        caller: Caller,
        addresses: Callable[[BrokerId], str | None],
        on_error: OnError,
        *,
        hear: Callable[[object], None] = lambda _: None,
    ) -> None:
        """`addresses` returns a node's control address, `host:port`. `hear` gets every response."""
        self._caller: Final = caller
        self._addresses: Final = addresses
        self._hear: Final = hear
        self.silent: Final[set[BrokerId]] = set()  # nodes that did not answer the last request
        self._tasks: Final = Tasks(on_error)

    def send(
        self,
        destination: BrokerId,
        request: Request,
        *,
        timeout_ms: int,
        done: Callable[[Reply | None], None],
    ) -> None:
        """Send in the background; `done` gets the reply, or None: also without an address."""
        self._tasks.start(self._send(destination, request, timeout_ms, done))

    async def _send(
        self,
        destination: BrokerId,
        request: Request,
        timeout_ms: int,
        done: Callable[[Reply | None], None],
    ) -> None:
        address = self._addresses(destination)
        if address is None:
            done(None)
            return
        try:
            reply = await self._caller.call(address, request, timeout_ms=timeout_ms)
        except RpcFailed:
            self.silent.add(destination)
            done(None)
        else:
            self.silent.discard(destination)
            self._hear(reply[0])
            done(reply)

    async def close(self) -> None:
        """Cancel all requests in progress; `done` is not called for them."""
        await self._tasks.stop()
