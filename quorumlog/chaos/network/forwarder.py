"""The forwarders of all links: their listeners, their connections, and the rules on them.

A listener refuses connections while no process listens at its destination, as the destination would
itself: nodes detect a dead process by a refused connection.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from quorumlog.addresses import host_and_port
from quorumlog.chaos.network.direction import Direction
from quorumlog.chaos.network.exchange import Exchange
from quorumlog.chaos.network.link_state import LinkState
from quorumlog.chaos.network.links import Route
from quorumlog.chaos.network.recorder import Recorder
from quorumlog.chaos.network.response_watch import ResponseWatch
from quorumlog.chaos.network.splitters import Message, Piece
from quorumlog.cluster.ports import family_of
from quorumlog.tasks import Tasks

_PROBE_PAUSE_S: Final = 0.02
_BACKLOG: Final = 512
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class PortInUse(Exception):
    """The address of a forwarder is in use."""


class Target:
    """A listener of a node, and whether a process listens there."""

    def __init__(self, address: str, tasks: Tasks) -> None:
        self._host, self._port = host_and_port(address)
        self._tasks: Final = tasks
        self._probing: asyncio.Task[None] | None = None
        self.is_up = False
        self.changed: Final[list[Callable[[], None]]] = []

    async def check(self) -> None:
        """Check whether a process listens; if not, wait for one in the background."""
        self._set(await self._listens())
        if not self.is_up and (self._probing is None or self._probing.done()):
            self._probing = self._tasks.start(self._wait())

    async def _wait(self) -> None:
        while not await self._listens():  # noqa: ASYNC110 - another process is to start
            await asyncio.sleep(_PROBE_PAUSE_S)
        self._set(True)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(self._host, self._port)
        except ConnectionRefusedError:
            return False
        except OSError:
            return self.is_up  # the error proves nothing
        writer.transport.abort()
        return True

    def _set(self, is_up: bool) -> None:
        if is_up != self.is_up:
            self.is_up = is_up
            for call in self.changed:
                call()


class Forwarder:
    """Listens for the connections of one route, and forwards them."""

    def __init__(
        self,
        route: Route,
        target: Target,
        forth: LinkState,
        back: LinkState,
        tasks: Tasks,
        *,
        recorder: Recorder | None = None,
    ) -> None:
        """Bind the port. `recorder`: of the responses, if they are recorded. Raises PortInUse."""
        self.route: Final = route
        self.recorder: Final = recorder
        self.target: Final = target
        self.forth: Final = forth
        self.back: Final = back
        self.connections: Final[set[Connection]] = set()
        self._tasks: Final = tasks
        self._healed: Final = asyncio.Event()
        self._healed.set()
        self._is_listening = False
        self._socket = self._bound()
        target.changed.append(self.update)

    def _bound(self, *, again: bool = False) -> socket.socket:
        """Return a socket that is bound to the port and does not listen: connections are refused.

        Without SO_REUSEADDR no other socket can bind the port meanwhile. `again`: connections of
        ours may still use it.
        """
        at = host_and_port(self.route.listen)
        bound = socket.socket(family_of(at[0]))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, again)
        bound.setblocking(False)
        try:
            bound.bind(at)
        except OSError as error:
            bound.close()
            raise PortInUse(
                f"{self.route.listen} (the forwarder {self.route.link}): {error.strerror}"
            ) from error
        return bound

    def update(self) -> None:
        """Apply the current rules and the state of the target."""
        if self.forth.is_cut or self.back.is_cut:
            self._healed.clear()
        else:
            self._healed.set()
        # Across a cut, a dialling party cannot see whether the target listens.
        listens = (self.target.is_up or not self._healed.is_set()) and not self.forth.refuses
        loop = asyncio.get_running_loop()
        if listens and not self._is_listening:
            # With it, former connections do not count as users of the port.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.listen(_BACKLOG)
            loop.add_reader(self._socket, self._accept)
        elif not listens and self._is_listening:
            loop.remove_reader(self._socket)
            self._stop_listening()
        self._is_listening = listens
        for connection in [*self.connections]:
            connection.rules_changed()

    def _stop_listening(self) -> None:
        """Refuse connections, and keep the port."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # on Linux, the port stays bound
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError:
            self._socket.close()
            self._socket = self._bound(again=True)

    @property
    def queued_bytes(self) -> int:
        """The bytes queued in all connections."""
        return sum(connection.queued_bytes for connection in self.connections)

    def close(self) -> None:
        """Stop listening, and reset every connection."""
        if self._is_listening:
            asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        self.reset()

    def reset(self) -> None:
        """Reset every connection."""
        for connection in [*self.connections]:
            connection.reset()

    def when_checked(self, call: Callable[[], None]) -> None:
        """Check whether a process listens at the target, then call `call`."""
        self._tasks.start(self._check(call))

    async def _check(self, call: Callable[[], None]) -> None:
        await self.target.check()
        call()

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            accepted, _ = self._socket.accept()
            accepted.setblocking(False)
            self._tasks.start(self._connect(accepted))

    async def _connect(self, accepted: socket.socket) -> None:
        """Dial the target once no rule cuts the link, and forward from then on."""
        loop, connection = asyncio.get_running_loop(), Connection(self)
        try:
            await self._healed.wait()
            await loop.create_connection(connection.upper_end, *host_and_port(self.route.target))
            self.connections.add(connection)
            await loop.connect_accepted_socket(connection.lower_end, accepted)
        except OSError:
            await self.target.check()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise


class Connection:
    """Two sockets and the two directions between them."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder: Final = forwarder
        self._exchange: Final = Exchange(forwarder.route.link.plane, forwarder.forth)
        self._watch: Final = ResponseWatch()
        self._is_watched: Final = forwarder.recorder is not None
        is_kafka = self._exchange.is_kafka
        self._forth: Final = Direction(
            forwarder.forth,
            self._exchange.requests,
            picks=self._picks_request,
            ended=self._passed_end,
            shape=self._shape_requests if is_kafka else None,
            held=self._exchange.held_requests,
        )
        self._back: Final = Direction(
            forwarder.back,
            self._exchange.replies,
            picks=self._picks_reply,
            ended=self._passed_end,
            watch=self._watch_reply if self._is_watched else None,
            shape=self._exchange.shape_replies if is_kafka else None,
            held=self._exchange.held_replies,
        )
        self._ends_passed = 0

    def lower_end(self) -> "End":
        """Return the protocol of the dialling party's socket."""
        return End(arriving=self._forth, leaving=self._back, ended=self._forth.end)

    def upper_end(self) -> "End":
        """Return the protocol of the target's socket."""
        return End(arriving=self._back, leaving=self._forth, ended=self._end_upper)

    @property
    def queued_bytes(self) -> int:
        """The bytes queued in both directions."""
        return self._forth.queued_bytes + self._back.queued_bytes

    def rules_changed(self) -> None:
        """Apply the current rules in both directions."""
        self._forth.rules_changed()
        self._back.rules_changed()

    def reset(self) -> None:
        """Reset both sockets; queued bytes are lost."""
        self._forwarder.connections.discard(self)
        for direction in (self._forth, self._back):
            direction.lose()
            transport = direction.source
            if transport is not None and not transport.is_closing():
                sock = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                transport.abort()

    def _picks_request(self, message: Message) -> bool:
        late_s = self._exchange.request_late_s(message)
        if late_s:
            self._forth.delay(late_s)
        return late_s is None

    def _picks_reply(self, message: Message) -> bool:
        if not self._exchange.loses_reply(message):
            return False
        self.reset()
        return True

    def _shape_requests(self, pieces: list[Piece]) -> list[Piece]:
        """Return the pieces for the target; send the answers that have no other source."""
        if self._is_watched:
            for piece in pieces:
                self._watch.note_request(piece)
        exchange = self._exchange
        passed = exchange.shape_requests(pieces)
        is_overfull = False
        if exchange.waiting:
            self._back.insert(exchange.due_replies())
            is_overfull = self._back.is_overfull
        if exchange.resets or is_overfull:
            self.reset()
        return passed

    def _watch_reply(self, piece: Piece) -> None:
        recorder, answered = self._forwarder.recorder, self._watch.response(piece)
        if recorder is not None and answered is not None:
            recorder.record(int(self._forwarder.route.link.destination), answered)

    def _end_upper(self) -> None:
        self._forwarder.when_checked(self._back.end)

    def _passed_end(self) -> None:
        """Close both sockets once both directions have ended."""
        self._ends_passed += 1
        if self._ends_passed == 2:
            self._forwarder.connections.discard(self)
            self._forth.close()
            self._back.close()


class End(asyncio.Protocol):
    """One end of a forwarded connection."""

    def __init__(
        self, *, arriving: Direction, leaving: Direction, ended: Callable[[], None]
    ) -> None:
        self._arriving: Final = arriving
        self._leaving: Final = leaving
        self._ended: Final = ended
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect the socket to both directions."""
        made = cast(asyncio.Transport, transport)
        self._arriving.source = self._leaving.destination = made
        self._leaving.rules_changed()

    def data_received(self, data: bytes) -> None:
        """Forward the bytes."""
        self._arriving.received(data)

    def eof_received(self) -> bool:
        """Pass the end on, and keep the other direction open."""
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end on; discard all bytes to this socket."""
        del exc
        self._leaving.lose()
        self._end()

    def pause_writing(self) -> None:
        """Stop sending to this socket."""
        self._leaving.block(is_blocked=True)

    def resume_writing(self) -> None:
        """Resume sending to this socket."""
        self._leaving.block(is_blocked=False)

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._ended()
