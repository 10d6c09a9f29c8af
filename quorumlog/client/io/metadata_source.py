"""The connection for metadata requests, to one broker at a time, any that responds.

Other requests have other connections, because a broker responds in order on each connection: after
a long poll, a join or a produce that waits for replicas, a new leader would be found too late.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from quorumlog.chance import shuffle
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.broker_connections import at, refused
from quorumlog.client.settings import Address, CommonSettings, addresses
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataResponse
from quorumlog.wire.io.connection import (
    AuthenticationFailed,
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
    UnsupportedVersion,
)
from quorumlog.wire.io.security import ConnectionSecurity

_logger: Final = logging.getLogger(__name__)

ANSWER_TIMEOUT_MS: Final = 1_000  # then another broker is tried
FAILURE_COUNTS_S: Final = 30.0  # how long `why_unheard` reports a failure
_NO_ANSWER: Final = (ConnectionLost, RequestTimedOut, UnsupportedVersion, TimeoutError)


class MetadataSource:
    """Requests metadata from one broker after the other, until one responds."""

    def __init__(
        self,
        settings: CommonSettings,
        security: ConnectionSecurity,
        nodes: Callable[[], Iterable[tuple[Address, bool]]],
    ) -> None:
        """`nodes`: returns (address, whether the broker is failing) of each broker."""
        self._settings: Final = settings
        self._security: Final = security
        self.refusal: KafkaError | None = None
        """Why TLS or SASL refused, if no broker responded to the last `ask`."""
        self._nodes: Final = nodes
        self._bootstrap: Final = addresses(settings.bootstrap_servers)
        self._address: Address | None = None
        self._connection: KafkaConnection | None = None
        self._causes: dict[Address, str] = {}  # of the failures of the last `ask`
        self._failures: dict[Address, tuple[float, str]] = {}  # when, and why

    def why_silent(self) -> str:
        """Return why no broker responded, "host:port: cause; ..."."""
        return "; ".join(self._causes.values())

    def why_unheard(self, address: Address) -> str | None:
        """Return why a broker's last request failed; None if it succeeded or is long ago."""
        time_s, cause = self._failures.get(address, (float("-inf"), None))
        is_recent = asyncio.get_running_loop().time() - time_s <= FAILURE_COUNTS_S
        return cause if is_recent else None

    async def ask(self, request: MetadataRequest) -> MetadataResponse | None:
        """Return a response, or None if no broker responds: each was tried once."""
        connection, address = self._connection, self._address
        if connection is not None:
            try:
                return await connection.send(request, timeout_ms=ANSWER_TIMEOUT_MS)
            except _NO_ANSWER as error:
                _logger.debug("metadata from %s: %r", address, error)
                await self.close()
        candidates, refusal = self._candidates(address), None
        # The causes of untried brokers stay: the caller may give up during the first attempt.
        self._causes = {one: self._causes[one] for one in candidates if one in self._causes}
        self._failures = {one: self._failures[one] for one in candidates if one in self._failures}
        for candidate in candidates:
            try:
                response = await self._ask_at(candidate, request)
            except AuthenticationFailed as error:
                self._note_failure(candidate, error)
                refusal = refused(self._causes[candidate])
                continue
            if response is not None:
                self._causes.clear()
                self.refusal = None
                return response
        self.refusal = refusal
        return None

    def _candidates(self, last: Address | None) -> list[Address]:
        """List brokers without failures first, `last` (which just failed) last, then bootstrap."""
        nodes = list(self._nodes())
        shuffle(nodes)
        nodes.sort(key=lambda node: (node[0] == last, node[1]))
        known = [address for address, _ in nodes]
        return known + [address for address in self._bootstrap if address not in known]

    async def _ask_at(self, address: Address, request: MetadataRequest) -> MetadataResponse | None:
        connection = None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1000):
                connection = await KafkaConnection.open(
                    *address,
                    client_id=self._settings.client_id,
                    request_timeout_ms=self._settings.request_timeout_ms,
                    security=self._security,
                )
                response = await connection.send(request)
        except AuthenticationFailed:
            raise
        except _NO_ANSWER as error:
            self._note_failure(address, error)
            if connection is not None:
                await connection.close()
            return None
        except asyncio.CancelledError:
            if connection is not None:
                await connection.close()
            raise
        self._connection, self._address = connection, address
        self._failures.pop(address, None)
        return response

    def _note_failure(self, address: Address, error: BaseException) -> None:
        _logger.debug("no metadata from %s:%d: %r", *address, error)
        self._causes[address] = at(address, error)
        self._failures[address] = asyncio.get_running_loop().time(), self._causes[address]

    async def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
