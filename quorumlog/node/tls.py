"""TLS contexts of a node, made from its settings and files: listeners, clients, control listener.

Only nodes with TLS import this module: `ssl` takes memory. An error names the setting and the
remedy, never a secret. Sources: KIP-651; Kafka's DefaultSslEngineFactory and SslFactory.
"""

import logging
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from quorumlog.broker.authentication.certificate_principals import CertificatePrincipals
from quorumlog.broker.server.server import ListenerTls
from quorumlog.extras import install_command
from quorumlog.invariants import some
from quorumlog.metadata_quorum.io.control_tls import ControlTls
from quorumlog.node.config import ControlTlsFiles, NodeConfig
from quorumlog.node.listeners import StartFailed
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.listeners import Listeners
from quorumlog.settings.tls import (
    PEM,
    ClientAuth,
    Store,
    TlsSettings,
    node_role,
    pem_blocks,
    role_in,
)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_DEMANDS: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}
_JKS: Final = b"\xfe\xed\xfe\xed"
_READABLE_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_OUT_OF_TIME: Final = {9: "is not yet valid", 10: "has expired"}  # OpenSSL's X509_V_ERR_*
_NO_CHECK_TIME: Final = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME
_MISMATCH: Final = "KEY_VALUES_MISMATCH"
_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Identity:
    """A key and its chain in PEM; `where`: the setting and file, for messages."""

    where: str
    key: str = field(repr=False)
    chain: str
    password: str = field(repr=False)


class NodeTls:
    """The TLS of one node, read at its start. Raises StartFailed.

    `control`: of the control listener, None: plain text. `listeners`: of the Kafka listeners that
    have TLS, by name; none if the node is no broker.
    """

    def __init__(self, config: NodeConfig) -> None:
        files = config.control_tls
        self._config: Final = config
        self._has_issuer: Final = config.is_broker and config.oauth_key_file is not None
        self.control: Final = None if files is None else self._control(files)
        self.listeners: Final = listener_tls(config.listeners) if config.is_broker else {}

    def _control(self, files: ControlTlsFiles) -> ControlTls:
        return control_tls(files, self._config.node_id, serves_strangers=self._has_issuer)

    def read_again(self) -> dict[str, ssl.SSLContext]:
        """Read all files again; return the new contexts of the Kafka listeners.

        The control listener has its new certificate when this returns. Raises StartFailed: nothing
        has changed.
        """
        contexts = renewed(self._config.listeners, self.listeners)
        if self.control is not None and self._config.control_tls is not None:
            self._control(self._config.control_tls)  # checks the files
            reload_control_tls(self.control, self._config.control_tls)
        for name, context in contexts.items():
            self.listeners[name] = replace(self.listeners[name], context=context)
        return contexts


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a listener. Raises StartFailed."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, settings)
    context.verify_mode = _DEMANDS[settings.client_auth]
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of this broker as a client of a listener of others. Raises StartFailed."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, settings)
    context.check_hostname = settings.checks_hosts
    return context


def _context(protocol: int, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    versions = sorted(_VERSIONS[one] for one in settings.protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    _load_identity(context, _identity(settings))
    trusted = _trusted(settings)
    if trusted is None:
        context.load_default_certs(
            ssl.Purpose.CLIENT_AUTH
            if protocol == ssl.PROTOCOL_TLS_SERVER
            else ssl.Purpose.SERVER_AUTH
        )
    else:
        context.load_verify_locations(cadata=trusted)
    return context


def listener_tls(listeners: Listeners) -> dict[str, ListenerTls]:
    """Return the TLS of the listeners that have it, checked. Raises StartFailed."""
    made = {}
    for name, listener in listeners.by_name.items():
        if listener.tls is None:
            continue
        try:
            rules = listener.tls.principal_rules
            principals = None if listener.protocol.has_sasl else CertificatePrincipals(rules)
        except BadValue as error:
            raise StartFailed(f"the listener {name}: {error}") from error
        made[name] = ListenerTls(context=server_context(listener.tls), principals=principals)
        is_inter_broker = listener is listeners.inter_broker
        _check(name, listener.tls, made[name].context, is_inter_broker=is_inter_broker)
    return made


def renewed(listeners: Listeners, live: Mapping[str, ListenerTls]) -> dict[str, ssl.SSLContext]:
    """Read all key stores and trust stores again; return the contexts of later handshakes.

    A new certificate has the subject and the alternative names of its predecessor, unless
    ssl.allow.dn.changes or ssl.allow.san.changes is true (KIP-978). Raises StartFailed.
    """
    contexts = {}
    for name, ends in live.items():
        settings = some(listeners.by_name[name].tls, "the listener has TLS")
        identity, context = _identity(settings), server_context(settings)
        refusal, _ = _shake_hands(context, _believer(identity.chain))
        if refusal is not None:
            raise StartFailed(f"{identity.where}: {refusal.verify_message}")
        old, new = _described(ends.context), _described(context)
        if new["subject"] != old["subject"] and not settings.may_change_subject:
            raise StartFailed(f"{identity.where}: another subject; see ssl.allow.dn.changes")
        lost = {*old.get("subjectAltName", ())} - {*new.get("subjectAltName", ())}
        if lost and not settings.may_change_names:
            names = ", ".join(sorted(text for _, text in lost))
            raise StartFailed(f"{identity.where}: it lacks {names}; see ssl.allow.san.changes")
        contexts[name] = context
    return contexts


def _check(
    name: str, settings: TlsSettings, context: ssl.SSLContext, *, is_inter_broker: bool
) -> None:
    """Check the certificate of the listener `name` by a handshake with itself.

    Inter-broker: its own trust store must accept it, as in Kafka. Otherwise a certificate that has
    expired or is not yet valid is logged only: a test of a client may need one. Raises StartFailed.
    """
    if is_inter_broker:
        client = client_context(settings)
        client.check_hostname = False  # other brokers check it, with the name that they use
        refusal, _ = _shake_hands(context, client)
        if refusal is not None:
            raise StartFailed(
                f"the listener {name}: other brokers with these settings refuse its certificate: "
                f"{refusal.verify_message}; see {settings.truststore.name}.location"
            )
        return
    refusal, _ = _shake_hands(context, _believer(_identity(settings).chain))
    reason = None if refusal is None else _OUT_OF_TIME.get(refusal.verify_code)
    if reason is not None:
        _logger.warning("the listener %s: its certificate %s: clients refuse it", name, reason)


def _believer(chain: str, *, checks_time: bool = True) -> ssl.SSLContext:
    """Return a client that trusts the certificates in `chain`, and checks no host."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not checks_time:
        client.verify_flags |= _NO_CHECK_TIME
    client.load_verify_locations(cadata=chain)
    return client


def _described(server: ssl.SSLContext) -> Mapping[str, Any]:
    """Return the certificate of a server, even if it has expired, as `getpeercert` does."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    _, seen = _shake_hands(server, trusting)
    der = some(seen.getpeercert(binary_form=True), "a server shows a certificate")
    _, seen = _shake_hands(server, _believer(ssl.DER_cert_to_PEM_cert(der), checks_time=False))
    return seen.getpeercert() or {}


def _shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> tuple[ssl.SSLCertVerificationError | None, ssl.SSLObject]:
    """Return why a client refuses a server's certificate, None if it does not; and its end."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server)
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (client_end, server_end) * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            if end is client_end:
                return error, client_end
        except ssl.SSLError:  # the client has no certificate of its own to show
            break
    return None, client_end


# --- the control listener ---


def control_tls(
    files: ControlTlsFiles, node_id: int, *, serves_strangers: bool = False
) -> ControlTls:
    """Return the contexts of a node's control listener and of its requests. Raises StartFailed.

    `serves_strangers`: peers need no certificate; one that they show must be of the CA.

    The node's own certificate must be accepted by the other nodes: in time, of the CA, and with the
    node's role.
    """
    made = ControlTls(
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        serves_strangers,
    )
    for context in (made.server, made.client):
        context.check_hostname = False  # a node is its role: its addresses change
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(files.ca)
        except OSError as error:  # of a file, or of OpenSSL
            is_content = isinstance(error, ssl.SSLError)
            reason = "no certificate in PEM" if is_content else error.strerror
            raise StartFailed(f"control.tls.ca.file={files.ca}: {reason}") from error
    reload_control_tls(made, files)
    where = f"control.tls.certificate.file={files.certificate}"
    refusal, seen = _shake_hands(made.server, made.client)
    if refusal is not None:
        raise StartFailed(f"{where}: other nodes refuse it: {refusal.verify_message}")
    if serves_strangers:
        made.server.verify_mode = ssl.CERT_OPTIONAL
    if role_in(seen.getpeercert()) != node_role(node_id):
        raise StartFailed(f"{where}: it lacks the alternative name {node_role(node_id)}")
    return made


def reload_control_tls(live: ControlTls, files: ControlTlsFiles) -> None:
    """Read the node's certificate again, for later handshakes. Raises StartFailed."""
    key, certificate = (
        _read(f"control.tls.{name}.file={path}", path, PEM, has_key=name == "key").decode()
        for name, path in (("key", files.key), ("certificate", files.certificate))
    )
    identity = _of_pem(f"control.tls.key.file={files.key}", key, certificate, "")
    for context in (live.server, live.client):
        _load_identity(context, identity)


# --- keys and certificates ---


def _load_identity(context: ssl.SSLContext, identity: _Identity) -> None:
    """Load a key and its chain. OpenSSL reads them from a file: a temporary, private one."""
    with NamedTemporaryFile(prefix="quorumlog-") as file:
        file.write((identity.key + identity.chain).encode())
        file.flush()
        try:
            context.load_cert_chain(file.name, password=identity.password)
        except ssl.SSLError as error:
            reason = "the key or a certificate is damaged"
            if error.reason == _MISMATCH:
                reason = "the key does not belong to the first certificate"
            elif identity.password:  # OpenSSL names no reason
                reason = f"ssl.key.password does not decrypt the key, or {reason}"
            raise StartFailed(f"{identity.where}: {reason}") from error


def _identity(settings: TlsSettings) -> _Identity:
    store = settings.keystore
    if settings.key:
        where = f"{store.name}.key and .certificate.chain"
        return _of_pem(where, settings.key, settings.chain, settings.key_password)
    where = f"{store.name}.location={store.location}"
    content = _read(where, store.location, store.type, has_key=True)
    if store.type == PEM:
        text = content.decode()
        return _of_pem(where, text, text, settings.key_password)
    key, certificates = _of_pkcs12(store, content)
    if key is None:
        raise StartFailed(f"{where}: it has no private key")
    return _of_pem(where, key, "".join(certificates), "")


def _of_pem(where: str, keys: str, certificates: str, password: str) -> _Identity:
    found = [(label, block) for label, block in pem_blocks(keys) if label.endswith("PRIVATE KEY")]
    chain = [block for label, block in pem_blocks(certificates) if label == "CERTIFICATE"]
    if len(found) != 1:
        raise StartFailed(f"{where}: it has {len(found) or 'no'} private keys; put one into it")
    if not chain:
        raise StartFailed(f"{where}: it has no certificate")
    ((label, key),) = found
    if label == "ENCRYPTED PRIVATE KEY":
        if not password:
            raise StartFailed(f"{where}: the key is encrypted; set ssl.key.password")
    elif label != "PRIVATE KEY":
        raise StartFailed(
            f"{where}: the key is a {label}, and must be PKCS#8: "
            "convert it by `openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW`"
        )
    return _Identity(where, key, "".join(chain), password)


def _trusted(settings: TlsSettings) -> str | None:
    """Return the trusted certificates in PEM; None: those of the system."""
    store = settings.truststore
    where = f"{store.name}.location={store.location}"
    if settings.trusted:
        where, text = f"{store.name}.certificates", settings.trusted
    elif not store.location:
        return None
    elif store.type == PEM:
        text = _read(where, store.location, PEM).decode()
    else:
        content = _read(where, store.location, store.type)
        text = "".join(_of_pkcs12(store, content)[1])
    blocks = [block for label, block in pem_blocks(text) if label == "CERTIFICATE"]
    if not blocks:
        raise StartFailed(f"{where}: it has no certificate")
    return "".join(blocks)


def _read(where: str, location: str, kind: str, *, has_key: bool = False) -> bytes:
    """Return the content of a file: UTF-8 if `kind` is PEM. `where`: its setting and its name."""
    path = Path(location)
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
        if kind == PEM:
            content.decode()
    except OSError as error:
        raise StartFailed(f"{where}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StartFailed(f"{where}: the file is not PEM: {error}") from error
    if has_key and mode & _READABLE_BY_OTHERS:
        _logger.warning("%s: other users can read the key; chmod 600 it", where)
    if content.startswith(_JKS):
        raise StartFailed(
            f"{where}: a JKS file; convert it by `keytool -importkeystore -srckeystore "
            f"{path.name} -destkeystore NEW.p12 -deststoretype PKCS12`, or use PEM"
        )
    if kind != PEM and b"-----BEGIN " in content:
        raise StartFailed(f"{where}: the file is PEM; set the type of the store to PEM")
    return content


def _of_pkcs12(store: Store, content: bytes) -> tuple[str | None, list[str]]:
    """Return the key, if there is one, and the certificates, its own first: all in PEM."""
    try:
        from cryptography.hazmat.primitives import serialization as forms
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ModuleNotFoundError:
        command = install_command("security")
        raise StartFailed(
            f"{store.name}.type={store.type} needs cryptography: {command}; PEM needs nothing"
        ) from None
    try:
        found = pkcs12.load_pkcs12(content, store.password.encode() or None)
    except ValueError as error:
        raise StartFailed(
            f"{store.name}.location={store.location}: no PKCS#12 file of this password: {error}"
        ) from error
    key = None
    if found.key is not None:
        form = forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
        key = found.key.private_bytes(*form).decode()
    entries = [one for one in (found.cert, *found.additional_certs) if one is not None]
    return key, [one.certificate.public_bytes(forms.Encoding.PEM).decode() for one in entries]
