"""The classes of the image, without decisions; `replay.py` applies records to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from quorumlog.metadata_quorum.image.access import AccessImage
from quorumlog.metadata_quorum.image.details import BrokerDetails
from quorumlog.metadata_quorum.image.partitions_by_broker import PartitionsByBroker
from quorumlog.wire.codec.identifiers import (
    NO_LEADER,
    BrokerId,
    Epoch,
    Offset,
    TopicId,
    TopicPartition,
)

LOST: Final = "AAAAAAAAAAAAAAAAAAAAAg"
"""The directory id of a replica that is in no usable directory of its broker (KIP-858)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage(BrokerDetails):
    """One registered node. `broker_epoch` is the offset of its registration record (KIP-631)."""

    broker_epoch: int
    fenced: bool = True
    in_controlled_shutdown: bool = False
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # supported levels
    log_dirs: tuple[str, ...] = ()  # the usable ones, if it has several

    @property
    def directories(self) -> frozenset[str]:
        """The ids of its usable log directories; empty if they were not recorded."""
        if self.log_dirs or self.directory_id is None:
            return frozenset(self.log_dirs)
        return frozenset({self.directory_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """One partition. `leader_epoch` counts leaders, `partition_epoch` every change (KIP-497).

    `elr` (KIP-966): replicas outside an ISR below min.insync.replicas that still hold all committed
    records.
    `replicas`: during a reassignment (KIP-455) the target replicas, in order, then the
    `removing_replicas`; `adding_replicas` are the new replicas.
    `last_known_leader` (KIP-966): the last leader of a leaderless partition, if it still has its
    log.
    `last_known_elr` (KIP-966): the replicas that left ISR and ELR because they may lack records,
    since the leader's last AlterPartition. If ISR and ELR are empty, the logs of these decide.
    `is_recovering` (KIP-704): the leader was elected uncleanly and has sent no AlterPartition yet;
    Kafka calls it the leader recovery state.
    `directories` (KIP-858): (broker, log directory) of the replicas, sorted by broker; no entry for
    a broker with a single directory.
    """

    leader_id: BrokerId  # NO_LEADER while no eligible replica is alive
    leader_epoch: Epoch
    partition_epoch: Epoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...] = ()
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    last_known_leader: BrokerId = NO_LEADER
    is_recovering: bool = False
    directories: tuple[tuple[BrokerId, str], ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()

    def directory_of(self, broker_id: BrokerId) -> str | None:
        """Return the log directory of a broker's replica; None: it is not recorded."""
        return next((at for holder, at in self.directories if holder == broker_id), None)

    @property
    def is_undecided(self) -> bool:
        """True if ISR and ELR are empty: the replicas' logs decide the election."""
        return self.leader_id == NO_LEADER and not (self.isr or self.elr)

    @property
    def is_reassigned(self) -> bool:
        """True while a reassignment is in progress."""
        return bool(self.adding_replicas or self.removing_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One topic; `partitions[i]` is partition i."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """The whole of the metadata as of `end_offset` (exclusive) of the metadata log.

    `broker_configs`: by broker id; the key "" is for all brokers (KIP-226).
    `group_configs`: by group id; the group need not exist.
    `client_metrics`: the subscriptions of KIP-714, by name.
    `by_broker`: an index of the partitions; None: a replay builds it.
    """

    end_offset: Offset = Offset(0)
    epoch: Epoch = Epoch(0)
    controller_id: BrokerId = BrokerId(-1)  # the leader of `epoch`; -1: unknown at this node
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[TopicId, str] = field(default_factory=dict)
    next_producer_id: int = 0
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    access: AccessImage = field(default_factory=AccessImage)
    features: Mapping[str, int] = field(default_factory=dict)  # the levels in force
    automatic_levels: frozenset[str] = frozenset()  # features whose level no request has set
    by_broker: PartitionsByBroker | None = field(default=None, compare=False, repr=False)

    def process(self, broker_id: BrokerId, broker_epoch: int) -> "BrokerImage | None":
        """Return the registration of one process of a broker; None: the image lacks it."""
        broker = self.brokers.get(broker_id)
        return broker if broker is not None and broker.broker_epoch == broker_epoch else None

    def broker_config(self, broker_id: BrokerId | None) -> Mapping[str, str]:
        """Return the altered settings of a broker; None: those for all brokers."""
        return self.broker_configs.get("" if broker_id is None else str(broker_id), {})

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """Return the partition, or None if there is no such topic or index."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDelta:
    """The changes between two images: names only; the values are in the new image.

    A topic that was deleted and created again under its name is in `deleted_topics`, too.
    """

    brokers: frozenset[BrokerId] = frozenset()  # registered, fenced, unfenced or unregistered
    partitions: frozenset[TopicPartition] = frozenset()  # new or changed
    deleted_topics: Mapping[str, TopicId] = field(default_factory=dict)
    topic_configs: frozenset[str] = frozenset()
    broker_configs: frozenset[str] = frozenset()
    group_configs: frozenset[str] = frozenset()


class ImagePublisher(Protocol):
    """Acts on committed metadata."""

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Act on the new image. Called once per committed batch, in order; must not block."""


def difference(before: ClusterImage, after: ClusterImage) -> ClusterDelta:
    """Return the delta from `before` to `after`: all new, changed and deleted items.

    For an image from a snapshot: a replay records the delta while it applies records. A topic
    object in both images is not compared further.
    """
    partitions: set[TopicPartition] = set()
    configs: set[str] = set()
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is topic:
            continue
        if old is not None and old.topic_id != topic.topic_id:
            old = None  # another topic under the same name
        partitions |= _changed_partitions(old, topic)
        if (old.configs if old is not None else {}) != topic.configs:
            configs.add(name)
    return ClusterDelta(
        brokers=frozenset(
            broker_id
            for broker_id in {*before.brokers, *after.brokers}
            if before.brokers.get(broker_id) != after.brokers.get(broker_id)
        ),
        partitions=frozenset(partitions),
        deleted_topics={
            name: topic.topic_id
            for name, topic in before.topics.items()
            if topic.topic_id not in after.topic_names
        },
        topic_configs=frozenset(configs),
        broker_configs=_changed_configs(before.broker_configs, after.broker_configs),
        group_configs=_changed_configs(before.group_configs, after.group_configs),
    )


def _changed_configs(
    before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
) -> frozenset[str]:
    if before is after:
        return frozenset()
    names = {*before, *after}
    return frozenset(name for name in names if before.get(name) != after.get(name))


def _changed_partitions(old: TopicImage | None, topic: TopicImage) -> set[TopicPartition]:
    before = () if old is None else old.partitions
    return {
        TopicPartition(topic.name, index)
        for index, partition in enumerate(topic.partitions)
        if index >= len(before) or before[index] != partition
    }
