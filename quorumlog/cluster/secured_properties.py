"""The properties of a node of a secured cluster: listeners, their protection, the authorizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.cluster.security import (
    BROKER,
    INTERNAL,
    PLAIN,
    PRINCIPAL,
    TOKEN_KEY,
    ClusterSecurity,
    Passwords,
    ca_file,
    keystore,
    passwords,
    security_directory,
)
from quorumlog.settings.tls import node_role

if TYPE_CHECKING:
    from quorumlog.cluster.layout import NodeSpec

_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_COMMON_NAME: Final = "RULE:^CN=([^,+]+).*$/$1/"  # a certificate `CN=alice` is `User:alice`


def properties(
    directory: Path, security: ClusterSecurity, node: "NodeSpec"
) -> Iterator[tuple[str, str]]:
    """Yield the listeners of a node and their security. Its file is for its owner alone."""
    known = passwords(directory)
    clients = [f"{one.name}://{one.bind}" for one in node.listeners]
    internal = f"{INTERNAL}://{node.internal}"
    names = [node.protocol, *(one.name for one in node.listeners)]
    protocols = [f"{name}:{node.protocol}" for name in names]
    yield "listeners", ",".join([f"{node.protocol}://{node.kafka}", *clients, internal])
    yield "advertised.listeners", ",".join(advertised_listeners(node))
    yield (
        "listener.security.protocol.map",
        ",".join([*protocols, f"{INTERNAL}:{security.internal_protocol}"]),
    )
    yield "inter.broker.listener.name", INTERNAL
    own = f'username="{BROKER}" password="{known.broker}" user_{BROKER}="{known.broker}"'
    prefix = f"listener.name.{INTERNAL.lower()}."
    yield "sasl.mechanism.inter.broker.protocol", PLAIN
    yield f"{prefix}sasl.enabled.mechanisms", PLAIN
    yield f"{prefix}plain.sasl.jaas.config", f"{_PLAIN_MODULE} required {own};"
    for name in names:
        yield from _of_clients(f"listener.name.{name.lower()}.", security, known)
        if security.has_issuer:
            keys = security_directory(directory) / f"{TOKEN_KEY}.jwks.json"
            url = "sasl.oauthbearer.jwks.endpoint.url"
            yield f"listener.name.{name.lower()}.{url}", keys.as_uri()
    if security.has_issuer:
        yield "control.oauth.key.file", str(security_directory(directory) / TOKEN_KEY)
    if security.tls:
        place = security_directory(directory)
        yield "ssl.keystore.type", "PEM"
        yield "ssl.keystore.location", str(keystore(place, node_role(node.id)))
        yield "ssl.truststore.type", "PEM"
        yield "ssl.truststore.location", str(ca_file(directory))
        yield "control.tls.ca.file", str(ca_file(directory))
        yield "control.tls.certificate.file", str(place / f"{node_role(node.id)}.pem")
        yield "control.tls.key.file", str(place / f"{node_role(node.id)}.key")
    if security.acls:
        yield "authorizer.class.name", _AUTHORIZER
        yield "super.users", ";".join([PRINCIPAL + BROKER, *security.super_users])


def advertised_listeners(node: "NodeSpec") -> list[str]:
    """Return the advertised address of each listener of a node, as NAME://host:port."""
    first = f"{node.protocol}://{node.advertised or node.kafka}"
    others = [f"{one.name}://{one.advertised}" for one in node.listeners]
    internal = [] if node.internal is None else [f"{INTERNAL}://{node.internal}"]
    return [first, *others, *internal]


def _of_clients(
    prefix: str, security: ClusterSecurity, known: Passwords
) -> Iterator[tuple[str, str]]:
    """Yield the properties of one listener for clients."""
    if security.mechanism is not None:
        yield f"{prefix}sasl.enabled.mechanisms", security.mechanism
    if security.mechanism == PLAIN:
        users = " ".join(f"user_{name}={quoted(text or '')}" for name, text in known.users.items())
        yield f"{prefix}plain.sasl.jaas.config", f"{_PLAIN_MODULE} required {users};"
    if security.has_certificates:
        yield f"{prefix}ssl.client.auth", "requested"
        yield f"{prefix}ssl.principal.mapping.rules", f"{_COMMON_NAME},DEFAULT"


def quoted(text: str) -> str:
    """Return a text as a value of JAAS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
