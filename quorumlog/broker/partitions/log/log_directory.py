"""The logs in one log directory: opens, creates, sets aside, deletes; keeps the checkpoints.

A directory of another topic id than the metadata's is a stray: the topic was deleted, and perhaps
made again, while we were down. It is renamed, never served (KAFKA-14616).
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Final

from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    CleanShutdownMarker,
    read_offset_checkpoint,
    read_partition_metadata,
    uuid_to_text,
    write_offset_checkpoint,
    write_partition_metadata,
)
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.topic_names import METADATA_TOPIC

STRAY_SUFFIX: Final = "-stray"
DELETE_SUFFIX: Final = "-delete"
REMOVED_AT_ONCE: Final = 8
NAME_BYTES_MAX: Final = 255  # of a directory; a topic's name alone may have 249

_logger: Final = logging.getLogger(__name__)


def topic_log_settings(defaults: LogSettings, configs: Mapping[str, str]) -> LogSettings:
    """Return the broker's settings with what the topic's configs say of them."""
    known = {field.name: type(getattr(defaults, field.name)) for field in fields(defaults)}
    changed = {
        name.replace(".", "_"): text
        for name, text in configs.items()
        if name.replace(".", "_") in known
    }
    return replace(defaults, **{name: known[name](text) for name, text in changed.items()})


def _marked(partition: str, mark: str) -> str:
    """Return the directory name with a mark behind it, the topic's part cut if it is too long."""
    topic, dash, index = partition.rpartition("-")
    tail = f"{dash}{index}{mark}"
    return topic[: NAME_BYTES_MAX - len(tail)] + tail


class LogDirectory:
    """Everything in `directory` but other people's files. All methods are synchronous.

    One thread calls everything, but for `write_high_watermarks`, `write_log_starts`,
    `make_directory` and `close`: others may. Raises StorageError for what the disk refuses.
    """

    def __init__(self, disk: Disk, directory: str, log_settings: LogSettings) -> None:
        self.cleanup_policy: Final = log_settings.cleanup_policy  # of topics that name none
        self._disk: Final = disk
        self._directory: Final = directory
        self._log_settings: Final = log_settings
        self._marker: Final = CleanShutdownMarker(disk, directory)
        self._writing: Final = threading.Lock()  # a checkpoint: two writers would share its draft
        self._unopened: set[str] = set()  # directories as the last process left them
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self._recovery_points: dict[TopicPartition, Offset] = {}
        self._log_starts: dict[TopicPartition, Offset] = {}  # of logs whose start has moved
        self._deleted: set[TopicPartition] = set()  # the checkpoints on disk may still name them
        self._deletions = 0
        self._doomed: list[str] = []  # directories that nobody uses any more, under their new names
        self.clean_shutdown_epoch: int | None = None

    @property
    def directory(self) -> str:
        """Where the logs are."""
        return self._directory

    @property
    def was_clean(self) -> bool:
        """Whether the process before this one closed every log."""
        return self.clean_shutdown_epoch is not None

    def start(self) -> None:
        """Read the checkpoints, find what is to be removed, take away the clean shutdown marker.

        `clean_shutdown_epoch` is then the broker epoch of a clean shutdown (-1: not known), or
        None.
        """
        try:
            self._disk.mkdir(self._directory)
            self.clean_shutdown_epoch = self._marker.take()
            for name in self._disk.listdir(self._directory):
                if name.endswith(DELETE_SUFFIX):
                    self._doomed.append(name)
                elif self._is_partition(name):
                    self._unopened.add(name)
            self._high_watermarks = read_offset_checkpoint(
                self._disk, self._directory, REPLICATION_FILE
            )
            self._recovery_points = read_offset_checkpoint(
                self._disk, self._directory, RECOVERY_POINT_FILE
            )
            self._log_starts = read_offset_checkpoint(self._disk, self._directory, LOG_START_FILE)
        except OSError as error:
            raise StorageError(f"cannot use {self._directory}: {error}") from error

    def without_directory(
        self, wanted: Iterable[tuple[TopicPartition, TopicId]]
    ) -> list[tuple[TopicPartition, TopicId]]:
        """Return those that `make_directory` may be called for; of older logs nothing is known."""
        new = [
            (at, topic_id) for at, topic_id in wanted if not self._disk.exists(self._path(str(at)))
        ]
        for topic_partition, _ in new:
            self._forget_older(topic_partition)
        return new

    def make_directory(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Do the slow part of `open` ahead of it; nobody may open the log meanwhile."""
        path = self._path(str(topic_partition))
        try:
            self._make(path, topic_id)
        except OSError as error:
            raise StorageError(f"cannot make {path}: {error}") from error

    def _make(self, path: str, topic_id: TopicId) -> None:
        self._disk.mkdir(path)
        write_partition_metadata(self._disk, path, topic_id)

    def settings_of(self, configs: Mapping[str, str]) -> LogSettings:
        """Return the settings of a log whose topic has these configurations."""
        return topic_log_settings(self._log_settings, configs)

    def open(
        self, topic_partition: TopicPartition, topic_id: TopicId, configs: Mapping[str, str]
    ) -> tuple[Log, Offset]:
        """Open the log, or make it; return it with its checkpointed high watermark."""
        name, path = str(topic_partition), self._path(str(topic_partition))
        settings = self.settings_of(configs)
        try:
            if self._disk.exists(path) and read_partition_metadata(self._disk, path) != topic_id:
                self._set_aside(name)
                self._disk.fsync_dir(self._directory)
            is_new = not self._disk.exists(path)
            if is_new:
                self._forget_older(topic_partition)
                self._make(path, topic_id)
            log = Log.open(
                self._disk,
                path,
                settings,
                clean=is_new or (self.was_clean and name in self._unopened),
                recovery_point=self._recovery_points.get(topic_partition, Offset(0)),
                log_start_offset=self._log_starts.get(topic_partition),
            )
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error}") from error
        self.note_truncated(topic_partition, log)  # by recovery, or just before the crash
        self._unopened.discard(name)
        return log, self._high_watermarks.get(topic_partition, Offset(0))

    def delete(self, topic_partition: TopicPartition, log: Log) -> None:
        """Close the log and give its directory another name; `remove_some` removes that."""
        log.close(clean=False)
        self._discard(topic_partition)

    def abandon(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Do as `delete` does with a log that was to be opened, if it has a directory."""
        path = self._path(str(topic_partition))
        try:
            is_there = self._disk.exists(path)
            if is_there and read_partition_metadata(self._disk, path) == topic_id:
                self._discard(topic_partition)
        except OSError as error:
            raise StorageError(f"cannot delete {path}: {error}") from error

    def _discard(self, topic_partition: TopicPartition) -> None:
        self._high_watermarks.pop(topic_partition, None)
        self._recovery_points.pop(topic_partition, None)
        self._log_starts.pop(topic_partition, None)
        self._deleted.add(topic_partition)
        name, path = str(topic_partition), self._path(str(topic_partition))
        try:
            doomed = self._name_for_deletion(topic_partition)
            self._disk.rename(path, self._path(doomed))
        except OSError as error:
            raise StorageError(f"cannot delete {path}: {error}") from error
        self._unopened.discard(name)
        self._doomed.append(doomed)

    def _name_for_deletion(self, topic_partition: TopicPartition) -> str:
        while True:
            self._deletions += 1
            name = _marked(str(topic_partition), f".{self._deletions}{DELETE_SUFFIX}")
            if not self._disk.exists(self._path(name)):  # left by the process before this one
                return name

    @property
    def is_removing(self) -> bool:
        """Whether there is something for `remove_some`."""
        return bool(self._doomed)

    def remove_some(self) -> None:
        """Remove the next few directories of deleted logs; of many, there are seconds of work.

        `start` finds those that are left, by a crash or an error.
        """
        if not self._doomed:
            return
        few = self._doomed[:REMOVED_AT_ONCE]
        del self._doomed[: len(few)]
        try:
            # Their new names first: a crash must not leave a part of a log under its own name.
            self._disk.fsync_dir(self._directory)
            for name in few:
                self._remove_tree(name)
        except OSError as error:
            raise StorageError(f"cannot delete in {self._directory}: {error}") from error

    def set_aside_strays(self, assigned: Iterable[TopicPartition]) -> None:
        """Rename what the last process left and the metadata does not assign to us."""
        keep = {str(topic_partition) for topic_partition in assigned}
        try:
            strays = sorted(self._unopened - keep)
            for name in strays:
                self._set_aside(name)
            if strays:
                self._disk.fsync_dir(self._directory)
        except OSError as error:
            raise StorageError(f"cannot set aside in {self._directory}: {error}") from error

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """Make the high watermarks durable; those of logs that are not open yet are kept."""
        self.note_high_watermarks(high_watermarks)
        self.write_high_watermarks()

    def note_high_watermarks(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """Take them over, for `write_high_watermarks`."""
        self._high_watermarks.update(high_watermarks)

    def write_high_watermarks(self) -> None:
        """Make durable what is known by the time it is written: a log may be deleted meanwhile."""
        self._write(REPLICATION_FILE, self._high_watermarks)

    def checkpoint_recovery_points(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Make durable up to where each log is: a recovery reads on from there."""
        self._recovery_points.update({at: log.flushed_offset for at, log in logs.items()})
        self._write(RECOVERY_POINT_FILE, self._recovery_points)

    def note_log_starts(self, log_starts: Mapping[TopicPartition, Offset]) -> None:
        """Take over where logs start now, for `write_log_starts`."""
        self._log_starts.update(log_starts)

    def write_log_starts(self) -> None:
        """Make durable what is known by the time it is written: a log may be deleted meanwhile."""
        self._write(LOG_START_FILE, self._log_starts)

    def space(self) -> tuple[int, int]:
        """Return the bytes of the disk, and those that are free for us. Any thread may ask."""
        try:
            return self._disk.space(self._directory)
        except OSError as error:
            raise StorageError(f"cannot look at {self._directory}: {error}") from error

    def note_truncated(self, topic_partition: TopicPartition, log: Log) -> None:
        """Take back what lies beyond the log's end or start, before anything is appended there."""
        if self._recovery_points.get(topic_partition, Offset(0)) > log.log_end_offset:
            self.checkpoint_recovery_points({topic_partition: log})
        if self._log_starts.get(topic_partition, Offset(0)) > log.log_start_offset:
            self._log_starts[topic_partition] = log.log_start_offset
            self.write_log_starts()

    def close(
        self,
        logs: Mapping[TopicPartition, Log],
        high_watermarks: Mapping[TopicPartition, Offset],
        broker_epoch: int,
    ) -> None:
        """Flush and close every log; leave the marker if all that is here is whole."""
        is_clean = True
        for topic_partition, log in logs.items():
            try:
                log.close(clean=True)
            except StorageError:
                _logger.exception("%s is not closed cleanly", topic_partition)
                is_clean = False
        self.checkpoint(high_watermarks)
        self.checkpoint_recovery_points(logs)
        self._keep_log_starts(logs)
        if is_clean and (self.was_clean or not self._unopened):
            try:
                self._marker.note_started()
                self._marker.leave(broker_epoch)
            except OSError as error:
                raise StorageError(f"cannot mark {self._directory} as clean: {error}") from error

    def _keep_log_starts(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Write those that have moved since the last time."""
        moved = {
            at: log.log_start_offset
            for at, log in logs.items()
            if log.log_start_offset > self._log_starts.get(at, log.segment_base_offsets[0])
        }
        if moved:
            self.note_log_starts(moved)
            self.write_log_starts()

    def _forget_older(self, topic_partition: TopicPartition) -> None:
        """Take back, durably, what was said of an older log of this name: it is not the new one."""
        high_watermark = self._high_watermarks.pop(topic_partition, None)
        recovery_point = self._recovery_points.pop(topic_partition, None)
        log_start = self._log_starts.pop(topic_partition, None)
        known = (high_watermark, recovery_point, log_start)
        if known != (None, None, None) or topic_partition in self._deleted:
            self.checkpoint({})
            self.checkpoint_recovery_points({})
            self.write_log_starts()
            self._deleted.clear()

    def _write(self, file_name: str, offsets: dict[TopicPartition, Offset]) -> None:
        try:
            with self._writing:
                # In one step: the other thread may change it while it is written.
                write_offset_checkpoint(self._disk, self._directory, file_name, dict(offsets))
        except OSError as error:
            raise StorageError(f"cannot checkpoint in {self._directory}: {error}") from error

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _is_partition(self, name: str) -> bool:
        topic, dash, index = name.rpartition("-")
        return bool(dash) and index.isdecimal() and topic != METADATA_TOPIC

    def _set_aside(self, name: str) -> None:
        topic_id = read_partition_metadata(self._disk, self._path(name))
        mark = "unknown" if topic_id is None else uuid_to_text(topic_id)
        stray = _marked(name, f".{mark}{STRAY_SUFFIX}")
        _logger.warning("%s is of topic id %s, not the metadata's: now %s", name, mark, stray)
        if self._disk.exists(self._path(stray)):
            self._remove_tree(stray)  # set aside once before, and made again since
        self._disk.rename(self._path(name), self._path(stray))
        self._unopened.discard(name)

    def _remove_tree(self, name: str) -> None:
        path = self._path(name)
        for file_name in self._disk.listdir(path):
            self._disk.unlink(f"{path}/{file_name}")
        self._disk.rmdir(path)
