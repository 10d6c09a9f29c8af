"""Future logs in one log directory: copies of logs that move here from another one (KIP-113).

A future log has a directory of its own, `<topic>-<partition>.<unique>-future`, which no start opens
as a log. It gets the plain name once it holds the whole log that it replaces. The directory records
the requested move: a start that finds it begins the move again, with an empty copy.
"""

from collections.abc import Container, Iterable
from functools import partial
from typing import Final, NamedTuple

from quorumlog.broker.partitions.log.log_names import FUTURE_SUFFIX, LogNames, marked
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import CorruptCheckpoint, StorageError, storage_errors
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition


class FutureKey(NamedTuple):
    """Identifies the partition of a copy: its directory's name may have a cut topic name."""

    topic_id: TopicId
    partition: int


def partition_of_future(name: str) -> int | None:
    """Return the partition in the name of a future log's directory; None: another directory."""
    index = name.removesuffix(FUTURE_SUFFIX).rpartition(".")[0].rpartition("-")[2]
    return int(index) if name.endswith(FUTURE_SUFFIX) and index.isdecimal() else None


class FutureLogs:
    """The future logs in one directory, `path`.

    All methods but `is_found`, `take_found` and `take_others` wait for the disk, and raise
    StorageError. One thread at a time calls them.
    """

    def __init__(self, disk: Disk, path: str, new_log: type[Log], names: LogNames) -> None:
        self._disk: Final = disk
        self._directory: Final = path
        self._new_log: Final = new_log
        self._names: Final = names
        self._found: Final[dict[FutureKey, str]] = {}

    def find(self, names: Iterable[str]) -> None:
        """Record the future logs of earlier processes; discard those of unidentifiable logs."""
        for name in names:
            index = partition_of_future(name)
            try:
                found = self._names.metadata_of(name)
            except CorruptCheckpoint:
                found = None
            key = None if index is None or found is None else FutureKey(found.topic_id, index)
            if key is None or self._found.get(key, name) != name:
                self.discard(name)
            else:
                self._found[key] = name

    def is_found(self, key: FutureKey) -> bool:
        """Whether an earlier process has left a copy of this log here that no move has taken."""
        return key in self._found

    def take_found(self, key: FutureKey) -> str | None:
        """Remove and return the name of a copy that an earlier process has left."""
        return self._found.pop(key, None)

    def take_others(self, keys: Container[FutureKey]) -> list[str]:
        """Remove and return the names of such copies for logs other than `keys`."""
        others = [key for key in self._found if key not in keys]
        return [self._found.pop(key) for key in others]

    def make(self, at: TopicPartition, topic_id: TopicId, unique: bytes) -> str:
        """Create the directory of a future log, durably; return its name, containing `unique`."""
        name = marked(str(at), f".{unique.hex()}{FUTURE_SUFFIX}")
        with storage_errors(f"cannot make {self._path(name)}"):
            if self._disk.exists(self._path(str(at))):
                raise StorageError(f"there is another log in {self._path(str(at))}")
            self._names.add(name)
            self._names.make_last(name, topic_id)
        return name

    def open(self, name: str, topic_id: TopicId, settings: LogSettings) -> Log:
        """Open an empty log there; remove the files of an earlier process."""
        path = self._path(name)
        with storage_errors(f"cannot open {self._path(name)}"):
            for leftover in self._disk.listdir(path):
                self._disk.unlink(f"{path}/{leftover}")
            write_partition_metadata(self._disk, path, topic_id, is_new=True)
            log = self._new_log.open(self._disk, path, settings, clean=True, must_last=False)
        log.epochs.before_first = partial(self._names.make_last, name, topic_id)
        return log

    def promote(self, name: str, at: TopicPartition) -> None:
        """Give a closed log the plain name, durably.

        If it raises, the log may have either name after a crash.
        """
        with storage_errors(f"cannot rename {self._path(name)}"):
            self._names.rename(name, str(at))

    def discard(self, name: str) -> None:
        """Remove a copy with the deleted logs, so that no start begins the move again."""
        with storage_errors(f"cannot delete {self._path(name)}"):
            self._names.doom(name)
            self._disk.fsync_dir(self._directory)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
