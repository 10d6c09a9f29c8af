"""A disk on which many logs are closed together: what they write is made durable at once.

A clean close of a log that was never flushed costs ten fsyncs: of a segment, of five small files,
and four of its directory. For thousands of logs that is minutes. So between `begin` and `end` an
fsync does nothing, and a rename waits. `end` has the system make the whole file system durable,
renames, and has it made durable again. What a name promises stays true at each moment: a file gets
its name after its content is durable, and the names of a directory change in their order.

The system tells of every write that has failed since the file system was opened, which is before
this process wrote anything. A file that an older process has left is fsynced as always, because
that may tell of a write that failed before.
docs/decisions/0135-many-logs-are-closed-together.md
"""

from collections.abc import Sequence
from typing import Final

from quorumlog.storage.io.append_handles import AppendFile, DiskFile
from quorumlog.storage.io.disk import Disk, DiskLock
from quorumlog.storage.io.file_system import FileSystem
from quorumlog.storage.io.read_handles import ReadableFile
from quorumlog.wire.codec.message import Buffer


class JointDisk:
    """A Disk: as `disk`, but between `begin` and `end`.

    Until `end` has returned, the caller counts nothing as durable that was written since `begin`,
    and reads no file whose rename waits. One thread calls `watch`, `begin` and `end`, and no other
    uses the disk meanwhile; between these calls, any may.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk: Final = disk
        self._file_system: FileSystem | None = None
        self._is_joint = False  # between `begin` and `end`
        self._renames: list[tuple[str, str]] = []  # that wait, in order

    def watch(self, path: str) -> None:
        """Take note of every error of the file system from here on. Raises OSError."""
        if self._file_system is None:
            self._file_system = self._disk.open_file_system(path)

    def begin(self) -> None:
        """Leave it to `end` to make things durable, if the system can do that as a whole."""
        self._is_joint = self._file_system is not None

    def end(self) -> None:
        """Make durable what was written until now, if that was left to it.

        Raises OSError: then any part of that may be durable.
        """
        if self._file_system is None or not self._is_joint:
            return
        self._is_joint = False
        renames, self._renames = self._renames, []
        self._file_system.sync()
        for source, target in renames:
            self._disk.rename(source, target)
        self._file_system.sync()

    @property
    def is_joint(self) -> bool:
        """Whether the fsyncs of single files are left to `end`."""
        return self._is_joint

    # --- what waits ---

    def open(self, path: str, *, create: bool = False) -> DiskFile:  # noqa: D102 - see Disk
        file = self._disk.open(path, create=create)
        return _UnsyncedFile(file) if self._is_joint else file

    def open_to_append(  # noqa: D102 - see Disk
        self, path: str, *, create: bool = False
    ) -> AppendFile:
        file = self._disk.open_to_append(path, create=create)
        if create and self._file_system is not None:
            file.leave_fsyncs_to(self)
        return file

    def rename(self, source: str, target: str) -> None:  # noqa: D102 - see Disk
        if self._is_joint:
            self._renames.append((source, target))
        else:
            self._disk.rename(source, target)

    def fsync_dir(self, path: str) -> None:  # noqa: D102 - see Disk
        if not self._is_joint:
            self._disk.fsync_dir(path)

    # --- what does not ---

    def open_to_read(self, path: str) -> ReadableFile:  # noqa: D102 - see Disk
        return self._disk.open_to_read(path)

    def exists(self, path: str) -> bool:  # noqa: D102 - see Disk
        return self._disk.exists(path)

    def size(self, path: str) -> int:  # noqa: D102 - see Disk
        return self._disk.size(path)

    def modified_ms(self, path: str) -> int:  # noqa: D102 - see Disk
        return self._disk.modified_ms(path)

    def listdir(self, path: str) -> list[str]:  # noqa: D102 - see Disk
        return self._disk.listdir(path)

    def mkdir(self, path: str) -> None:  # noqa: D102 - see Disk
        self._disk.mkdir(path)

    def add_dir(self, path: str) -> None:  # noqa: D102 - see Disk
        self._disk.add_dir(path)

    def unlink(self, path: str) -> None:  # noqa: D102 - see Disk
        self._disk.unlink(path)

    def rmdir(self, path: str) -> None:  # noqa: D102 - see Disk
        self._disk.rmdir(path)

    def space(self, path: str) -> tuple[int, int]:  # noqa: D102 - see Disk
        return self._disk.space(path)

    def open_file_system(self, path: str) -> FileSystem | None:  # noqa: D102 - see Disk
        return self._disk.open_file_system(path)

    def lock(self, path: str) -> DiskLock:  # noqa: D102 - see Disk
        return self._disk.lock(path)


class _UnsyncedFile:
    """A small file that is written while fsyncs do nothing."""

    def __init__(self, file: DiskFile) -> None:
        self._file: Final = file

    def append(self, chunks: Sequence[Buffer]) -> None:
        self._file.append(chunks)

    def pread(self, size: int, position: int) -> bytes:
        return self._file.pread(size, position)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        return self._file.pread_cached(size, position)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def fsync(self) -> None:
        """Do nothing: `JointDisk.end` makes it durable."""

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()
