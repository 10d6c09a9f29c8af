"""Bytes of a file that a socket sends without a copy in this process."""

from dataclasses import dataclass
from typing import Protocol


class LentFile(Protocol):
    """A file with bytes that do not change any more.

    It is open as long as a range refers to it, and is closed with the last reference: a range is
    dropped by fetches that are cancelled, connections that end and responses that fail.
    """

    def fileno(self) -> int:
        """Return the descriptor, for `os.sendfile`."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes from `position`; may wait for the disk. Raises OSError."""

    def is_cached(self, size: int, position: int) -> bool:
        """Whether the bytes [position, position + size) are in the page cache now."""


@dataclass(frozen=True, slots=True, eq=False)
class FileRange:
    """Bytes [position, position + size) of a file. Invariant: they never change.

    The lender ensures this: a log that is cut below the end of a lent range continues in another
    file, and a segment that is deleted or cleaned keeps its bytes until its last range is gone.
    """

    file: LentFile
    position: int
    size: int

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return self.read()

    def read(self, size_max: int | None = None) -> bytes:
        """Read the first `size_max` bytes, or all; may wait for the disk. Raises OSError."""
        size = self.size if size_max is None else min(self.size, size_max)
        data = self.file.pread(size, self.position)
        if len(data) != size:
            raise OSError(f"a file ends at byte {self.position + len(data)} of a lent range")
        return data

    def after(self, count: int) -> "FileRange":
        """Return the range without its first `count` bytes."""
        return FileRange(self.file, self.position + count, self.size - count)
