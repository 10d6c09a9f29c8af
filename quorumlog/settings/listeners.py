"""The named listeners of a node: parsed from Kafka's settings, and checked together.

    listeners                       NAME://host:port,...   the addresses to bind
    advertised.listeners            NAME://host:port,...   the addresses for clients and brokers
    listener.security.protocol.map  NAME:PROTOCOL,...
    inter.broker.listener.name      the listener that the other brokers connect to
    listener.name.<name>.[<mechanism>.]<setting>  a setting of one listener, or of its mechanism

A client gets the addresses of the listener that it connected to. The rules and most messages are
Kafka's: KIP-103, KIP-291, KafkaConfig.validateValues. All errors are BadValue.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Final

from quorumlog.addresses import DEFAULT_LISTENER, EVERYWHERE, address_text
from quorumlog.settings.kafka_names import NO_PROTECTION, asks_for_nothing, is_protection
from quorumlog.settings.kinds import INT_MAX, BadValue, ConfigType, SettingRow, whole
from quorumlog.settings.sasl import (
    ENABLED,
    INTER_BROKER_MECHANISM,
    MECHANISMS,
    BrokerLogin,
    SaslSettings,
    read_sasl,
)
from quorumlog.settings.sasl import ROWS as SASL_ROWS
from quorumlog.settings.tls import CLIENT_AUTH, KEYS, TlsSettings, read_tls
from quorumlog.settings.tls import ROWS as TLS_ROWS

LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
INTER_BROKER: Final = "inter.broker.listener.name"
INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"
CONTROLLER_NAMES: Final = "controller.listener.names"

_PREFIX: Final = "listener.name."
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_MAX_CONNECTIONS: Final = "max.connections"
_CONNECTIONS: Final = whole(ConfigType.INT, 0, INT_MAX)
_CONNECTION_RATE: Final = "max.connection.creation.rate"
_LIMITS: Final = frozenset({_MAX_CONNECTIONS, _CONNECTION_RATE})
ROWS: Final[Mapping[str, SettingRow]] = MappingProxyType({**SASL_ROWS, **TLS_ROWS})
"""The settings of protection: of all listeners or, with the prefix, of one of them."""
_OF_A_LISTENER: Final = _LIMITS | {*ROWS, "num.network.threads"}
_OF_A_MECHANISM: Final = tuple(f"{name.lower()}." for name in MECHANISMS)


class SecurityProtocol(Enum):
    """The protocols of Kafka's listeners."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}

    @property
    def has_tls(self) -> bool:
        """Whether connections begin with a TLS handshake."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host, without brackets, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return address_text(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A Kafka listener. `advertised` None: no client or broker gets an address of it."""

    name: str
    protocol: SecurityProtocol
    bind: Address
    advertised: Address | None
    max_connections: int = INT_MAX
    sasl: SaslSettings | None = None  # None: clients do not authenticate by SASL
    connection_rate: int = INT_MAX  # maximum, in new connections a second
    tls: TlsSettings | None = None  # None: plain text
    is_inter_broker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The listeners of a node, by name, in the order of `listeners`.

    `inter_broker`: the other brokers connect to it; it has an advertised address.
    `inter_broker_login`: the credentials of this broker at the others; None: they need none.
    """

    by_name: Mapping[str, Listener]
    inter_broker: Listener
    inter_broker_address: Address
    inter_broker_login: BrokerLogin | None = None


def read_address(setting: str, text: str, *, may_be_everywhere: bool = False) -> Address:
    """Read `host:port`. `may_be_everywhere`: an empty host means all interfaces."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    is_number = port.isascii() and port.isdecimal()
    has_host = bool(host) or may_be_everywhere
    if not colon or not has_host or not is_number or not 0 < int(port[:6]) <= 65_535:
        raise BadValue(f"{setting}={text}: write it as host:port")
    return Address(host=host, port=int(port))


def read_listeners(values: Mapping[str, str]) -> Listeners:
    """Return the listeners that these settings describe. Raises BadValue."""
    bound = _addresses(LISTENERS, values[LISTENERS])
    text = values.get(ADVERTISED)
    advertised = _addresses(ADVERTISED, text) if text else bound
    protocols = _protocols(values)
    _check_names(values, bound, advertised)
    _check_ports(values[LISTENERS], bound)
    for name, address in advertised.items():
        if address.host in EVERYWHERE:
            raise BadValue(
                f"{ADVERTISED}={name}://{address}: clients cannot connect to all interfaces; "
                "advertise a routable address"
                if text
                else f"{LISTENERS}={address}: clients cannot connect to that; set {ADVERTISED}"
            )
    limits = _limits(values, bound)
    by_name = {
        name: Listener(
            name=name,
            protocol=_protocol_of(name, protocols),
            bind=address,
            advertised=advertised.get(name),
            max_connections=limits.get((name, _MAX_CONNECTIONS), INT_MAX),
            sasl=_sasl(values, name, protocols),
            connection_rate=limits.get((name, _CONNECTION_RATE), INT_MAX),
            tls=_tls(values, name, protocols[name]),
        )
        for name, address in bound.items()
    }
    if values.get(ENABLED) and all(one.sasl is None for one in by_name.values()):
        raise BadValue(f"{ENABLED} is set, but no listener has SASL; see {PROTOCOL_MAP}")
    if any(values.get(name) for name in KEYS) and all(one.tls is None for one in by_name.values()):
        raise BadValue(f"{' or '.join(KEYS)} is set, but no listener has TLS; see {PROTOCOL_MAP}")
    name = _inter_broker(values, by_name)
    by_name[name] = inter_broker = replace(by_name[name], is_inter_broker=True)
    sasl = inter_broker.sasl
    return Listeners(
        by_name=by_name,
        inter_broker=inter_broker,
        inter_broker_address=advertised[inter_broker.name],
        inter_broker_login=sasl.login(values.get(INTER_BROKER_MECHANISM, "")) if sasl else None,
    )


def _addresses(setting: str, text: str) -> dict[str, Address]:
    """Return the addresses by the listeners' names, in capitals as in Kafka."""
    found: dict[str, Address] = {}
    for entry in (part.strip() for part in text.split(",")):
        before, separator, after = entry.partition("://")
        name, address = (before.upper(), after) if separator else (DEFAULT_LISTENER, entry)
        if separator and not _NAME.fullmatch(name):
            raise BadValue(
                f"{setting}={entry}: a listener's name has letters, digits, - and _; "
                "write it as NAME://host:port"
            )
        if name in found:
            raise BadValue(
                f"{setting}={text}: each listener must have a different name; {name} is there twice"
            )
        found[name] = read_address(setting, address, may_be_everywhere=bool(separator))
    return found


def _protocols(values: Mapping[str, str]) -> dict[str, SecurityProtocol]:
    """Return the security protocol of each listener's name in the map, or Kafka's default map."""
    text = values.get(PROTOCOL_MAP)
    if not text:
        return {protocol.name: protocol for protocol in SecurityProtocol}
    protocols: dict[str, SecurityProtocol] = {}
    for entry in (part.strip() for part in text.split(",")):
        name, colon, protocol = (part.strip() for part in entry.rpartition(":"))
        if not colon or not name:
            raise BadValue(f"{PROTOCOL_MAP}={text}: write it as NAME:PROTOCOL,...")
        if protocol not in SecurityProtocol.__members__:
            raise BadValue(
                f"{PROTOCOL_MAP}={entry}: there is no security protocol {protocol}"
                f"{_near(protocol, SecurityProtocol.__members__)}"
            )
        if name.upper() in protocols:
            raise BadValue(f"{PROTOCOL_MAP}={text}: {name} is there twice")
        protocols[name.upper()] = SecurityProtocol[protocol]
    return protocols


def _protocol_of(name: str, protocols: Mapping[str, SecurityProtocol]) -> SecurityProtocol:
    protocol = protocols.get(name)
    if protocol is None:
        raise BadValue(
            f"{LISTENERS}: no security protocol is defined for the listener {name}; "
            f"add {name}:PLAINTEXT to {PROTOCOL_MAP}{_near(name, protocols)}"
        )
    return protocol


def _sasl(
    values: Mapping[str, str], name: str, protocols: Mapping[str, SecurityProtocol]
) -> SaslSettings | None:
    if not _protocol_of(name, protocols).has_sasl:
        return None
    try:
        return read_sasl(partial(listener_value, values, name))
    except BadValue as error:
        raise BadValue(f"the listener {name}: {error}") from None


def _tls(values: Mapping[str, str], name: str, protocol: SecurityProtocol) -> TlsSettings | None:
    if not protocol.has_tls:
        return None
    own = f"{_PREFIX}{name.lower()}."

    def value(setting: str) -> str | None:
        if setting == CLIENT_AUTH and protocol.has_sasl:  # KIP-684: only for this listener
            return listener_value({**values, CLIENT_AUTH: "none"}, name, setting)
        return listener_value(values, name, setting)

    try:
        return read_tls(value, own)
    except BadValue as error:
        raise BadValue(f"the listener {name}: {error}") from None


def _check_names(
    values: Mapping[str, str], bound: Mapping[str, Address], advertised: Mapping[str, Address]
) -> None:
    for name in advertised.keys() - bound.keys():
        raise BadValue(
            f"{ADVERTISED}: {name} is not in {LISTENERS}, which has {', '.join(bound)}"
            f"{_near(name, bound)}"
        )
    controllers = [name.strip().upper() for name in values.get(CONTROLLER_NAMES, "").split(",")]
    for name in bound:
        if name in controllers:
            raise BadValue(
                f"{LISTENERS}: {name} is in {CONTROLLER_NAMES}; controllers listen on "
                f"control.listener here, so leave {name} out of {LISTENERS}"
            )


def _check_ports(text: str, bound: Mapping[str, Address]) -> None:
    """Refuse a port twice, unless one of its two hosts is an IPv4 and the other an IPv6 address."""
    by_port: dict[int, list[str]] = {}
    for address in bound.values():
        by_port.setdefault(address.port, []).append(address.host)
    for port, hosts in by_port.items():
        families = sorted(":" in host for host in hosts)
        # An empty host and `::` take the port of both families.
        is_pair = families == [False, True] and not {"", "::"} & {*hosts}
        if len(hosts) > 1 and not is_pair:
            raise BadValue(
                f"{LISTENERS}={text}: each listener must have a different port, unless one has an "
                f"IPv4 and the other an IPv6 address; {port} is there {len(hosts)} times"
            )


def _inter_broker(values: Mapping[str, str], by_name: Mapping[str, Listener]) -> str:
    """Return the name of the listener that the other brokers connect to."""
    name = values.get(INTER_BROKER, "").strip().upper()
    protocol = values.get(INTER_BROKER_PROTOCOL, "").strip()
    if name and protocol:
        raise BadValue(f"{INTER_BROKER} and {INTER_BROKER_PROTOCOL}: set only one of them")
    name = name or protocol or DEFAULT_LISTENER
    advertised = [one.name for one in by_name.values() if one.advertised is not None]
    if name not in advertised:
        raise BadValue(
            f"{INTER_BROKER}={name}: it must be a listener of {ADVERTISED}, which has "
            f"{', '.join(advertised)}{_near(name, advertised)}"
        )
    return name


# --- listener.name.<name>.<setting> ---


def is_of_a_listener(name: str) -> bool:
    """Whether this is the name of a setting of one listener."""
    return name.startswith(_PREFIX)


def is_effective(name: str) -> bool:
    """Whether this is the name of a setting of one listener that has an effect."""
    return is_of_a_listener(name) and _split(name)[1] in {*_LIMITS, *ROWS}


def listener_value(
    values: Mapping[str, str], listener: str, setting: str, mechanism: str | None = None
) -> str | None:
    """Return the text of a setting for a listener and a SASL mechanism; None: it is not set.

    The first that is set: of the listener's mechanism, of the listener, of all listeners.
    """
    own = f"{_PREFIX}{listener.lower()}."
    names = [f"{own}{mechanism.lower()}.{setting}"] if mechanism else []
    names += [own + setting, setting]
    if not values.keys() & {*names}:
        values = {name.lower(): value for name, value in values.items()}
    return next((values[name] for name in names if name in values), None)


def check_listener_setting(name: str, value: str) -> None:
    """Raise BadValue for a setting that a listener does not have.

    A setting that would protect the listener is refused, unless its value disables protection.
    """
    listener, setting = _split(name)
    if not listener or not setting:
        raise BadValue(f"{name}: write it as {_PREFIX}<name>.<setting>")
    if setting in _OF_A_LISTENER:
        return
    if is_protection(setting) or ".sasl." in setting:
        if not asks_for_nothing(value):
            raise BadValue(f"{name}: {NO_PROTECTION}")
        return
    known = sorted(_OF_A_LISTENER)
    raise BadValue(
        f"{name}: {setting} cannot be set for one listener; these can: {', '.join(known)}"
        f"{_near(setting, known)}"
    )


def _limits(values: Mapping[str, str], bound: Mapping[str, Address]) -> dict[tuple[str, str], int]:
    """Return the limits that are set, by listener and setting."""
    limits = {}
    for name, value in values.items():
        if not is_of_a_listener(name):
            continue
        listener, setting = _split(name)
        if listener not in bound:
            raise BadValue(
                f"{name}: there is no listener {listener}; {LISTENERS} has {', '.join(bound)}"
                f"{_near(listener, bound)}"
            )
        if setting in _LIMITS:
            try:
                limits[listener, setting] = _CONNECTIONS.read(value)
            except BadValue as error:
                raise BadValue(f"{name}={value}: {error}") from None
    return limits


def _split(name: str) -> tuple[str, str]:
    """Return the listener, in capitals, and the setting without its mechanism."""
    listener, _, setting = name.removeprefix(_PREFIX).partition(".")
    for mechanism in _OF_A_MECHANISM:
        if setting.removeprefix(mechanism) in ROWS:
            setting = setting.removeprefix(mechanism)
    return listener.upper(), setting


def _near(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # costs an import: only errors need it

    near = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
