"""TLS and authentication of a connection to a broker, for clients and for brokers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ssl import SSLContext, SSLError


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslLogin:
    """The credentials of a user.

    `token`: returns a new bearer token, for OAUTHBEARER; called in a thread, for each
    authentication. `extensions`: of OAUTHBEARER (KIP-342).
    """

    mechanism: str  # Kafka's name, for example SCRAM-SHA-256
    username: str = ""
    password: str = field(default="", repr=False)
    token: Callable[[], str] | None = field(default=None, repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSecurity:
    """The protection of a connection; the default is PLAINTEXT.

    `tls`: the context of the TLS handshake; None: plain text. `login`: None: no SASL.
    """

    tls: "SSLContext | None" = None
    login: SaslLogin | None = None

    @property
    def protocol(self) -> str:
        """Return Kafka's name of the protocol."""
        if self.login is None:
            return "PLAINTEXT" if self.tls is None else "SSL"
        return "SASL_PLAINTEXT" if self.tls is None else "SASL_SSL"

    def transport_options(self, host: str) -> dict[str, Any]:
        """Return the arguments of the event loop's `create_connection` to `host`, beside it."""
        if self.tls is None:
            return {}
        return {"ssl": self.tls, "server_hostname": host, "ssl_shutdown_timeout": SHUTDOWN_S}

    def refusal(self, error: BaseException | None) -> str | None:
        """Return why TLS refused, with the remedy; None if `error` is no refusal of TLS.

        A connection that only ends is no refusal: the broker may be stopping.
        """
        if self.tls is None:
            return None
        from ssl import SSLEOFError, SSLError  # few connections have TLS

        if not isinstance(error, SSLError) or isinstance(error, SSLEOFError):
            return None
        return _tls_cause(error)


PLAINTEXT: Final = ConnectionSecurity()
ISSUER_FAILED: Final = "no token: "  # begins the text of a ConnectionLost that is not the broker's
TLS_ENDED: Final = (
    "the listener closed the TLS connection before its first answer: it may require a certificate"
    " of the client, not speak TLS, or be stopping"
)
SHUTDOWN_S: Final = 0.5  # for the end of TLS that the peer confirms

_CAUSES: Final = {  # of OpenSSL's `reason`
    "WRONG_VERSION_NUMBER": "the listener does not speak TLS: set the security protocol to"
    " PLAINTEXT or SASL_PLAINTEXT, or connect to a TLS listener",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the listener requires a certificate of the client:"
    " set one, with its key",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the listener refused the handshake: it may require a"
    " certificate of the client, or share no cipher with it",
    "TLSV1_ALERT_UNKNOWN_CA": "the listener does not trust the CA of the client's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "client and listener share no version of TLS",
    "UNSUPPORTED_PROTOCOL": "client and listener share no version of TLS",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the listener refused the client's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the listener refused the client's certificate",
}
_CAUSES["PACKET_LENGTH_TOO_LONG"] = _CAUSES["WRONG_VERSION_NUMBER"]
_CAUSES["RECORD_LAYER_FAILURE"] = _CAUSES["WRONG_VERSION_NUMBER"]


def _tls_cause(error: "SSLError") -> str:
    """Return the cause of a failed TLS handshake, and the remedy."""
    message = str(getattr(error, "verify_message", ""))
    if not message:
        reason = str(error.reason or "")
        return f"TLS: {_CAUSES.get(reason) or reason or error}"
    remedy = "set the CA that signed it"
    if "mismatch" in message or "not valid for" in message:
        remedy = "connect to a name or an address that is in the certificate"
    elif "expired" in message or "not yet valid" in message:
        remedy = "renew it, or mend the clock"
    return f"TLS: the broker's certificate is refused: {message.rstrip('.')} ({remedy})"


def client_context(
    *,
    ca: str | None,
    certificate: str | None,
    key: str | None,
    key_password: str | None,
    check_hostname: bool,
) -> "SSLContext":
    """Return the TLS context of a client.

    Certificates and keys are PEM: the path of a file, or the text itself. `ca`: None: the CAs of
    the system. `certificate`: of the client, and the chain behind it. `key`: None: it is in
    `certificate`. Raises ValueError with the value that cannot be used, and why.
    """
    import ssl  # few clients have TLS

    context = (
        ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    context.check_hostname = check_hostname
    if ca is not None:
        try:
            if _is_pem(ca):
                context.load_verify_locations(cadata=ca)
            else:
                context.load_verify_locations(cafile=ca)
        except (OSError, ValueError) as error:
            raise ValueError(f"CA certificates {_shown(ca)}: {_why_unusable(error)}") from error
    if certificate is not None:
        shown = _shown(certificate) if key is None else f"{_shown(certificate)}, key {_shown(key)}"
        try:
            with _as_file(certificate) as chain, _as_file(key) as key_file:
                context.load_cert_chain(str(chain), key_file, _password(key_password))
        except (OSError, ValueError) as error:
            raise ValueError(f"certificate {shown}: {_why_unusable(error)}") from error
    return context


def _is_pem(text: str) -> bool:
    return "-----BEGIN" in text


def _shown(text: str) -> str:
    return "(PEM text)" if _is_pem(text) else text


def _password(password: str | None) -> Callable[[], str]:
    """Return the source of a key's password: without it, OpenSSL reads the terminal."""

    def give() -> str:
        if password is None:
            raise ValueError("the key is encrypted: give its password")
        return password

    return give


@contextmanager
def _as_file(text: str | None) -> Iterator[str | None]:
    """Yield a path for PEM text, of a file that only this user can read; else the text itself."""
    if text is None or not _is_pem(text):
        yield text
        return
    from tempfile import NamedTemporaryFile  # for few clients

    with NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


def _why_unusable(error: Exception) -> str:
    reason = str(getattr(error, "reason", None) or "")
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if reason in {"BAD_DECRYPT", "BAD_PASSWORD_READ"}:
        return "the password of the key is wrong"
    if reason in {"NO_START_LINE", "NO_CERTIFICATE_OR_CRL_FOUND"} or "PEM lib" in str(error):
        return "no PEM block of this kind is in it, or the password of its key is wrong"
    return str(getattr(error, "strerror", None) or reason or error)
