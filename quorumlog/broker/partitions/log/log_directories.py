"""The log directories of a broker: the directory of each log, and which directories work.

Each has its own checkpoints, its own clean shutdown marker and its own logs. A disk error affects
one directory only: KIP-112. The rules for the place of a log: `core/placement.py`.
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
from quorumlog.broker.partitions.log.registrations import BrokerProcess
from quorumlog.invariants import require, some
from quorumlog.metadata_quorum.controller_client import DirectoryReport
from quorumlog.metadata_quorum.image import LOST
from quorumlog.storage.errors import CorruptCheckpoint, DiskExhausted, StorageError, storage_errors
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition

PREFERENCES_MAX: Final = 10_000  # a client may name any partition: the oldest entry is dropped


class PreferredDirectories:
    """Directory ids by partition, in memory only, as in Kafka.

    # DEVIATION: Kafka remembers any number of partitions.
    # docs/decisions/0018-replica-moves.md
    """

    def __init__(self) -> None:
        self._wanted: Final[dict[TopicPartition, str]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def prefer(self, at: TopicPartition, directory_id: str) -> None:
        """Record the directory in which a log is to be created."""
        self._wanted.pop(at, None)
        self._wanted[at] = directory_id
        if len(self._wanted) > PREFERENCES_MAX:
            del self._wanted[next(iter(self._wanted))]

    def of(self, at: TopicPartition) -> str | None:
        """Return the directory in which a log is to be created; None: any."""
        return self._wanted.get(at)

    def forget(self, at: TopicPartition) -> None:
        """Drop the entry of a log that has been created."""
        self._wanted.pop(at, None)


Fail = Callable[[StorageError], list[TopicPartition]]
_logger: Final = logging.getLogger(__name__)


class StrayWork(NamedTuple):
    """Disk work that sets aside the strays of one directory, and the handler of its failure."""

    work: Callable[[], None]
    fail: Fail


class LogDirectories:
    """All directories of a broker; at least one works.

    Invariants:
      1. A partition has one home at a time. It changes once its log there is removed, or a copy
         has replaced the log: `move`.
      2. A failed directory stays offline until the next start.

    It belongs to the event loop's thread, except the methods that wait for the disk.
    `refused`: the paths of directories that could not be used at all; their ids are unknown.
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
        self._unmarked: Final[list[LogDirectory]] = []  # failed, and not yet marked so on disk
        self.options: Final = directories[0].options
        self.progress: Final = self.options.progress
        self.preferred: Final = PreferredDirectories()
        self._announced: Final[dict[TopicPartition, LogDirectory]] = {}
        self._lost: Final[set[TopicPartition]] = set()  # not in the directory of the metadata
        self._homes: Final[dict[TopicPartition, LogDirectory]] = {}
        self._counts: Final = Counter[LogDirectory]()
        self._topic_ids: Final[dict[tuple[LogDirectory, str], TopicId | None]] = {}  # of doubles
        for directory in directories:
            directory.options = self.options
        self.checkpoints: Final = DirectoryCheckpoints(self.online, self._homes)

    @property
    def are_several(self) -> bool:
        """Whether the broker was given more than one directory."""
        return len(self.online) + len(self.failed) + len(self.refused) > 1

    @property
    def has_offline(self) -> bool:
        """Whether a directory is offline."""
        return bool(self.failed or self.refused)

    @property
    def paths(self) -> str:
        """The paths of the working directories, for a message."""
        return ", ".join(directory.path for directory in self.online)

    @property
    def clean_shutdown_epoch(self) -> int | None:
        """The broker epoch of the last clean shutdown (-1: unknown); None: it was not clean."""
        epochs = {directory.clean_shutdown_epoch for directory in self.online}
        if len(epochs) == 1:
            return epochs.pop()
        return None if None in epochs else -1

    def report(self) -> DirectoryReport:
        """Return which directories work, for the controller."""
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
        """The processes that each directory named when it was started: see `registrations.py`."""
        return {one.directory_id: one.registrations.incarnations for one in self.online}

    # --- Life cycle ---

    def start(self) -> None:
        """Start every directory: see `LogDirectory.start`. Waits for the disk.

        A directory with a disk error is offline if another one works. Raises StorageError; after
        DiskExhausted they may be started again: a full directory has not failed.
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

        The last working directory stays: `last_has_failed`.
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
        """Mark failed directories for the next start, if their disks still accept writes.

        Waits for the disk. Only the controller records the failure of an unmarked directory.
        """
        while self._unmarked:
            directory = self._unmarked.pop()
            try:
                directory.registrations.note_failure()
            except OSError as error:
                _logger.warning("cannot note in %s that it has failed: %s", directory.path, error)

    def confirm_registrations(self) -> None:
        """Record that this process is registered, and its logs are open. Waits for the disk.

        Raises StorageError: then the files still name this process and the one before.
        """
        for directory in [*self.online]:
            with storage_errors(f"cannot use {directory.path}"):
                directory.checkpoints.note_all_open()
                directory.registrations.confirm()

    def fail_home_of(self, at: TopicPartition, error: StorageError) -> list[TopicPartition]:
        """Take the directory of a partition's log offline: see `fail`."""
        home = self._homes.get(at)
        return [] if home is None else self.fail(home, error)

    def note_unclean(self, at: TopicPartition) -> None:
        """Record a log that was not closed cleanly, though its directory may be fine."""
        self._unclean.append(self._homes.get(at))

    def fail_refusing(self, error: StorageError) -> list[TopicPartition] | None:
        """Take the directory that refused its checkpoints offline; None if all stay online.

        A full directory is tried again, and so is the last one.
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

        `unclean`: directories in which a log was not closed cleanly. An error in one directory does
        not keep the others from being finished. Raises StorageError.
        """
        are_unclean = {*unclean, *self.failed, *self._unclean}

        def finish(directory: LogDirectory) -> None:
            logs = {at: log for at, log in closed.items() if self._homes.get(at) is directory}
            known = {at: high_watermarks[at] for at in high_watermarks.keys() & logs.keys()}
            directory.finish(logs, known, broker_epoch, is_clean=directory not in are_unclean)

        self._in_each(finish)

    # --- The homes of logs ---

    def place(
        self, at: TopicPartition, topic_id: TopicId, assigned: str | None, *, is_new: bool
    ) -> LogDirectory | None:
        """Choose the directory in which to open or create a log: its home from now on.

        None if it cannot be determined now; the node's log has the reason.
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
        """Whether several directories hold this log, so that the metadata must decide.

        A crash between the two renames of a move causes this. The metadata from before the crash
        names the new directory; older metadata may name a directory whose log is out of date.
        """
        is_placed = at in self._homes
        return not is_placed and sum(self._holds(one, at, topic_id) for one in self.online) > 1

    def _holds(self, directory: LogDirectory, at: TopicPartition, topic_id: TopicId) -> bool:
        found_id = self._topic_ids.get((directory, str(at)), topic_id)
        return directory.holds(at) and found_id == topic_id

    def home_of(self, at: TopicPartition) -> LogDirectory | None:
        """Return the directory of a partition's log, also after the directory has failed."""
        return self._homes.get(at)

    def at_path(self, path: str) -> LogDirectory | None:
        """Return the working directory at this path, which may be relative."""
        wanted = Path(path).absolute()
        return next((one for one in self.online if Path(one.path).absolute() == wanted), None)

    def is_offline(self, path: str) -> bool:
        """Whether this is the path of an offline directory."""
        paths = (*(one.path for one in self.failed), *self.refused)
        return Path(path).absolute() in {Path(one).absolute() for one in paths}

    def announce(self, at: TopicPartition, directory: LogDirectory | None) -> None:
        """Set the directory to report for a log that is about to move there; None: it stays.

        ReplicaDirectories must check the log afterwards.
        """
        if directory is None:
            self._announced.pop(at, None)
        else:
            self._announced[at] = directory

    def reported(self, at: TopicPartition) -> str | None:
        """Return the directory id that the metadata should show; None: there is none."""
        directory = self._announced.get(at) or self._homes.get(at)
        if directory is not None:
            return directory.directory_id
        return LOST if at in self._lost else None

    def move(self, at: TopicPartition, directory: LogDirectory) -> None:
        """Record that the log is now in another directory."""
        self._counts[self._homes[at]] -= 1
        self._counts[directory] += 1
        self._homes[at] = directory
        self.announce(at, None)

    def leave(self, at: TopicPartition) -> LogDirectory | None:
        """Drop, and return, the home of a log that is about to be removed."""
        self._lost.discard(at)
        self.announce(at, None)
        home = self._homes.pop(at, None)
        if home is not None:
            self._counts[home] -= 1
        return home

    def deletion(
        self, at: TopicPartition, log: Callable[[], Log], *, is_due: bool = True
    ) -> Callable[[], Callable[[], None] | None]:
        """Return disk work that deletes a log, as `LogDirectory.delete`. It has no home any more.

        The work calls `log` when it runs: a move to another directory may end before.
        """
        some(self.leave(at), "a log that is open has a home")

        def work() -> Callable[[], None] | None:
            doomed = log()
            parent = doomed.directory.rpartition("/")[0]
            home = next(one for one in (*self.online, *self.failed) if one.path == parent)
            return home.delete(at, doomed, durably=self.are_several, is_due=is_due)

        return work

    def stray_work(self, assigned: Collection[TopicPartition]) -> list[StrayWork]:
        """Return disk work that renames the logs not assigned to this broker by the metadata.

        It also renames logs that are in another directory than their home.
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

        An error in one directory does not keep the others from being cleared.
        """
        self._in_each(LogDirectory.remove_doomed)

    def _in_each(self, work: Callable[[LogDirectory], None]) -> None:
        refusal: StorageError | None = None
        for directory in [*self.online]:
            try:
                work(directory)
            except StorageError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
