"""The settings of a topic: Kafka's names, types and defaults. Source: Kafka 4.3's LogConfig.

A topic may set any of them, at its creation or later. For a setting that it does not set, its
leader uses the node's setting named by the row (Kafka's ServerTopicConfigSynonyms).
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar, overload

from quorumlog.settings import kinds
from quorumlog.settings.kinds import INT_MAX, LONG_MAX, ConfigType, Kind

T = TypeVar("T")

MINUTE_MS: Final = 60 * 1000
HOUR_MS: Final = 60 * MINUTE_MS
SEGMENT_BYTES_MIN: Final = 1 << 20  # KIP-1030

NO_PREALLOCATION: Final = "a file grows with its records"
NO_TIERS: Final = "tiered storage is not supported"


class Alias(NamedTuple):
    """Another name of a node's setting. Its value times `unit` is the value of the setting.

    A number below zero means "no limit" in every unit. `default`: as Kafka describes it.
    """

    name: str
    unit: int
    default: str | None = None


@dataclass(eq=False)
class TopicSetting(Generic[T]):
    """One row. Read from a TopicConfig object, the attribute is the value in force.

    `server`: the node's setting for topics that do not set this one; "": none. `aliases`: other
    names of the node's setting, the first that is set wins. `without_effect`: why the value has no
    effect; "": it has one.
    """

    kind: Kind[T]
    default: str
    documentation: str
    _: KW_ONLY
    server: str = ""
    aliases: tuple[Alias, ...] = ()
    without_effect: str = ""
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type[object], name: str) -> None:
        """Derive Kafka's dotted name from the attribute's name."""
        self.name = name.replace("_", ".")

    @overload
    def __get__(self, config: None, owner: type[object]) -> Self: ...

    @overload
    def __get__(self, config: "TopicConfig", owner: type[object]) -> T: ...

    def __get__(self, config: "TopicConfig | None", owner: type[object]) -> Self | T:
        """Return the row itself (from the class), or its value in force (from a configuration)."""
        return self if config is None else self.kind.parse(config.text(self))


def _int(
    default: int, documentation: str, least: int = 0, most: int = INT_MAX, **more: Any
) -> TopicSetting[int]:
    kind = kinds.whole(ConfigType.INT, least, most)
    return TopicSetting(kind, str(default), documentation, **more)


def _long(default: int, documentation: str, least: int = 0, **more: Any) -> TopicSetting[int]:
    kind = kinds.whole(ConfigType.LONG, least, LONG_MAX)
    return TopicSetting(kind, str(default), documentation, **more)


class TopicConfig:
    """The configuration of one topic on a node.

    `own`: the settings of the topic. `defaults`: the values of the node's settings, by name; for a
    missing name, Kafka's default applies.
    """

    __slots__ = ("_defaults", "_own")

    def __init__(self, own: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        self._own: Final = own
        self._defaults: Final = defaults

    def text(self, setting: TopicSetting[Any]) -> str:
        """Return the value in force as text, as in DescribeConfigs."""
        own = self._own.get(setting.name)
        return self._defaults.get(setting.server, setting.default) if own is None else own

    @property
    def policies(self) -> frozenset[str]:
        """The members of cleanup.policy."""
        return frozenset(map(str.strip, self.cleanup_policy.split(",")))

    cleanup_policy = TopicSetting(
        kinds.items("compact", "delete"),
        "delete",
        "Removal of old segments (delete), of records with a newer record of the same key "
        "(compact), of both, or of neither. The records of a compacted topic need keys.",
        server="log.cleanup.policy",
    )
    compression_gzip_level = TopicSetting(
        kinds.GZIP_LEVEL,
        "-1",
        "Level of gzip, where the broker compresses: 1 to 9; -1: the default.",
        server="compression.gzip.level",
    )
    compression_lz4_level = _int(
        9,
        "Level of LZ4, where the broker compresses; 9: the fast compressor.",
        least=1,
        most=17,
        server="compression.lz4.level",
    )
    compression_type = TopicSetting(
        kinds.choice("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "producer",
        "Compression of stored batches: the leader compresses other batches anew; producer: as the "
        "producer sent them.",
        server="compression.type",
    )
    compression_zstd_level = _int(
        3,
        "Level of Zstandard, where the broker compresses.",
        least=-131072,
        most=22,
        server="compression.zstd.level",
    )
    delete_retention_ms = _long(
        86_400_000,
        "Minimum time that a compacted log keeps tombstones.",
        server="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms = _long(
        60_000,
        "Delay before the files of a removed segment are deleted, and those of a deleted topic (by "
        "the node's setting).",
        server="log.segment.delete.delay.ms",
    )
    flush_messages = _long(
        LONG_MAX,
        "Number of records after which a log is flushed.",
        least=1,
        server="log.flush.interval.messages",
    )
    flush_ms = _long(
        LONG_MAX,
        "Time after which a log is flushed.",
        server="log.flush.interval.ms",
        aliases=(Alias("log.flush.scheduler.interval.ms", 1, str(LONG_MAX)),),
    )
    follower_replication_throttled_replicas = TopicSetting(
        kinds.REPLICAS, "", "Replicas with throttled fetches: partition:broker,... or *."
    )
    index_interval_bytes = _int(
        4096,
        "Approximate bytes of records between two entries of the offset index.",
        server="log.index.interval.bytes",
    )
    leader_replication_throttled_replicas = TopicSetting(
        kinds.REPLICAS, "", "Replicas that their leaders throttle: partition:broker,... or *."
    )
    local_retention_bytes = _long(
        -2,
        "Local retention of a tiered log, in bytes; -2: retention.bytes.",
        least=-2,
        server="log.local.retention.bytes",
        without_effect=NO_TIERS,
    )
    local_retention_ms = _long(
        -2,
        "Local retention of a tiered log, in time; -2: retention.ms.",
        least=-2,
        server="log.local.retention.ms",
        without_effect=NO_TIERS,
    )
    max_compaction_lag_ms = _long(
        LONG_MAX,
        "Maximum time before a record is compacted.",
        least=1,
        server="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes = _int(
        1_048_588,
        "Maximum bytes of a produced batch, with its header, as the producer sends it and as the "
        "leader stores it.",
        server="message.max.bytes",
    )
    message_timestamp_after_max_ms = _long(
        3_600_000,
        "Maximum lead of a record's timestamp over the broker's clock.",
        server="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms = _long(
        LONG_MAX,
        "Maximum lag of a record's timestamp behind the broker's clock.",
        server="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type = TopicSetting(
        kinds.choice("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Source of a record's timestamp: the producer, or the append.",
        server="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio = TopicSetting(
        kinds.RATIO,
        "0.5",
        "Minimum ratio of uncompacted bytes at which a log is compacted.",
        server="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms = _long(
        0, "Minimum time before a record is compacted.", server="log.cleaner.min.compaction.lag.ms"
    )
    min_insync_replicas = _int(
        1,
        "Minimum size of the ISR for commits of records, and for produce requests with acks=all. "
        "At most the number of the topic's replicas.",
        least=1,
        server="min.insync.replicas",
    )
    preallocate = TopicSetting(
        kinds.FLAG,
        "false",
        "Whether the file of a new segment is preallocated at its full size.",
        server="log.preallocate",
        without_effect=NO_PREALLOCATION,
    )
    remote_log_copy_disable = TopicSetting(
        kinds.FLAG, "false", "Whether a tiered log stops copying segments.", without_effect=NO_TIERS
    )
    remote_log_delete_on_disable = TopicSetting(
        kinds.FLAG,
        "false",
        "Whether turning off tiering deletes the remote segments.",
        without_effect=NO_TIERS,
    )
    remote_storage_enable = TopicSetting(
        kinds.OFF,
        "false",
        "Whether the log is tiered; only false is supported.",
        without_effect=NO_TIERS,
    )
    retention_bytes = _long(
        -1,
        "Retention of a partition in bytes, in whole segments; -1: unlimited.",
        least=-1,
        server="log.retention.bytes",
    )
    retention_ms = _long(
        604_800_000,
        "Retention of a partition in time, in whole segments; -1: unlimited.",
        least=-1,
        server="log.retention.ms",
        aliases=(
            Alias("log.retention.minutes", MINUTE_MS),
            Alias("log.retention.hours", HOUR_MS, "168"),
        ),
    )
    segment_bytes = _int(
        1 << 30, "Maximum bytes of a segment.", least=SEGMENT_BYTES_MIN, server="log.segment.bytes"
    )
    # DEVIATION: Kafka also accepts 4 to 11. No index entry fits, so that a log could not open.
    # docs/decisions/0040-accepted-without-effect.md
    segment_index_bytes = _int(
        10 << 20,
        "Maximum bytes of a segment's offset index; a full index ends the segment.",
        least=12,
        server="log.index.size.max.bytes",
    )
    segment_jitter_ms = _long(
        0,
        "Maximum time by which a segment ends before segment.ms, drawn for each segment.",
        server="log.roll.jitter.ms",
        aliases=(Alias("log.roll.jitter.hours", HOUR_MS, "0"),),
    )
    segment_ms = _long(
        604_800_000,
        "Maximum age of the active segment.",
        least=1,
        server="log.roll.ms",
        aliases=(Alias("log.roll.hours", HOUR_MS, "168"),),
    )
    unclean_leader_election_enable = TopicSetting(
        kinds.FLAG,
        "false",
        "Whether a replica that lacks committed records may lead if no other is alive.",
        server="unclean.leader.election.enable",
    )


TOPIC_SETTINGS: Final[Mapping[str, TopicSetting[Any]]] = {
    row.name: row for row in vars(TopicConfig).values() if isinstance(row, TopicSetting)
}
"""Every row, by the name of its setting."""
