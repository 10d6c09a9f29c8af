"""Applies metadata records one by one: the only code that changes the cluster's metadata.

The active controller applies a record when it appends it; every other node when it is committed.
So a replay of the log gives the live state. The first change of a topic after a `publish` copies
that topic, so the cost of a batch depends on the changed topics. Only the maps of names are copied
whole: a copy of 10,000 names takes some 0.05 ms.
A record that does not fit the state before it is a bug (InvariantViolation): KAFKA-14275.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, assert_never

from quorumlog.invariants import require, some
from quorumlog.metadata_quorum.image import records
from quorumlog.metadata_quorum.image.access import AccessReplay
from quorumlog.metadata_quorum.image.details import same_fields
from quorumlog.metadata_quorum.image.features import first_level
from quorumlog.metadata_quorum.image.model import (
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from quorumlog.metadata_quorum.image.partitions_by_broker import PartitionsByBroker
from quorumlog.metadata_quorum.image.records import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    AccessRecord,
    ClusterRecord,
    Config,
    MetadataRecord,
    PartitionChange,
)
from quorumlog.wire.codec.identifiers import (
    NO_LEADER,
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)

Directories = tuple[tuple[BrokerId, str], ...]


def changed(old: PartitionImage, record: PartitionChange) -> PartitionImage:
    """Return the partition after a change; a `leader` in the record starts a new leader epoch."""
    is_led_anew = record.leader is not None
    adding, removing = record.adding_replicas, record.removing_replicas
    last_known_leader, is_recovering = record.last_known_leader, record.is_recovering
    replicas = old.replicas if record.replicas is None else record.replicas
    last_known_elr = record.last_known_elr
    directories = old.directories if record.directories is None else record.directories
    return PartitionImage(
        leader_id=old.leader_id if record.leader is None else record.leader,
        leader_epoch=Epoch(old.leader_epoch + 1) if is_led_anew else old.leader_epoch,
        partition_epoch=Epoch(old.partition_epoch + 1),
        replicas=replicas,
        isr=old.isr if record.isr is None else record.isr,
        elr=old.elr if record.elr is None else record.elr,
        adding_replicas=old.adding_replicas if adding is None else adding,
        removing_replicas=old.removing_replicas if removing is None else removing,
        last_known_leader=(
            old.last_known_leader if last_known_leader is None else last_known_leader
        ),
        is_recovering=old.is_recovering if is_recovering is None else is_recovering,
        directories=kept_directories(directories, replicas),
        last_known_elr=old.last_known_elr if last_known_elr is None else last_known_elr,
    )


def kept_directories(directories: Directories, replicas: Collection[BrokerId]) -> Directories:
    """Return the directories of current replicas: a removed replica may return elsewhere."""
    if all(broker_id in replicas for broker_id, _ in directories):
        return directories
    return tuple(one for one in directories if one[0] in replicas)


class ConfigReplay:
    """The configurations of one kind of resource, by name; only resources with entries."""

    def __init__(self, configs: Mapping[str, Mapping[str, str]]) -> None:
        self.values: Final = dict(configs)
        self._frozen = configs
        self._changed: Final[set[str]] = set()

    def apply(self, record: Config) -> None:
        """Set or delete one entry."""
        configs = dict(self.values.get(record.resource_name, {}))
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
        self.values[record.resource_name] = configs
        if not configs:
            del self.values[record.resource_name]
        self._changed.add(record.resource_name)

    def freeze(self) -> tuple[frozenset[str], Mapping[str, Mapping[str, str]]]:
        """Return the names changed since the last call, and the current configurations."""
        changed = frozenset(self._changed)
        if changed:
            self._frozen = dict(self.values)
            self._changed.clear()
        return changed, self._frozen


@dataclass(slots=True, kw_only=True)
class _OpenTopic:
    """A topic that changed since the last publish."""

    name: str
    topic_id: TopicId
    partitions: list[PartitionImage]
    configs: dict[str, str]

    def freeze(self) -> TopicImage:
        return TopicImage(
            name=self.name,
            topic_id=self.topic_id,
            partitions=tuple(self.partitions),
            configs=dict(self.configs),
        )


class ClusterReplay:
    """The cluster's metadata, changed record by record.

    Invariants (checked in `apply`):
      1. Records refer to a registered broker, an existing topic, or its next partition.
      2. isr and elr are disjoint subsets of replicas; a leader is in isr. Added and removed
         replicas are disjoint subsets of replicas, too; at least one replica stays. Only a
         leaderless partition has a last known leader, which is a replica.
      3. leader_epoch and partition_epoch only grow: each change adds one.
      4. Each producer id is allocated at most once.
    """

    def __init__(self, image: ClusterImage) -> None:
        """Start from `image`. Reads every partition if the image has no index."""
        self.by_broker: Final = _index_of(image)
        self._brokers = dict(image.brokers)
        self._topics: dict[str, TopicImage | _OpenTopic] = {**image.topics}
        self._open_topics: dict[str, _OpenTopic] = {}
        self._topic_names = dict(image.topic_names)
        self._published = image
        self.access: Final = AccessReplay(image.access)
        self.features = image.features
        self.automatic_levels = image.automatic_levels
        self.end_offset = image.end_offset
        self.next_producer_id = image.next_producer_id
        self._broker_configs: Final = ConfigReplay(image.broker_configs)
        self._group_configs: Final = ConfigReplay(image.group_configs)
        self._client_metrics: Final = ConfigReplay(image.client_metrics)
        self._changed_brokers: set[BrokerId] = set()
        self._changed_partitions: dict[str, set[int]] = {}  # by topic
        self._changed_configs: set[str] = set()
        self._deleted_topics: dict[str, TopicId] = {}
        self._are_names_new = False  # topics created or deleted since a publish

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerImage]:
        """Return the registered brokers, as a live view: do not keep it across an apply."""
        return self._brokers

    @property
    def is_new(self) -> bool:
        """True while the metadata has no broker, topic or feature level."""
        return not (self._brokers or self._topics or self.features)

    def topic_id(self, name: str) -> TopicId | None:
        """Return the id of a topic, or None."""
        topic = self._topics.get(name)
        return None if topic is None else topic.topic_id

    def topic_name(self, topic_id: TopicId) -> str | None:
        """Return the name of a topic, or None."""
        return self._topic_names.get(topic_id)

    def topic_names(self) -> Iterator[str]:
        """Return the names of all topics, in order of creation."""
        return iter(self._topics)

    def partitions(self, name: str) -> tuple[PartitionImage, ...]:
        """Return the partitions of an existing topic, by index."""
        return tuple(self._topics[name].partitions)

    def partition_count(self, name: str) -> int:
        """Return the number of partitions of a topic; 0 if it does not exist."""
        topic = self._topics.get(name)
        return 0 if topic is None else len(topic.partitions)

    def partition(self, name: str, index: int) -> PartitionImage | None:
        """Return one partition, or None."""
        topic = self._topics.get(name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def configs(self, name: str) -> Mapping[str, str]:
        """Return the live configuration of an existing topic: do not keep it across an apply."""
        return self._topics[name].configs

    def broker_configs(self, name: str) -> Mapping[str, str]:
        """Return the altered settings of the broker with this id, or of all brokers for ""."""
        return self._broker_configs.values.get(name, {})

    @property
    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        """Return the live configurations of groups, by id: do not keep it across an apply."""
        return self._group_configs.values

    @property
    def client_metrics(self) -> Mapping[str, Mapping[str, str]]:
        """Return the live subscriptions to metrics of clients: do not keep it across an apply."""
        return self._client_metrics.values

    def feature_level(self, name: str) -> int:
        """Return a feature's level in force."""
        return self.features.get(name, first_level(name))

    def was_level_requested(self, name: str) -> bool:
        """Return whether a request has set a feature's level, which then never rises by itself."""
        return name in self.features and name not in self.automatic_levels

    def apply(self, offset: Offset, record: MetadataRecord) -> None:
        """Apply the record at `offset`. Raises InvariantViolation if it does not fit."""
        require(offset >= self.end_offset, "records are applied once, in the order of the log")
        if isinstance(record, AccessRecord):
            self.access.apply(record)
        else:
            self._apply(offset, record)
        self.end_offset = Offset(offset + 1)

    def _apply(self, offset: Offset, record: ClusterRecord) -> None:
        match record:
            case records.PartitionChange():  # first, because it is the most frequent
                self._change_partition(record)
            case records.Partition():
                self._create_partition(record)
            case records.Topic():
                self._create_topic(record)
            case records.RegisterBroker():
                self._register_broker(offset, record)
            case records.UnregisterBroker() | records.BrokerRegistrationChange():
                self._change_broker(record)
            case records.RemoveTopic():
                self._remove_topic(record.topic_id)
            case records.Config():
                self._configure(record)
            case records.ProducerIds() | records.FeatureLevel():
                self._set(record)
            case records.NoOp():
                pass
            case _:
                assert_never(record)

    def publish(
        self, *, end_offset: Offset, epoch: Epoch, controller_id: BrokerId
    ) -> tuple[ClusterDelta, ClusterImage]:
        """Freeze the image as of `end_offset`; return it with the changes since the last image."""
        before = self._published
        require(end_offset >= self.end_offset, "an image covers all that was applied")
        topics, topic_names = self._freeze_topics()
        changed_brokers, broker_configs = self._broker_configs.freeze()
        changed_groups, group_configs = self._group_configs.freeze()
        _, client_metrics = self._client_metrics.freeze()
        image = ClusterImage(
            end_offset=end_offset,
            epoch=epoch,
            controller_id=controller_id,
            brokers=dict(self._brokers) if self._changed_brokers else before.brokers,
            topics=topics,
            topic_names=topic_names,
            next_producer_id=self.next_producer_id,
            broker_configs=broker_configs,
            group_configs=group_configs,
            client_metrics=client_metrics,
            access=self.access.freeze(),
            features=self.features,
            automatic_levels=self.automatic_levels,
            by_broker=self.by_broker.copy(),
        )
        delta = ClusterDelta(
            brokers=frozenset(self._changed_brokers),
            partitions=frozenset(
                TopicPartition(name, index)
                for name, indexes in self._changed_partitions.items()
                for index in indexes
            ),
            deleted_topics=dict(self._deleted_topics),
            topic_configs=frozenset(self._changed_configs),
            broker_configs=changed_brokers,
            group_configs=changed_groups,
        )
        self._published, self.end_offset = image, end_offset
        self._changed_brokers.clear()
        self._changed_partitions.clear()
        self._changed_configs.clear()
        self._deleted_topics.clear()
        return delta, image

    def _freeze_topics(self) -> tuple[Mapping[str, TopicImage], Mapping[TopicId, str]]:
        before = self._published
        if not (self._open_topics or self._deleted_topics):
            return before.topics, before.topic_names
        frozen = {name: topic.freeze() for name, topic in self._open_topics.items()}
        self._topics.update(frozen)
        self._open_topics.clear()
        topics = dict(before.topics)
        for name in self._deleted_topics:
            del topics[name]  # first: a topic created again under its name comes last
        topics.update(frozen)
        topic_names = dict(self._topic_names) if self._are_names_new else before.topic_names
        self._are_names_new = False
        return topics, topic_names

    def _register_broker(self, offset: Offset, record: records.RegisterBroker) -> None:
        shared = same_fields(record, BrokerImage)
        shared["broker_epoch"] = offset if record.broker_epoch is None else record.broker_epoch
        shared["log_dirs"] = record.log_dirs or ()
        self._brokers[record.broker_id] = BrokerImage(**shared)
        self._changed_brokers.add(record.broker_id)

    def _change_broker(
        self, record: records.UnregisterBroker | records.BrokerRegistrationChange
    ) -> None:
        broker = self._brokers.get(record.broker_id)
        in_force = broker is not None and broker.broker_epoch == record.broker_epoch
        require(in_force, "1: a change of registration is one of that in force")
        self._changed_brokers.add(record.broker_id)
        if broker is None or isinstance(record, records.UnregisterBroker):
            del self._brokers[record.broker_id]
            return
        stopping = record.in_controlled_shutdown
        self._brokers[record.broker_id] = replace(
            broker,
            fenced=broker.fenced if record.fenced is None else record.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown if stopping is None else stopping,
            log_dirs=broker.log_dirs if record.log_dirs is None else record.log_dirs,
        )

    def _open(self, topic_id: TopicId) -> _OpenTopic:
        name = self._topic_names.get(topic_id)
        topic = self._topics[some(name, "1: a record names a known topic")]
        if isinstance(topic, TopicImage):
            topic = _OpenTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=list(topic.partitions),
                configs=dict(topic.configs),
            )
            self._topics[topic.name] = self._open_topics[topic.name] = topic
        return topic

    def _create_topic(self, record: records.Topic) -> None:
        require(
            record.name not in self._topics and record.topic_id not in self._topic_names,
            "1: a new topic has a new name and a new id",
        )
        self._topic_names[record.topic_id] = record.name
        self._topics[record.name] = self._open_topics[record.name] = _OpenTopic(
            name=record.name, topic_id=record.topic_id, partitions=[], configs={}
        )
        self._are_names_new = True

    def _create_partition(self, record: records.Partition) -> None:
        topic = self._open(record.topic_id)
        require(record.partition_id == len(topic.partitions), "1: partitions come in order")
        shared = same_fields(record, PartitionImage)
        shared["directories"] = record.directories or ()
        partition = PartitionImage(leader_id=record.leader, **shared)
        check_partition(partition)
        topic.partitions.append(partition)
        self.by_broker.note(record.topic_id, record.partition_id, None, partition)
        self._changed_partitions.setdefault(topic.name, set()).add(record.partition_id)

    def _change_partition(self, record: records.PartitionChange) -> None:
        topic = self._open(record.topic_id)
        require(record.partition_id < len(topic.partitions), "1: a changed partition exists")
        before = topic.partitions[record.partition_id]
        partition = changed(before, record)
        check_partition(partition)
        topic.partitions[record.partition_id] = partition
        self.by_broker.note(record.topic_id, record.partition_id, before, partition)
        self._changed_partitions.setdefault(topic.name, set()).add(record.partition_id)

    def _remove_topic(self, topic_id: TopicId) -> None:
        name = some(self._topic_names.pop(topic_id, None), "1: a topic to remove exists")
        del self._topics[name]
        self._open_topics.pop(name, None)
        self._are_names_new = True
        self.by_broker.remove_topic(topic_id)
        self._changed_partitions.pop(name, None)
        self._changed_configs.discard(name)
        was = self._published.topics.get(name)
        if was is not None and was.topic_id == topic_id:  # else it was never published
            self._deleted_topics[name] = topic_id

    def _set(self, record: records.ProducerIds | records.FeatureLevel) -> None:
        if isinstance(record, records.FeatureLevel):
            self.features = {**self.features, record.name: record.level}
            others = self.automatic_levels - {record.name}
            self.automatic_levels = others | {record.name} if record.is_automatic else others
            return
        require(record.next_producer_id > self.next_producer_id, "4: producer ids grow")
        self.next_producer_id = record.next_producer_id

    def _configure(self, record: records.Config) -> None:
        if record.resource_type == BROKER_RESOURCE:
            self._broker_configs.apply(record)
            return
        if record.resource_type == GROUP_RESOURCE:
            self._group_configs.apply(record)
            return
        if record.resource_type == CLIENT_METRICS_RESOURCE:
            self._client_metrics.apply(record)
            return
        require(record.resource_type == TOPIC_RESOURCE, "1: a configuration is of a known kind")
        topic_id = some(self.topic_id(record.resource_name), "1: a configured topic exists")
        topic = self._open(topic_id)
        if record.value is None:
            topic.configs.pop(record.name, None)
        else:
            topic.configs[record.name] = record.value
        self._changed_configs.add(topic.name)


def _index_of(image: ClusterImage) -> PartitionsByBroker:
    if image.by_broker is not None:
        return image.by_broker.copy()
    built = PartitionsByBroker()
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            built.note(topic.topic_id, PartitionIndex(index), None, partition)
    return built


def check_partition(partition: PartitionImage) -> None:
    """Raise InvariantViolation if isr, elr and the leader do not fit the replicas."""
    isr, replicas = {*partition.isr}, {*partition.replicas}
    if (
        isr <= replicas
        and (partition.leader_id in isr or partition.leader_id == NO_LEADER)
        and not (partition.elr or partition.adding_replicas or partition.removing_replicas)
        and partition.last_known_leader == NO_LEADER
        and not partition.last_known_elr
    ):
        return  # the common case
    elr = {*partition.elr}
    require(isr | elr <= replicas and not isr & elr, "2: isr and elr are apart, within replicas")
    require(partition.leader_id in {-1, *isr}, "2: the leader is in isr")
    adding, removing = {*partition.adding_replicas}, {*partition.removing_replicas}
    is_apart = adding <= replicas and removing < replicas and not adding & removing
    is_led = partition.leader_id != NO_LEADER
    is_last = partition.last_known_leader in {NO_LEADER, *replicas}
    require(
        is_last and (not is_led or partition.last_known_leader == NO_LEADER),
        "2: the last known leader is a replica of a partition without a leader",
    )
    last_known_elr = {*partition.last_known_elr}
    require(
        last_known_elr <= replicas and not last_known_elr & (isr | elr),
        "2: the last known elr is apart from isr and elr, within replicas",
    )
    require(is_apart, "2: added and removed replicas are apart, within replicas; one stays")
