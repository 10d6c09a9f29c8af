"""What a node is told: a properties file, the environment, flags; Kafka's names and texts.

Later sources win: defaults, file, environment (`QUORUMLOG_CONFIG_NUM_PARTITIONS=...`), flags. A
name that nothing here knows is an error that suggests the nearest one: a mistyped setting that is
silently ignored is how clusters lose data. A setting of Apache Kafka that has no effect here is
taken and reported, and one that would protect is refused: `kafka_settings`.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from quorumlog.broker.controller_requests.lifecycle import LifecycleSettings
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.node.kafka_settings import WITHOUT_EFFECT, asks_for_nothing, is_protection
from quorumlog.storage.core.settings import LogSettings

ENVIRONMENT_PREFIX: Final = "QUORUMLOG_CONFIG_"
_ROLES: Final = frozenset({"broker", "controller"})
_TRUTH: Final = {"true": True, "false": False}
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_CLUSTER_ID: Final = re.compile(r"[!-\[\]-~]+")  # survives meta.properties: no blank, no backslash
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - refused as an address to tell
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
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
    shared_secret_file: Path | None
    broker: BrokerSettings
    lifecycle: LifecycleSettings
    controller: ControllerSettings
    quorum: QuorumSettings
    log: LogSettings

    @property
    def control_address(self) -> str:
        """Where the other nodes find the control listener, should it listen everywhere."""
        here = str(self.control)
        return self.voters.get(self.node_id, here) if self.control.host in _EVERYWHERE else here

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
    "control.shared.secret.file",
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
# Kafka's second name of a setting, in another unit, for where the first is not set.
_HOURS: Final[Mapping[str, str]] = {"log.roll.hours": "log.roll.ms"}
_HOUR_MS: Final = 60 * 60 * 1000
# A whole number is at least 1, but for these and those of a log, which LogSettings checks.
_LEAST: Final[Mapping[str, int]] = {
    "controller.quorum.dead.process.stagger.ms": 2,
    # DEVIATION: Kafka takes 1. The controller makes no topic with such segments, so that groups
    # would have no coordinator. docs/decisions/0015-a-configuration-that-cannot-work-is-refused.md
    "offsets.topic.segment.bytes": 1 << 20,
    **dict.fromkeys(
        (
            "controller.quorum.fetch.max.wait.ms",
            "controller.quorum.retry.backoff.ms",
            "group.initial.rebalance.delay.ms",
            "log.message.timestamp.after.max.ms",
            "log.message.timestamp.before.max.ms",
            "max.connections",
            "max.incremental.fetch.session.cache.slots",
            "message.max.bytes",
            "offset.metadata.max.bytes",
            "replica.fetch.backoff.ms",
            "replica.fetch.max.bytes",
            "replica.fetch.min.bytes",
            "replica.fetch.response.max.bytes",
            "replica.fetch.wait.max.ms",
        ),
        0,
    ),
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
    """Read `name=value` lines; `#` starts a comment line. Raises ConfigError with the line.

    A name that is there twice is refused: one of the two is not what somebody believes.
    """
    values: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text in UTF-8: {error}") from error
    if "\0" in text:
        raise ConfigError(f"{path}: not a text: it has a zero byte")
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals:
            raise ConfigError(f"{path}, line {number}: not name=value: {stripped!r}")
        name = name.strip()
        if name in values:
            raise ConfigError(f"{path}, line {number}: {name} is set twice")
        values[name] = value.strip()
    return values


def from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Pick the settings out of the environment."""
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "."): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def check_names(values: Mapping[str, str]) -> None:
    """Raise ConfigError for the first name that is refused.

    An unknown one is told with the nearest known name. A setting that would protect the node is
    refused, unless its value asks for no protection: nothing may look protected that is not.
    """
    known = [*known_names(), *_HOURS]
    for name, value in values.items():
        if name in known or name in WITHOUT_EFFECT:
            continue
        if is_protection(name):
            if asks_for_nothing(name, value):
                continue
            raise ConfigError(
                f"{name}: not supported yet; there is no TLS, SASL or authorization here, "
                "and what comes is served in plain text"
            )
        near = difflib.get_close_matches(name, [*known, *WITHOUT_EFFECT], n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown setting {name or '(no name)'}{hint}")


def without_effect(values: Mapping[str, str]) -> list[str]:
    """Return those of the names, sorted, that Apache Kafka knows and that change nothing here."""
    return sorted(name for name in values if name in WITHOUT_EFFECT or is_protection(name))


def _in_milliseconds(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values with each setting in hours as the one in milliseconds, which wins."""
    translated = dict(values)
    for hours, milliseconds in _HOURS.items():
        text = translated.pop(hours, None)
        if text is not None and milliseconds not in translated:
            value = _integer(hours, text, least=1, most=_LONG_MAX // _HOUR_MS)
            translated[milliseconds] = str(value * _HOUR_MS)
    return translated


def build(values: Mapping[str, str]) -> NodeConfig:
    """Check every value and build the configuration. Raises ConfigError."""
    check_names(values)
    values = _in_milliseconds(values)
    roles = frozenset(
        role.strip() for role in values.get("process.roles", "broker,controller").split(",")
    )
    if not roles <= _ROLES:
        raise ConfigError(
            f"process.roles={','.join(sorted(roles))}: use broker, controller or both"
        )
    kafka = _listener("listeners", _required(values, "listeners"))
    secret_file = values.get("control.shared.secret.file")
    advertised = values.get("advertised.listeners")
    config = NodeConfig(
        node_id=_node_id("node.id", _required(values, "node.id")),
        cluster_id=_cluster_id(_required(values, "cluster.id")),
        roles=roles,
        kafka=kafka,
        advertised=_listener("advertised.listeners", advertised) if advertised else kafka,
        control=_address("control.listener", _required(values, "control.listener")),
        voters=_voters(_required(values, "controller.quorum.voters")),
        log_dir=_log_dir(_required(values, "log.dirs")),
        shared_secret_file=Path(secret_file) if secret_file else None,
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
    _check_together(config)
    return config


def _check_together(config: NodeConfig) -> None:
    """Refuse values that make sense one by one, and do not work together."""
    if config.advertised.host in _EVERYWHERE:
        raise ConfigError(
            f"listeners={config.kafka}: clients cannot connect to that; set advertised.listeners"
        )
    if config.control_address.rpartition(":")[0] in _EVERYWHERE:
        raise ConfigError(f"control.listener={config.control}: other nodes cannot connect to that")
    interval_ms = config.lifecycle.broker_heartbeat_interval_ms
    session_ms = config.controller.broker_session_timeout_ms
    if interval_ms >= session_ms:
        raise ConfigError(
            f"broker.heartbeat.interval.ms={interval_ms} must be less than "
            f"broker.session.timeout.ms={session_ms}"
        )


def _required(values: Mapping[str, str], name: str) -> str:
    value = values.get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set")
    return value


def _integer(name: str, text: str, least: int | None = None, most: int = _LONG_MAX) -> int:
    if _WHOLE.fullmatch(text) is None:  # not int(): it also takes 1_000, and digits of any script
        raise ConfigError(f"{name}={text}: a whole number is needed")
    value = int(text[:30])  # long texts are slow, and too large anyway
    if least is not None and value < least:
        raise ConfigError(f"{name}={text}: it must be at least {least}")
    if abs(value) > most:
        raise ConfigError(f"{name}={text}: it must be at most {most}")
    return value


def _node_id(name: str, text: str) -> int:
    return _integer(name, text, least=0, most=_INT_MAX)


def _cluster_id(text: str) -> str:
    if _CLUSTER_ID.fullmatch(text) is None:
        raise ConfigError(f"cluster.id={text!r}: use printable ASCII without blanks or backslashes")
    return text


def _log_dir(text: str) -> Path:
    if "," in text:
        raise ConfigError(f"log.dirs={text}: one directory is all that a node can have yet")
    return Path(text)


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
            parse = _PARSERS[hints[field.name]]
            given[field.name] = parse(name, values[name])
            if parse is _integer and group is not LogSettings:
                _integer(name, values[name], least=_LEAST.get(name, 1))
    try:
        return group(**given)
    except ValueError as error:  # a settings class may refuse a value, by its field's name
        field_name, _, reason = str(error).partition(" ")
        raise ConfigError(f"{name_of(field_name, prefix)} {reason}") from error


def _listener(name: str, text: str) -> Address:
    if "," in text:
        raise ConfigError(f"{name}={text}: one listener is all that a node can have yet")
    protocol, separator, address = text.partition("://")
    if not separator:
        return _address(name, text)
    if protocol != "PLAINTEXT":
        raise ConfigError(f"{name}={text}: only PLAINTEXT:// listeners are there yet")
    return _address(name, address)


def _address(name: str, text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or _WHOLE.fullmatch(port) is None or not 0 < int(port) <= 65_535:
        raise ConfigError(f"{name}={text}: write it as host:port")
    return Address(host=host, port=int(port))


def _voters(text: str) -> dict[int, str]:
    voters: dict[int, str] = {}
    for entry in text.split(","):
        node_id, at, address = entry.strip().partition("@")
        if not at:
            raise ConfigError(f"controller.quorum.voters={text}: write it as id@host:port,...")
        voter = _node_id("controller.quorum.voters", node_id)
        if voter in voters:
            raise ConfigError(f"controller.quorum.voters={text}: {voter} is there twice")
        voters[voter] = str(_address("controller.quorum.voters", address))
    return voters
