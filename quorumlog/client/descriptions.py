"""What an Admin takes and tells: topics, brokers, groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quorumlog.client.core.metadata_cache import Node, PartitionView
from quorumlog.wire.codec.identifiers import TopicPartition

BROKER_DEFAULT: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to be created. -1: as the brokers' `num.partitions` and `default.replication.factor`.

    `assignments`: the replicas of each partition, the preferred leader first; then the two
    numbers stay -1.
    """

    name: str
    num_partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as one broker sees it now."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: Mapping[int, PartitionView]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The live brokers; `controller_id` is one that takes administrative requests."""

    cluster_id: str | None
    controller_id: int
    nodes: Mapping[int, Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One setting of a topic or broker. `source` is a number of KIP-226: 1 is the topic's own."""

    value: str | None
    source: int
    is_read_only: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One group as its coordinator lists it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """One member of a group and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A classic group. `protocol` is the assignor's name, "" while there is none."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    coordinator_id: int
    members: tuple[MemberDescription, ...]
