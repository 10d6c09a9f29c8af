"""TLS: Kafka's settings `ssl.*` of a listener, rules for principals, and roles of nodes.

    ssl.keystore.type=PEM + ssl.keystore.location           a file with the key and its chain
    ssl.keystore.key + ssl.keystore.certificate.chain       both as text
    ssl.keystore.type=PKCS12 + .location + .password        a PKCS#12 file
    ssl.truststore.*                                        the same, without a key

The messages about stores are as Kafka's DefaultSslEngineFactory gives them. Sources: KIP-651
(PEM), KIP-371 (rules), KIP-684 (client certificates beside SASL). docs/decisions/0062-tls.md
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from quorumlog.settings.kinds import FLAG, PASSWORD, TEXT, TEXTS, BadValue, SettingRow

OPERATOR: Final = "operator"
"""The alternative name of a certificate for status, metrics and waits on control listeners."""
PEM: Final = "PEM"
PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
CLIENT_AUTH: Final = "ssl.client.auth"
KEYS: Final = ("ssl.keystore.location", "ssl.keystore.key")
"""A node without a TLS listener that has one of these would look protected: it does not start."""
_ALLOW_DN, _ALLOW_SAN = "ssl.allow.dn.changes", "ssl.allow.san.changes"


def _text(default: str | None, documentation: str) -> SettingRow:
    return SettingRow(TEXT, default, documentation)


def _secret(documentation: str) -> SettingRow:
    """Return a setting of Kafka's type PASSWORD: DescribeConfigs returns no value of it."""
    return SettingRow(PASSWORD, None, documentation)


ROWS: Final[Mapping[str, SettingRow]] = MappingProxyType(
    {
        "ssl.keystore.type": _text(
            "JKS", "PEM or PKCS12; JKS, Kafka's default, reads a PKCS12 file, as in Java."
        ),
        "ssl.keystore.location": _text(
            None, "The file with the listener's key and its certificate with its chain."
        ),
        "ssl.keystore.password": _secret("The password of a PKCS12 key store."),
        "ssl.keystore.key": _secret("The key as text: PEM, PKCS#8."),
        "ssl.keystore.certificate.chain": _secret("The certificate with its chain as text: PEM."),
        "ssl.key.password": _secret("The password of an encrypted key in PEM."),
        "ssl.truststore.type": _text("JKS", "As ssl.keystore.type."),
        "ssl.truststore.location": _text(
            None, "The file with the CAs of the clients' certificates. Default: the system's CAs."
        ),
        "ssl.truststore.password": _secret("The password of a PKCS12 trust store."),
        "ssl.truststore.certificates": _secret("The CAs as text: PEM."),
        CLIENT_AUTH: _text(
            "none",
            "Whether a client shows a certificate: none, requested or required. A listener with "
            "SASL_SSL reads only its own, with the listener's prefix (KIP-684).",
        ),
        "ssl.protocol": _text("TLSv1.3", "The newest version: see ssl.enabled.protocols."),
        "ssl.enabled.protocols": SettingRow(
            TEXTS, ",".join(PROTOCOLS), "The versions of TLS: TLSv1.2, TLSv1.3."
        ),
        "ssl.endpoint.identification.algorithm": _text(
            "https", "https: the brokers check each other's hosts; empty: they do not."
        ),
        "ssl.principal.mapping.rules": _text(
            "DEFAULT",
            "How the name of a client's certificate becomes a user (KIP-371): "
            "RULE:pattern/replacement/[LU] or DEFAULT, separated by commas; the first that matches "
            "applies.",
        ),
        _ALLOW_DN: SettingRow(
            FLAG, "false", "Whether a key store that is read again may have another subject."
        ),
        _ALLOW_SAN: SettingRow(
            FLAG, "false", "Whether a key store that is read again may lack alternative names."
        ),
    }
)
"""Kafka's settings of TLS: of all listeners or, with its prefix, of one of them."""

# Texts, compiled where they are needed: a node without TLS keeps the memory.
_NODE_ROLE: Final = r"node-[0-9]+"
_TYPES: Final = ("JKS", "PKCS12", PEM)
_BLOCK: Final = r"(?s)-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----"
_ESCAPED_LINE: Final = r"\\r|\\n|\\(?=\s)"  # as in a properties file of Java
_PART: Final = r"(?:\\.|[^\\/])*"
_RULE: Final = (
    rf"(?s)(?:DEFAULT|RULE:(?P<pattern>{_PART})/(?P<replacement>{_PART})/(?P<case>[LU]?))"
    r"\s*(?:,\s*|$)[\s,]*"
)
_REPLACED: Final = r"(?s)\\(.)|\$([0-9]+)|([^\\$]+)"


class ClientAuth(Enum):
    """Whether a client shows a certificate: never, if it has one, or always."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The file of a key store or trust store; `location` is empty if there is none."""

    name: str  # of its settings: ssl.keystore or ssl.truststore, with the listener's prefix
    type: str = "JKS"
    location: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """A rule that makes a user's name of a distinguished name. `pattern` None: the name itself.

    `replacement`: texts, and numbers of groups of the pattern as they are written. `case`: L, U or
    empty.
    """

    pattern: str | None = None
    replacement: tuple[str | int, ...] = ()
    case: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of one listener. A key store or trust store is a file, or texts in PEM."""

    keystore: Store
    truststore: Store
    key: str = field(default="", repr=False)
    chain: str = ""
    key_password: str = field(default="", repr=False)
    trusted: str = ""
    client_auth: ClientAuth = ClientAuth.NONE
    protocols: tuple[str, ...] = PROTOCOLS
    checks_hosts: bool = True  # of servers, when the node is the client
    may_change_subject: bool = False
    may_change_names: bool = False
    principal_rules: tuple[PrincipalRule, ...] = (PrincipalRule(),)


def read_tls(value: Callable[[str], str | None], prefix: str) -> TlsSettings:
    """Return the TLS settings of a listener. Raises BadValue.

    `value`: returns the text of a setting for this listener; None: it is not set. `prefix`: of the
    listener's own settings, for messages.
    """

    def text(name: str) -> str:
        given = value(name)
        row = ROWS[name]
        return row.kind.normalize((row.default or "") if given is None else given)

    chain, key = text("ssl.keystore.certificate.chain"), text("ssl.keystore.key")
    return TlsSettings(
        keystore=_store(text, f"{prefix}ssl.keystore", key, chain),
        truststore=_store(text, f"{prefix}ssl.truststore", "", text("ssl.truststore.certificates")),
        key=key,
        chain=chain,
        key_password=text("ssl.key.password"),
        trusted=text("ssl.truststore.certificates"),
        client_auth=_client_auth(text(CLIENT_AUTH)),
        protocols=_protocols(text("ssl.enabled.protocols"), text("ssl.protocol")),
        checks_hosts=_checks_hosts(text("ssl.endpoint.identification.algorithm")),
        may_change_subject=FLAG.read(text(_ALLOW_DN)),
        may_change_names=FLAG.read(text(_ALLOW_SAN)),
        principal_rules=read_rules(text("ssl.principal.mapping.rules")),
    )


def _store(text: Callable[[str], str], name: str, key: str, certificates: str) -> Store:
    kind = name[name.rindex("ssl.") :]
    store = Store(
        name=name,
        type=text(f"{kind}.type").upper(),
        location=text(f"{kind}.location"),
        password=text(f"{kind}.password"),
    )
    is_for_keys = kind == "ssl.keystore"
    if store.type not in _TYPES:
        raise BadValue(f"{name}.type={store.type}: use {', '.join(_TYPES)}")
    if key or certificates:
        if store.type != PEM:
            raise BadValue(f"{name}.type={store.type}: a key or certificates as text need type PEM")
        if is_for_keys and not (key and certificates):
            given, missing = ("key", "certificate.chain") if key else ("certificate.chain", "key")
            raise BadValue(f"{name}.{given} is set, but {name}.{missing} is not")
        if store.location:
            raise BadValue(f"{name}.location and certificates as text: set only one of them")
    if store.type == PEM and store.password:
        hint = "; set only ssl.key.password" if is_for_keys else ""
        raise BadValue(f"{name}.password cannot be set with type PEM{hint}")
    if store.type != PEM and store.password and not store.location:
        raise BadValue(f"{name}.password is set, but {name}.location is not")
    if is_for_keys and not (key or store.location):
        raise BadValue(f"{name}.location is not set: a listener with TLS needs a certificate")
    if is_for_keys and store.type != PEM and not store.password:
        raise BadValue(f"{name}.location is set, but {name}.password is not")
    return store


def _client_auth(text: str) -> ClientAuth:
    try:
        return ClientAuth(text.lower())
    except ValueError:
        values = ", ".join(one.value for one in ClientAuth)
        raise BadValue(f"{CLIENT_AUTH}={text}: use {values}") from None


def _protocols(enabled: str, protocol: str) -> tuple[str, ...]:
    if protocol not in {*PROTOCOLS, "TLS"}:
        raise BadValue(f"ssl.protocol={protocol}: use {' or '.join(PROTOCOLS)}")
    chosen = tuple(one.strip() for one in enabled.split(","))
    for one in chosen:
        if one not in PROTOCOLS:
            raise BadValue(f"ssl.enabled.protocols={enabled}: use {', '.join(PROTOCOLS)}")
    return chosen


def _checks_hosts(text: str) -> bool:
    if text.lower() not in {"", "https"}:
        raise BadValue(
            f"ssl.endpoint.identification.algorithm={text}: use https, or leave it empty"
        )
    return bool(text)


def read_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Return the rules in `ssl.principal.mapping.rules`, in their order. Raises BadValue.

    A rule is DEFAULT or RULE:pattern/replacement/[LU]; a backslash escapes a slash. Empty rules are
    left out, as in Kafka's SslPrincipalMapper.
    """
    rules, rest = [], text.lstrip(", \t\r\n")
    while rest:
        found = re.match(_RULE, rest)
        if found is None:
            raise BadValue(
                f"ssl.principal.mapping.rules: {rest!r} does not begin with DEFAULT or "
                "RULE:pattern/replacement/[LU], separated by commas"
            )
        if found["pattern"] is None:
            rules.append(PrincipalRule())
        else:
            replacement = tuple(_replacement(found["replacement"]))
            rules.append(PrincipalRule(found["pattern"], replacement, found["case"]))
        rest = rest[found.end() :]
    return tuple(rules)


def _replacement(text: str) -> Iterator[str | int]:
    """Yield the parts of a replacement. Raises BadValue for a `$` without a number."""
    rest = text
    while rest:
        found = re.match(_REPLACED, rest)
        if found is None:
            raise BadValue(
                f"ssl.principal.mapping.rules: {text!r}: write a group's number behind $, or \\$"
            )
        escaped, group, plain = found.groups()
        yield int(group) if group else escaped or plain
        rest = rest[found.end() :]


def pem_blocks(text: str) -> list[tuple[str, str]]:
    r"""Return the blocks of a PEM text: label and whole block, with lines as OpenSSL reads them.

    Text around them is ignored. The lines of a block may be joined by blanks or by a written `\n`,
    as in a properties file.
    """
    blocks = []
    for label, body in re.findall(_BLOCK, text):
        base64 = "".join(re.sub(_ESCAPED_LINE, " ", body).split())
        lines = "\n".join(base64[at : at + 64] for at in range(0, len(base64), 64))
        blocks.append((label, f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"))
    return blocks


def node_role(node_id: int) -> str:
    """Return the alternative name of a node's certificate on control listeners."""
    return f"node-{node_id}"


def role_in(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the role in a certificate as `SSLSocket.getpeercert` returns it; None: it has none."""
    names = (certificate or {}).get("subjectAltName", ())
    return next((text for kind, text in names if kind == "DNS" and is_control_role(text)), None)


def is_node_role(name: str) -> bool:
    """Whether a certificate's alternative name makes it the certificate of a node."""
    return re.fullmatch(_NODE_ROLE, name) is not None


def is_control_role(name: str) -> bool:
    """Whether a certificate's alternative name gives it a role on control listeners."""
    return name == OPERATOR or is_node_role(name)
