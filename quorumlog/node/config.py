"""What a node is told: a properties file, the environment, flags; Kafka's names and texts.

Later sources win: defaults, file, environment (`QUORUMLOG_CONFIG_NUM_PARTITIONS=...`), flags. A
name that nothing here knows is an error that suggests the nearest one: a mistyped setting that is
silently ignored is how clusters lose data.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from quorumlog.broker.core.settings import BrokerSettings
from quorumlog.broker.io.lifecycle import LifecycleSettings
from quorumlog.metadata_quorum.controller.settings import ControllerSettings
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.storage.core.settings import LogSettings

ENVIRONMENT_PREFIX: Final = "QUORUMLOG_CONFIG_"
_ROLES: Final = frozenset({"broker", "controller"})
_TRUTH: Final = {"true": True, "false": False}
_Settings = TypeVar("_Settings")


class ConfigError(ValueError):
    """A setting is missing, unknown or makes no sense; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a listener listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One node's configuration, checked."""

    node_id: int
    cluster_id: str
    roles: frozenset[str]
    kafka: Address
    advertised: Address
    control: Address
    voters: Mapping[int, str]  # node id -> host:port of its control listener
    log_dir: Path
    broker: BrokerSettings
    lifecycle: LifecycleSettings
    controller: ControllerSettings
    quorum: QuorumSettings
    log: LogSettings

    @property
    def is_broker(self) -> bool:
        """Whether the node holds data partitions."""
        return "broker" in self.roles


_NODE_NAMES: Final = (
    "node.id",
    "cluster.id",
    "process.roles",
    "listeners",
    "advertised.listeners",
    "control.listener",
    "controller.quorum.voters",
    "log.dirs",
)
# Where a group of settings is found: the prefix that Kafka's broker-wide names carry.
_GROUPS: Final[tuple[tuple[type[Any], str], ...]] = (
    (BrokerSettings, ""),
    (LifecycleSettings, ""),
    (ControllerSettings, ""),
    (QuorumSettings, ""),
    (LogSettings, "log."),
)
# Where Kafka's broker-wide name is not the topic's with the prefix.
_KAFKAS_NAMES: Final[Mapping[str, str]] = {
    "log.segment.ms": "log.roll.ms",
    "log.segment.index.bytes": "log.index.size.max.bytes",
}


def name_of(field_name: str, prefix: str) -> str:
    """Return Kafka's dotted name of a field of a settings group with this prefix."""
    name = prefix + field_name.replace("_", ".")
    return _KAFKAS_NAMES.get(name, name)


def known_names() -> list[str]:
    """Return every name that a configuration may use."""
    names = {
        name_of(field.name, prefix)
        for group, prefix in _GROUPS
        for field in fields(group)
        if get_type_hints(group)[field.name] in _PARSERS
    }
    return sorted({*_NODE_NAMES, *names})


def read_properties(path: Path) -> dict[str, str]:
    """Read `name=value` lines; `#` starts a comment line. Raises ConfigError with the line."""
    values: dict[str, str] = {}
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            raise ConfigError(f"{path}, line {number}: not name=value: {stripped!r}")
        values[name.strip()] = value.strip()
    return values


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Pick the settings out of the environment."""
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def check_names(values: Mapping[str, str]) -> None:
    """Raise ConfigError for the first name that is not known, with the nearest that is."""
    known = known_names()
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"unknown setting {name}{hint}")


def build(values: Mapping[str, str]) -> NodeConfig:
    """Check every value and build the configuration. Raises ConfigError."""
    check_names(values)
    roles = frozenset(
        role.strip() for role in values.get("process.roles", "broker,controller").split(",")
    )
    if not roles <= _ROLES:
        raise ConfigError(
            f"process.roles={','.join(sorted(roles))}: use broker, controller or both"
        )
    kafka = _listener("listeners", _required(values, "listeners"))
    advertised = values.get("advertised.listeners")
    config = NodeConfig(
        node_id=_integer("node.id", _required(values, "node.id")),
        cluster_id=_required(values, "cluster.id"),
        roles=roles,
        kafka=kafka,
        advertised=_listener("advertised.listeners", advertised) if advertised else kafka,
        control=_address("control.listener", _required(values, "control.listener")),
        voters=_voters(_required(values, "controller.quorum.voters")),
        log_dir=Path(_required(values, "log.dirs")),
        broker=_fill(BrokerSettings, values, ""),
        lifecycle=_fill(LifecycleSettings, values, ""),
        controller=_fill(ControllerSettings, values, ""),
        quorum=_fill(QuorumSettings, values, ""),
        log=_fill(LogSettings, values, "log."),
    )
    is_voter = config.node_id in config.voters
    if is_voter != ("controller" in roles):
        raise ConfigError(
            f"node.id={config.node_id} is {'' if is_voter else 'not '}in controller.quorum.voters, "
            f"but process.roles={','.join(sorted(roles))}"
        )
    return config


def _required(values: Mapping[str, str], name: str) -> str:
    value = values.get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set")
    return value


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: a whole number is needed") from None


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}={text}: a number is needed") from None


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise ConfigError(f"{name}={text}: true or false is needed")
    return _TRUTH[text.lower()]


def _text(name: str, text: str) -> str:
    del name  # any text will do
    return text


_PARSERS: Final[Mapping[Any, Any]] = {bool: _boolean, int: _integer, float: _number, str: _text}


def _fill(group: type[_Settings], values: Mapping[str, str], prefix: str) -> _Settings:
    """Make one settings object from Kafka's dotted names; what is not given keeps its default."""
    hints = get_type_hints(group)
    given: dict[str, Any] = {}
    for field in fields(group):  # type: ignore[arg-type]  # every group is a dataclass
        name = name_of(field.name, prefix)
        if name in values and hints[field.name] in _PARSERS:
            given[field.name] = _PARSERS[hints[field.name]](name, values[name])
    try:
        return group(**given)
    except ValueError as error:  # a settings class may refuse a value, by its field's name
        field_name, _, reason = str(error).partition(" ")
        raise ConfigError(f"{name_of(field_name, prefix)} {reason}") from error


def _listener(name: str, text: str) -> Address:
    protocol, separator, address = text.partition("://")
    if not separator:
        return _address(name, text)
    if protocol != "PLAINTEXT":
        raise ConfigError(f"{name}={text}: only PLAINTEXT:// listeners are there yet")
    return _address(name, address)


def _address(name: str, text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) <= 65_535:
        raise ConfigError(f"{name}={text}: write it as host:port")
    return Address(host=host, port=int(port))


def _voters(text: str) -> dict[int, str]:
    voters: dict[int, str] = {}
    for entry in text.split(","):
        node_id, at, address = entry.strip().partition("@")
        if not at:
            raise ConfigError(f"controller.quorum.voters={text}: write it as id@host:port,...")
        voters[_integer("controller.quorum.voters", node_id)] = str(
            _address("controller.quorum.voters", address)
        )
    return voters
