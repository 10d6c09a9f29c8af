"""The log directories of a broker: which log is where, and which of them still work.

Each has its own checkpoints, its own mark of a clean shutdown and its own logs. What one disk
refuses concerns that directory only: KIP-112. Where a log goes: `core/placement.py`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.placement import Candidate, NoPlace, place
from quorumlog.broker.partitions.log.directory_checkpoints import (
    DirectoryCheckpoints,
    DirectoryRefused,
)
from quorumlog.broker.partitions.log.future_logs import FutureKey
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.log_progress import LogProgress
from quorumlog.broker.partitions.log.preferred_directories import PreferredDirectories
from quorumlog.broker.partitions.log.registrations import BrokerProcess
from quorumlog.invariants import require, some
from quorumlog.metadata_quorum.controller_client import DirectoryReport
from quorumlog.metadata_quorum.image import LOST
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import CorruptCheckpoint, DiskExhausted, StorageError, storage_error
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition

Fail = Callable[[StorageError], list[TopicPartition]]
_logger: Final = logging.getLogger(__name__)


class StrayWork(NamedTuple):
    """Work for the disk: to set aside the strays of one directory; and what to do if it fails."""

    work: Callable[[], None]
    fail: Fail


class LogDirectories:
    """All the directories of a broker; at least one works.

    Invariants:
      1. A partition has one home at a time. It changes once its log there is removed, or a copy
         of it has taken its place: `move`.
      2. A directory that has failed stays offline until the next start.

    It belongs to the event loop's thread, but for the methods that wait for the disk.
    `refused`: the paths of those that could not be used at all, so that their ids are not known.
    `process`: it registers next, and the directories name it; None: it does not register.
    """

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        refused: Sequence[str] = (),
        process: BrokerProcess | None = None,
    ) -> None:
        require(len(directories) > 0, "a broker has a log directory")
        self.online: Final = list(directories)
        self.refused: Final = list(refused)
        self._process: Final = process
        self.failed: Final[list[LogDirectory]] = []
        self.last_has_failed = False
        self._started: Final[list[LogDirectory]] = []
        self._unclean: Final[list[LogDirectory | None]] = []
        self._unmarked: Final[list[LogDirectory]] = []  # failed, and the disk does not say so
        self.progress: Final = LogProgress()
        self.preferred: Final = PreferredDirectories()
        self._announced: Final[dict[TopicPartition, LogDirectory]] = {}
        self._lost: Final[set[TopicPartition]] = set()  # not where the metadata has them
        self._homes: Final[dict[TopicPartition, LogDirectory]] = {}
        self._counts: Final = Counter[LogDirectory]()
        self._topic_ids: Final[dict[tuple[LogDirectory, str], TopicId | None]] = {}  # of doubles
        for directory in directories:
            directory.progress = self.progress
        self.checkpoints: Final = DirectoryCheckpoints(self.online, self._homes)

    @classmethod
    def single(
        cls, disk: Disk, path: str, defaults: LogSettings, new_log: type[Log] = Log
    ) -> "LogDirectories":
        """Return a broker's only directory."""
        return cls([LogDirectory(disk, path, defaults, new_log)])

    @property
    def topic_defaults(self) -> Mapping[str, str]:
        """What holds for topics that do not say; replaced while the broker runs."""
        return self.online[0].topic_defaults

    @topic_defaults.setter
    def topic_defaults(self, defaults: Mapping[str, str]) -> None:
        for directory in self.online:
            directory.topic_defaults = defaults

    @property
    def must_last(self) -> bool:
        """Whether what is found in a log is made durable before it is used."""
        return self.online[0].must_last

    @must_last.setter
    def must_last(self, must_last: bool) -> None:
        for directory in self.online:
            directory.must_last = must_last

    def settings_of(self, configs: Mapping[str, str]) -> LogSettings:
        """Return the settings of a log whose topic has these configurations. Asks no disk."""
        return self.online[0].settings_of(configs)

    @property
    def are_several(self) -> bool:
        """Whether the broker was given more than one directory."""
        return len(self.online) + len(self.failed) + len(self.refused) > 1

    @property
    def has_offline(self) -> bool:
        """Whether one of them cannot be used."""
        return bool(self.failed or self.refused)

    @property
    def paths(self) -> str:
        """The directories that work, for a message."""
        return ", ".join(directory.path for directory in self.online)

    @property
    def clean_shutdown_epoch(self) -> int | None:
        """The broker epoch of the last clean shutdown (-1: not known); None: one was not clean."""
        epochs = {directory.clean_shutdown_epoch for directory in self.online}
        if len(epochs) == 1:
            return epochs.pop()
        return None if None in epochs else -1

    def report(self) -> DirectoryReport:
        """Return which of them work, for the controller."""
        if not self.are_several:
            return DirectoryReport(has_failed=self.last_has_failed)
        return DirectoryReport(
            online=tuple(directory.directory_id for directory in self.online),
            offline=tuple(directory.directory_id for directory in self.failed),
            has_offline=self.has_offline,
            has_failed=self.last_has_failed,
        )

    @property
    def incarnations(self) -> dict[str, tuple[str, ...]]:
        """Of which processes' registrations each directory is, as it was found: see the file."""
        return {one.directory_id: one.registrations.incarnations for one in self.online}

    # --- Life ---

    def start(self) -> None:
        """Start every directory: see `LogDirectory.start`. Waits for the disk.

        One that the disk refuses is offline if another one works. Raises StorageError; after
        DiskExhausted they may be started again: one that is full has not failed.
        """
        for directory in [one for one in self.online if one not in self._started]:
            try:
                directory.start(self._process)
                self._started.append(directory)
            except (CorruptCheckpoint, DiskExhausted):
                raise
            except StorageError as error:
                self.fail(directory, error)
                if self.last_has_failed:
                    raise
        names = Counter(name for directory in self.online for name in directory.unopened)
        doubles = {name for name, count in names.items() if count > 1}
        for directory in self.online:
            for name in directory.unopened & doubles:
                self._topic_ids[directory, name] = directory.topic_id_of(name)

    def fail(self, directory: LogDirectory, error: StorageError) -> list[TopicPartition]:
        """Take a directory offline; return the partitions whose logs are in it.

        The last one stays: `last_has_failed`.
        """
        if directory in self.failed:
            return []
        self._unmarked.append(directory)
        if len(self.online) == 1:
            self.last_has_failed = True
            return []
        _logger.error(
            "the log directory %s is offline until the next start: %s", directory.path, error
        )
        self.online.remove(directory)
        self.failed.append(directory)
        return [at for at, home in self._homes.items() if home is directory]

    def mark_failed(self) -> None:
        """Let the next start know which directories have failed, so far as the disk takes it.

        Waits for the disk. One that takes nothing any more is known to the controller alone.
        """
        while self._unmarked:
            directory = self._unmarked.pop()
            try:
                directory.registrations.note_failure()
            except OSError as error:
                _logger.warning("cannot note in %s that it has failed: %s", directory.path, error)

    def confirm_registrations(self) -> None:
        """Note that this process is registered, and its logs are open. Waits for the disk.

        Raises StorageError: the next start names this process and the one before.
        """
        for directory in [*self.online]:
            try:
                directory.checkpoints.note_all_open()
                directory.registrations.confirm()
            except OSError as error:
                raise storage_error(f"cannot use {directory.path}: {error}", error) from error

    def fail_home_of(self, at: TopicPartition, error: StorageError) -> list[TopicPartition]:
        """Take offline where the log of a partition is: see `fail`."""
        home = self._homes.get(at)
        return [] if home is None else self.fail(home, error)

    def note_unclean(self, at: TopicPartition) -> None:
        """Note that a log was not closed cleanly, in a directory that may have nothing but that."""
        self._unclean.append(self._homes.get(at))

    def fail_refusing(self, error: StorageError) -> list[TopicPartition] | None:
        """Take the directory offline that has refused its checkpoints; None if none is given up.

        One that is full is tried again, and so is the last one.
        """
        if not isinstance(error, DirectoryRefused) or len(self.online) == 1:
            return None
        directory = next((one for one in self.online if one.path == error.path), None)
        return None if directory is None else self.fail(directory, error)

    def finish(
        self,
        closed: Mapping[TopicPartition, Log],
        high_watermarks: Mapping[TopicPartition, Offset],
        broker_epoch: int,
        *,
        unclean: Iterable[LogDirectory | None],
    ) -> None:
        """Finish every directory: see `LogDirectory.finish`. Waits for the disk.

        `unclean`: where a log was not closed cleanly. What one directory refuses does not keep the
        others from being finished. Raises StorageError.
        """
        are_unclean = {*unclean, *self.failed, *self._unclean}
        refusal: StorageError | None = None
        for directory in self.online:
            logs = {at: log for at, log in closed.items() if self._homes.get(at) is directory}
            known = {at: high_watermarks[at] for at in high_watermarks.keys() & logs.keys()}
            try:
                directory.finish(logs, known, broker_epoch, is_clean=directory not in are_unclean)
            except StorageError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    # --- Where logs are ---

    def place(
        self,
        at: TopicPartition,
        topic_id: TopicId,
        assigned: str | None,
        *,
        is_new: bool,
    ) -> LogDirectory | None:
        """Say where a log is to be opened, or made: that is its home from now on.

        None if that cannot be known now; the log of the node says why.
        """
        home = self._homes.get(at)
        if home is not None:
            return home if home in self.online else None
        home = self.online[0]
        if self.are_several:
            key = FutureKey(topic_id, at.partition)
            candidates = [
                Candidate(
                    one.directory_id,
                    self._counts[one],
                    holds_log=self._holds(one, at, topic_id),
                    holds_future=one.futures.is_found(key),
                )
                for one in self.online
            ]
            chosen = place(
                candidates,
                assigned,
                has_offline=self.has_offline,
                is_new=is_new,
                preferred=self.preferred.of(at),
            )
            if isinstance(chosen, NoPlace):
                both = zip(self.online, candidates, strict=True)
                paths = [one.path for one, its in both if its.holds_log]
                _logger.error("%s is offline: %s: %s", at, chosen.value, " ".join(paths))
                if any(one.directory_id == assigned for one in self.online):
                    self._lost.add(at)
                return None
            home = self.online[chosen]
        self.preferred.forget(at)
        self._homes[at] = home
        self._counts[home] += 1
        return home

    def is_doubled(self, at: TopicPartition, topic_id: TopicId) -> bool:
        """Whether several directories hold this log, and the metadata has to tell which counts.

        A crash between the two renames of a move leaves it so. The metadata of before the crash
        names the new one; older metadata may name the one that got no more records.
        """
        is_placed = at in self._homes
        return not is_placed and sum(self._holds(one, at, topic_id) for one in self.online) > 1

    def _holds(self, directory: LogDirectory, at: TopicPartition, topic_id: TopicId) -> bool:
        found_id = self._topic_ids.get((directory, str(at)), topic_id)
        return directory.holds(at) and found_id == topic_id

    def home_of(self, at: TopicPartition) -> LogDirectory | None:
        """Return where the log of a partition is, or was before its directory failed."""
        return self._homes.get(at)

    def at_path(self, path: str) -> LogDirectory | None:
        """Return the directory of this path, if it works; another path may lead to it, too."""
        wanted = Path(path).absolute()
        return next((one for one in self.online if Path(one.path).absolute() == wanted), None)

    def is_offline(self, path: str) -> bool:
        """Whether this is the path of a directory that cannot be used."""
        paths = (*(one.path for one in self.failed), *self.refused)
        return Path(path).absolute() in {Path(one).absolute() for one in paths}

    def announce(self, at: TopicPartition, directory: LogDirectory | None) -> None:
        """Let the controller know that a log is about to be in another directory; None: it stays.

        ReplicaDirectories has to look at it then.
        """
        if directory is None:
            self._announced.pop(at, None)
        else:
            self._announced[at] = directory

    def reported(self, at: TopicPartition) -> str | None:
        """Return the id of the directory that the metadata should show; None: none is known."""
        directory = self._announced.get(at) or self._homes.get(at)
        if directory is not None:
            return directory.directory_id
        return LOST if at in self._lost else None

    def move(self, at: TopicPartition, directory: LogDirectory) -> None:
        """Take note that the log is in another directory now."""
        self._counts[self._homes[at]] -= 1
        self._counts[directory] += 1
        self._homes[at] = directory
        self.announce(at, None)

    def leave(self, at: TopicPartition) -> LogDirectory | None:
        """Forget where a log is: it is about to be removed. Return where that was."""
        self._lost.discard(at)
        self.announce(at, None)
        home = self._homes.pop(at, None)
        if home is not None:
            self._counts[home] -= 1
        return home

    def deletion(self, at: TopicPartition, log: Callable[[], Log]) -> Callable[[], None]:
        """Return work for the disk: to delete a log. It has no home from now on.

        `log` is asked when the work is done: a move to another directory may end before.
        """
        some(self.leave(at), "a log that is open has a home")

        def work() -> None:
            doomed = log()
            parent = doomed.directory.rpartition("/")[0]
            home = next(one for one in (*self.online, *self.failed) if one.path == parent)
            home.delete(at, doomed, durably=self.are_several)

        return work

    def stray_work(self, assigned: Collection[TopicPartition]) -> list[StrayWork]:
        """Return work for the disk: to rename what the metadata does not assign to this broker.

        And what is in another directory than the metadata, or the disk, has it.
        """
        return [
            StrayWork(
                partial(
                    directory.set_aside_strays,
                    {at for at in assigned if self._homes.get(at) in {None, directory}},
                ),
                partial(self.fail, directory),
            )
            for directory in self.online
        ]

    def remove_doomed(self) -> None:
        """Remove the directories of deleted logs. Waits for the disk. Raises StorageError.

        What one directory refuses does not keep others from being cleared.
        """
        refusal: StorageError | None = None
        for directory in [*self.online]:
            try:
                directory.remove_doomed()
            except StorageError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
