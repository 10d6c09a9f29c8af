"""The protection of a broker's own connections to the other brokers."""

import json
from base64 import urlsafe_b64encode
from functools import partial
from typing import Any, Final

from quorumlog.clock import wall_clock_ms
from quorumlog.settings.listeners import Listeners
from quorumlog.settings.sasl import OAUTHBEARER, BrokerLogin
from quorumlog.wire.io.security import ConnectionSecurity, SaslLogin

TOKEN_LIFETIME_S: Final = 3_600


def inter_broker_security(listeners: Listeners) -> ConnectionSecurity:
    """Return TLS and login of this broker at the inter-broker listener of the others.

    Raises StartFailed if its key store or trust store cannot be used.
    """
    login, settings = listeners.inter_broker_login, listeners.inter_broker.tls
    tls = None
    if settings is not None:
        from quorumlog.node.tls import client_context  # costs memory: only with TLS

        tls = client_context(settings)
    return ConnectionSecurity(tls=tls, login=None if login is None else _login(login))


def _login(login: BrokerLogin) -> SaslLogin:
    if login.mechanism == OAUTHBEARER:
        return SaslLogin(mechanism=login.mechanism, token=partial(unsigned_token, login.username))
    return SaslLogin(mechanism=login.mechanism, username=login.username, password=login.password)


def unsigned_token(subject: str) -> str:
    """Return a token without a signature (RFC 7519, section 6), valid from now on."""
    now_s = wall_clock_ms() // 1000
    claims = {"sub": subject, "iat": now_s, "exp": now_s + TOKEN_LIFETIME_S}
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def _encoded(section: dict[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(section).encode()).rstrip(b"=").decode()
