"""The logs in one log directory: opens, creates, sets aside, deletes and closes them.

A directory of another topic id than the metadata's is a stray: the topic was deleted, and perhaps
re-created, while the broker was down. It is renamed, never served (KAFKA-14616).
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.log.future_logs import FutureLogs
from quorumlog.broker.partitions.log.log_names import DELETE_SUFFIX, FUTURE_SUFFIX, LogNames, marked
from quorumlog.broker.partitions.log.log_progress import LogProgress
from quorumlog.broker.partitions.log.offset_checkpoints import OffsetCheckpoints
from quorumlog.broker.partitions.log.registrations import BrokerProcess, Registrations
from quorumlog.settings.servers import texts_of
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.recovery import MAX_EPOCH
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import CorruptCheckpoint, DamagedLog, LacksRecords, storage_errors
from quorumlog.storage.io.checkpoints import (
    PARTITION_METADATA_FILE,
    REPLICATION_FILE,
    CleanShutdownMarker,
    PartitionMetadata,
    read_partition_metadata,
    uuid_to_text,
)
from quorumlog.storage.io.disk import Disk, write_file_durably
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache, was_flushed
from quorumlog.storage.io.log import Log, plan_log
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.topic_names import METADATA_TOPIC

STRAY_SUFFIX: Final = "-stray"
REFUSED_FILE: Final = "refused-as-damaged"
"""A file in the directory of a refused log: a start after a kill refuses the log, too."""

_logger: Final = logging.getLogger(__name__)


def log_settings(config: TopicConfig) -> LogSettings:
    """Return the settings of the logs of a topic."""
    return LogSettings(
        segment_bytes=config.segment_bytes,
        segment_ms=_segment_ms(config),
        segment_jitter_ms=config.segment_jitter_ms,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        cleanup_policy=config.cleanup_policy,
        flush_messages=config.flush_messages,
        flush_ms=config.flush_ms,
    )


def _segment_ms(config: TopicConfig) -> int:
    """Return the age at which a segment ends: only full segments are compacted (KIP-354)."""
    if "compact" not in config.policies:
        return config.segment_ms
    return min(config.segment_ms, config.max_compaction_lag_ms)


@dataclass(slots=True, eq=False)
class LogOptions:
    """The options of the logs in all directories of a broker, and the progress of work on logs.

    They change while the broker runs. `must_last`: the records found in a log are flushed before
    use.
    """

    topic_defaults: Mapping[str, str]
    must_last: bool = False
    progress: LogProgress = field(default_factory=LogProgress)
    # For the topic queried last: (its configurations, the defaults, the log settings).
    _known: tuple[Mapping[str, str], Mapping[str, str], LogSettings] | None = None

    def settings_of(self, configs: Mapping[str, str]) -> LogSettings:
        """Return the settings of a log by its topic's configuration."""
        asked = configs, self.topic_defaults
        known = self._known
        if known is None or known[0] is not asked[0] or known[1] is not asked[1]:
            known = self._known = *asked, log_settings(TopicConfig(*asked))
        return known[2]


class OrphanedRecords(LacksRecords):
    """Records in `path` that may be the last copy of a partition, without a valid topic id.

    An operator who is certain that the topic was not re-created confirms it in the damaged file.
    """

    def __init__(self, path: str, topic_id: TopicId) -> None:
        self.path: Final = path
        self.topic_id: Final = topic_id
        super().__init__(
            f"{path}/{PARTITION_METADATA_FILE} is damaged, or has another topic id and no "
            "checksum, and the records beside it may be the last ones of this partition. If no "
            "other replica leads it, and the topic was not deleted and made again since they were "
            "written, let that file have the two lines 'version: 0' and "
            f"'topic_id: {uuid_to_text(topic_id)}' alone, and start this node again"
        )


def _deleted_partition(name: str) -> TopicPartition:
    """Return the partition of a deleted log's directory."""
    topic, _, index = name.rpartition(".")[0].rpartition("-")
    return TopicPartition(topic, int(index) if index.isdecimal() else -1)


def _why_aside(found_id: TopicId | None, topic_id: TopicId) -> str:
    if found_id is None:
        return (
            f"its {PARTITION_METADATA_FILE} is damaged, and others have its records, or no "
            "record had to last"
        )
    return (
        f"its {PARTITION_METADATA_FILE} has the topic id {uuid_to_text(found_id)}, and the "
        f"metadata has {uuid_to_text(topic_id)}: the topic was deleted and made again, or the "
        "directory is another's"
    )


class LogDirectory:
    """The logs and the broker's files in `directory`.

    All methods wait for the disk, except where noted. Any thread may call them; one at a time for
    one partition. They raise StorageError for disk errors.
    """

    def __init__(
        self, disk: Disk, directory: str, defaults: LogSettings, new_log: type[Log] = Log
    ) -> None:
        self.options = LogOptions(texts_of(defaults))  # directories of one broker share theirs
        self.path: Final = directory
        self.opening: Final = threading.Lock()  # of the thread whose turn it is to open a log
        self.directory_id = ""  # of its meta.properties
        self.checkpoints: Final = OffsetCheckpoints(disk, directory)
        self.clean_shutdown_epoch: int | None = None
        self.registrations: Final = Registrations(disk, directory)
        self._disk: Final = disk
        self._new_log: Final = new_log
        self._marker: Final = CleanShutdownMarker(disk, directory)
        self._names: Final = LogNames(disk, directory)
        self._unopened: Final[set[str]] = set()  # directories as the last process left them
        self.futures: Final = FutureLogs(disk, directory, new_log, self._names)

    @property
    def was_clean(self) -> bool:
        """Whether the last process closed every log."""
        return self.clean_shutdown_epoch is not None

    def start(self, process: BrokerProcess | None = None) -> None:
        """Read the checkpoints, find deleted logs and copies, remove the clean shutdown marker.

        `clean_shutdown_epoch` is then the broker epoch of a clean shutdown (-1: unknown), or
        None. `process`: it registers next; None: it does not. After DiskExhausted the directory may
        be started again.
        """
        with storage_errors(f"cannot use {self.path}"):
            self._disk.mkdir(self.path)
            if process is not None:
                self.registrations.begin(process)
            self.clean_shutdown_epoch = self._marker.take()
            names = self._disk.listdir(self.path)
            self.checkpoints.read(must_be_there=bool(self.registrations.incarnations))
            doomed = [name for name in names if name.endswith(DELETE_SUFFIX)]
            self._unopened.update(filter(self._is_partition, {*names} - {*doomed}))
            self.futures.find(name for name in names if name.endswith(FUTURE_SUFFIX))
            self._names.note_found(self._unopened, doomed)
            for partition in map(_deleted_partition, doomed):
                self.checkpoints.note_left(partition)

    @property
    def unopened(self) -> frozenset[str]:
        """The names of the logs found at the start that are neither opened nor removed."""
        return frozenset(self._unopened)

    def holds(self, topic_partition: TopicPartition) -> bool:
        """Return whether a log of this name was found at the start, and is unchanged since."""
        return str(topic_partition) in self._unopened

    def topic_id_of(self, name: str) -> TopicId | None:
        """Return the topic id of a log's directory; None if it is lost."""
        with storage_errors(f"cannot use {self.path}"):
            found = self._found(name)
        return None if found is None else found.topic_id

    def open(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        configs: Mapping[str, str],
        *,
        standing: Standing = Standing.SPARE,
        newest_epoch: int = MAX_EPOCH,
    ) -> tuple[Log, Offset]:
        """Open the log, or plan it; return it with its checkpointed high watermark.

        Raises LacksRecords if the log must be whole and is not (OrphanedRecords: its topic id is
        lost). Otherwise a log that lacks records with which it was closed is set aside. A record
        with a leader epoch above `newest_epoch` is damaged.
        """
        name, path = str(topic_partition), self._path(str(topic_partition))
        settings, log = self.options.settings_of(configs), None
        with storage_errors(f"cannot open {path}"):
            is_new = name not in self._unopened and not self._disk.exists(path)
            found = None if is_new else self._found(name)
            found_id = None if found is None else found.topic_id
            is_certain = found is not None and (found.is_checked or found_id == topic_id)
            if not is_certain and standing.must_be_whole:
                self._require_no_loss(topic_partition, topic_id, standing, is_new=is_new)
            if found_id == topic_id:
                open_log = self._opener(topic_partition, settings, newest_epoch)
                log = self._open_found(topic_partition, topic_id, open_log, standing)
            elif not is_new:
                self._set_aside(name, _why_aside(found_id, topic_id), durably=True)
            if log is None:
                self.checkpoints.forget_older(topic_partition)
                make_directory = partial(self._names.make, name, topic_id)
                log = plan_log(self._new_log, self._disk, path, settings, make_directory)
            log.epochs.before_first = partial(self._names.make_last, name, topic_id)
        self._unopened.discard(name)
        return log, self.checkpoints.high_watermark(topic_partition)

    def _found(self, name: str) -> PartitionMetadata | None:
        """Return the metadata of a directory; None if it is lost."""
        try:
            return self._names.metadata_of(name)
        except CorruptCheckpoint as error:
            _logger.warning("%s", error)
            return None

    def _require_no_loss(
        self, at: TopicPartition, topic_id: TopicId, standing: Standing, *, is_new: bool
    ) -> None:
        """Raise LacksRecords if an earlier log is gone or cannot be identified."""
        path = self._path(str(at))
        if not is_new and self._names.hold_records(str(at)):
            raise OrphanedRecords(path, topic_id)
        is_closed = self._is_closed(at)
        if not is_closed:
            self._require_committed(path, standing)
        closed_at = self.checkpoints.recovery_point(at) if is_closed else 0
        if max(self.checkpoints.high_watermark(at), closed_at) > 0:
            raise LacksRecords(f"{path} lacks the records that were in it")

    def _require_committed(self, path: str, standing: Standing) -> None:
        """Raise LacksRecords if a log is counted on, and its high watermark is lost."""
        if standing is Standing.COUNTED_ON and self.checkpoints.is_lost:
            raise LacksRecords(f"{path} may lack records: the {REPLICATION_FILE} beside it is lost")

    def _is_closed(self, at: TopicPartition) -> bool:
        """Return whether the last process has closed a log, and recorded its end."""
        return self.was_clean and self.checkpoints.has_recovery_point(at)

    def _open_found(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        open_log: Callable[..., Log],
        standing: Standing,
    ) -> Log | None:
        """Open an existing log; None: it was damaged, and is set aside."""
        name, path = str(topic_partition), self._path(str(topic_partition))
        if self.options.must_last and not was_flushed(self._disk, path):
            self._names.make_last(name, topic_id)
        was_closed = self.was_clean and name in self._unopened
        is_closed = was_closed and self._is_closed(topic_partition)
        recovery_point = self.checkpoints.recovery_point(topic_partition)
        # Refused because it ends below its recovery point: without one, the file has no meaning.
        was_refused = recovery_point > 0 and self._disk.exists(f"{path}/{REFUSED_FILE}")
        end_is_known = is_closed or was_refused
        if not end_is_known:
            self._require_committed(path, standing)
        # A loss of power may have removed any unflushed bytes. A kill may leave a partial batch,
        # and so may damage: then the other members decide.
        must_be_whole = standing.must_be_whole and (
            end_is_known or was_closed or not self.registrations.may_have_lost_power
        )
        committed = self.checkpoints.high_watermark(topic_partition) if must_be_whole else Offset(0)
        # DEVIATION: Kafka opens a log that has lost its start or its end since it was closed.
        # docs/decisions/0025-log-damage.md
        try:
            log = open_log(
                clean=is_closed,
                known_end_offset=max(committed, recovery_point) if end_is_known else committed,
                must_be_whole=must_be_whole and not end_is_known,
                may_be_torn=standing is not Standing.COUNTED_ON,
            )
        except DamagedLog as error:
            if standing is Standing.SPARE:
                self._set_aside(name, str(error), durably=True)
                return None
            if standing.must_be_whole:
                if end_is_known:
                    self._note_refusal(path, error)
                raise LacksRecords(
                    f"{error}. Restore the file, and start this node again",
                    end_offset=error.end_offset,
                    last_epoch=max(error.last_epoch, self._last_epoch(path, error.end_offset)),
                ) from error
            log = open_log(clean=False)
        if was_refused:
            self._disk.unlink(f"{path}/{REFUSED_FILE}")
            self._disk.fsync_dir(path)
        # Recovery may have truncated the log, or the last process just before its crash.
        self.checkpoints.note_truncated(topic_partition, log)
        return log

    def _opener(
        self, at: TopicPartition, settings: LogSettings, newest_epoch: int
    ) -> Callable[..., Log]:
        """Return the function that opens an existing log; its caller adds the recovery options."""
        return partial(
            self._new_log.open,
            self._disk,
            self._path(str(at)),
            settings,
            recovery_point=self.checkpoints.recovery_point(at),
            log_start_offset=self.checkpoints.log_start(at),
            note_read=self.options.progress.note_read,
            must_last=self.options.must_last,
            newest_epoch=newest_epoch,
        )

    def _note_refusal(self, path: str, error: DamagedLog) -> None:
        write_file_durably(self._disk, f"{path}/{REFUSED_FILE}", f"{error}\n".encode())

    def _last_epoch(self, path: str, end_offset: int) -> Epoch:
        """Return the leader epoch of the last record below `end_offset`, by the epoch file."""
        try:
            epochs = LeaderEpochCache.open(self._disk, path, has_file=was_flushed(self._disk, path))
        except CorruptCheckpoint:
            return NO_EPOCH
        return epochs.epoch_at(end_offset - 1) if end_offset > 0 else NO_EPOCH

    def reopen(self, at: TopicPartition, topic_id: TopicId, settings: LogSettings) -> Log:
        """Open a log that this process has closed cleanly."""
        log = self._new_log.open(
            self._disk,
            self._path(str(at)),
            settings,
            clean=True,
            log_start_offset=self.checkpoints.log_start(at),
            must_last=False,
        )
        log.epochs.before_first = partial(self._names.make_last, str(at), topic_id)
        return log

    def keep_name(self, at: TopicPartition, topic_id: TopicId) -> None:
        """Make it durable that a partition's log is here, even if it has no record yet.

        A start must distinguish it from a log of which only a copy is left. Raises StorageError.
        """
        with storage_errors(f"cannot make {self._path(str(at))}"):
            self._names.keep(str(at), topic_id)

    def delete(
        self,
        topic_partition: TopicPartition,
        log: Log,
        *,
        durably: bool = False,
        is_due: bool = True,
    ) -> Callable[[], None] | None:
        """Close the log and rename its directory; `remove_doomed` removes that.

        `durably`: a log of the old name may be created in another directory from now on. If it is
        not due, call the result before `remove_doomed`; None: there is no directory.
        """
        log.close(clean=False)
        self.checkpoints.forget(topic_partition)
        name, path = str(topic_partition), self._path(str(topic_partition))
        with storage_errors(f"cannot delete {path}"):
            if log.is_planned and not self._disk.exists(path):
                return None
            doomed = self._names.doom(name, is_due=is_due)
            if durably:
                self._disk.fsync_dir(self.path)
        self._unopened.discard(name)
        return partial(self._names.note_due, doomed)

    def remove_doomed(self) -> None:
        """Remove the directories of deleted logs: seconds of work if they hold much.

        The next start finds the directories that an error or a crash leaves.
        """
        # Otherwise a start would find a high watermark without a log, and report its records lost.
        self.checkpoints.write_deleted()
        with storage_errors(f"cannot delete in {self.path}"):
            self._names.remove_doomed()

    def set_aside_strays(self, assigned: Iterable[TopicPartition]) -> None:
        """Rename the logs of the last process that the metadata does not assign to this broker."""
        keep = {str(topic_partition) for topic_partition in assigned}
        with storage_errors(f"cannot set aside in {self.path}"):
            strays = sorted(self._unopened - keep)
            for name in strays:
                self._set_aside(name, "the metadata does not assign it to this broker")
            if strays:
                self._disk.fsync_dir(self.path)

    def space(self) -> tuple[int, int]:
        """Return the total and the free bytes of the disk."""
        with storage_errors(f"cannot look at {self.path}"):
            return self._disk.space(self.path)

    def finish(
        self,
        closed: Mapping[TopicPartition, Log],
        high_watermarks: Mapping[TopicPartition, Offset],
        broker_epoch: int,
        *,
        is_clean: bool,
    ) -> None:
        """Write the checkpoints of closed logs; leave the marker if all logs here are whole.

        is_clean: every open log was closed cleanly.
        """
        self.checkpoints.note_high_watermarks(high_watermarks)
        self.checkpoints.note_closed(closed)
        self.checkpoints.write_all()
        if is_clean and (self.was_clean or not self._unopened):
            with storage_errors(f"cannot mark {self.path} as clean"):
                self._marker.note_started()
                self._marker.leave(broker_epoch)

    def _path(self, name: str) -> str:
        return self._names.path_of(name)

    def _is_partition(self, name: str) -> bool:
        topic, dash, index = name.rpartition("-")
        return bool(dash) and index.isdecimal() and topic != METADATA_TOPIC

    def _set_aside(self, name: str, why: str, *, durably: bool = False) -> None:
        try:
            found = read_partition_metadata(self._disk, self._path(name))
        except CorruptCheckpoint:
            found = None  # it no longer belongs to this broker, whatever its topic
        mark = "unknown" if found is None else uuid_to_text(found.topic_id)
        stray = marked(name, f".{mark}{STRAY_SUFFIX}")
        _logger.warning("%s is set aside as %s: %s", self._path(name), stray, why)
        if self._disk.exists(self._path(stray)):
            self._names.remove_tree(stray)  # set aside before, and created again since
        self._disk.rename(self._path(name), self._path(stray))
        self._unopened.discard(name)
        if durably:
            self._disk.fsync_dir(self.path)
