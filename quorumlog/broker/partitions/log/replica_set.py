"""Which replicas are on this broker: as the image says. Opens, removes, and tells each its news.

A new log takes milliseconds of disk work, and an image may bring thousands. Many are opened a few
at a time, their directories made in other threads before (`next_few`): the node votes, fetches and
sends heartbeats meanwhile.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.admission import TopicLimits, topic_limits
from quorumlog.broker.partitions.core.deletions import WaitingDeletion
from quorumlog.broker.partitions.core.events import Event
from quorumlog.broker.partitions.core.partition import Partition, PartitionRules
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.core.purgatory import Deadlines
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import Outbox, PartitionDriver, PendingProduce
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.topic_names import INTERNAL_TOPICS
from quorumlog.metadata_quorum.image import (
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId, TopicPartition

OPENED_AT_ONCE: Final = 8


class ReplicaSet:
    """The partitions that have a replica here. `drivers` is one dict for ever: it may be kept."""

    def __init__(
        self,
        broker_id: BrokerId,
        settings: BrokerSettings,
        logs: LogDirectory,
        *,
        rules: PartitionRules,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.image = ClusterImage()
        self.drivers: Final[dict[TopicPartition, PartitionDriver]] = {}
        self.deadlines: Final[Deadlines[PendingProduce]] = Deadlines()
        self.deletion_deadlines: Final[Deadlines[WaitingDeletion]] = Deadlines()
        self._broker_id: Final = broker_id
        self._settings: Final = settings
        self._logs: Final = logs
        self._rules: Final = rules
        self._failed: Final = failed
        self._unusable: Final[set[TopicPartition]] = set()  # their logs could not be opened
        self._unopened: Final[dict[TopicPartition, TopicId]] = {}  # a queue, for `open_some`
        self._is_preparing = False  # other threads work in the directories of the first of them
        self._limits: Final[dict[str, TopicLimits]] = {}

    def publish(
        self, now_ms: int, delta: ClusterDelta, image: ClusterImage, outbox: Outbox
    ) -> list[TopicPartition]:
        """Take over an image; return the partitions here that it changed or removed.

        New replicas are open then if they are few: else go on with `next_few` and `open_some`.
        """
        self.image = image
        for name in delta.topic_configs | delta.deleted_topics.keys():
            self._limits.pop(name, None)
        concerned = [
            *self._remove_deleted(now_ms, delta),
            *(at for at in self.drivers if at.topic in delta.topic_configs),
            *delta.partitions,
        ]
        self._configure(delta)
        for at in sorted({*delta.partitions, *concerned}):
            self._publish_partition(now_ms, at)
        if delta.brokers:
            published = events.BrokersPublished(brokers=image.brokers)
            for driver in self.drivers.values():
                driver.feed(now_ms, published)
        # DEVIATION: in Kafka all are open before clients see the image.
        # docs/decisions/0017-many-logs-are-opened-a-few-at-a-time.md
        if self._is_preparing or len(self._unopened) > OPENED_AT_ONCE:
            return concerned
        return concerned + self.open_some(now_ms, outbox)

    @property
    def is_opening(self) -> bool:
        """Whether there are logs to open yet."""
        return bool(self._unopened)

    def next_few(self) -> list[tuple[TopicPartition, TopicId]]:
        """Return the logs that `open_some` opens next, and open none before it is called."""
        self._is_preparing = True
        return list(islice(self._unopened.items(), OPENED_AT_ONCE))

    def open_some(self, now_ms: int, outbox: Outbox) -> list[TopicPartition]:
        """Open the next few logs, for what the newest image says of them; return which.

        What was deleted or has moved away before its turn is removed.
        """
        self._is_preparing = False
        few = list(islice(self._unopened.items(), OPENED_AT_ONCE))
        for at, topic_id in few:
            del self._unopened[at]
            topic, partition = self.image.topics.get(at.topic), self.image.partition(at)
            if topic is None or partition is None or not self._is_ours(partition):
                self._abandon(at, topic_id)
                continue
            driver = self._open(at, topic, outbox)
            if driver is not None:
                self._feed(now_ms, driver, self._published(topic, partition))
        return [at for at, _ in few]

    def _configure(self, delta: ClusterDelta) -> None:
        """Let open logs go by what their topics say now; logs to open read it then."""
        for at, driver in self.drivers.items() if delta.topic_configs else ():
            topic = self.image.topics.get(at.topic)
            if at.topic in delta.topic_configs and topic is not None:
                driver.log.settings = self._logs.settings_of(topic.configs)

    def _abandon(self, at: TopicPartition, topic_id: TopicId) -> None:
        try:
            self._logs.abandon(at, topic_id)
        except StorageError as error:
            self._failed(error)

    def _remove_deleted(self, now_ms: int, delta: ClusterDelta) -> list[TopicPartition]:
        removed = [
            at
            for at, driver in self.drivers.items()
            if delta.deleted_topics.get(at.topic) == driver.topic_id
        ]
        for at in removed:
            self._remove(now_ms, at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return removed

    def _publish_partition(self, now_ms: int, at: TopicPartition) -> None:
        topic, partition = self.image.topics.get(at.topic), self.image.partition(at)
        driver = self.drivers.get(at)
        is_ours = partition is not None and self._is_ours(partition)
        if driver is not None and (
            topic is None or not is_ours or driver.topic_id != topic.topic_id
        ):
            is_gone = topic is None or driver.topic_id != topic.topic_id
            unknown, moved = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._remove(now_ms, at, unknown if is_gone else moved)
            driver = None
        if topic is None or partition is None or not is_ours:
            return
        if driver is None:
            self._unopened[at] = topic.topic_id
        else:
            self._feed(now_ms, driver, self._published(topic, partition))

    def _is_ours(self, partition: PartitionImage) -> bool:
        return self._broker_id in partition.replicas

    def _feed(self, now_ms: int, driver: PartitionDriver, event: Event) -> None:
        """Tell one partition; a disk that refuses keeps no news from the others."""
        try:
            driver.feed(now_ms, event)
        except StorageError as error:
            self._failed(error)

    def _published(self, topic: TopicImage, partition: PartitionImage) -> events.PartitionPublished:
        default = self._settings.min_insync_replicas
        return events.PartitionPublished(
            image=partition,
            brokers=self.image.brokers,
            min_insync_replicas=int(topic.configs.get("min.insync.replicas", default)),
        )

    def _open(
        self, at: TopicPartition, topic: TopicImage, outbox: Outbox
    ) -> PartitionDriver | None:
        try:
            log, high_watermark = self._logs.open(at, topic.topic_id, topic.configs)
            partition = Partition(
                self._broker_id,
                log.epochs,
                replica_lag_time_max_ms=self._settings.replica_lag_time_max_ms,
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
                high_watermark=high_watermark,
                rules=self._rules,
            )
            driver = PartitionDriver(
                at,
                topic.topic_id,
                partition=partition,
                log=log,
                producers=ProducerStates(),
                deadlines=self.deadlines,
                deletion_deadlines=self.deletion_deadlines,
                outbox=outbox,
            )
            driver.rebuild_producers()
        except StorageError as error:
            self._unusable.add(at)
            self._failed(error)
            return None
        self.drivers[at] = driver
        if log.has_dead_segments:  # the process before this one ended before it removed them
            outbox.log_start_rose(driver)
        return driver

    def _remove(self, now_ms: int, at: TopicPartition, error_code: ErrorCode) -> None:
        driver = self.drivers.pop(at)
        driver.feed(now_ms, events.ReplicaRemoved(error_code=error_code))
        try:
            self._logs.delete(at, driver.log)
        except StorageError as error:
            self._failed(error)

    def assigned(self) -> set[TopicPartition]:
        """Return the partitions that are to be here, whether or not their logs are open."""
        return {*self.drivers, *self._unusable, *self._unopened}

    def limits_of(self, topic: str) -> TopicLimits:
        """Return what the topic allows to be appended."""
        limits = self._limits.get(topic)
        if limits is None:
            image = self.image.topics.get(topic)
            configs = {} if image is None else image.configs
            limits = self._limits[topic] = topic_limits(
                self._settings,
                configs,
                cleanup_policy=self._logs.cleanup_policy,
                is_internal=topic in INTERNAL_TOPICS,
            )
        return limits

    def error_for_missing(self, at: TopicPartition) -> ErrorCode:
        """Say why a partition is not in `drivers`."""
        if at in self._unusable:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.image.partition(at) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
