"""One connection per broker, opened when it is first needed and reopened with backoff.

`connected` returns at once; `on_change` is called when its result may have changed. A broker whose
process has ended refuses the next connection, so its end is detected within a round trip.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction
from quorumlog.client.core import absences
from quorumlog.client.core.metadata_cache import Node
from quorumlog.client.core.waits import OVERDUE_AFTER_MS
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.lookout import Failure
from quorumlog.client.settings import Address, CommonSettings
from quorumlog.tasks import Tasks, log_failure
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame, OtherProtocol
from quorumlog.wire.codec.message import Request
from quorumlog.wire.io.connection import (
    AuthenticationFailed,
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
    UnsupportedVersion,
)
from quorumlog.wire.io.security import ISSUER_FAILED, TLS_ENDED, ConnectionSecurity

CHAIN_MAX: Final = 10
_REFUSED: Final = f"[Errno {errno.ECONNREFUSED}]"


def why_unreachable(error: BaseException) -> str:  # noqa: PLR0911 - one flat case per cause
    """Describe the error of `KafkaConnection.open`, or of the first request."""
    if isinstance(error, AuthenticationFailed) or str(error).startswith((TLS_ENDED, ISSUER_FAILED)):
        return str(error)
    for one in _chain(error):
        match one:
            case OSError() if _is_refused(one):
                return "connection refused: no process listens there"
            case socket.gaierror():
                return "unknown host name"
            case MalformedFrame():
                return f"the response is not Kafka's protocol: {one}{_remedy(one)}"
            case TimeoutError() | RequestTimedOut():
                return "no answer in time"
            case UnsupportedVersion():
                return f"no common protocol version: {one}"
            case OSError():
                return one.strerror or str(one)
            case _:
                pass
    if isinstance(error, ConnectionLost) and error.__cause__ is None:
        causes = "no Kafka broker, requires TLS or SASL, or is stopping"
        return f"{error}, without a response ({causes})"
    return str(error) or type(error).__name__


def _remedy(error: MalformedFrame) -> str:
    is_tls = isinstance(error, OtherProtocol) and "TLS" in str(error)
    return "; set security_protocol to 'SSL' or 'SASL_SSL'" if is_tls else ""


def _is_refused(error: OSError) -> bool:
    """Return whether every address of the host refused, from the texts in asyncio's one error."""
    refusals = str(error).count(_REFUSED)
    return refusals > 0 and refusals == str(error).count("[Errno ")


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and len(chain) < CHAIN_MAX:
        chain.append(cause)
    return chain[::-1]  # the innermost, most specific cause first


def at(address: Address, error: BaseException) -> str:
    """Return the address, then the description of the error."""
    return f"{address[0]}:{address[1]}: {why_unreachable(error)}"


_logger: Final = logging.getLogger(__name__)

_OPEN_ERRORS: Final = (ConnectionLost, RequestTimedOut, TimeoutError)


@dataclass(slots=True, kw_only=True, eq=False)
class _Broker:
    """One broker's connection. `cause`: of the last failed attempt; `is_refused`: TLS or SASL.

    `failures`: consecutive failed attempts; 1 also after a connection broke.
    """

    address: Address
    connection: KafkaConnection | None = None
    opening: asyncio.Task[None] | None = None
    opening_since_ms: float = 0.0
    failures: int = 0
    cause: str = ""
    is_refused: bool = False
    retry_at_ms: float = 0.0


class BrokerConnections:
    """Connections to the brokers of one cluster, for one purpose.

    An attempt that fails unexpectedly is logged, and counts like any other failed attempt.
    """

    def __init__(
        self,
        settings: CommonSettings,
        security: ConnectionSecurity,
        on_change: Callable[[], None],
        on_late: Callable[[], None],
        on_refused: Callable[[KafkaError], None],
    ) -> None:
        """`on_late`: called when a connection is not made after `absences.REPORT_AFTER_MS`.

        `on_refused`: called when TLS or SASL has refused a connection, once for each attempt.
        """
        self._settings: Final = settings
        self._security: Final = security
        self._on_refused: Final = on_refused
        self._on_late: Final = on_late
        self._on_change: Final = on_change
        self._loop: Final = asyncio.get_running_loop()
        self._brokers: Final[dict[int, _Broker]] = {}
        self._timers: Final[set[asyncio.TimerHandle]] = set()
        self._tasks: Final = Tasks(log_failure(_logger, "a connection to a broker"))
        self._is_closed = False
        self._backoff: Final = Backoff(
            settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms
        )

    def connected(self, node: Node) -> KafkaConnection | None:
        """Return the live connection to `node`; without one, begin to open it and return None."""
        broker = self._broker(node)
        if broker.connection is not None:
            return broker.connection
        now_ms = self._loop.time() * 1000
        if broker.opening is None and now_ms >= broker.retry_at_ms and not self._is_closed:
            broker.opening_since_ms = now_ms
            broker.opening = self._tasks.start(self._open(node.broker_id, broker))
        return None

    async def connect(self, node: Node) -> KafkaConnection | None:
        """Open a connection to `node` if there is none; return it, or None if that failed."""
        connection = self.connected(node)
        opening = self._broker(node).opening
        if connection is None and opening is not None:
            await asyncio.wait([opening])
            connection = self._broker(node).connection
        return connection

    def is_failing(self, node: Node) -> bool:
        """Return whether the last attempt to reach `node` failed, or its connection broke."""
        broker = self._brokers.get(node.broker_id)
        return broker is not None and broker.address == node.address and broker.failures > 0

    def is_refused(self, node: Node) -> bool:
        """Return whether TLS or SASL refused the last attempt to reach `node`."""
        broker = self._brokers.get(node.broker_id)
        return broker is not None and broker.address == node.address and broker.is_refused

    def why_failing(self, node: Node) -> str:
        """Return the address of `node`, and why the last attempt to reach it failed, if it did."""
        broker = self._brokers.get(node.broker_id)
        if broker is None or broker.address != node.address or not broker.cause:
            return str(node)
        return broker.cause

    def why_silent(self, node: Node) -> Failure | None:
        """Return why the attempts to connect to `node` do not succeed; None if they may yet.

        An attempt in progress counts as failing after `waits.OVERDUE_AFTER_MS`.
        """
        broker = self._brokers.get(node.broker_id)
        if broker is None or broker.address != node.address or broker.connection is not None:
            return None
        if broker.cause:
            return Failure(broker.cause)
        since_ms = broker.opening_since_ms
        if broker.opening is None or self._loop.time() * 1000 - since_ms < OVERDUE_AFTER_MS:
            return None
        return Failure(f"{node}: no answer to a connection attempt", since_ms)

    def has(self, node: Node) -> bool:
        """Return whether there is a live connection to `node`."""
        broker = self._brokers.get(node.broker_id)
        return (
            broker is not None and broker.address == node.address and broker.connection is not None
        )

    def _broker(self, node: Node) -> _Broker:
        broker = self._brokers.get(node.broker_id)
        if broker is None or broker.address != node.address:
            if broker is not None:
                self._drop(broker)
            broker = self._brokers[node.broker_id] = _Broker(address=node.address)
        return broker

    async def _open(self, broker_id: int, broker: _Broker) -> None:
        late = self._loop.call_later(absences.REPORT_AFTER_MS / 1000, self._on_late)
        try:
            async with asyncio.timeout(self._settings.socket_connection_setup_timeout_ms / 1000):
                connection = await KafkaConnection.open(
                    *broker.address,
                    client_id=self._settings.client_id,
                    request_timeout_ms=self._settings.request_timeout_ms,
                    security=self._security,
                )
        except AuthenticationFailed as error:
            self._failed(broker, at(broker.address, error))
            broker.is_refused = True
            self._on_refused(refused(broker.cause))
        except _OPEN_ERRORS as error:
            _logger.debug("broker %d at %s:%d: %r", broker_id, *broker.address, error)
            self._failed(broker, at(broker.address, error))
        except Exception as error:
            self._failed(broker, at(broker.address, error))
            raise
        else:
            broker.connection, broker.failures, broker.cause = connection, 0, ""
            broker.is_refused = False
            connection.closed.add_done_callback(lambda _: self._lost(broker, connection))
        finally:
            late.cancel()
            broker.opening = None
        self._on_change()

    def _failed(self, broker: _Broker, cause: str) -> None:
        broker.failures += 1
        broker.cause, broker.is_refused = cause, False
        delay_ms = self._backoff.delay_ms(broker.failures, random_fraction())
        broker.retry_at_ms = self._loop.time() * 1000 + delay_ms

        def retry() -> None:
            self._timers.discard(timer)
            self._on_change()

        timer = self._loop.call_later(delay_ms / 1000, retry)
        self._timers.add(timer)

    def _lost(self, broker: _Broker, connection: KafkaConnection) -> None:
        if broker.connection is connection:
            broker.connection = None
            broker.failures = 1  # the first new attempt is made at once, the next with backoff
            self._on_change()

    def _drop(self, broker: _Broker) -> None:
        if broker.opening is not None:
            broker.opening.cancel()
        connection, broker.connection = broker.connection, None
        if connection is not None:
            self._tasks.start(connection.close())

    async def close(self) -> None:
        """Close all connections and wait until they have ended."""
        self._is_closed = True
        for timer in self._timers:
            timer.cancel()
        for broker in self._brokers.values():
            self._drop(broker)
        await self._tasks.join()


def refused(cause: str) -> KafkaError:
    """Return the error of a connection that TLS or SASL refused: no request was sent."""
    return KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, cause, definite=True)


def api_of(request: Request[Any]) -> str:
    """Return the name of a request's API."""
    return type(request).__name__.removesuffix("Request")


def unsupported(broker_id: int, connection: KafkaConnection, request: Request[Any]) -> str:
    """Describe that a broker and this client share no version of an API."""
    api = api_of(request)
    theirs, ours = connection.api_versions.get(request.API_KEY), request.VERSIONS
    if theirs is None:
        return f"this cluster has no {api}: broker {broker_id} does not offer it"
    return (
        f"{api}: broker {broker_id} speaks versions {theirs.start} to {theirs.stop - 1},"
        f" this client {ours.start} to {ours.stop - 1}"
    )
