"""All requests that a node sends over the control plane: the driver's, and the controller client's.

They share one HTTP session, also with the connections that detect a leader's death.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import aiohttp

from quorumlog.metadata_quorum.controller_requests import UserRequest
from quorumlog.metadata_quorum.core.messages import Request
from quorumlog.metadata_quorum.io.address_book import AddressBook
from quorumlog.metadata_quorum.io.control_tls import ControlTls
from quorumlog.metadata_quorum.io.dependencies import QuorumDependencies
from quorumlog.metadata_quorum.io.leader_client import Askable
from quorumlog.metadata_quorum.io.request_batches import RequestBatches
from quorumlog.metadata_quorum.io.rpc_client import RpcClient, RpcFailed
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
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


class OutgoingRequests:
    """Create it in a running loop; `give_up`, then `close` it.

    `on_error` is called for a failure that is our bug.
    """

    def __init__(
        self,
        settings: MetadataQuorumSettings,
        addresses: AddressBook,
        dependencies: QuorumDependencies,
        on_error: OnError,
        tls: ControlTls | None,
    ) -> None:
        self._addresses: Final = addresses
        self._client: Final = RpcClient(
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
            shared_secret=settings.shared_secret,
            own_address=settings.control_address,
            socket_factory=dependencies.socket_factory,
            tls=tls,
        )
        self._batches: Final = RequestBatches(self._client, on_error)
        self.peers: Final = Peers(
            self._client, addresses.find, on_error, hear=addresses.hear_response
        )

    @property
    def scheme(self) -> str:
        """The scheme of all URLs: http or https."""
        return self._client.scheme

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session of all requests."""
        return self._client.session

    async def ask_controller(
        self, leader_id: BrokerId, request: Askable, request_id: str, timeout_ms: int
    ) -> object:
        """Return the active controller's answer. Raises RpcFailed."""
        address = self._addresses.find(leader_id)
        if address is None:
            raise RpcFailed(f"node {leader_id} has no known address", definite=True)
        if isinstance(request, UserRequest):
            return await self._batches.call(
                address, request, timeout_ms=timeout_ms, request_id=request_id
            )
        response, _ = await self._client.call(
            address, request, timeout_ms=timeout_ms, request_id=request_id
        )
        return response

    async def give_up(self) -> None:
        """Cancel every request in progress."""
        await self.peers.close()
        await self._batches.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()
