"""The checkpoints of all log directories: each log's offsets go to the files of its directory.

Invariant: the offsets of a log are kept in the directory of the log, so a directory can be lost,
replaced or left out without affecting the others.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partialmethod
from typing import TYPE_CHECKING, Final, TypeVar

from quorumlog.broker.partitions.log.offset_checkpoints import OffsetCheckpoints, Offsets
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

if TYPE_CHECKING:
    from quorumlog.broker.partitions.log.log_directory import LogDirectory

_Value = TypeVar("_Value")


class DirectoryRefused(StorageError):
    """A directory could not write its checkpoints, for a reason other than a full disk."""

    def __init__(self, path: str, error: StorageError) -> None:
        super().__init__(str(error))
        self.path: Final = path


class DirectoryCheckpoints:
    """The methods of OffsetCheckpoints, for all directories. Any thread may call all methods.

    `online` and `homes` are live and belong to their owner.
    """

    def __init__(
        self, online: Sequence["LogDirectory"], homes: Mapping[TopicPartition, "LogDirectory"]
    ) -> None:
        self._online: Final = online
        self._homes: Final = homes
        self._has_one: Final = len(online) == 1

    def cleaned(self, at: TopicPartition) -> Offset:
        """Return the offset below which the log is compacted; 0 if there is none."""
        home = self._homes.get(at)
        return Offset(0) if home is None else home.checkpoints.cleaned(at)

    def note_cleaned(self, at: TopicPartition, offset: Offset) -> None:
        """Set the end of a log's compacted part, for `write_cleaned`."""
        home = self._homes.get(at)
        if home is not None:
            home.checkpoints.note_cleaned(at, offset)

    def note_high_watermarks(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """Update the high watermarks, for `write_high_watermarks`."""
        for directory, known in self._by_home(high_watermarks).items():
            directory.checkpoints.note_high_watermarks(known)

    def note_log_starts(self, logs: Mapping[TopicPartition, Log]) -> Offsets:
        """Set, and return, the current start of each log, for `write_log_starts`."""
        starts: Offsets = {}
        for directory, here in self._by_home(logs).items():
            starts.update(directory.checkpoints.note_log_starts(here))
        return starts

    def note_recovery_points(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Set the flushed offset of each log, for `write_recovery_points`."""
        for directory, here in self._by_home(logs).items():
            directory.checkpoints.note_recovery_points(here)

    def note_truncated(self, at: TopicPartition, log: Log) -> None:
        """Lower the offsets beyond the log's ends, durably. Raises StorageError."""
        home = self._homes.get(at)
        if home is not None:  # otherwise the log is about to be removed
            home.checkpoints.note_truncated(at, log)

    def _write(self, write: Callable[[OffsetCheckpoints], None]) -> None:
        """Write in every directory, even if one fails; then raise that error."""
        refusal: StorageError | None = None
        for directory in [*self._online]:
            try:
                write(directory.checkpoints)
            except DiskExhausted as error:
                refusal = refusal or error
            except StorageError as error:
                refusal = DirectoryRefused(directory.path, error)
        if refusal is not None:
            raise refusal

    # Each raises StorageError, as in OffsetCheckpoints.
    write_high_watermarks = partialmethod(_write, OffsetCheckpoints.write_high_watermarks)
    write_recovery_points = partialmethod(_write, OffsetCheckpoints.write_recovery_points)
    write_log_starts = partialmethod(_write, OffsetCheckpoints.write_log_starts)
    write_cleaned = partialmethod(_write, OffsetCheckpoints.write_cleaned)

    def _by_home(
        self, values: Mapping[TopicPartition, _Value]
    ) -> "dict[LogDirectory, dict[TopicPartition, _Value]]":
        if self._has_one:
            return {self._online[0]: dict(values)}
        by_home: dict[LogDirectory, dict[TopicPartition, _Value]] = {}
        for at, value in values.items():
            home = self._homes.get(at)
            if home is not None:
                by_home.setdefault(home, {})[at] = value
        return by_home
