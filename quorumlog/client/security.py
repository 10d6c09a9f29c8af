"""The settings of TLS and SASL, and the protection of connections that they describe."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypedDict, runtime_checkable

from quorumlog.wire.codec.sasl import SCRAM_HASHES
from quorumlog.wire.io.security import PLAINTEXT, ConnectionSecurity, SaslLogin, client_context

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Token = str | Callable[[], str]


@runtime_checkable
class PathLike(Protocol):
    """A path, such as pathlib.Path: the pure part of the client may not import that."""

    def __fspath__(self) -> str:
        """Return the path as text."""


Pem = str | PathLike
_WITH_PASSWORD: Final = frozenset({"PLAIN", *SCRAM_HASHES})
_OF_SASL: Final = ("sasl_mechanism", "sasl_username", "sasl_password", "sasl_token")
_OF_TLS: Final = ("ssl_ca", "ssl_certificate", "ssl_key", "ssl_key_password")
SECRET: Final = frozenset({"sasl_password", "sasl_token", "ssl_key", "ssl_key_password"})
"""Settings whose values are in no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """The settings of every client that protect its connections.

    `ssl_*`: PEM, a path or the text itself; without `ssl_ca`, the CAs of the system. `sasl_token`:
    a bearer token, or a function that returns a new one (called in a thread).
    """

    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: SaslMechanism | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_token: Token | None = field(default=None, repr=False)
    ssl_ca: Pem | None = None
    ssl_certificate: Pem | None = None
    ssl_key: Pem | None = field(default=None, repr=False)
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True

    def __post_init__(self) -> None:
        contradiction = self._why_without_effect() or self._why_incomplete()
        if contradiction is not None:
            raise ValueError(contradiction)

    @property
    def _has_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def _has_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    def _why_without_effect(self) -> str | None:
        """Return why a setting has no effect: it would promise a protection that is missing."""
        for names, has, needed in (
            (_OF_SASL, self._has_sasl, "'SASL_SSL' or 'SASL_PLAINTEXT'"),
            (_OF_TLS, self._has_tls, "'SSL' or 'SASL_SSL'"),
        ):
            given = [name for name in names if getattr(self, name) is not None]
            if given and not has:
                return f"{given[0]} needs security_protocol={needed}"
        return None

    def _why_incomplete(self) -> str | None:
        mechanism = self.sasl_mechanism
        if self.ssl_certificate is None and self.ssl_key is not None:
            return "ssl_key needs ssl_certificate"
        if not self._has_sasl:
            return None
        if mechanism is None:
            return f"security_protocol={self.security_protocol!r} needs a sasl_mechanism"
        if mechanism not in _WITH_PASSWORD:
            has_token = bool(self.sasl_token)
            return None if has_token else "OAUTHBEARER needs a sasl_token: a text, or a function"
        if not self.sasl_username or not self.sasl_password:
            return f"sasl_mechanism={mechanism!r} needs sasl_username and sasl_password"
        is_other = self.sasl_token is not None
        return f"sasl_token is for OAUTHBEARER, not for {mechanism}" if is_other else None

    def connection_security(self) -> ConnectionSecurity:
        """Return the protection of connections; reads the files of certificates.

        Raises ValueError for a file or a text that cannot be used.
        """
        if self.security_protocol == "PLAINTEXT":
            return PLAINTEXT
        tls = login = None
        if self._has_tls:
            tls = client_context(
                ca=_text(self.ssl_ca),
                certificate=_text(self.ssl_certificate),
                key=_text(self.ssl_key),
                key_password=self.ssl_key_password,
                check_hostname=self.ssl_check_hostname,
            )
        if self._has_sasl:
            login = SaslLogin(
                mechanism=self.sasl_mechanism or "",
                username=self.sasl_username or "",
                password=self.sasl_password or "",
                token=_source(self.sasl_token),
            )
        return ConnectionSecurity(tls=tls, login=login)


def token_of(security: SecuritySettings) -> str:
    """Return a bearer token."""
    token = security.sasl_token
    return token() if callable(token) else token or ""


class SecurityOptions(TypedDict, total=False):
    """The keyword arguments of SecuritySettings."""

    security_protocol: SecurityProtocol
    sasl_mechanism: SaslMechanism | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_token: Token | None
    ssl_ca: Pem | None
    ssl_certificate: Pem | None
    ssl_key: Pem | None
    ssl_key_password: str | None
    ssl_check_hostname: bool


def _text(value: Pem | None) -> str | None:
    return None if value is None else str(value)


def _source(token: Token | None) -> Callable[[], str] | None:
    return (lambda: token) if isinstance(token, str) else token
