"""The replicas on this broker, by the metadata image: opens and removes them, applies changes.

Opening and deleting a log is work for the disk queue. An open log is then handled by the newest
image of its partition: it becomes a replica, or is deleted.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.admission import TopicLimits
from quorumlog.broker.partitions.core.deletions import WaitingDeletion
from quorumlog.broker.partitions.core.partition import Partition, PartitionRules
from quorumlog.broker.partitions.core.purgatory import Deadlines, PendingProduce
from quorumlog.broker.partitions.core.traffic import BrokerTraffic
from quorumlog.broker.partitions.core.waiting_requests import WaitingRequests
from quorumlog.broker.partitions.log.dependencies import PartitionDependencies
from quorumlog.broker.partitions.log.loaded_log import LoadedLog, load_log
from quorumlog.broker.partitions.log.log_directories import Fail, LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.reported_logs import ReportedLogs
from quorumlog.broker.partitions.log.topic_defaults import TopicDefaults
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage, TopicImage
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.errors import DiskExhausted, LacksRecords, StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId, TopicPartition

_logger: Final = logging.getLogger(__name__)
REMOVAL: Final = "removal of deleted logs"  # their lane in the disk queue: one at a time
STRAYS: Final = "strays"  # the lane of work on whole directories


def log_refusal(outcome: StorageError | None) -> None:
    """Log the StorageError of disk work, if there is one."""
    if outcome is not None:
        _logger.error("%s", outcome)


class ReplicaSet:
    """The partitions that have a replica here. `drivers` stays the same dict: it may be kept.

    `opened` is called with every partition whose log was opened or removed; `failed` with the error
    of every unusable log. Call `connect` before the first image is published.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        settings: BrokerSettings,
        logs: LogDirectories,
        *,
        rules: PartitionRules,
        now_ms: Callable[[], int],
        opened: Callable[[TopicPartition], None],
        failed: Callable[[StorageError], None],
    ) -> None:
        self.image = ClusterImage()
        self.broker_epoch = -1  # of this process, once it is registered
        self.drivers: Final[dict[TopicPartition, PartitionDriver]] = {}
        self.traffic: Final = BrokerTraffic()
        self.deadlines: Final[Deadlines[PendingProduce]] = Deadlines()
        self.deletion_deadlines: Final[Deadlines[WaitingDeletion]] = Deadlines()
        self._broker_id: Final = broker_id
        self._settings: Final = settings
        self.logs: Final = logs
        logs.options.must_last = (
            settings.log_flush_acks
        )  # then a replica counts by its durable records
        self._rules: Final = rules
        self._now_ms: Final = now_ms
        self._was_opened: Final = opened
        self._failed: Final = failed
        self._around: PartitionDependencies
        self._is_stopping = self._is_applying = self._strays_lack_room = False
        self._opening: Final[dict[TopicPartition, TopicId]] = {}  # in the disk queue
        self._postponed: Final[set[TopicPartition]] = set()  # no disk space or handle: `retry`
        self._refusal: str | None = None  # of the log that was postponed last
        self._unusable: Final[dict[TopicPartition, TopicId]] = {}  # their logs have failed
        self.reported: Final = ReportedLogs(broker_id, self.drivers)
        self._pending_updates: Final = rules.pending_updates()
        self._limits: Final[dict[str, TopicLimits]] = {}
        self.clock_ahead_ms = 0  # of the clocks of clients
        self._defaults: Final = TopicDefaults(broker_id, settings, logs)

    def connect(self, around: PartitionDependencies) -> None:
        """Set the receivers of the partitions' effects."""
        self._around = around
        self.reported.send = around.report

    def stop(self) -> None:
        """Open no further log; close those that are being opened."""
        self._is_stopping = True

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> list[TopicPartition]:
        """Apply an image; return the partitions that it has changed or removed so far.

        `apply_slice` applies the further slices. New replicas are opened when this returns, or
        later.
        """
        self.reported.new.note(delta, self.image, image)
        if image.epoch != self.image.epoch:  # a new controller, which has no reports yet
            self.reported.renew()
        self.image = image
        for name in delta.topic_configs | delta.deleted_topics.keys():
            self._limits.pop(name, None)
        concerned = [*self._remove_deleted(delta), *self._configure(delta)]
        if self._defaults.maybe_alter(image, self.drivers.values()):
            self._limits.clear()
        self._pending_updates.note(sorted({*delta.partitions, *concerned}))
        if delta.brokers:
            self._pending_updates.note_brokers(self.drivers)
        return concerned + self.apply_slice()

    def apply_slice(self) -> list[TopicPartition]:
        """Apply the newest image to a slice of replicas; return the slice's changed partitions."""
        news = self._pending_updates.take()
        self._is_applying = True  # a log that opens meanwhile is not the last one of the slice
        for at in news.partitions:
            self._publish_partition(at)
        self._is_applying = False
        published = events.BrokersPublished(brokers=self.image.brokers)
        for at in news.of_brokers:
            driver = self.drivers.get(at)
            if driver is not None:
                driver.feed(self._now_ms(), published)
        return news.partitions

    @property
    def has_pending_updates(self) -> bool:
        """Whether changes are left for `apply_slice`."""
        return (self._is_applying or len(self._pending_updates) > 0) and not self._is_stopping

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings, with the dynamic changes since its start."""
        return self._defaults.settings

    @property
    def is_opening(self) -> bool:
        """Whether logs are still to be opened, or may be in changes not applied yet."""
        return self.has_pending_updates or self.left_to_open > 0

    @property
    def left_to_open(self) -> int:
        """The number of logs still to open or to disclaim, in the slices applied so far.

        The broker must not lead a partition whose log it has reported as damaged.
        """
        return len(self._opening) + len(self._postponed) + self.reported.left_to_disclaim

    @property
    def lacks_room(self) -> str | None:
        """The reason why a log waits for disk space or a file handle; None: no log waits."""
        return self._refusal if self.left_to_open else None

    def retry(self) -> None:
        """Retry work that lacked disk space or file handles: open logs, set strays aside."""
        postponed = sorted(self._postponed)
        self._postponed.clear()
        for at in postponed:
            self._publish_partition(at)
        if self._strays_lack_room:
            self._strays_lack_room = False
            self.set_aside_strays()

    def _configure(self, delta: ClusterDelta) -> list[TopicPartition]:
        """Apply changed topic configurations to open logs; return their partitions."""
        if not delta.topic_configs:  # the usual case: do not visit every partition
            return []
        configured = [at for at in self.drivers if at.topic in delta.topic_configs]
        for at in configured:
            topic = self.image.topics.get(at.topic)
            if topic is not None:
                self.drivers[at].log.settings = self.logs.options.settings_of(topic.configs)
        return configured

    def _remove_deleted(self, delta: ClusterDelta) -> list[TopicPartition]:
        deleted = delta.deleted_topics
        if not deleted:
            return []
        removed = [at for at, one in self.drivers.items() if deleted.get(at.topic) == one.topic_id]
        for at in removed:
            self._remove(at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.traffic.forget(deleted)
        return removed

    def _publish_partition(self, at: TopicPartition) -> None:
        topic, partition = self.image.topics.get(at.topic), self.image.partition(at)
        driver = self.drivers.get(at)
        is_ours = partition is not None and self._is_ours(partition)
        if driver is not None and (
            topic is None or not is_ours or driver.topic_id != topic.topic_id
        ):
            is_gone = topic is None or driver.topic_id != topic.topic_id
            unknown, moved = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._remove(at, unknown if is_gone else moved)
            driver = None
        if topic is None or partition is None or not is_ours:
            self._unusable.pop(at, None)
            self.reported.forget(at)
            self._postponed.discard(at)
            self.reported.new.forget(at)
            if at not in self._opening:
                self.logs.leave(at)
            return
        self.reported.note(at, partition)
        if driver is not None:
            driver.feed(self._now_ms(), self._published(topic, partition))
        elif self.reported.is_refused(at, topic.topic_id):
            if self.reported.take_up(at, partition):
                self._open(at, topic, partition)
        elif at not in self._opening and self._unusable.get(at) != topic.topic_id:
            if at in self._unusable or self.reported.is_refused(at):
                self.logs.leave(at)  # the unusable log is of another topic with this name
                self.reported.forget(at)
            self._open(at, topic, partition)

    @property
    def _shows_this_process(self) -> bool:
        """Whether the image contains the registration of this process."""
        return self.image.process(self._broker_id, self.broker_epoch) is not None

    def _is_ours(self, partition: PartitionImage) -> bool:
        return self._broker_id in partition.replicas

    def _published(self, topic: TopicImage, partition: PartitionImage) -> events.PartitionPublished:
        config = self._defaults.of_topic(self.image, topic.name)
        return events.PartitionPublished(
            image=partition,
            brokers=self.image.brokers,
            min_insync_replicas=config.min_insync_replicas,
        )

    # --- Opening ---

    def _open(self, at: TopicPartition, topic: TopicImage, partition: PartitionImage) -> None:
        self._postponed.discard(at)
        if self.logs.is_doubled(at, topic.topic_id) and not self._shows_this_process:
            self._postponed.add(at)
            return
        assigned = partition.directory_of(self._broker_id)
        home = self.logs.place(at, topic.topic_id, assigned, is_new=at in self.reported.new)
        if home is None:
            self._unusable[at] = topic.topic_id
            return
        self._opening[at] = topic.topic_id
        self._unusable.pop(at, None)
        standing = self.reported.opening(at, partition)
        # An older image may lack leader epochs that are in the log.
        known = {"newest_epoch": partition.leader_epoch} if self._shows_this_process else {}
        load = partial(load_log, home, at, topic, standing, self._rules.producers)

        def work() -> LoadedLog:
            if self._is_stopping:
                raise StorageError(f"{at} is not opened: the broker stops")
            ahead_ms = self.clock_ahead_ms
            return load(**known, note_read=self.logs.progress.note_read, clock_ahead_ms=ahead_ms)

        self._around.disk.submit(at, work, partial(self._opened, at))

    def _opened(self, at: TopicPartition, outcome: LoadedLog | StorageError) -> None:
        topic_id = self._opening.pop(at)
        if self._is_stopping:
            if not isinstance(outcome, StorageError):
                self._close(at, outcome.log, clean=True)
            return
        topic, partition = self.image.topics.get(at.topic), self.image.partition(at)
        is_wanted = (
            topic is not None
            and topic.topic_id == topic_id
            and partition is not None
            and self._is_ours(partition)
        )
        if isinstance(outcome, StorageError):
            if is_wanted:
                self._not_opened(at, topic_id, outcome)
            else:
                self.logs.leave(at)
        elif self.logs.home_of(at) in self.logs.failed:  # meanwhile
            self._unusable[at] = topic_id
            self._close(at, outcome.log, clean=False)
        elif not is_wanted or topic is None or partition is None:
            log = outcome.log
            self._delete(at, lambda: log)
        else:
            self._add(at, topic, outcome, partition)
        if not is_wanted:
            self._publish_partition(at)  # a new topic may have its name by now
        self._was_opened(at)

    def _close(self, at: TopicPartition, log: Log, *, clean: bool) -> None:
        def closed(outcome: StorageError | None) -> None:
            if isinstance(outcome, DiskExhausted):
                self.logs.note_unclean(at)
            elif outcome is not None:
                self._fail_home(at, outcome)  # it must not be marked clean

        self._around.disk.submit(at, partial(log.close, clean=clean), closed)

    def _not_opened(self, at: TopicPartition, topic_id: TopicId, error: StorageError) -> None:
        if isinstance(error, DiskExhausted):
            self._postponed.add(at)
            self._refusal = f"{at}: {error}"
            self.logs.progress.note_postponed(self._now_ms(), str(at), error)
            return
        _logger.error("%s: %s", at, error)
        if isinstance(error, LacksRecords):
            self.reported.refuse(at, topic_id, error)
            self._publish_partition(at)  # so that the log is reported to the controller
        else:
            self._unusable[at] = topic_id
            self._fail_home(at, error)

    def _add(
        self, at: TopicPartition, topic: TopicImage, loaded: LoadedLog, image: PartitionImage
    ) -> None:
        log = loaded.log
        self.reported.new.forget(at)
        self.logs.progress.note_opened(self._now_ms(), str(at))
        log.settings = self.logs.options.settings_of(topic.configs)
        partition = Partition(
            self._broker_id,
            log.epochs,
            replica_lag_time_max_ms=self._settings.replica_lag_time_max_ms,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            high_watermark=loaded.high_watermark,
            rules=self._rules,
            acks_after_flush=self._settings.log_flush_acks,
        )
        driver = self.drivers[at] = PartitionDriver(
            at,
            topic.topic_id,
            partition=partition,
            log=log,
            producers=loaded.producers,
            waiting=WaitingRequests(partition.serving, self.deadlines, self.deletion_deadlines),
            traffic=self.traffic.of(at.topic),
            around=self._around,
        )
        driver.feed(self._now_ms(), self._published(topic, image))
        self.reported.note(at, image)
        if log.has_dead_segments:  # the last process ended before it removed them
            self._around.log_starts.note(driver)

    # --- Removal ---

    def _remove(self, at: TopicPartition, error_code: ErrorCode) -> None:
        driver = self.drivers.pop(at)
        driver.feed(self._now_ms(), events.ReplicaRemoved(error_code=error_code))
        self._delete(at, lambda: driver.log)

    def _delete(self, at: TopicPartition, log: Callable[[], Log]) -> None:
        """Free the name, then remove the files after `log.segment.delete.delay.ms`.

        The next start finds any that are left.
        """
        delay_ms = self.settings.log_segment_delete_delay_ms

        def renamed(outcome: Callable[[], None] | StorageError | None) -> None:
            self.remove_files()  # also for the checkpoint of high watermarks
            if isinstance(outcome, StorageError):
                log_refusal(outcome)
            elif outcome is not None and delay_ms:
                self._around.removals.add(delay_ms, partial(self._remove_due, outcome))

        deletion = self.logs.deletion(at, log, is_due=not delay_ms)
        self._around.disk.submit(at, deletion, renamed)

    def _remove_due(self, note_due: Callable[[], None]) -> None:
        note_due()
        self.logs.remove_doomed()

    def remove_files(self) -> None:
        """Remove the directories of deleted logs, after the removal under way."""
        self._around.disk.submit(REMOVAL, self.logs.remove_doomed, log_refusal)

    def fail(self, driver: PartitionDriver, error: StorageError) -> None:
        """Take a replica with an unusable log offline: KAFKA_STORAGE_ERROR from now on."""
        at = driver.topic_partition
        if self.drivers.get(at) is driver:
            _logger.error("%s is offline: %s", at, error)
            del self.drivers[at]
            self._unusable[at] = driver.topic_id
            self._fail_home(at, error)
            self._was_opened(at)
        driver.feed(self._now_ms(), events.ReplicaRemoved(error_code=ErrorCode.KAFKA_STORAGE_ERROR))
        self._around.disk.submit(at, partial(driver.log.close, clean=False), lambda _: None)

    def fail_directory(self, directory: LogDirectory, error: StorageError) -> None:
        """Take a directory offline after a disk error, with all logs in it."""
        self._lose(self.logs.fail(directory, error), error)

    def _fail_home(self, at: TopicPartition, error: StorageError) -> None:
        """Take a log's directory offline with all its logs; the last one stays, but is reported."""
        self._lose(self.logs.fail_home_of(at, error), error)

    def note_refusal(self, error: StorageError) -> None:
        """Take a directory that refused its checkpoints offline, if there are others."""
        lost = self.logs.fail_refusing(error)
        if lost is not None:
            self._lose(lost, error)

    def _lose(self, lost: Iterable[TopicPartition], error: StorageError) -> None:
        for at in lost:
            driver = self.drivers.get(at)
            if driver is not None:
                self.fail(driver, error)
        self._around.disk.submit(STRAYS, self.logs.mark_failed, log_refusal)
        self._failed(error)

    def set_aside_strays(self) -> None:
        """Rename the logs of the last process that the metadata does not assign to this broker."""
        for one in self.logs.stray_work(self.assigned()):

            def done(outcome: StorageError | None, fail: Fail = one.fail) -> None:
                if isinstance(outcome, DiskExhausted):
                    self._strays_lack_room = True
                    self.logs.progress.note_postponed(self._now_ms(), "strays", outcome)
                elif outcome is not None:
                    self._lose(fail(outcome), outcome)

            self._around.disk.submit(STRAYS, one.work, done)

    # --- Queries ---

    @property
    def offline_count(self) -> int:
        """The number of replicas whose logs have failed."""
        return len(self._unusable)

    def assigned(self) -> set[TopicPartition]:
        """Return the partitions that are to be here, whether or not their logs are open."""
        waiting = {*self._opening, *self._postponed, *self.reported.refused}
        return {*self.drivers, *self._unusable, *waiting}

    def limits_of(self, topic: str) -> TopicLimits:
        """Return the limits for batches of a topic."""
        limits = self._limits.get(topic)
        if limits is None:
            limits = self._defaults.limits_of(self.image, topic)
            limits = self._limits[topic] = limits.behind(self.clock_ahead_ms)
        return limits

    def note_clock_ahead(self, ahead_ms: int) -> None:
        """Accept records of clients whose clocks are `ahead_ms` behind this broker's clock."""
        self.clock_ahead_ms = ahead_ms
        self._limits.clear()

    def config_of(self, topic: str) -> TopicConfig:
        """Return the configuration of a topic on this broker."""
        return self._defaults.of_topic(self.image, topic)

    def is_to_lead(self, at: TopicPartition) -> bool:
        """Whether this broker will lead a partition by the image, but does not lead it yet.

        False if its log has failed, or waits for disk space.
        """
        partition = self.image.partition(at)
        if partition is None or partition.leader_id != self._broker_id:
            return False
        driver = self.drivers.get(at)
        if driver is not None:
            return driver.partition.state.leader_epoch < partition.leader_epoch
        is_stuck = at in self._unusable or at in self._postponed or self.reported.is_refused(at)
        return not is_stuck

    def error_for_missing(self, at: TopicPartition) -> ErrorCode:
        """Return the error for a partition that is not in `drivers`."""
        if self.image.partition(at) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if at in self._unusable or self.reported.is_refused(at):
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
