"""The file `leader-epoch-checkpoint`: the leader epochs of one log, kept across restarts.

The file is written before the log's recovery point passes the first record of an epoch, not when
the epoch begins: recovery reads the epochs above that point from the batches. So neither a record
nor a leader waits for this file. It is replaced whole (KAFKA-16541: a torn file after power loss).

# DEVIATION: Kafka writes the file whenever an epoch begins.
# docs/decisions/0026-checkpoint-checksums.md
# DEVIATION: Kafka's file has no checksum.
# docs/decisions/0026-checkpoint-checksums.md
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final

from crc32c import crc32c

from quorumlog.storage.core.leader_epochs import EpochEnd, EpochEntry, LeaderEpochs
from quorumlog.storage.errors import CorruptCheckpoint, storage_errors
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, Offset

FILE_NAME: Final = "leader-epoch-checkpoint"
_VERSION: Final = "0"
_CHECKSUM: Final = "#crc32c "


def was_flushed(disk: Disk, directory: str) -> bool:
    """Return whether this log was ever flushed with records: a flush writes this file."""
    return disk.exists(f"{directory}/{FILE_NAME}")


def _nothing() -> None:
    pass


def encode_epochs(epochs: LeaderEpochs) -> bytes:
    """Return the file: version, count, an `epoch start_offset` line per entry, and a checksum.

    The count includes the line of the checksum.
    """
    lines = [_VERSION, str(len(epochs.entries) + 1)]
    lines += [f"{epoch} {start_offset}" for epoch, start_offset in epochs.entries]
    content = "".join(f"{line}\n" for line in lines)
    return f"{content}{_checksum_line(content)}\n".encode("ascii")


def _checksum_line(before: str) -> str:
    return f"{_CHECKSUM}{crc32c(before.encode('ascii'))}"


def decode_epochs(content: bytes) -> LeaderEpochs:
    """Read the content of the file. Raises ValueError unless it is whole and its entries rise.

    A file without a checksum was written by Kafka or a former release.
    """
    text = content.decode("ascii")
    version, count, *lines = text.splitlines()
    if version != _VERSION or int(count) != len(lines) or not text.endswith("\n"):
        raise ValueError(f"version {version} and {count} entries were announced")
    if lines and lines[-1].startswith(_CHECKSUM):
        checksum = lines.pop()
        if checksum != _checksum_line(text[: -len(checksum) - 1]):
            raise ValueError("its checksum differs")
    pairs = [tuple(map(int, line.split(" "))) for line in lines]
    entries = tuple(EpochEntry(Epoch(epoch), Offset(start)) for epoch, start in pairs)
    for older, newer in pairwise(entries):
        if newer.epoch <= older.epoch or newer.start_offset <= older.start_offset:
            raise ValueError(f"{newer} after {older}")
    return LeaderEpochs(entries)


class LeaderEpochCache:
    """The epochs of one log, in memory and on disk.

    Invariant: `write` has made durable every epoch that starts below the log's flushed offset; the
    file may also have epochs below the log start. One thread changes the epochs; `write` may run
    in another, one call at a time. A failed write raises StorageError: the next call tries again.
    """

    def __init__(
        self, disk: Disk, directory: str, epochs: LeaderEpochs, *, is_first: bool = False
    ) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._epochs = epochs
        self._written: LeaderEpochs | None = epochs  # None: the file's content is unknown
        self._is_first = is_first
        self.has_checksum = False  # of the file that was read: then it is trusted
        self.before_first: Callable[[], None] = _nothing  # if it raises OSError, no file is made

    @classmethod
    def open(cls, disk: Disk, directory: str, *, has_file: bool) -> "LeaderEpochCache":
        """Read the file, if it exists. Raises CorruptCheckpoint: rebuild it from the log."""
        path = f"{directory}/{FILE_NAME}"
        if not has_file:
            return cls(disk, directory, LeaderEpochs(), is_first=True)
        try:
            content = read_file(disk, path)
            epochs = decode_epochs(content)
        except ValueError as error:
            raise CorruptCheckpoint(
                f"{path} is damaged ({error}): delete it, and it is rebuilt from the log"
            ) from error
        cache = cls(disk, directory, epochs)
        cache.has_checksum = _CHECKSUM.encode() in content
        return cache

    @classmethod
    def empty(cls, disk: Disk, directory: str) -> "LeaderEpochCache":
        """Start without epochs, ignoring the file; the next `write` replaces it."""
        cache = cls(disk, directory, LeaderEpochs())
        cache._written, cache._is_first = None, not was_flushed(disk, directory)
        return cache

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """(epoch, start_offset), oldest first."""
        return self._epochs.entries

    @property
    def latest_epoch(self) -> Epoch:
        """The newest epoch; NO_EPOCH if there is none."""
        entries = self._epochs.entries  # without another property: each append needs it
        return entries[-1].epoch if entries else NO_EPOCH

    def epoch_at(self, offset: int) -> Epoch:
        """Return the epoch in which `offset` was, or would be, written; NO_EPOCH if below all."""
        return self._epochs.epoch_at(offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the largest entry's epoch <= `epoch` and its end: see `LeaderEpochs`."""
        return self._epochs.end_offset_for(epoch, log_end_offset)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add `epoch`, starting at `start_offset`, the log's end; drop contradicting entries."""
        self._epochs = self._epochs.assigned(epoch, start_offset)

    def extend(self, starts: Iterable[tuple[int, int]]) -> None:
        """Assign every (epoch, start_offset) whose epoch is newer than all entries."""
        for epoch, start_offset in starts:
            if epoch > self._epochs.latest_epoch:
                self._epochs = self._epochs.assigned(epoch, start_offset)

    def relearn(self, from_offset: int, starts: Iterable[tuple[int, int]]) -> None:
        """Replace the entries from `from_offset` on by the epochs that its batches have."""
        self._epochs = self._epochs.truncated_from_end(from_offset)
        self.extend(starts)

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that start at or after `end_offset`."""
        self._epochs = self._epochs.truncated_from_end(end_offset)

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs below a log start that is durable in the caller's checkpoint.

        Not before: a log that a crash starts at an older offset again needs the epochs from there
        on to detect divergence. Opening the log drops them again.
        """
        self._epochs = self._epochs.truncated_from_start(start_offset)

    def clear(self) -> None:
        """Remove all epochs."""
        self._epochs = LeaderEpochs()

    def write(self) -> None:
        """Write the epochs durably, unless the file has them already. Raises StorageError.

        The first write calls `before_first` before it creates the file.
        """
        epochs = self._epochs
        if self._written is not None and epochs.entries == self._written.entries:
            return
        self._written = None
        with storage_errors(f"cannot write {self._path}"):
            if self._is_first:
                self.before_first()
            write_file_durably(self._disk, self._path, encode_epochs(epochs))
            self._is_first = False
        self._written = epochs
