"""The configuration of a node: read from a file, the environment and flags, checked, and built.

Later sources win: defaults, file, environment (`QUORUMLOG_CONFIG_NUM_PARTITIONS=...`), flags. An
unknown name is an error that suggests the nearest valid name, because clusters lose data by
mistyped settings that are ignored. A node accepts and reports a setting of Apache Kafka that has no
effect here; it refuses a setting that would enable protection: `settings.kafka_names`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quorumlog.addresses import EVERYWHERE, host_and_port
from quorumlog.advances import Advance, Advances
from quorumlog.broker.settings import BrokerSettings, LifecycleSettings
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.settings.groups import bounds_problem, group_limits
from quorumlog.settings.kafka_names import (
    NO_PROTECTION,
    WITHOUT_EFFECT,
    asks_for_nothing,
    is_protection,
)
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.listeners import (
    Address,
    Listeners,
    check_listener_setting,
    is_effective,
    is_of_a_listener,
    read_address,
    read_listeners,
)
from quorumlog.settings.servers import NODE_ID, ServerSetting, StaticConfig, table_of
from quorumlog.storage.core.settings import LogSettings

ENVIRONMENT_PREFIX: Final = "QUORUMLOG_CONFIG_"
_ROLES: Final = frozenset({"broker", "controller"})
_CLUSTER_ID: Final = re.compile(r"[!-\[\]-~]+")  # safe in meta.properties: no blank, no backslash


class ConfigError(ValueError):
    """A setting is missing, unknown or invalid; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One node's configuration, checked."""

    node_id: int
    cluster_id: str
    roles: frozenset[str]
    listeners: Listeners  # of Kafka's protocol
    control: Address
    voters: Mapping[int, str]  # node id -> host:port of its control listener; at kraft.version 0
    bootstrap: tuple[str, ...]  # host:port of control listeners, for finding the leader
    log_dirs: tuple[Path, ...]  # all directories of logs
    log_dir: Path  # the log directory of the metadata log
    rack: str | None  # sent to clients; KIP-392
    peer_control: Mapping[int, str]  # overrides advertised addresses: id -> host:port
    peer_kafka: Mapping[int, str]
    shared_secret_file: Path | None
    oauth_key_file: Path | None  # of the issuer of tokens; None: there is none
    advances: tuple[Advance, ...]  # of the wall clock
    static: StaticConfig  # all values as text, for DescribeConfigs
    broker: BrokerSettings
    lifecycle: LifecycleSettings
    controller: ControllerSettings
    quorum: QuorumSettings
    log: LogSettings

    @property
    def control_address(self) -> str:
        """The control listener's address for other nodes, even if it listens on all interfaces."""
        here = str(self.control)
        return self.voters.get(self.node_id, here) if self.control.host in EVERYWHERE else here

    @property
    def is_broker(self) -> bool:
        """Whether the node holds data partitions."""
        return "broker" in self.roles


_REQUIRED: Final = ("node.id", "cluster.id", "listeners", "control.listener", "log.dirs")
_VOTERS: Final = "controller.quorum.voters"
_ADVANCES: Final = "clock.advances"
_BOOTSTRAP: Final = "controller.quorum.bootstrap.servers"
READERS: Final = (
    BrokerSettings,
    LifecycleSettings,
    ControllerSettings,
    QuorumSettings,
    LogSettings,
)
SETTINGS: Final = table_of(*READERS)
"""The settings of a node, by name: of its parts, and defaults of topics."""
_ALIASES: Final[Mapping[str, ServerSetting[Any]]] = {
    alias.name: setting for setting in SETTINGS.values() for alias in setting.aliases
}


def known_names() -> list[str]:
    """Return the names of all settings with an effect; the first name if one has several."""
    return [name for name, setting in SETTINGS.items() if not setting.without_effect]


def read_properties(path: Path) -> dict[str, str]:
    """Read `name=value` lines; `#` starts a comment. Raises ConfigError with the number of a line.

    A backslash at the end of a line continues it, as in Java. A duplicate name is refused: one of
    its values would be ignored.
    """
    values: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: {error}") from error
    if "\0" in text:
        raise ConfigError(f"{path}: not text: it has a zero byte")
    for number, line in _whole_lines(text):
        name, equals, value = line.partition("=")
        if not equals:  # the line may be a part of a secret
            raise ConfigError(f"{path}, line {number}: not name=value")
        name = name.strip()
        if name in values:
            raise ConfigError(f"{path}, line {number}: {name} is set twice")
        values[name] = value.strip()
    return values


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that set a value, with the number of their first part."""
    first, begun = 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        part = line.strip()
        if not begun and (not part or part.startswith("#")):
            continue
        first, begun = first or number, begun + part
        if (len(begun) - len(begun.rstrip("\\"))) % 2:
            begun = begun[:-1]
            continue
        yield first, begun
        first, begun = 0, ""
    if begun:
        yield first, begun


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in the environment."""
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def check_names(values: Mapping[str, str]) -> None:
    """Raise ConfigError for the first refused name.

    The error about an unknown name suggests the nearest valid name. A setting that would protect
    the node is refused, unless its value disables protection: a node without protection must not
    look protected.
    """
    known = {*SETTINGS, *_ALIASES, *WITHOUT_EFFECT}
    for name, value in values.items():
        if name in known:
            continue
        if is_of_a_listener(name):
            try:
                check_listener_setting(name, value)
            except BadValue as error:
                raise ConfigError(str(error)) from error
            continue
        if is_protection(name):
            if asks_for_nothing(value):
                continue
            raise ConfigError(f"{name}: {NO_PROTECTION}")
        from difflib import get_close_matches  # costs an import: only errors need it

        near = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown setting {name or '(no name)'}{hint}")


def without_effect(values: Mapping[str, str]) -> list[str]:
    """Return the names, sorted, that are settings of Apache Kafka without effect here."""
    rows = {**SETTINGS, **_ALIASES}.items()
    effective = {name for name, row in rows if not row.without_effect}
    return sorted(name for name in values.keys() - effective if not is_effective(name))


def build(values: Mapping[str, str]) -> NodeConfig:
    """Check every value and build the configuration. Raises ConfigError."""
    check_names(values)
    for name in _REQUIRED:
        if not values.get(name):
            raise ConfigError(f"{name} is not set")
    if not any(map(values.get, (_VOTERS, _BOOTSTRAP))):
        raise ConfigError(f"{_VOTERS} is not set, nor is {_BOOTSTRAP}")
    try:
        listeners = read_listeners(values)
        if not values.get("advertised.listeners"):
            values = {**values, "advertised.listeners": values["listeners"]}
        static = StaticConfig(SETTINGS, values)
    except BadValue as error:
        raise ConfigError(str(error)) from error
    texts = static.texts
    roles = frozenset(role.strip() for role in texts["process.roles"].split(","))
    if not roles <= _ROLES:
        raise ConfigError(
            f"process.roles={','.join(sorted(roles))}: use broker, controller or both"
        )
    secret_file = texts.get("control.shared.secret.file")
    oauth_key_file = texts.get("control.oauth.key.file")
    log_dirs = _log_dirs(texts["log.dirs"])
    config = NodeConfig(
        node_id=int(texts["node.id"]),
        cluster_id=_cluster_id(texts["cluster.id"]),
        roles=roles,
        listeners=listeners,
        control=_address("control.listener", texts["control.listener"]),
        voters=_addresses(_VOTERS, texts.get(_VOTERS)),
        bootstrap=_bootstrap(texts.get(_BOOTSTRAP)),
        peer_control=_addresses("peer.control.addresses", texts.get("peer.control.addresses")),
        peer_kafka=_addresses("peer.kafka.addresses", texts.get("peer.kafka.addresses")),
        log_dirs=log_dirs,
        log_dir=_metadata_dir(texts.get("metadata.log.dir"), log_dirs),
        rack=texts.get("broker.rack") or None,
        shared_secret_file=Path(secret_file) if secret_file else None,
        oauth_key_file=Path(oauth_key_file) if oauth_key_file else None,
        advances=_advances(texts.get(_ADVANCES)),
        static=static,
        broker=static.group(BrokerSettings),
        lifecycle=static.group(LifecycleSettings),
        controller=static.group(ControllerSettings),
        quorum=static.group(QuorumSettings),
        log=static.group(LogSettings),
    )
    _check_roles(config)
    _check_together(config)
    return config


def _check_roles(config: NodeConfig) -> None:
    """Refuse a voter without the role controller, and a controller without a way to the quorum."""
    is_voter, is_controller = config.node_id in config.voters, "controller" in config.roles
    may_become_voter = is_controller and bool(config.bootstrap)
    if is_voter != is_controller and not may_become_voter:
        raise ConfigError(
            f"node.id={config.node_id} is {'' if is_voter else 'not '}in {_VOTERS}, "
            f"but process.roles={','.join(sorted(config.roles))}; a controller that is to become a "
            f"voter needs {_BOOTSTRAP}"
        )


def _check_together(config: NodeConfig) -> None:
    """Refuse values that are valid by themselves but not together."""
    if host_and_port(config.control_address)[0] in EVERYWHERE:
        raise ConfigError(f"control.listener={config.control}: other nodes cannot connect to that")
    interval_ms = config.lifecycle.broker_heartbeat_interval_ms
    session_ms = config.controller.broker_session_timeout_ms
    if interval_ms >= session_ms:
        raise ConfigError(
            f"broker.heartbeat.interval.ms={interval_ms} must be less than "
            f"broker.session.timeout.ms={session_ms}"
        )
    problem = bounds_problem({}, group_limits(config.controller), prefix="group.")
    if problem is not None:
        raise ConfigError(problem)


def _cluster_id(text: str) -> str:
    if _CLUSTER_ID.fullmatch(text) is None:
        raise ConfigError(f"cluster.id={text!r}: use printable ASCII without blanks or backslashes")
    return text


def _log_dirs(text: str) -> tuple[Path, ...]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"log.dirs={text}: a name between two commas is empty")
    log_dirs = tuple(map(Path, names))
    if len({path.resolve() for path in log_dirs}) < len(log_dirs):
        raise ConfigError(f"log.dirs={text}: a directory is listed twice")
    return log_dirs


def _metadata_dir(text: str | None, log_dirs: tuple[Path, ...]) -> Path:
    """Return the directory of the metadata log.

    # DEVIATION: in Kafka it may be outside log.dirs.
    # docs/decisions/0017-log-directories.md
    """
    if not text:
        return log_dirs[0]
    if Path(text) not in log_dirs:
        raise ConfigError(f"metadata.log.dir={text}: it must be one of log.dirs")
    return Path(text)


def _advances(text: str | None) -> tuple[Advance, ...]:
    try:
        made = [Advance(*map(int, one.split(":"))) for one in text.split(",")] if text else []
        Advances().extend(made)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{_ADVANCES}={text}: write it as at_ms:by_ms,...: {error}") from error
    return tuple(made)


def _address(name: str, text: str) -> Address:
    try:
        return read_address(name, text)
    except BadValue as error:
        raise ConfigError(str(error)) from error


def _bootstrap(text: str | None) -> tuple[str, ...]:
    entries = text.split(",") if text else []
    return tuple(str(_address(_BOOTSTRAP, entry.strip())) for entry in entries)


def _addresses(name: str, text: str | None) -> dict[int, str]:
    addresses: dict[int, str] = {}
    for entry in text.split(",") if text else []:
        node_text, at, address = entry.strip().partition("@")
        if not at:
            raise ConfigError(f"{name}={text}: write it as id@host:port,...")
        try:
            node_id = NODE_ID.read(node_text)
        except BadValue as error:
            raise ConfigError(f"{name}={node_text}: {error}") from error
        if node_id in addresses:
            raise ConfigError(f"{name}={text}: {node_id} is listed twice")
        addresses[node_id] = str(_address(name, address))
    return addresses
