"""A broker's connection to itself: its own handlers, without bytes and without a socket.

A coordinator often sends requests to its own broker: for markers, and for verifications of
transactions. The handlers get them as from a socket, in another turn of the event loop.
"""

import asyncio
import logging
from inspect import isawaitable
from typing import Any, Final, Self

from quorumlog.broker.server.api import BrokerContext
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.message import Request
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.io.connection import ConnectionLost, RequestTimedOut

NO_CORRELATION_ID: Final = -1

_logger: Final = logging.getLogger(__name__)


class OwnConnection:
    """An in-memory `KafkaConnection`, for requests that have a response and hold no records."""

    def __init__(self, context: BrokerContext) -> None:
        self._context: Final = context
        self._timeout_s: Final = context.settings.replica_socket_timeout_ms / 1000
        self.closed: Final[asyncio.Future[Exception | None]] = (
            asyncio.get_running_loop().create_future()
        )
        """Done after `close`."""

    @classmethod
    async def open(cls, context: BrokerContext) -> Self:
        """Return an open connection."""
        return cls(context)

    async def send(self, request: Request[Any]) -> Any:
        """Return the response. Raises RequestTimedOut, and ConnectionLost if the handler fails."""
        handler = self._context.handlers[request.API_KEY]
        client_id = f"broker-{self._context.broker_id}"
        header = RequestHeader(request.API_KEY, handler.max_version, NO_CORRELATION_ID, client_id)
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = handler.handle(self._context, header, request)
                return (await reply) if isawaitable(reply) else reply
        except TimeoutError:
            raise RequestTimedOut(f"no answer to {type(request).__name__} in time") from None
        except InvariantViolation:
            raise
        except Exception as error:  # the outermost frame of a handler
            _logger.exception("our own %s failed", type(request).__name__)
            raise ConnectionLost(f"the handler failed: {error!r}") from error

    async def close(self) -> None:
        """Mark the connection as closed."""
        if not self.closed.done():
            self.closed.set_result(None)
