"""The settings of a topic, with their types and Kafka's defaults."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from quorumlog.broker.settings import BrokerSettings


class ConfigType(IntEnum):
    """As in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


_LONG_MAX: Final = str(2**63 - 1)
TOPIC_CONFIGS: Final[Mapping[str, tuple[ConfigType, str]]] = MappingProxyType(
    {
        "cleanup.policy": (ConfigType.LIST, "delete"),
        "compression.gzip.level": (ConfigType.INT, "-1"),
        "compression.lz4.level": (ConfigType.INT, "9"),
        "compression.type": (ConfigType.STRING, "producer"),
        "compression.zstd.level": (ConfigType.INT, "3"),
        "delete.retention.ms": (ConfigType.LONG, "86400000"),
        "file.delete.delay.ms": (ConfigType.LONG, "60000"),
        "flush.messages": (ConfigType.LONG, _LONG_MAX),
        "flush.ms": (ConfigType.LONG, _LONG_MAX),
        "follower.replication.throttled.replicas": (ConfigType.LIST, ""),
        "index.interval.bytes": (ConfigType.INT, "4096"),
        "leader.replication.throttled.replicas": (ConfigType.LIST, ""),
        "local.retention.bytes": (ConfigType.LONG, "-2"),
        "local.retention.ms": (ConfigType.LONG, "-2"),
        "max.compaction.lag.ms": (ConfigType.LONG, _LONG_MAX),
        "max.message.bytes": (ConfigType.INT, "1048588"),
        "message.timestamp.after.max.ms": (ConfigType.LONG, "3600000"),
        "message.timestamp.before.max.ms": (ConfigType.LONG, _LONG_MAX),
        "message.timestamp.type": (ConfigType.STRING, "CreateTime"),
        "min.cleanable.dirty.ratio": (ConfigType.DOUBLE, "0.5"),
        "min.compaction.lag.ms": (ConfigType.LONG, "0"),
        "min.insync.replicas": (ConfigType.INT, "1"),
        "preallocate": (ConfigType.BOOLEAN, "false"),
        "remote.storage.enable": (ConfigType.BOOLEAN, "false"),
        "retention.bytes": (ConfigType.LONG, "-1"),
        "retention.ms": (ConfigType.LONG, "604800000"),
        "segment.bytes": (ConfigType.INT, "1073741824"),
        "segment.index.bytes": (ConfigType.INT, "10485760"),
        "segment.jitter.ms": (ConfigType.LONG, "0"),
        "segment.ms": (ConfigType.LONG, "604800000"),
        "unclean.leader.election.enable": (ConfigType.BOOLEAN, "false"),
    }
)


def broker_default(settings: BrokerSettings, name: str, default: str) -> str:
    """Return what a topic has that does not say otherwise."""
    if name == "min.insync.replicas":
        return str(settings.min_insync_replicas)
    if name == "max.message.bytes":
        return str(settings.message_max_bytes)
    if name == "message.timestamp.after.max.ms":
        return str(settings.log_message_timestamp_after_max_ms)
    return default
