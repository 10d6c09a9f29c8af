"""The file `leader-epoch-checkpoint`: the leader epochs of one log, kept across restarts.

Every change is durable before it is believed (KAFKA-16541: a torn file after power loss), but for
the first epoch of an empty log: without a record it says nothing that must outlive the process.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from quorumlog.storage.core.leader_epochs import EpochEnd, EpochEntry, LeaderEpochs
from quorumlog.storage.errors import CorruptCheckpoint, StorageError
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably
from quorumlog.wire.codec.identifiers import Epoch, Offset

FILE_NAME: Final = "leader-epoch-checkpoint"
_VERSION: Final = "0"


def encode_epochs(epochs: LeaderEpochs) -> bytes:
    """Return the file: version, count, then one `epoch start_offset` line per entry."""
    lines = [_VERSION, str(len(epochs.entries))]
    lines += [f"{epoch} {start_offset}" for epoch, start_offset in epochs.entries]
    return ("\n".join(lines) + "\n").encode("ascii")


def decode_epochs(content: bytes) -> LeaderEpochs:
    """Read the content of the file. Raises ValueError unless it is whole and its entries rise."""
    version, count, *lines = content.decode("ascii").splitlines()
    pairs = [tuple(map(int, line.split(" "))) for line in lines]
    entries = tuple(EpochEntry(Epoch(epoch), Offset(start)) for epoch, start in pairs)
    if version != _VERSION or int(count) != len(entries) or not content.endswith(b"\n"):
        raise ValueError(f"version {version} and {count} entries were announced")
    for older, newer in pairwise(entries):
        if newer.epoch <= older.epoch or newer.start_offset <= older.start_offset:
            raise ValueError(f"{newer} after {older}")
    return LeaderEpochs(entries)


class LeaderEpochCache:
    """The epochs of one log, in memory and on disk.

    Invariant: what is in memory is durable, once the log has a record; the file may also know of
    epochs below the log start. A failed write raises StorageError and changes nothing in memory;
    what it left on disk is replaced before the next change, and before the next append, which
    calls `extend`.
    """

    def __init__(self, disk: Disk, directory: str, epochs: LeaderEpochs) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._epochs = epochs
        self._is_written = True

    @classmethod
    def open(cls, disk: Disk, directory: str) -> "LeaderEpochCache":
        """Read the file, if there is one. Raises CorruptCheckpoint: rebuild it from the log."""
        path = f"{directory}/{FILE_NAME}"
        if not disk.exists(path):
            return cls(disk, directory, LeaderEpochs())
        try:
            epochs = decode_epochs(read_file(disk, path))
        except ValueError as error:
            raise CorruptCheckpoint(
                f"{path} is not whole ({error}): delete it, and it is rebuilt from the log"
            ) from error
        return cls(disk, directory, epochs)

    @classmethod
    def empty(cls, disk: Disk, directory: str) -> "LeaderEpochCache":
        """Knowing nothing, whatever the file holds; the next change replaces it."""
        return cls(disk, directory, LeaderEpochs())

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """(epoch, start_offset), oldest first."""
        return self._epochs.entries

    @property
    def latest_epoch(self) -> Epoch:
        """NO_EPOCH if there is none."""
        return self._epochs.latest_epoch

    def epoch_at(self, offset: int) -> Epoch:
        """Return the epoch in which `offset` was, or would be, written; NO_EPOCH if not known."""
        return self._epochs.epoch_at(offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Find the largest known epoch <= `epoch` and where it ends: see `LeaderEpochs`."""
        return self._epochs.end_offset_for(epoch, log_end_offset)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` starts at `start_offset`, the log's end; drop what contradicts it.

        Durable, but where nothing was known: then the first append, which calls `extend`, sees to
        it. So a leader of many new partitions need not write a file for each.
        """
        epochs = self._epochs.assigned(epoch, start_offset)
        if self._epochs.entries:
            self._replace(epochs)
        else:
            # DEVIATION: Kafka writes the file here.
            # docs/decisions/0017-many-logs-are-opened-a-few-at-a-time.md
            self._epochs, self._is_written = epochs, False

    def extend(self, starts: Iterable[tuple[int, int]]) -> None:
        """Assign every (epoch, start_offset) of an epoch newer than all we know, in one write."""
        epochs = self._epochs
        for epoch, start_offset in starts:
            if epoch > epochs.latest_epoch:
                epochs = epochs.assigned(epoch, start_offset)
        self._replace(epochs)

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that start at or after `end_offset`. Durable."""
        self._replace(self._epochs.truncated_from_end(end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop what lies below a log start that will last: it is in the caller's checkpoint.

        Not before: a log that starts at an older offset again must know what was written there,
        or it could not see that another log diverges. The file drops it with its next change, so
        that nothing waits for the disk; opening the log drops it again.
        """
        self._epochs = self._epochs.truncated_from_start(start_offset)

    def clear(self) -> None:
        """Forget all. Durable."""
        self._replace(LeaderEpochs())

    def _replace(self, epochs: LeaderEpochs) -> None:
        if epochs.entries == self._epochs.entries and self._is_written:
            return
        self._is_written = False
        try:
            write_file_durably(self._disk, self._path, encode_epochs(epochs))
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error
        self._epochs, self._is_written = epochs, True
