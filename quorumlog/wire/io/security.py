"""TLS and authentication of a connection to a broker, for clients and for brokers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssl import SSLContext


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslLogin:
    """The credentials of a user. `token`: returns a new bearer token, for OAUTHBEARER."""

    mechanism: str  # Kafka's name, for example SCRAM-SHA-256
    username: str = ""
    password: str = field(default="", repr=False)
    token: Callable[[], str] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSecurity:
    """The protection of a connection; the default is PLAINTEXT.

    `tls`: the context of the TLS handshake; None: plain text. `login`: None: no SASL.
    """

    tls: "SSLContext | None" = None
    login: SaslLogin | None = None
