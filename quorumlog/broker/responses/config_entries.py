"""The settings of topics, groups and brokers, with their values in force and the values' sources.

Sources: KIP-226 (sources and synonyms), KIP-569 (types and documentation).
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from quorumlog.settings.client_metrics import CLIENT_METRICS
from quorumlog.settings.groups import GROUP_SETTINGS
from quorumlog.settings.kinds import ConfigType
from quorumlog.settings.servers import (
    DYNAMIC,
    BrokerConfig,
    ConfigSource,
    Level,
    ServerSetting,
    explanation,
)
from quorumlog.settings.topics import TOPIC_SETTINGS, TopicConfig, TopicSetting


class ResourceType(IntEnum):
    """The kinds of resources with a configuration, in Kafka's codes."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigEntry(NamedTuple):
    """One setting, as in a response.

    `levels`: its given values and its default; the first is in force.
    A sensitive value may be a secret: no response has it, nor the values of `levels`.
    """

    name: str
    value: str | None
    config_type: ConfigType
    documentation: str | None
    levels: list[Level]
    read_only: bool
    is_sensitive: bool = False

    @property
    def source(self) -> ConfigSource:
        """The source of the value in force."""
        return self.levels[0].source if self.levels else ConfigSource.DEFAULT


def topic_entries(broker: BrokerConfig, own: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Yield every setting of a topic; `own`: its own values."""
    config = TopicConfig(own, broker.texts)
    for name, setting in TOPIC_SETTINGS.items():
        levels = broker.levels(setting.server) if setting.server else []
        if name in own:
            levels = [Level(name, own[name], ConfigSource.DYNAMIC_TOPIC), *levels]
        yield _entry(name, config.text(setting), setting, levels, read_only=False)


def broker_entries(broker: BrokerConfig) -> Iterator[ConfigEntry]:
    """Yield every setting of a broker, then the altered names that are unknown to it.

    # DEVIATION: Kafka lists a time setting once for each of its units.
    # docs/decisions/0041-settings.md
    """
    for name, setting in broker.table.items():
        value, levels = broker.texts.get(name), broker.levels(name)
        yield _entry(name, value, setting, levels, read_only=name not in DYNAMIC)
    for name in broker.unknown:
        yield _unknown(name, broker.levels(name))


def cluster_entries(altered: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Yield only the settings that were altered for all brokers, as Kafka does."""
    for name, value in altered.items():
        levels = [Level(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)]
        if name in DYNAMIC:
            yield _entry(name, value, DYNAMIC[name], levels, read_only=False)
        else:
            yield _unknown(name, levels)


def _unknown(name: str, levels: list[Level]) -> ConfigEntry:
    """Return the entry of an unknown name: as in Kafka, its value may be a secret."""
    return ConfigEntry(
        name=name,
        value=None,
        config_type=ConfigType.UNKNOWN,
        documentation=None,
        levels=levels,
        read_only=True,
        is_sensitive=True,
    )


def group_entries(broker: BrokerConfig, own: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Yield every setting of a group, even if it does not exist; `own`: its own values."""
    for name, setting in GROUP_SETTINGS.items():
        value, levels = broker.texts[setting.server], broker.levels(setting.server)
        if name in own:
            value = own[name]
            levels = [Level(name, value, ConfigSource.GROUP), *levels]
        yield _entry(name, value, setting, levels, read_only=False)


def client_metrics_entries(own: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Yield every setting of a subscription, even if it does not exist; `own`: its own values."""
    for name, setting in CLIENT_METRICS.items():
        levels = [Level(name, setting.default or "", ConfigSource.DEFAULT)]
        if name in own:
            levels = [Level(name, own[name], ConfigSource.CLIENT_METRICS), *levels]
        yield _entry(name, levels[0].value, setting, levels, read_only=False)


def _entry(
    name: str,
    value: str | None,
    setting: TopicSetting[Any] | ServerSetting[Any],
    levels: list[Level],
    *,
    read_only: bool,
) -> ConfigEntry:
    is_sensitive = setting.kind.type is ConfigType.PASSWORD
    return ConfigEntry(
        name=name,
        value=None if is_sensitive else value,
        config_type=setting.kind.type,
        documentation=explanation(setting),
        levels=levels,
        read_only=read_only,
        is_sensitive=is_sensitive,
    )
