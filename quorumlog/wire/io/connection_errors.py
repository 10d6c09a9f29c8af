"""The errors of a connection to a broker, and their texts."""

from quorumlog.addresses import address_text
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.io.security import TLS_ENDED, ConnectionSecurity


class ConnectionLost(Exception):
    """The connection failed or closed. A request that was sent may have been executed or not."""


class AuthenticationFailed(ConnectionLost):
    """TLS or SASL refused: by the broker, or because the broker is not the expected one.

    Another attempt with the same settings has the same outcome.
    """


class RequestTimedOut(Exception):
    """The response did not arrive in time. The request may have been executed or not."""


def not_connected(
    host: str, port: int, error: BaseException, security: ConnectionSecurity
) -> ConnectionLost:
    """Return the error of a connection that was not made."""
    address = address_text(host, port)
    if (refusal := security.refusal(error)) is not None:
        return AuthenticationFailed(refusal)
    has_ended = isinstance(error, ConnectionResetError | ConnectionAbortedError | ConnectionLost)
    if security.tls is not None and has_ended:
        return ConnectionLost(TLS_ENDED)
    return ConnectionLost(f"{address}: {error}")


def named(code: int) -> str:
    """Return the name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}, which this release does not name"
