"""Decides about a topic's copy: it is created, grown, configured, restarted or stopped.

Partitions are never removed, and the counts of partitions are made equal, because a record keeps
its partition (KIP-382). A topic is identified by its id (KIP-516): at either side, another topic
may have the name by now. Then the position has no meaning, and to go on would lose records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quorumlog.client.descriptions import ConfigValue
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID

UNCOPIED_CONFIGS: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""MirrorMaker 2's `config.properties.exclude`: they belong to the cluster, not to the records."""
TOPIC_CONFIG: Final = 1  # KIP-226: the value was set for this topic

RESTART: Final = "copy it from its start with on_recreated=follow (--recreated follow)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic in the metadata of a cluster."""

    topic_id: bytes
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicIds:
    """The ids of a topic and of its copy when the mirror wrote its position; zeros if unknown."""

    source: bytes = ZERO_TOPIC_ID
    target: bytes = ZERO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """The changes of a copy, in this order; none by default.

    stop: why the topic is not copied. `restart`: forget the positions. `create`: partitions and
    replication factor. `grow_to`: the total count of partitions. `notice`: for a person.
    """

    stop: str | None = None
    restart: bool = False
    create: tuple[int, int] | None = None
    grow_to: int | None = None
    notice: str | None = None


def plan_topic(
    source: TopicFacts,
    target: TopicFacts | None,
    recorded: TopicIds | None,
    *,
    brokers: int,
    replication_factor: int | None,
    follows: bool,
) -> TopicPlan:
    """Decide about one topic that the source has.

    target: None if there is no copy. `recorded`: None before the first position. `brokers`: of the
    target. `follows`: a topic that was created again is copied from its start.
    """
    change = None if recorded is None else _replaced(source, target, recorded)
    if change is not None and not follows:
        return TopicPlan(stop=f"{change}; {RESTART}")
    notice = None if change is None else f"{change}; it is copied from its start"
    restart = change is not None
    if target is None:
        wanted = replication_factor or min(source.replication_factor, brokers)
        return TopicPlan(create=(source.partitions, wanted), restart=restart, notice=notice)
    grow_to = source.partitions if target.partitions < source.partitions else None
    return TopicPlan(grow_to=grow_to, restart=restart, notice=notice)


def _replaced(source: TopicFacts, target: TopicFacts | None, recorded: TopicIds) -> str | None:
    if is_replaced(source.topic_id, recorded.source):
        return "the topic was deleted and created again at the source"
    if target is None:
        return "its copy was deleted at the target"
    if is_replaced(target.topic_id, recorded.target):
        return "its copy was deleted and created again at the target"
    return None


def is_replaced(now: bytes, recorded: bytes) -> bool:
    """Return whether another topic has the name by now; False if an id is unknown (zeros)."""
    return ZERO_TOPIC_ID not in {now, recorded} and now != recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Settings to set for a copy, and settings to reset to their defaults; empty: no change."""

    values: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.delete)


def copied_configs(source: Mapping[str, ConfigValue]) -> dict[str, str]:
    """Return the settings that were set for the topic itself, without the excluded settings."""
    return {
        name: one.value
        for name, one in sorted(source.items())
        if one.source == TOPIC_CONFIG and one.value is not None and name not in UNCOPIED_CONFIGS
    }


def plan_configs(
    source: Mapping[str, ConfigValue], target: Mapping[str, ConfigValue]
) -> ConfigChange:
    """Decide which settings of a copy to change, so that it has the source's."""
    wanted, present = copied_configs(source), copied_configs(target)
    values = {name: value for name, value in wanted.items() if present.get(name) != value}
    return ConfigChange(values=values, delete=tuple(sorted(present.keys() - wanted.keys())))
