"""Explains why a broker could not be reached, for the user who configured its address."""

import errno
import socket
from typing import Final

from quorumlog.client.settings import Address
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.io.connection import ConnectionLost, RequestTimedOut, UnsupportedVersion

CHAIN_MAX: Final = 10
_REFUSED: Final = f"[Errno {errno.ECONNREFUSED}]"


def why_unreachable(error: BaseException) -> str:  # noqa: PLR0911 - one flat case per cause
    """Describe the error of `KafkaConnection.open`, or of the first request."""
    for one in _chain(error):
        match one:
            case OSError() if _is_refused(one):
                return "connection refused: no process listens there"
            case socket.gaierror():
                return "unknown host name"
            case MalformedFrame():
                return f"the response is not Kafka's protocol: {one}"
            case TimeoutError() | RequestTimedOut():
                return "no answer in time"
            case UnsupportedVersion():
                return f"no common protocol version: {one}"
            case OSError():
                return one.strerror or str(one)
            case _:
                pass
    if isinstance(error, ConnectionLost) and error.__cause__ is None:
        return f"{error}, without a response (no Kafka broker, requires TLS, or is stopping)"
    return str(error) or type(error).__name__


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
