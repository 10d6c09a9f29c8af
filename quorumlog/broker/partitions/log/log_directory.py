"""The logs in one log directory: opens, creates, sets aside, deletes and closes them.

A directory of another topic id than the metadata's is a stray: the topic was deleted, and perhaps
made again, while the broker was down. It is renamed, never served (KAFKA-14616).
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from quorumlog.broker.partitions.log.future_logs import FUTURE_SUFFIX, FutureLogs, marked
from quorumlog.broker.partitions.log.log_progress import LogProgress
from quorumlog.broker.partitions.log.offset_checkpoints import OffsetCheckpoints
from quorumlog.settings.servers import texts_of
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import CorruptCheckpoint, storage_error
from quorumlog.storage.io.checkpoints import (
    CleanShutdownMarker,
    read_partition_metadata,
    uuid_to_text,
    write_partition_metadata,
)
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.epoch_checkpoint import was_flushed
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.topic_names import METADATA_TOPIC

STRAY_SUFFIX: Final = "-stray"
DELETE_SUFFIX: Final = "-delete"

_logger: Final = logging.getLogger(__name__)


def log_settings(config: TopicConfig) -> LogSettings:
    """Return the settings of the logs of a topic."""
    return LogSettings(
        segment_bytes=config.segment_bytes,
        segment_ms=_segment_ms(config),
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        cleanup_policy=config.cleanup_policy,
        flush_messages=config.flush_messages,
        flush_ms=config.flush_ms,
    )


def _segment_ms(config: TopicConfig) -> int:
    """Return the age at which a segment ends: only full ones are compacted (KIP-354)."""
    if "compact" not in config.policies:
        return config.segment_ms
    return min(config.segment_ms, config.max_compaction_lag_ms)


class LogDirectory:
    """Everything in `directory` but other people's files.

    All methods wait for the disk, except where they say otherwise. Any thread may call them; one
    at a time for one partition. They raise StorageError for what the disk refuses.
    """

    def __init__(
        self, disk: Disk, directory: str, defaults: LogSettings, new_log: type[Log] = Log
    ) -> None:
        self.topic_defaults: Mapping[str, str] = texts_of(defaults)  # replaced while it runs
        self.must_last = False  # whether what is found in a log is made durable before it is used
        self.path: Final = directory
        self.directory_id = ""  # of its meta.properties
        self.checkpoints: Final = OffsetCheckpoints(disk, directory)
        self.clean_shutdown_epoch: int | None = None
        self.progress = LogProgress()  # directories of one broker share one
        self._disk: Final = disk
        self._new_log: Final = new_log
        self._marker: Final = CleanShutdownMarker(disk, directory)
        self._naming: Final = threading.Lock()  # two logs must not be renamed to one name
        self._unopened: Final[set[str]] = set()  # directories as the last process left them
        # Directories whose names may not be durable; each time that one is made is told apart.
        self._added: Final[dict[str, object]] = {}
        self._syncing: Final = threading.Lock()  # those names, for all that wait for it
        self._deletions = 0
        self._doomed: list[str] = []  # directories of deleted logs, under their new names
        self.futures: Final = FutureLogs(disk, directory, new_log, self)

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
            self._disk.mkdir(self.path)
            self.clean_shutdown_epoch = self._marker.take()
            names = self._disk.listdir(self.path)
            for name in names:
                if name.endswith(DELETE_SUFFIX):
                    self._doomed.append(name)
                elif self._is_partition(name):
                    self._unopened.add(name)
                    self._added[name] = object()
            self.checkpoints.read()
            self.futures.find(name for name in names if name.endswith(FUTURE_SUFFIX))
        except OSError as error:
            raise storage_error(f"cannot use {self.path}: {error}", error) from error

    @property
    def unopened(self) -> frozenset[str]:
        """The names of the logs that were found at the start and are not opened, or removed."""
        return frozenset(self._unopened)

    def holds(self, topic_partition: TopicPartition) -> bool:
        """Tell whether a log of this name was found at the start, and is as it was found."""
        return str(topic_partition) in self._unopened

    def topic_id_of(self, name: str) -> TopicId | None:
        """Return the topic id of what is in a log's directory, if there is one."""
        try:
            return self._topic_id_of(self._path(name))
        except OSError as error:
            raise storage_error(f"cannot use {self.path}: {error}", error) from error

    def settings_of(self, configs: Mapping[str, str]) -> LogSettings:
        """Return the settings of a log whose topic has these configurations. Asks no disk."""
        return log_settings(TopicConfig(configs, self.topic_defaults))

    def open(
        self, topic_partition: TopicPartition, topic_id: TopicId, configs: Mapping[str, str]
    ) -> tuple[Log, Offset]:
        """Open the log, or make it; return it with its checkpointed high watermark."""
        name, path = str(topic_partition), self._path(str(topic_partition))
        settings = self.settings_of(configs)
        try:
            is_new = not self._disk.exists(path)
            if not is_new and self._topic_id_of(path) != topic_id:
                self._set_aside(name)
                self._disk.fsync_dir(self.path)
                is_new = True
            if is_new:
                self.checkpoints.forget_older(topic_partition)
                self.add_name(name)
                write_partition_metadata(self._disk, path, topic_id, must_last=False)
            if self.must_last and not was_flushed(self._disk, path):
                self.make_last(name, topic_id)
            log = self._new_log.open(
                self._disk,
                path,
                settings,
                clean=is_new or (self.was_clean and name in self._unopened),
                recovery_point=self.checkpoints.recovery_point(topic_partition),
                log_start_offset=self.checkpoints.log_start(topic_partition),
                note_read=self.progress.note_read,
                must_last=self.must_last,
            )
            log.epochs.before_first = partial(self.make_last, name, topic_id)
        except OSError as error:
            raise storage_error(f"cannot open {path}: {error}", error) from error
        # Recovery may have cut the log, or a truncation just before the crash.
        self.checkpoints.note_truncated(topic_partition, log)
        self._unopened.discard(name)
        return log, self.checkpoints.high_watermark(topic_partition)

    def _topic_id_of(self, path: str) -> TopicId | None:
        """Return whose partition it is; None if that was lost, and no record had to last."""
        try:
            return read_partition_metadata(self._disk, path)
        except CorruptCheckpoint:
            if was_flushed(self._disk, path):
                raise
            return None  # power was lost before the first flush: see `make_last`

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
        log.epochs.before_first = partial(self.make_last, str(at), topic_id)
        return log

    def add_name(self, name: str) -> None:
        """Make a directory; its name is durable once `make_last` has returned. Raises OSError."""
        with self._naming:
            self._disk.add_dir(self._path(name))
            self._added[name] = object()

    def make_last(self, name: str, topic_id: TopicId) -> None:
        """Make durable whose log it is, before the first of its records is.

        The file is written anew: a failed fsync of the old one is not repeated. Logs that were
        made before share one fsync of their names. Raises OSError.
        """
        write_partition_metadata(self._disk, self._path(name), topic_id)
        with self._syncing:
            if name in self._added:
                with self._naming:
                    added = dict(self._added)
                self._disk.fsync_dir(self.path)
                with self._naming:
                    for known, made in added.items():
                        if self._added.get(known) is made:  # not made again meanwhile
                            del self._added[known]

    def delete(self, topic_partition: TopicPartition, log: Log, *, durably: bool = False) -> None:
        """Close the log and give its directory another name; `remove_doomed` removes that.

        `durably`: a log of the old name may be made in another directory from now on.
        """
        log.close(clean=False)
        self.checkpoints.forget(topic_partition)
        name, path = str(topic_partition), self._path(str(topic_partition))
        try:
            self.doom(name)
            if durably:
                self._disk.fsync_dir(self.path)
        except OSError as error:
            raise storage_error(f"cannot delete {path}: {error}", error) from error
        self._unopened.discard(name)

    def rename(self, name: str, new_name: str) -> None:
        """Give a directory another name, durably. Raises OSError."""
        with self._naming:
            self._disk.rename(self._path(name), self._path(new_name))
            self._added.pop(name, None)
        self._disk.fsync_dir(self.path)

    def doom(self, name: str) -> None:
        """Give a directory a name that no start takes up; `remove_doomed` removes it.

        Raises OSError.
        """
        with self._naming:
            plain = name.removesuffix(FUTURE_SUFFIX)
            doomed = self._name_for_deletion(plain if plain == name else plain.rpartition(".")[0])
            self._disk.rename(self._path(name), self._path(doomed))
            self._doomed.append(doomed)

    def _name_for_deletion(self, partition: str) -> str:
        while True:
            self._deletions += 1
            name = marked(partition, f".{self._deletions}{DELETE_SUFFIX}")
            if not self._disk.exists(self._path(name)):  # left by the process before this one
                return name

    def remove_doomed(self) -> None:
        """Remove the directories of deleted logs: seconds of work if they hold much.

        What an error or a crash leaves, the next start finds.
        """
        with self._naming:
            doomed, self._doomed = self._doomed, []
        if not doomed:
            return
        try:
            # Their new names first: a crash must not leave a part of a log under its own name.
            self._disk.fsync_dir(self.path)
            for name in doomed:
                self._remove_tree(name)
        except OSError as error:
            raise storage_error(f"cannot delete in {self.path}: {error}", error) from error

    def set_aside_strays(self, assigned: Iterable[TopicPartition]) -> None:
        """Rename what the last process left and the metadata does not assign to this broker."""
        keep = {str(topic_partition) for topic_partition in assigned}
        try:
            strays = sorted(self._unopened - keep)
            for name in strays:
                self._set_aside(name)
            if strays:
                self._disk.fsync_dir(self.path)
        except OSError as error:
            raise storage_error(f"cannot set aside in {self.path}: {error}", error) from error

    def space(self) -> tuple[int, int]:
        """Return the bytes of the disk, and those that are free for us."""
        try:
            return self._disk.space(self.path)
        except OSError as error:
            raise storage_error(f"cannot look at {self.path}: {error}", error) from error

    def finish(
        self,
        closed: Mapping[TopicPartition, Log],
        high_watermarks: Mapping[TopicPartition, Offset],
        broker_epoch: int,
        *,
        is_clean: bool,
    ) -> None:
        """Write the checkpoints of logs that are closed; leave the marker if all here is whole.

        is_clean: every log that was open is closed cleanly.
        """
        self.checkpoints.note_high_watermarks(high_watermarks)
        self.checkpoints.note_closed(closed)
        self.checkpoints.write_all()
        if is_clean and (self.was_clean or not self._unopened):
            try:
                self._marker.note_started()
                self._marker.leave(broker_epoch)
            except OSError as error:
                raise storage_error(f"cannot mark {self.path} as clean: {error}", error) from error

    def _path(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _is_partition(self, name: str) -> bool:
        topic, dash, index = name.rpartition("-")
        return bool(dash) and index.isdecimal() and topic != METADATA_TOPIC

    def _set_aside(self, name: str) -> None:
        try:
            topic_id = read_partition_metadata(self._disk, self._path(name))
        except CorruptCheckpoint:
            topic_id = None  # it is not this broker's any more, whatever it was
        mark = "unknown" if topic_id is None else uuid_to_text(topic_id)
        stray = marked(name, f".{mark}{STRAY_SUFFIX}")
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
