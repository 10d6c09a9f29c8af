"""The shapes of the image. They decide nothing; `replay.py` says how a record changes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from quorumlog.metadata_quorum.image.access import AccessImage
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
"""The directory id of a replica that is in no directory which its broker can use (KIP-858)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One registered node. `broker_epoch` is the offset of its registration record (KIP-631)."""

    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: str
    host: str  # of the Kafka listener, as advertised to clients
    port: int
    control_address: str  # `host:port` of the control listener
    rack: str | None = None
    directory_id: str | None = None  # of its metadata log's; None: recorded before ids were
    boot_id: str | None = None  # of its machine's running system; None: it cannot be read there
    min_insync_replicas: int = 1  # counts where it leads a topic that sets none
    fenced: bool = True
    in_controlled_shutdown: bool = False
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # that it works with
    log_dirs: tuple[str, ...] = ()  # that it can use, if it was given several

    @property
    def directories(self) -> frozenset[str]:
        """The ids of the log directories that it can use; none if they were not recorded."""
        if self.log_dirs or self.directory_id is None:
            return frozenset(self.log_dirs)
        return frozenset({self.directory_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """One partition. `leader_epoch` counts leaders, `partition_epoch` every change (KIP-497).

    `elr` (KIP-966): replicas outside a too small ISR that still hold all that is committed.
    While it is being reassigned (KIP-455), `replicas` are those that it is to have, in order, and
    behind them those that it is to lose, `removing_replicas`; `adding_replicas` are new to it.
    `last_known_leader` (KIP-966): the last one of a partition without a leader, if it still has
    its log. `last_known_elr` (KIP-966): the replicas that left ISR and ELR because they may lack
    records, since the last AlterPartition of a leader. If ISR and ELR are empty, their logs decide.
    `is_recovering` (KIP-704): its leader may lack committed records, and no AlterPartition
    has come from it since; Kafka calls it the leader recovery state.
    `directories` (KIP-858): in which log directories the replicas are, sorted by broker. A broker
    with a single directory names none.
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
        """Return in which log directory of a broker the replica is; None: it is not known."""
        return next((at for holder, at in self.directories if holder == broker_id), None)

    @property
    def is_undecided(self) -> bool:
        """Whether no replica is known to hold all committed records: their logs decide."""
        return self.leader_id == NO_LEADER and not (self.isr or self.elr)

    @property
    def is_reassigned(self) -> bool:
        """Whether it is on its way to other replicas."""
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

    `broker_configs`: by broker id, and under "" what holds for all brokers (KIP-226).
    `group_configs`: what groups set, whether they are there or not.
    `by_broker`: an index of the partitions; None: it must be built before it is needed.
    """

    end_offset: Offset = Offset(0)
    epoch: Epoch = Epoch(0)
    controller_id: BrokerId = BrokerId(-1)  # the leader of `epoch`, as far as this node knows
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[TopicId, str] = field(default_factory=dict)
    next_producer_id: int = 0
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    access: AccessImage = field(default_factory=AccessImage)
    features: Mapping[str, int] = field(default_factory=dict)  # the levels in force
    automatic_levels: frozenset[str] = frozenset()  # features whose level no request has set
    by_broker: PartitionsByBroker | None = field(default=None, compare=False, repr=False)

    def broker_config(self, broker_id: BrokerId | None) -> Mapping[str, str]:
        """Return what was altered of a broker's settings while it ran; None: of all brokers'."""
        return self.broker_configs.get("" if broker_id is None else str(broker_id), {})

    def partition(self, topic_partition: TopicPartition) -> PartitionImage | None:
        """Return the partition, or None if there is no such topic or index."""
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDelta:
    """What changed between two images: names only, the values are in the new image.

    A topic that was deleted and created again under one name is in both topic sets.
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
