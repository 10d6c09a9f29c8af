"""The settings of a node, under Kafka's names, read when it starts.

The classes that read settings have them as fields, created here by `integer`, `long`, `flag`,
`behind` and `row`. So a field is a row, too. Settings that can change while a node runs: DYNAMIC.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

from quorumlog.settings import kinds
from quorumlog.settings.kafka_names import (
    ALTERED_WITHOUT_EFFECT,
    NO_PROTECTION,
    WITHOUT_EFFECT,
    is_protection,
)
from quorumlog.settings.kinds import INT_MAX, LONG_MAX, BadValue, ConfigType, Kind, text_of
from quorumlog.settings.listeners import ROWS as LISTENER_ROWS
from quorumlog.settings.listeners import is_effective
from quorumlog.settings.topics import TOPIC_SETTINGS, Alias, TopicSetting

T = TypeVar("T")

_ROW: Final = "row"  # in a field's metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting(Generic[T]):
    """One row. `default`: None without one. `without_effect`: why the value has no effect.

    `aliases`: other names; if the setting itself is not set, the first alias that is set applies.
    """

    kind: Kind[T]
    default: str | None
    documentation: str
    name: str = ""  # "" in a field: the field's name, with dots
    aliases: tuple[Alias, ...] = ()
    without_effect: str = ""


class ConfigSource(IntEnum):
    """The source of a value, as in DescribeConfigs (KIP-226)."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    CLIENT_METRICS, GROUP = 7, 8


class Level(NamedTuple):
    """A candidate for a setting's value: its name or alias, its text and its source."""

    name: str
    value: str
    source: ConfigSource


def row(setting: ServerSetting[T]) -> T:
    """Return the dataclass field of a row, with the row's default."""
    default = setting.kind.read(setting.default or "")
    return field(default=default, metadata={_ROW: setting})


def integer(default: int, documentation: str, *, least: int = 1) -> int:
    """Return a field of Kafka's type INT."""
    return _whole(ConfigType.INT, default, documentation, least, INT_MAX)


def long(default: int, documentation: str, *, least: int = 1) -> int:
    """Return a field of Kafka's type LONG."""
    return _whole(ConfigType.LONG, default, documentation, least, LONG_MAX)


def _whole(config_type: ConfigType, default: int, documentation: str, least: int, most: int) -> int:
    kind = kinds.whole(config_type, least, most)
    return row(ServerSetting(kind=kind, default=str(default), documentation=documentation))


def flag(default: bool, documentation: str) -> bool:
    """Return a field that is true or false."""
    return row(
        ServerSetting(kind=kinds.FLAG, default=text_of(default), documentation=documentation)
    )


def behind(setting: TopicSetting[T], kind: Kind[T] | None = None) -> T:
    """Return the field of the node's setting for topics that do not set `setting`.

    `kind`: if the node accepts other values than topics do.
    """
    return row(_behind(setting, kind))


def _behind(setting: TopicSetting[T], kind: Kind[T] | None = None) -> ServerSetting[T]:
    return ServerSetting(
        name=setting.server,
        kind=kind or setting.kind,
        default=setting.default,
        documentation=f"{setting.documentation} For topics that do not set {setting.name}.",
        aliases=setting.aliases,
        without_effect=setting.without_effect,
    )


def _named(
    name: str, kind: Kind[T], documentation: str, default: str | None = None
) -> ServerSetting[T]:
    return ServerSetting(name=name, kind=kind, default=default, documentation=documentation)


_COUNT: Final = kinds.whole(ConfigType.INT, 1, INT_MAX)
_LONG: Final = kinds.whole(ConfigType.LONG, 0, LONG_MAX)

# Both the controller and the brokers read these settings.
NUM_PARTITIONS: Final = _named(
    "num.partitions", _COUNT, "Default number of partitions of a new topic.", default="1"
)
FOLLOWER_THROTTLED_RATE: Final = _named(
    "follower.replication.throttled.rate",
    _LONG,
    "Maximum bytes a second that a broker fetches for replicas in their topics' "
    "follower.replication.throttled.replicas.",
    default=str(LONG_MAX),
)
LEADER_THROTTLED_RATE: Final = _named(
    "leader.replication.throttled.rate",
    _LONG,
    "Maximum bytes a second that a broker sends to followers outside the ISR, for "
    "replicas in their topics' leader.replication.throttled.replicas.",
    default=str(LONG_MAX),
)
LOG_CLEANER_BACKOFF: Final = _named(
    "log.cleaner.backoff.ms",
    _LONG,
    "Pause of the cleaner when no log needs cleaning.",
    default="15000",
)
LOG_CLEANER_RATE: Final = _named(
    "log.cleaner.io.max.bytes.per.second",
    kinds.POSITIVE,
    "Maximum bytes a second that the cleaner reads and writes.",
    default="1.7976931348623157E308",
)
MAX_CONNECTIONS: Final = _named(
    "max.connections",
    kinds.whole(ConfigType.INT, 0, INT_MAX),
    "Maximum number of connections.",
    default=str(INT_MAX),
)
MAX_CONNECTION_RATE: Final = _named(
    "max.connection.creation.rate",
    kinds.whole(ConfigType.INT, 0, INT_MAX),
    "Maximum number of new connections a second; others wait. "
    "listener.name.<name>.max.connection.creation.rate: of one listener.",
    default=str(INT_MAX),
)
MAX_CONNECTIONS_PER_IP: Final = _named(
    "max.connections.per.ip",
    kinds.whole(ConfigType.INT, 0, INT_MAX),
    "Maximum number of connections of one address; others are closed.",
    default=str(INT_MAX),
)
MAX_CONNECTIONS_PER_IP_OVERRIDES: Final = _named(
    "max.connections.per.ip.overrides",
    kinds.COUNTS_BY_ADDRESS,
    "The maximum number of connections of single addresses: address:number,...",
    default="",
)
PRODUCER_ID_EXPIRATION: Final = _named(
    "producer.id.expiration.ms",
    _COUNT,
    "Time until the state of an inactive producer id expires.",
    default="86400000",
)
ALTER_LOG_DIRS_RATE: Final = _named(
    "replica.alter.log.dirs.io.max.bytes.per.second",
    _LONG,
    "Maximum bytes a second that a broker copies between its log directories to move replicas.",
    default=str(LONG_MAX),
)
DEFAULT_REPLICATION_FACTOR: Final = _named(
    "default.replication.factor", _COUNT, "Default replication factor of a new topic.", default="1"
)

NODE_ID: Final = kinds.whole(ConfigType.INT, 0, INT_MAX)

IDENTITY: Final[tuple[ServerSetting[Any], ...]] = (
    _named("node.id", NODE_ID, "The unique id of this node."),
    _named("cluster.id", kinds.TEXT, "The id of the cluster, the same on every node."),
    _named(
        "process.roles", kinds.TEXTS, "broker, controller or both.", default="broker,controller"
    ),
    _named(
        "listeners",
        kinds.TEXTS,
        "The Kafka listeners: NAME://host:port,...; an empty host: all interfaces.",
    ),
    _named(
        "advertised.listeners",
        kinds.TEXTS,
        "The addresses in metadata responses, by listener: a client gets those of the listener "
        "that it connected to. Default: listeners.",
    ),
    _named(
        "listener.security.protocol.map",
        kinds.TEXTS,
        "The protocol of each listener: NAME:PLAINTEXT,... Default: a listener's name is its "
        "protocol.",
    ),
    _named(
        "inter.broker.listener.name",
        kinds.TEXT,
        "The listener that the other brokers connect to. Default: PLAINTEXT.",
    ),
    _named(
        "security.inter.broker.protocol",
        kinds.TEXT,
        "In place of inter.broker.listener.name: the listener with this protocol's name.",
    ),
    _named(
        "control.listener", kinds.TEXT, "The listener for connections between nodes: host:port."
    ),
    _named(
        "control.shared.secret.file",
        kinds.TEXT,
        "A file with the secret that nodes require on the control listener.",
    ),
    _named(
        "control.tls.ca.file",
        kinds.TEXT,
        "The cluster's CA in PEM: connections on the control listener then use TLS, and both ends "
        "show a certificate of this CA. Set all three of control.tls.*, on every node.",
    ),
    _named(
        "control.tls.certificate.file",
        kinds.TEXT,
        "The node's certificate in PEM, with the alternative name node-<node.id>.",
    ),
    _named("control.tls.key.file", kinds.TEXT, "The key of that certificate, in PEM."),
    _named(
        "control.oauth.key.file",
        kinds.TEXT,
        "A private key, made if missing: the control listener then issues tokens. Not in Kafka.",
    ),
    _named(
        "clock.advances",
        kinds.TEXTS,
        "Advances of the wall clock, by which records and offsets expire: at_ms:by_ms,... "
        "(since 1970). LocalCluster.advance() writes it.",
    ),
    _named(
        "controller.quorum.voters",
        kinds.TEXTS,
        "The control listener of each voter at kraft.version 0: id@host:port,...",
    ),
    _named(
        "controller.quorum.bootstrap.servers",
        kinds.TEXTS,
        "Control listeners for finding the leader of the quorum: host:port,...",
    ),
    _named(
        "peer.control.addresses",
        kinds.TEXTS,
        "Overrides of the other nodes' control listener addresses: id@host:port,...",
    ),
    _named(
        "peer.kafka.addresses",
        kinds.TEXTS,
        "Overrides of the other nodes' Kafka listener addresses: id@host:port,...",
    ),
    _named("log.dirs", kinds.TEXTS, "The log directories, one for each disk, separated by commas."),
    _named(
        "metadata.log.dir",
        kinds.TEXT,
        "The directory of the metadata log; default: the first of log.dirs.",
    ),
    _named("broker.rack", kinds.TEXT, "The rack or zone of the node, sent to clients."),
)
"""The identity and the addresses of a node; `node.config` checks their formats."""


def rows_of(group: type[Any]) -> dict[str, ServerSetting[Any]]:
    """Return the rows of a class that reads settings, by field name."""
    rows = {}
    for one in fields(group):
        setting: ServerSetting[Any] | None = one.metadata.get(_ROW)
        if setting is not None:
            name = setting.name or one.name.replace("_", ".")
            rows[one.name] = replace(setting, name=name)
    return rows


def table_of(*groups: type[Any]) -> Mapping[str, ServerSetting[Any]]:
    """Return the rows of these classes and the rows that every node has, by name.

    Every node has IDENTITY, the protection of listeners, the defaults of topics, and the alterable
    settings without effect.
    """
    protection = [
        _named(name, kind, documentation, default)
        for name, (kind, default, documentation) in LISTENER_ROWS.items()
    ]
    rows = [
        *IDENTITY,
        *protection,
        *(_behind(topic) for topic in TOPIC_SETTINGS.values() if topic.server),
    ]
    rows += _altered_without_effect()
    for group in groups:
        rows += rows_of(group).values()
    return MappingProxyType({row.name: row for row in sorted(rows, key=lambda row: row.name)})


def _altered_without_effect() -> list[ServerSetting[Any]]:
    return [
        ServerSetting(
            name=name,
            kind=kind,
            default=default,
            documentation="A setting of Apache Kafka.",
            without_effect=WITHOUT_EFFECT[name],
        )
        for name, (kind, default) in ALTERED_WITHOUT_EFFECT.items()
    ]


def texts_of(*settings: Any) -> dict[str, str]:
    """Return the values of objects that read settings, as texts, by Kafka's names."""
    return {
        row.name: text_of(getattr(one, field_name))
        for one in settings
        for field_name, row in rows_of(type(one)).items()
    }


def explanation(setting: ServerSetting[Any] | TopicSetting[Any]) -> str:
    """Return the documentation of a setting, and why it has no effect, for clients and readers."""
    reason = setting.without_effect
    return setting.documentation + (f" No effect here: {reason}." if reason else "")


class StaticConfig:
    """The configuration of a node at its start, for the settings in a table.

    `texts`: the value in force of each setting that has one. `given`: the values that were set, by
    the name or alias used. Both are in normal form.
    """

    def __init__(self, table: Mapping[str, ServerSetting[Any]], given: Mapping[str, str]) -> None:
        """Check the values in `given` that the table has. Raises BadValue, naming the setting."""
        self.table: Final = table
        self.given: Final[dict[str, str]] = {}
        self.texts: Final[dict[str, str]] = {}
        for setting in table.values():
            text = self._read(setting, given)
            if text is not None:
                self.texts[setting.name] = text

    def _read(self, setting: ServerSetting[Any], given: Mapping[str, str]) -> str | None:
        units = {setting.name: None, **{alias.name: alias.unit for alias in setting.aliases}}
        texts = []
        for name, unit in units.items():
            if name in given:
                try:
                    self.given[name], text = _understood(setting, given[name], unit)
                except BadValue as error:
                    raise BadValue(f"{name}={given[name]}: {error}") from None
                texts.append(text)
        return texts[0] if texts else setting.default

    def group(self, group: type[T]) -> T:
        """Return an object of a class that reads settings, with the values in force."""
        rows = rows_of(group).items()
        return group(**{field: row.kind.parse(self.texts[row.name]) for field, row in rows})

    def levels(self, name: str) -> list[Level]:
        """Return the values that are set for a setting, the first in force, and its defaults.

        The defaults of a setting with aliases are the aliases' defaults; they are included if the
        node sets one of its names: Kafka's log.roll.ms has no default, log.roll.hours has 168.

        # DEVIATION: Kafka drops the levels before the first level with the name itself.
        # docs/decisions/0041-settings.md
        """
        setting = self.table[name]
        names = [name, *(alias.name for alias in setting.aliases)]
        given = [
            Level(one, self.given[one], ConfigSource.STATIC_BROKER)
            for one in names
            if one in self.given
        ]
        if not setting.aliases:
            defaults = [(name, setting.default)]
        else:
            defaults = [(alias.name, alias.default) for alias in setting.aliases if given]
        return given + [
            Level(one, default, ConfigSource.DEFAULT)
            for one, default in defaults
            if default is not None
        ]


def dynamic_settings() -> dict[str, ServerSetting[Any]]:
    """Return the settings that can be altered while a broker runs, with and without effect.

    # DEVIATION: Kafka also alters addresses and security, and limits each change of a number of
    # threads.
    # docs/decisions/0041-settings.md
    """
    rows = [_behind(topic) for topic in TOPIC_SETTINGS.values() if topic.server]
    rows += [FOLLOWER_THROTTLED_RATE, LEADER_THROTTLED_RATE, ALTER_LOG_DIRS_RATE]
    rows += [LOG_CLEANER_BACKOFF, LOG_CLEANER_RATE, PRODUCER_ID_EXPIRATION]
    rows += [MAX_CONNECTIONS, MAX_CONNECTIONS_PER_IP, MAX_CONNECTIONS_PER_IP_OVERRIDES]
    rows += [MAX_CONNECTION_RATE]
    rows += _altered_without_effect()
    return {row.name: row for row in rows}


DYNAMIC: Final[Mapping[str, ServerSetting[Any]]] = MappingProxyType(dynamic_settings())


def read_only_names(table: Mapping[str, ServerSetting[Any]]) -> frozenset[str]:
    """Return every name that a node with these rows reads, or ignores, only at its start."""
    aliases = {alias.name for setting in table.values() for alias in setting.aliases}
    return frozenset({*table, *aliases, *WITHOUT_EFFECT} - {*DYNAMIC})


def why_not_altered(names: Iterable[str], read_only: frozenset[str]) -> str | None:
    """Return why these names cannot be altered on a running broker; None: they can.

    A setting of protection is refused for the same reason as at a node's start.
    """
    names = sorted(names)
    fixed = [name for name in names if name in read_only or is_effective(name)]
    if fixed:
        return f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
    return next((f"{name}: {NO_PROTECTION}" for name in names if is_protection(name)), None)


def in_force(altered: Mapping[str, str]) -> dict[str, str]:
    """Return the altered settings that a node applies, with their values in normal form.

    A controller of another release may have stored an unknown name, with an unchecked value.
    """
    valid = {}
    for name, value in altered.items():
        if name in DYNAMIC:
            with suppress(BadValue):
                valid[name] = DYNAMIC[name].kind.normalize(value)
    return valid


class BrokerConfig:
    """The configuration of a broker in force: its static configuration and dynamic changes.

    `own`: changes for this broker; `cluster`: for all brokers. A read-only setting keeps its static
    value, even if a controller of another release has altered it.
    """

    def __init__(
        self, static: StaticConfig, own: Mapping[str, str], cluster: Mapping[str, str]
    ) -> None:
        self.table: Final = static.table
        self.unknown: Final = sorted(name for name in {*own, *cluster} if name not in self.table)
        valid_own, valid_cluster = in_force(own), in_force(cluster)
        self.texts: Final[Mapping[str, str]] = {**static.texts, **valid_cluster, **valid_own}
        self._static: Final = static
        self._altered: Final = (
            (own, valid_own, ConfigSource.DYNAMIC_BROKER),
            (cluster, valid_cluster, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        )

    def levels(self, name: str) -> list[Level]:
        """Return the values that are set for a setting, the first in force, and its defaults.

        `name` is in `table` or in `unknown`: altered names that no part of the broker reads.
        """
        if name not in self.table:
            return [Level(name, of[name], source) for of, _, source in self._altered if name in of]
        altered = [Level(name, of[name], source) for _, of, source in self._altered if name in of]
        return altered + self._static.levels(name)


_ANY_WHOLE: Final = kinds.whole(ConfigType.LONG, -LONG_MAX, LONG_MAX)


def _understood(setting: ServerSetting[Any], text: str, unit: int | None) -> tuple[str, str]:
    """Return a text in normal form, and converted to the setting's unit. Raises BadValue."""
    if unit is None:
        value = setting.kind.normalize(text)
        return value, value
    number = _ANY_WHOLE.read(text)
    return str(number), setting.kind.normalize(str(number if number < 0 else number * unit))
