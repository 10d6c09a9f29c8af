"""The Kafka listeners: accept connections, and count their traffic."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quorumlog.addresses import DEFAULT_LISTENER, address_text
from quorumlog.broker.quotas.core.connection_limits import ConnectionBounds
from quorumlog.broker.server.acceptor import Acceptor
from quorumlog.broker.server.api import ANONYMOUS, BrokerContext, Client
from quorumlog.broker.server.connection import Connection
from quorumlog.broker.server.stats import ServerStats
from quorumlog.broker.server.turns import Turns
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import monotonic_ms
from quorumlog.invariants import InvariantViolation
from quorumlog.lasting_condition import LastingCondition, cut
from quorumlog.settings.kinds import INT_MAX, counts_by_address

if TYPE_CHECKING:  # most nodes have no TLS, and do not load it
    from ssl import SSLContext

    from quorumlog.broker.authentication.certificate_principals import CertificatePrincipals
    from quorumlog.wire.io.tls_listener import TlsListener

BACKLOG: Final = 1024
IDLE_CHECKS: Final = 10  # per idle time: a connection may stay idle a tenth longer than allowed
STOP_POLL_S: Final = 0.01
SILENCE_CHECK_S: Final = 1.0
REFUSALS_MAX: Final = 100  # kinds of refused requests that have a line of their own
SILENT_S: Final = 5.0  # a client may stop reading for this long while memory is scarce

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """TLS of one listener.

    `principals`: of clients with a certificate; None: SASL gives the principal, whatever the
    certificate is.
    """

    context: "SSLContext"
    principals: "CertificatePrincipals | None"


NewConnection = Callable[[Acceptor, str], Connection]
"""(server, name of the listener) -> the connection of a client."""


class Server:
    """All listeners of a broker.

    Invariant: at most `max_connections` connections are open, of each listener at most its own
    maximum.
    """

    def __init__(
        self, context: BrokerContext, *, on_fatal: Callable[[InvariantViolation], None]
    ) -> None:
        self.context: Final = context
        self.settings: Final[BrokerSettings] = context.settings
        self.stats: Final = ServerStats()
        self.turns: Final = Turns()
        self.on_fatal: Final = on_fatal
        self.connection_counts: Final[Counter[str]] = Counter()  # of open ones, by listener
        self._connections: Final[dict[Connection, None]] = {}  # in the order of their arrival
        self._is_full: Final = LastingCondition(_logger)
        self._refuses: Final = LastingCondition(_logger)
        self._listeners: Final[list[asyncio.Server | TlsListener]] = []
        self._tls_listeners: Final[dict[str, TlsListener]] = {}
        self._limits: Final[dict[str, int]] = {}  # of the connections, by listener
        self._rates: Final[dict[str, int]] = {}  # of new connections, by listener
        self._inter_broker = ""  # the listener of the other brokers
        self._idle_timer: asyncio.TimerHandle | None = None
        self._silence_timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chooses if `port` is 0."""
        return await self.serve(socket.create_server((host, port), backlog=BACKLOG))

    async def serve(
        self,
        bound: socket.socket,
        name: str = DEFAULT_LISTENER,
        max_connections: int = INT_MAX,
        *,
        connection: NewConnection = Connection,
        tls: ListenerTls | None = None,
        connection_rate: int = INT_MAX,
        is_inter_broker: bool = False,
    ) -> int:
        """Listen on a bound socket as the listener `name`; return its port.

        `connection`: makes the connection of each client. `tls`: None: plain text.
        """
        loop = asyncio.get_running_loop()
        self._limits[name] = max_connections
        self._rates[name] = connection_rate
        if is_inter_broker:
            self._inter_broker = name
        self.connection_counts[name] += 0  # a listener without connections is counted, too
        listener: asyncio.Server | TlsListener
        if tls is None:
            listener = await loop.create_server(
                lambda: connection(self, name), sock=bound, backlog=BACKLOG
            )
        else:
            from quorumlog.wire.io import tls_listener

            accept = partial(self._accept, partial(connection, self, name), tls.principals)
            listener = tls_listener.TlsListener(bound, tls.context, accept, self._handshake_failed)
            self._tls_listeners[name] = listener
        if not self._listeners:
            self._check_idle()
            self._check_silence()
        self._listeners.append(listener)
        chosen: int = listener.sockets[0].getsockname()[1]
        return chosen

    def renew_tls(self, name: str, context: "SSLContext") -> None:
        """Use another context for later handshakes of a listener with TLS."""
        self._tls_listeners[name].context = context

    def _accept(
        self,
        connection: Callable[[], Connection],
        principals: "CertificatePrincipals | None",
        transport: asyncio.Transport,
    ) -> asyncio.BaseProtocol:
        """Return the connection of a client after its handshake; close it without a principal."""
        certificate = transport.get_extra_info("ssl_object").getpeercert(True)
        principal: str | None = ANONYMOUS
        reason = "no rule of ssl.principal.mapping.rules matches its name"
        if certificate is not None and principals is not None:
            try:
                principal = principals.principal_of(certificate)
            except ValueError as error:
                principal, reason = None, f"its certificate has no readable name: {error}"
        if principal is not None:
            made = connection()
            made.secure(principal)
            return made
        self._handshake_failed(transport.get_extra_info("peername"), reason)
        transport.abort()
        return asyncio.Protocol()

    def _handshake_failed(self, peer: tuple[Any, ...], reason: str) -> None:
        self.stats.handshakes_failed += 1
        client = Client(address_text(peer[0], peer[1]), peer[0])
        self.note_refused(client, f"closed before its first request: {reason}")

    async def stop(self, *, grace_ms: int = 1000) -> None:
        """Accept no connection, give requests under way `grace_ms` to end, close everything."""
        for listener in self._listeners:
            listener.close()
        for timer in (self._idle_timer, self._silence_timer):
            if timer is not None:
                timer.cancel()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_ms / 1000
        # Polled, because a stop is rare and the state of a request changes often.
        while loop.time() < deadline_s and any(peer.is_busy for peer in self._connections):  # noqa: ASYNC110 - see above
            await asyncio.sleep(STOP_POLL_S)
        for end in (Connection.close, Connection.abort):  # abort: clients that do not read
            for peer in [*self._connections]:
                end(peer)
            for _ in range(2):  # `connection_lost` comes with the next turns of the loop
                await asyncio.sleep(0)
        for listener in self._listeners:
            await listener.wait_closed()

    def note_refused(self, who: Client, reason: str, failure: BaseException | None = None) -> None:
        """Log a refused request: each kind once, then one line a minute for all while any comes.

        A kind is the reason and the client's software, or its host if it has sent no name: clients
        repeat refused requests.
        """
        reason = cut(reason)  # it may have a name from a client that is not authenticated
        kind = (reason, who.software or who.host, repr(failure))
        if len(self._refuses) >= REFUSALS_MAX and not self._refuses.lasts(kind):
            kind = ("and others", "", "")
        name = f"{who.address} ({who.software!a})" if who.software else who.address
        self._refuses.note(monotonic_ms(), f"{name}: {reason}", kind, failure=failure)

    def opened(self, connection: Connection) -> None:
        """Count a connection, or close it if there are too many."""
        now_ms, listener = monotonic_ms(), connection.listener
        self.stats.connections += 1
        refusal, delay_ms = self._refusal(listener), 0
        if refusal is None:
            admission = self.context.quotas.connections.admit(
                connection.host,
                listener,
                self._bounds(listener),
                now_ms,
                is_protected=self._is_protected(listener),
            )
            refusal, delay_ms = admission.refusal, admission.delay_ms
        if refusal:
            self.stats.connections_refused += 1
            self._is_full.note(now_ms, f"connection refused: {refusal}")
            if delay_ms:
                connection.pause_frames()
                asyncio.get_running_loop().call_later(delay_ms / 1000, connection.abort)
            else:
                connection.abort()
            return
        self._is_full.end(now_ms, "connections are taken again")
        self._connections[connection] = None
        self.connection_counts[listener] += 1
        if delay_ms:
            connection.throttle().hold(delay_ms)

    def _is_protected(self, listener: str) -> bool:
        """Whether other brokers connect to this listener, and clients to another one."""
        return listener == self._inter_broker and len(self._limits) > 1

    def _bounds(self, listener: str) -> ConnectionBounds:
        settings = self.context.replicas.settings
        return ConnectionBounds(
            per_ip=settings.max_connections_per_ip,
            per_ip_overrides=counts_by_address(settings.max_connections_per_ip_overrides),
            rate=settings.max_connection_creation_rate,
            listener_rate=self._rates.get(listener, INT_MAX),
        )

    def _refusal(self, listener: str) -> str | None:
        """Return why there are too many connections; None: there is room for another."""
        count = self.connection_counts[listener]
        if count >= self._limits.get(listener, INT_MAX):
            return f"{count} of the listener {listener} are open"
        if len(self._connections) < self.context.replicas.settings.max_connections:
            return None
        if self._is_protected(listener) and self._close_idlest():
            return None
        return f"{len(self._connections)} are open"

    def _close_idlest(self) -> bool:
        """Close the connection of a client that was idle for longest: a broker takes its place."""
        clients = (one for one in self._connections if one.listener != self._inter_broker)
        idle = [one for one in clients if not one.is_busy]
        if not idle:
            return False
        idlest = min(idle, key=lambda one: one.last_active_s)
        self.closed(idlest)
        idlest.abort()
        return True

    def closed(self, connection: Connection) -> None:
        """Stop counting the connection."""
        if connection in self._connections:  # it was not refused
            del self._connections[connection]
            self.connection_counts[connection.listener] -= 1
            self.context.quotas.connections.closed(connection.host)

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle_s = self.settings.connections_max_idle_ms / 1000
        for peer in [*self._connections]:
            if loop.time() - peer.last_active_s > idle_s and not peer.is_busy:
                self.stats.connections_idle += 1
                peer.close()
            elif peer.silent_for_s() > idle_s:
                self.stats.connections_idle += 1
                peer.abort()  # its client would never read the rest
        self._idle_timer = loop.call_later(idle_s / IDLE_CHECKS, self._check_idle)

    def _check_silence(self) -> None:
        """While memory is scarce, close connections that hold memory and do not read."""
        if self.context.replicas.response_memory.is_scarce:
            for peer in [*self._connections]:
                if peer.held_bytes and peer.silent_for_s() > SILENT_S:
                    self.stats.connections_silent += 1
                    peer.abort()
        loop = asyncio.get_running_loop()
        self._silence_timer = loop.call_later(SILENCE_CHECK_S, self._check_silence)
