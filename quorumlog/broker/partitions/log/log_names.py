"""The directories of logs in one log directory: created, identified, renamed and removed.

All methods raise OSError, and wait for the disk.
"""

import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Final

from quorumlog.storage.errors import CorruptCheckpoint
from quorumlog.storage.io.checkpoints import (
    PartitionMetadata,
    read_partition_metadata,
    write_partition_metadata,
)
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.epoch_checkpoint import was_flushed
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.records import HEADER_BYTES

DELETE_SUFFIX: Final = "-delete"
FUTURE_SUFFIX: Final = "-future"
NAME_BYTES_MAX: Final = 255  # of a directory; a topic's name alone may have 249


def marked(partition: str, mark: str) -> str:
    """Return the directory name with a mark behind it, the topic's part cut if it is too long."""
    topic, dash, index = partition.rpartition("-")
    tail = f"{dash}{index}{mark}"
    return topic[: NAME_BYTES_MAX - len(tail)] + tail


class LogNames:
    """The directories of logs. Any thread may call all methods; one at a time for one partition."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk: Final = disk
        self._directory: Final = directory
        self._naming: Final = threading.Lock()  # two logs must not be renamed to one name
        # Directories whose names may not be durable; the object identifies each creation.
        self._added: Final[dict[str, object]] = {}
        self._syncing: Final = threading.Lock()  # those names, for all threads that wait for it
        self._deletions = 0
        self._doomed: list[str] = []  # directories of deleted logs, under their new names

    def path_of(self, name: str) -> str:
        """Return the path of a log's directory, without disk access."""
        return f"{self._directory}/{name}"

    def note_found(self, names: Iterable[str], doomed: Iterable[str]) -> None:
        """Add the directories that the last process has left, without disk access."""
        self._added.update((name, object()) for name in names)
        self._doomed += (name for name in doomed if name not in self._doomed)

    # --- Topic ids ---

    def metadata_of(self, name: str) -> PartitionMetadata | None:
        """Return the metadata of a directory; None if it was lost before the first flush.

        Raises CorruptCheckpoint if it was lost after a flush.
        """
        path = self.path_of(name)
        try:
            return read_partition_metadata(self._disk, path)
        except CorruptCheckpoint:
            if was_flushed(self._disk, path):
                raise
            return None  # power was lost before the first flush: see `make_last`

    def hold_records(self, name: str) -> bool:
        """Return whether a segment begins with bytes other than the zeros of a power loss."""
        path = self.path_of(name)
        for file_name in self._disk.listdir(path):
            if file_name.endswith(".log"):
                with closing(self._disk.open_to_read(f"{path}/{file_name}")) as file:
                    if any(file.pread(HEADER_BYTES, 0)):
                        return True
        return False

    # --- Creation ---

    def add(self, name: str) -> None:
        """Create a directory; its name is durable once `make_last` has returned."""
        with self._naming:
            self._disk.add_dir(self.path_of(name))
            self._added[name] = object()

    def make(self, name: str, topic_id: TopicId) -> None:
        """Create the directory of a log that is about to get its first record."""
        with suppress(FileExistsError):  # left by an error
            self.add(name)
        write_partition_metadata(self._disk, self.path_of(name), topic_id, is_new=True)

    def make_last(self, name: str, topic_id: TopicId) -> None:
        """Make the metadata of a directory durable, before the log's first records are.

        The file is written anew: a failed fsync of the old file is not repeated. Logs created
        before share one fsync of their names.
        """
        write_partition_metadata(self._disk, self.path_of(name), topic_id)
        with self._syncing:
            if name in self._added:
                with self._naming:
                    added = dict(self._added)
                self._disk.fsync_dir(self._directory)
                with self._naming:
                    for known, made in added.items():
                        if self._added.get(known) is made:  # not created again meanwhile
                            del self._added[known]

    def keep(self, name: str, topic_id: TopicId) -> None:
        """Make it durable that a log is here, even if it has no record yet."""
        path = self.path_of(name)
        if not was_flushed(self._disk, path):
            if not self._disk.exists(path):
                self.make(name, topic_id)
            self.make_last(name, topic_id)

    # --- Renames ---

    def rename(self, name: str, new_name: str) -> None:
        """Rename a directory, durably."""
        with self._naming:
            self._disk.rename(self.path_of(name), self.path_of(new_name))
            self._added.pop(name, None)
        self._disk.fsync_dir(self._directory)

    def doom(self, name: str, *, is_due: bool = True) -> str:
        """Give a directory a name that no start opens as a log, and return the new name.

        The next `remove_doomed` removes it, if it `is_due`; else once `note_due` was called.
        """
        with self._naming:
            plain = name.removesuffix(FUTURE_SUFFIX)
            doomed = self._name_for_deletion(plain if plain == name else plain.rpartition(".")[0])
            self._disk.rename(self.path_of(name), self.path_of(doomed))
            if is_due:
                self._doomed.append(doomed)
        return doomed

    def note_due(self, doomed: str) -> None:
        """Let the next `remove_doomed` remove this directory."""
        with self._naming:
            self._doomed.append(doomed)

    def _name_for_deletion(self, partition: str) -> str:
        while True:
            self._deletions += 1
            name = marked(partition, f".{self._deletions}{DELETE_SUFFIX}")
            if not self._disk.exists(self.path_of(name)):  # otherwise left by the last process
                return name

    # --- Removal ---

    def remove_doomed(self) -> None:
        """Remove the directories of deleted logs: seconds of work if they hold much.

        The next start finds the directories that an error or a crash leaves.
        """
        with self._naming:
            doomed, self._doomed = self._doomed, []
        if doomed:
            # Their new names first: a crash must not leave a part of a log under its own name.
            self._disk.fsync_dir(self._directory)
            for name in doomed:
                self.remove_tree(name)

    def remove_tree(self, name: str) -> None:
        """Remove a directory and its files."""
        path = self.path_of(name)
        for file_name in self._disk.listdir(path):
            self._disk.unlink(f"{path}/{file_name}")
        self._disk.rmdir(path)
