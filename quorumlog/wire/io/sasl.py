"""The SASL exchange of a connection to a broker, as the client. Source: KIP-43, KIP-152, KIP-368.

Tokens travel in SaslAuthenticate; brokers without it (before Kafka 1.0) are refused.
"""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any, Final

from quorumlog.chance import random_bytes, random_fraction
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.message import Request
from quorumlog.wire.codec.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from quorumlog.wire.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from quorumlog.wire.codec.sasl import (
    MECHANISMS,
    NONCE_BYTES,
    SCRAM_HASHES,
    OAuthBearerClient,
    PlainClient,
    SaslClient,
    SaslFailure,
    ScramClient,
)
from quorumlog.wire.codec.schemas import UnsupportedVersion
from quorumlog.wire.io.security import ISSUER_FAILED, SaslLogin

ROUNDS_MAX: Final = 8  # tokens of one authentication; the longest mechanism sends two
RENEWAL_EARLIEST: Final = 0.85  # of a session's lifetime, as Java's client
RENEWAL_LATEST: Final = 0.95
_NO_SASL: Final = "the listener has no SASL: set the security protocol to PLAINTEXT or SSL"
_HINTS: Final = {"OAUTHBEARER": "check the token: its issuer, audience and expiry"}
_HINT: Final = "check the user name and the password, and that the user has this mechanism"

Exchange = Callable[[Request[Any]], Awaitable[Any]]
"""Sends a request and returns its response; other requests of the connection may wait."""


class NoToken(Exception):
    """The source of tokens failed; a later attempt may succeed, when its issuer answers again."""


async def authenticate(exchange: Exchange, login: SaslLogin) -> int:
    """Authenticate; return the lifetime of the session in ms, 0: without a limit.

    Raises SaslFailure with the broker's reason, NoToken, and the errors of `exchange`.
    """
    client = await _client_of(login)
    try:
        handshake: SaslHandshakeResponse = await exchange(
            SaslHandshakeRequest(mechanism=login.mechanism)
        )
    except UnsupportedVersion as error:
        raise SaslFailure(_NO_SASL) from error
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(handshake.mechanisms) or "none"
        raise SaslFailure(f"the listener has no mechanism {login.mechanism}; it has: {offered}")
    if handshake.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise SaslFailure(_NO_SASL)
    _check(handshake.error_code, None, login)
    token = client.first()
    for _ in range(ROUNDS_MAX):
        response: SaslAuthenticateResponse = await exchange(
            SaslAuthenticateRequest(auth_bytes=token)
        )
        _check(response.error_code, response.error_message, login)
        following = client.answer(bytes(response.auth_bytes))
        if following is None:
            return max(0, response.session_lifetime_ms)
        token = following
    raise SaslFailure(f"no end of the {login.mechanism} exchange after {ROUNDS_MAX} tokens")


def renewal_delay_s(lifetime_ms: int) -> float:
    """Return when to authenticate again: before the end, and not all connections at once."""
    share = RENEWAL_EARLIEST + (RENEWAL_LATEST - RENEWAL_EARLIEST) * random_fraction()
    return lifetime_ms * share / 1000


async def _client_of(login: SaslLogin) -> SaslClient:
    if login.mechanism == "PLAIN":
        return PlainClient(login.username, login.password)
    if login.mechanism in SCRAM_HASHES:
        nonce = b64encode(random_bytes(NONCE_BYTES)).decode()
        return ScramClient(login.mechanism, login.username, login.password, nonce)
    if login.mechanism == "OAUTHBEARER":
        return OAuthBearerClient(await _token_of(login), login.extensions)
    names = ", ".join(MECHANISMS)
    raise SaslFailure(f"no mechanism {login.mechanism!r} here: {names}")


async def _token_of(login: SaslLogin) -> str:
    """Return a new token; its source runs in a thread, because it may call a server."""
    if login.token is None:
        raise SaslFailure("OAUTHBEARER needs a token")
    try:
        return await asyncio.to_thread(login.token)
    except Exception as error:
        raise NoToken(f"{ISSUER_FAILED}{type(error).__name__}: {error}") from error


def _check(code: int, message: str | None, login: SaslLogin) -> None:
    if code == ErrorCode.NONE:
        return
    reason = message or known(code).name
    if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        reason += f" ({_HINTS.get(login.mechanism, _HINT)})"
    raise SaslFailure(reason)
