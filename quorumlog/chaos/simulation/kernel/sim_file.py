"""The handles of files on a simulated disk."""

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quorumlog.chaos.simulation.kernel.sim_content import SimContent
from quorumlog.wire.codec.message import Buffer

if TYPE_CHECKING:
    from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk


class SimFile:
    """A handle. It is dead after the crash or the death of its process."""

    def __init__(self, disk: "SimDisk", path: str, content: SimContent) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._generation: int | None = disk.generation

    def append(self, chunks: Sequence[Buffer]) -> None:  # noqa: D102 - see DiskFile
        self._begin("append")
        data = b"".join(chunks)
        room = self._disk.bytes_free()
        if len(data) > room:
            self._content.append(data[:room])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._content.append(data)

    def overwrite(self, data: Buffer, position: int) -> None:  # noqa: D102 - see DiskFile
        self._begin("append")
        self._content.overwrite(bytes(data), position)

    def pread(self, size: int, position: int) -> bytes:  # noqa: D102 - see DiskFile
        self._begin("pread")
        return bytes(self._content.written[position : position + size])

    def pread_cached(self, size: int, position: int) -> bytes:  # noqa: D102 - see ReadableFile
        return self.pread(size, position)

    def truncate(self, size: int) -> None:  # noqa: D102 - see DiskFile
        self._begin("truncate")
        self._content.truncate(size)

    def fsync(self) -> None:  # noqa: D102 - see DiskFile
        try:
            self._begin("fsync")
        except OSError:
            self._content.lose_pages()
            raise
        self._content.fsync()

    def size(self) -> int:  # noqa: D102 - see DiskFile
        self._begin("size")
        return len(self._content.written)

    def close(self) -> None:  # noqa: D102 - see DiskFile
        self._generation = None

    def _begin(self, operation: str) -> None:
        if self._generation != self._disk.generation:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        self._disk.begin(operation, self._path)


class LetGoFile(SimFile):
    """A handle that a pool may close before its changes are fsynced.

    The system writes them later. If that fails (`loses_write_back`), no handle reports it.
    """

    def size(self) -> int:
        """Return the size without a word of the faults: the system has it in memory."""
        if self._generation != self._disk.generation:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return len(self._content.written)

    def close(self) -> None:  # noqa: D102 - see DiskFile
        is_open = self._generation == self._disk.generation
        if is_open and self._content.changes and self._disk.loses_write_back(self._path):
            self._content.lose_pages()
            self._content.forget_pages()
        super().close()
