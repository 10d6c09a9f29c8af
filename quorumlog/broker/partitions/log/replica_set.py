"""Which replicas are on this broker: as the image says. Opens, removes, and tells each its news.

Opening and deleting a log is work for the disk queue. When a log is open, it is given to what the
newest image says of its partition by then: a replica, or its deletion.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.admission import TopicLimits
from quorumlog.broker.partitions.core.deletions import WaitingDeletion
from quorumlog.broker.partitions.core.partition import Partition, PartitionRules
from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.core.purgatory import Deadlines, PendingProduce
from quorumlog.broker.partitions.core.waiting_requests import WaitingRequests
from quorumlog.broker.partitions.log.loaded_log import LoadedLog, load_log
from quorumlog.broker.partitions.log.log_directories import Fail, LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.new_replicas import NewReplicas
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.surroundings import Surroundings
from quorumlog.broker.partitions.log.topic_defaults import TopicDefaults
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import LogReport
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage, TopicImage
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.errors import DiskExhausted, LacksRecords, StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    NO_EPOCH,
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)

_logger: Final = logging.getLogger(__name__)
REMOVAL: Final = "removal of deleted logs"  # their lane in the disk queue: one at a time
STRAYS: Final = "strays"  # the lane of what concerns whole directories


class _Refused(NamedTuple):
    """A log that is not opened, of which topic, and how far it is whole."""

    topic_id: TopicId
    error: LacksRecords


def _log(outcome: StorageError | None) -> None:
    if outcome is not None:
        _logger.error("%s", outcome)


class ReplicaSet:
    """The partitions that have a replica here. `drivers` is one dict for ever: it may be kept.

    `opened` is told of every partition whose log is open, or that has none any more; `failed` of
    every log that is of no more use. `connect` it before the first image is published.
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
        self.deadlines: Final[Deadlines[PendingProduce]] = Deadlines()
        self.deletion_deadlines: Final[Deadlines[WaitingDeletion]] = Deadlines()
        self._broker_id: Final = broker_id
        self._settings: Final = settings
        self.logs: Final = logs
        self._new: Final = NewReplicas(broker_id)
        logs.must_last = settings.log_flush_acks  # a replica counts with what it has on its disk
        self._rules: Final = rules
        self._now_ms: Final = now_ms
        self._was_opened: Final = opened
        self._failed: Final = failed
        self._around: Surroundings
        self._is_stopping = self._is_telling = False
        self._opening: Final[dict[TopicPartition, TopicId]] = {}  # in the disk queue
        self._postponed: Final[set[TopicPartition]] = set()  # no room or handle: `retry`
        self._unusable: Final[dict[TopicPartition, TopicId]] = {}  # their logs have failed
        # Not whole, and nothing says yet that others have what they lack.
        self._refused: Final[dict[TopicPartition, _Refused]] = {}
        self._disclaimed: Final[set[TopicPartition]] = set()  # of those: the image counts on them
        self._undecided: Final[set[TopicPartition]] = set()  # their logs decide who leads
        self._untold: Final = rules.untold_news()
        self._limits: Final[dict[str, TopicLimits]] = {}
        self._defaults: Final = TopicDefaults(broker_id, settings, logs)

    def connect(self, around: Surroundings) -> None:
        """Say where everything goes that leaves a partition."""
        self._around = around

    def stop(self) -> None:
        """Open no log any more; close those that are being opened."""
        self._is_stopping = True

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> list[TopicPartition]:
        """Take over an image; return the partitions that have heard of it, or were removed.

        Many hear of it slice by slice: `tell_slice`. New replicas are opened when this returns, or
        later.
        """
        self._new.note(delta, self.image, image)
        if image.epoch != self.image.epoch:  # another controller, which has no reports yet
            for at in [*self._undecided, *self._refused]:
                self._around.report(at)
        self.image = image
        for name in delta.topic_configs | delta.deleted_topics.keys():
            self._limits.pop(name, None)
        concerned = [*self._remove_deleted(delta), *self._configure(delta)]
        if self._defaults.maybe_alter(image, self.drivers.values()):
            self._limits.clear()
        self._untold.note(sorted({*delta.partitions, *concerned}))
        if delta.brokers:
            self._untold.note_brokers(self.drivers)
        return concerned + self.tell_slice()

    def tell_slice(self) -> list[TopicPartition]:
        """Let some replicas act on the newest image; return those whose partitions it changed."""
        news = self._untold.take()
        self._is_telling = True  # a log that opens meanwhile is not the last one of the slice
        for at in news.partitions:
            self._publish_partition(at)
        self._is_telling = False
        published = events.BrokersPublished(brokers=self.image.brokers)
        for at in news.of_brokers:
            driver = self.drivers.get(at)
            if driver is not None:
                driver.feed(self._now_ms(), published)
        return news.partitions

    @property
    def has_untold(self) -> bool:
        """Whether `tell_slice` has something to do."""
        return (self._is_telling or len(self._untold) > 0) and not self._is_stopping

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings, with what was altered since it started."""
        return self._defaults.settings

    @property
    def is_opening(self) -> bool:
        """Whether there are logs to open yet, or may be in what is not told yet."""
        return self.has_untold or self.left_to_open > 0

    @property
    def left_to_open(self) -> int:
        """How many logs there are to open yet, as far as the image has been told.

        Or to give up: the broker must not lead what it has reported as damaged.
        """
        return len(self._opening) + len(self._postponed) + len(self._disclaimed)

    def retry(self) -> None:
        """Open what could not be opened for want of room or file handles."""
        postponed = sorted(self._postponed)
        self._postponed.clear()
        for at in postponed:
            self._publish_partition(at)

    def _configure(self, delta: ClusterDelta) -> list[TopicPartition]:
        """Let open logs go by what their topics say now, and return them; others read it then."""
        if not delta.topic_configs:  # as nearly always: do not look at every partition
            return []
        configured = [at for at in self.drivers if at.topic in delta.topic_configs]
        for at in configured:
            topic = self.image.topics.get(at.topic)
            if topic is not None:
                self.drivers[at].log.settings = self.logs.settings_of(topic.configs)
        return configured

    def _remove_deleted(self, delta: ClusterDelta) -> list[TopicPartition]:
        deleted = delta.deleted_topics
        if not deleted:
            return []
        removed = [at for at, one in self.drivers.items() if deleted.get(at.topic) == one.topic_id]
        for at in removed:
            self._remove(at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
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
            self._refused.pop(at, None)
            self._disclaimed.discard(at)
            self._undecided.discard(at)
            self._postponed.discard(at)
            self._new.forget(at)
            if at not in self._opening:
                self.logs.leave(at)
            return
        self._maybe_report(at, partition)
        if driver is not None:
            driver.feed(self._now_ms(), self._published(topic, partition))
        elif at in self._refused and self._refused[at].topic_id == topic.topic_id:
            if not self._new.standing_of(at, partition).must_be_whole:
                del self._refused[at]
                self._open(at, topic, partition)
        elif at not in self._opening and self._unusable.get(at) != topic.topic_id:
            if at in self._unusable or at in self._refused:
                self.logs.leave(at)  # what cannot be used is another topic's log
                self._refused.pop(at, None)
                self._disclaimed.discard(at)
            self._open(at, topic, partition)

    def _maybe_report(self, at: TopicPartition, partition: PartitionImage) -> None:
        """Report a log that decides who leads, or that is not whole."""
        if partition.is_undecided:
            self._undecided.add(at)
        else:
            self._undecided.discard(at)
        if at in self._refused and self._new.standing_of(at, partition) is Standing.COUNTED_ON:
            self._disclaimed.add(at)
        else:
            self._disclaimed.discard(at)
        if partition.is_undecided or at in self._refused:
            self._around.report(at)

    def log_report(self, at: TopicPartition) -> LogReport | None:
        """Return what the controller has to know of a log by the newest image, if something."""
        topic, partition = self.image.topics.get(at.topic), self.image.partition(at)
        driver, refused = self.drivers.get(at), self._refused.get(at)
        if topic is None or partition is None or not self._shows_this_process:
            return None
        index = PartitionIndex(at.partition)
        if refused is not None and refused.topic_id == topic.topic_id:
            error = refused.error
            return LogReport(
                topic_id=topic.topic_id,
                partition=index,
                last_epoch=Epoch(error.last_epoch),
                log_end_offset=Offset(error.end_offset),
                is_whole=False,
            )
        if driver is None or driver.topic_id != topic.topic_id or not partition.is_undecided:
            return None
        end_offset = driver.log.log_end_offset
        return LogReport(
            topic_id=topic.topic_id,
            partition=index,
            last_epoch=driver.log.epochs.epoch_at(end_offset - 1) if end_offset > 0 else NO_EPOCH,
            log_end_offset=end_offset,
            is_whole=True,
        )

    @property
    def _shows_this_process(self) -> bool:
        """Whether the image is as new as our registration."""
        ours = self.image.brokers.get(self._broker_id)
        return ours is not None and ours.broker_epoch == self.broker_epoch

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
        home = self.logs.place(at, topic.topic_id, assigned, is_new=at in self._new)
        if home is None:
            self._unusable[at] = topic.topic_id
            return
        self._opening[at] = topic.topic_id
        self._unusable.pop(at, None)
        standing = self._new.standing_of(at, partition)
        load = partial(load_log, home, at, topic, standing, self._rules.producers)

        def work() -> LoadedLog:
            if self._is_stopping:
                raise StorageError(f"{at} is not opened: the broker stops")
            return load(note_read=self.logs.progress.note_read)

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
            self._publish_partition(at)  # it may be another topic's by now
        self._was_opened(at)

    def _close(self, at: TopicPartition, log: Log, *, clean: bool) -> None:
        def closed(outcome: StorageError | None) -> None:
            if outcome is not None:
                self._fail_home(at, outcome)  # it must not be said to be clean

        self._around.disk.submit(at, partial(log.close, clean=clean), closed)

    def _not_opened(self, at: TopicPartition, topic_id: TopicId, error: StorageError) -> None:
        _logger.error("%s: %s", at, error)
        if isinstance(error, LacksRecords):
            self._refused[at] = _Refused(topic_id, error)
            partition = self.image.partition(at)
            if partition is not None:
                self._maybe_report(at, partition)
        elif isinstance(error, DiskExhausted):
            self._postponed.add(at)
            self.logs.progress.note_postponed()
        else:
            self._unusable[at] = topic_id
            self._fail_home(at, error)

    def _add(
        self, at: TopicPartition, topic: TopicImage, loaded: LoadedLog, image: PartitionImage
    ) -> None:
        log = loaded.log
        self._new.forget(at)
        log.settings = self.logs.settings_of(topic.configs)
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
            around=self._around,
        )
        driver.feed(self._now_ms(), self._published(topic, image))
        self._maybe_report(at, image)
        if log.has_dead_segments:  # the process before this one ended before it removed them
            self._around.log_starts.note(driver)

    # --- Removal ---

    def _remove(self, at: TopicPartition, error_code: ErrorCode) -> None:
        driver = self.drivers.pop(at)
        driver.feed(self._now_ms(), events.ReplicaRemoved(error_code=error_code))
        self._delete(at, lambda: driver.log)

    def _delete(self, at: TopicPartition, log: Callable[[], Log]) -> None:
        """Free the name, then remove the files. The next start finds what cannot be removed."""

        def renamed(outcome: StorageError | None) -> None:
            _log(outcome)
            self.remove_files()

        self._around.disk.submit(at, self.logs.deletion(at, log), renamed)

    def remove_files(self) -> None:
        """Remove the directories of deleted logs, when nothing else is removed any more."""
        self._around.disk.submit(REMOVAL, self.logs.remove_doomed, _log)

    def fail(self, driver: PartitionDriver, error: StorageError) -> None:
        """Take a replica offline whose log is of no more use: KAFKA_STORAGE_ERROR from now on."""
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
        """Give up a directory that has refused something, and all logs in it."""
        self._lose(self.logs.fail(directory, error), error)

    def _fail_home(self, at: TopicPartition, error: StorageError) -> None:
        """Give up the directory of a log and all logs in it; the last one stays, but is named."""
        self._lose(self.logs.fail_home_of(at, error), error)

    def note_refusal(self, error: StorageError) -> None:
        """Give up the directory that has refused its checkpoints, if there are others."""
        lost = self.logs.fail_refusing(error)
        if lost is not None:
            self._lose(lost, error)

    def _lose(self, lost: Iterable[TopicPartition], error: StorageError) -> None:
        for at in lost:
            driver = self.drivers.get(at)
            if driver is not None:
                self.fail(driver, error)
        self._around.disk.submit(STRAYS, self.logs.mark_failed, _log)
        self._failed(error)

    def set_aside_strays(self) -> None:
        """Rename what the last process left and the metadata does not assign to this broker."""
        for one in self.logs.stray_work(self.assigned()):

            def done(outcome: StorageError | None, fail: Fail = one.fail) -> None:
                if outcome is not None:
                    self._lose(fail(outcome), outcome)

            self._around.disk.submit(STRAYS, one.work, done)

    # --- Questions ---

    def assigned(self) -> set[TopicPartition]:
        """Return the partitions that are to be here, whether or not their logs are open."""
        waiting = {*self._opening, *self._postponed, *self._refused}
        return {*self.drivers, *self._unusable, *waiting}

    @property
    def refusals(self) -> dict[TopicPartition, LacksRecords]:
        """The logs that are not opened because they lack records, and which."""
        return {at: refused.error for at, refused in self._refused.items()}

    def limits_of(self, topic: str) -> TopicLimits:
        """Return what the topic allows to be appended."""
        limits = self._limits.get(topic)
        if limits is None:
            limits = self._limits[topic] = self._defaults.limits_of(self.image, topic)
        return limits

    def config_of(self, topic: str) -> TopicConfig:
        """Return the configuration of a topic as this broker takes it."""
        return self._defaults.of_topic(self.image, topic)

    def error_for_missing(self, at: TopicPartition) -> ErrorCode:
        """Say why a partition is not in `drivers`."""
        if self.image.partition(at) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if at in self._unusable or at in self._refused:
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
