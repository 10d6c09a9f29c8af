"""The interface to the disk, and its implementation by the operating system.

It contains no rules; errors are plain OSError. The simulated disk is in
`quorumlog.chaos.simulation.kernel.sim_disk`. Paths are text with "/" between names.
"""

import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from errno import EOPNOTSUPP
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar

from quorumlog.storage.errors import NO_HANDLES, NO_ROOM, StorageError
from quorumlog.storage.io.append_handles import AppendFile, AppendHandles, DiskFile
from quorumlog.storage.io.lent_descriptor import LEND_FROM_BYTES, LentDescriptor
from quorumlog.storage.io.read_handles import (
    KNOWS_WHAT_IS_CACHED,
    ReadableFile,
    ReadFile,
    ReadHandles,
)
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.message import Buffer

CHUNKS_PER_WRITE: Final = 1024  # IOV_MAX of Linux and macOS
_GET_GENERATION: Final = 0x80087601  # FS_IOC_GETVERSION of linux/fs.h, with 64-bit longs

P = ParamSpec("P")
T = TypeVar("T")


class FileIdentity(NamedTuple):
    """The identity of a file among all files that the file system has had.

    generation: differs between the files that have had one inode number, which ext4 gives to the
    next file at once. None: the file system keeps none, or does not show it.
    """

    inode: int
    generation: int | None


class DiskLock(Protocol):
    """A lock on a directory, held until released or the process ends."""

    def release(self) -> None:
        """Release the lock."""


class Disk(Protocol):
    """Files by path. A created, renamed or unlinked name is durable only after `fsync_dir`."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        """Open for reads and appends. Raises FileNotFoundError unless it exists or `create`."""

    def open_to_append(self, path: str, *, create: bool = False) -> AppendFile:
        """Open for a long time; only recently used files hold a handle. Do not rename it meanwhile.

        With `create` the file is created, or emptied. Without: this call or the first use raises
        FileNotFoundError if it is missing.
        """

    def open_to_read(self, path: str) -> ReadableFile:
        """Open a file that is only read, and keeps its name until it is closed.

        This call or the first use raises FileNotFoundError if it is missing.
        """

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""

    def size(self, path: str) -> int:
        """Bytes in the file. Raises FileNotFoundError."""

    def modified_ms(self, path: str) -> int:
        """Return the wall-clock time of a file's last change. Raises FileNotFoundError."""

    def identity(self, path: str) -> FileIdentity:
        """Return the identity: renames keep it, a copy has its own. Raises FileNotFoundError."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted. Raises FileNotFoundError."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents, durably, unless it exists."""

    def add_dir(self, path: str) -> None:
        """Make one directory. It is durable after an fsync of its parent. Raises OSError."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source`, atomically."""

    def unlink(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def space(self, path: str) -> tuple[int, int]:
        """Return (total, free) bytes of the file system of `path`; free for this process."""

    def lock(self, path: str) -> DiskLock:
        """Lock by a file. Raises StorageError if another process holds it."""


class RealFile:
    """A file of the operating system. One append is one `writev`."""

    __slots__ = ("_descriptor", "_lent")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lent: LentDescriptor | None = None  # if ranges may refer to it: closes it

    def append(self, chunks: Sequence[Buffer]) -> None:  # noqa: D102 - see DiskFile
        while chunks:
            group, chunks = chunks, ()
            if len(group) > CHUNKS_PER_WRITE:
                group, chunks = group[:CHUNKS_PER_WRITE], group[CHUNKS_PER_WRITE:]
            written = os.writev(self._descriptor, group)
            if written != sum(map(len, group)):  # the disk is nearly full, or a signal interrupted
                rest = memoryview(b"".join(group))[written:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]

    def overwrite(self, data: Buffer, position: int) -> None:  # noqa: D102 - see DiskFile
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_APPEND)  # Linux would append
        try:
            rest = memoryview(data)
            while rest:
                written = os.pwrite(self._descriptor, rest, position)
                rest, position = rest[written:], position + written
        finally:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)

    def pread(self, size: int, position: int) -> bytes:  # noqa: D102 - see DiskFile
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]  # the system returns at most 2 GiB, or fewer after a signal
        while data:
            size, position = size - len(data), position + len(data)
            data = os.pread(self._descriptor, size, position)
            parts.append(data)
        return b"".join(parts)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        """Read from the page cache: see ReadableFile."""
        if not KNOWS_WHAT_IS_CACHED:
            return self.pread(size, position)  # as for a file that was just written
        data = bytearray(size)
        try:
            count = os.preadv(self._descriptor, [data], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != EOPNOTSUPP:
                raise
            return self.pread(size, position)  # most likely a file system in memory
        return data if count == size else None

    def lend(self, size: int, position: int) -> FileRange | None:
        """Lend bytes of the page cache: see ReadableFile. None: to read so few costs less."""
        if size < LEND_FROM_BYTES:
            return None
        lent = self._lent = self._lent or LentDescriptor(self._descriptor)
        return lent.lend(size, position)

    def truncate(self, size: int) -> None:  # noqa: D102 - see DiskFile
        os.ftruncate(self._descriptor, size)

    def fsync(self) -> None:  # noqa: D102 - see DiskFile
        if sys.platform == "darwin":  # there, fsync leaves the data in the drive's cache
            fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._descriptor)  # includes the size, not the times

    def size(self) -> int:  # noqa: D102 - see DiskFile
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:  # noqa: D102 - see DiskFile
        descriptor, self._descriptor = self._descriptor, -1
        if self._lent is not None:
            self._lent = None
        elif descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """The files of this machine.

    When the process or the system runs out of handles, an idle one is closed to make room.
    """

    def __init__(
        self, read_handles: ReadHandles | None = None, append_handles: AppendHandles | None = None
    ) -> None:
        self._read_handles: Final = read_handles or ReadHandles()
        self._append_handles: Final = append_handles or AppendHandles()

    def open(self, path: str, *, create: bool = False) -> RealFile:  # noqa: D102 - see Disk
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(self._with_a_handle(os.open, path, flags, 0o644))

    def open_to_append(  # noqa: D102 - see Disk
        self, path: str, *, create: bool = False
    ) -> AppendFile:
        new = self.open(path, create=True) if create else None
        if new is not None and new.size():  # a leftover of a crash or an error
            new.truncate(0)
        return AppendFile(self._append_handles, lambda: self.open(path), new=new)

    def open_to_read(self, path: str) -> ReadFile:  # noqa: D102 - see Disk
        return ReadFile(self._read_handles, lambda: self.open(path))

    def _with_a_handle(self, take: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        while True:
            try:
                return take(*given, **named)
            except OSError as error:
                pools = self._read_handles, self._append_handles
                if error.errno not in NO_HANDLES or not any(one.close_oldest() for one in pools):
                    raise

    def exists(self, path: str) -> bool:  # noqa: D102 - see Disk
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def size(self, path: str) -> int:  # noqa: D102 - see Disk
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:  # noqa: D102 - see Disk
        return os.stat(path).st_mtime_ns // 1_000_000

    def identity(self, path: str) -> FileIdentity:  # noqa: D102 - see Disk
        return self._with_a_handle(_identity_of, path)

    def listdir(self, path: str) -> list[str]:  # noqa: D102 - see Disk
        return sorted(self._with_a_handle(os.listdir, path))

    def mkdir(self, path: str) -> None:  # noqa: D102 - see Disk
        directory = Path(path)
        if directory.is_dir():
            return
        missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for created in missing:
            self.fsync_dir(str(created.parent))

    def add_dir(self, path: str) -> None:  # noqa: D102 - see Disk
        os.mkdir(path)

    def rename(self, source: str, target: str) -> None:  # noqa: D102 - see Disk
        os.replace(source, target)

    def unlink(self, path: str) -> None:  # noqa: D102 - see Disk
        os.unlink(path)

    def rmdir(self, path: str) -> None:  # noqa: D102 - see Disk
        os.rmdir(path)

    def fsync_dir(self, path: str) -> None:  # noqa: D102 - see Disk
        flags = os.O_RDONLY | os.O_CLOEXEC
        descriptor = self._with_a_handle(os.open, path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def space(self, path: str) -> tuple[int, int]:  # noqa: D102 - see Disk
        found = os.statvfs(path)
        return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail

    def lock(self, path: str) -> "RealLock":  # noqa: D102 - see Disk
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise StorageError(f"{path} is locked: another process uses this directory") from error
        return RealLock(descriptor)


@dataclass(eq=False)
class RealLock:
    """An flock: the system releases it when the process dies."""

    _descriptor: int

    def release(self) -> None:  # noqa: D102 - see DiskLock
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _identity_of(path: str) -> FileIdentity:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        inode, answer = os.fstat(descriptor).st_ino, bytearray(8)
        try:
            fcntl.ioctl(descriptor, _GET_GENERATION, answer)
        except OSError:  # tmpfs, which does not use an inode number again, and some others
            return FileIdentity(inode, None)
        return FileIdentity(inode, int.from_bytes(answer[:4], sys.byteorder))
    finally:
        os.close(descriptor)


def read_file(disk: Disk, path: str) -> bytes:
    """Return the content of a small file. Raises OSError; FileNotFoundError if it is missing."""
    with closing(disk.open(path)) as file:
        return file.pread(file.size(), 0)


def write_file_durably(disk: Disk, path: str, content: bytes) -> None:
    """Replace a small file whole: after power loss it has the old content or the new.

    On return, the new content survives power loss. On a full disk a reserve makes room for it.
    Raises OSError; then it has either content.
    """
    replace_durably(disk, path, len(content), lambda: replace_file(disk, path, content))


def replace_durably(disk: Disk, path: str, size: int, replace: Callable[[], None]) -> None:
    """Do as `write_file_durably` does; `replace` writes and renames about `size` bytes."""
    while True:
        try:
            replace()
            break
        except OSError as error:
            if not has_made_room(disk, path, size, error):
                raise
    disk.fsync_dir(path.rpartition("/")[0] or "/")
    refill_reserve(disk, path)


def replace_file(disk: Disk, path: str, content: bytes) -> None:
    """Do as `write_file_durably` does; the new name is durable after an fsync of the directory."""
    draft = f"{path}.tmp"
    with closing(disk.open(draft, create=True)) as file:
        file.truncate(0)  # a draft left behind by a crash
        file.append([content])
        file.fsync()
    disk.rename(draft, path)


# A vote, a checkpoint or the marker of a clean shutdown replaces a file of a few hundred bytes: it
# needs space for the new file beside the old one. So each log directory holds a file of zeros. It
# is cut by a step when a small file finds no space, and is refilled as soon as there is space.
# docs/decisions/0021-disk-errors.md
RESERVE_FILE: Final = ".reserve"
RESERVE_BYTES: Final = 1 << 20
STEP_BYTES: Final = 64 << 10  # a larger file gets no reserve


def keep_reserve(disk: Disk, log_dir: str) -> None:
    """Fill the reserve of a log directory as far as there is space. Raises OSError, but no ENOSPC.

    It writes the zeros, because a sparse file reserves no space.
    """
    try:
        with closing(disk.open(f"{log_dir}/{RESERVE_FILE}", create=True)) as file:
            if file.size() > RESERVE_BYTES:  # two threads filled it at once
                file.truncate(RESERVE_BYTES)
            while (missing := RESERVE_BYTES - file.size()) > 0:
                file.append([bytes(min(missing, STEP_BYTES))])
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def has_made_room(disk: Disk, path: str, size: int, error: OSError) -> bool:
    """Release a step of the reserve for a file of `size` bytes; False if that cannot help.

    `error`: why its write failed. Raises OSError.
    """
    if error.errno not in NO_ROOM or size > STEP_BYTES:
        return False
    log_dir, left = _reserve_above(disk, path)
    if log_dir is None or left == 0:
        return False
    with closing(disk.open(f"{log_dir}/{RESERVE_FILE}")) as file:
        file.truncate(max(0, left - STEP_BYTES))
    return True


def refill_reserve(disk: Disk, path: str) -> None:
    """Refill the reserve of this file's log directory, if a step of it was released."""
    log_dir, size = _reserve_above(disk, path)
    if log_dir is not None and size < RESERVE_BYTES:
        keep_reserve(disk, log_dir)


def _reserve_above(disk: Disk, path: str) -> tuple[str | None, int]:
    """Return the log directory of `path` and the size of its reserve; None: it has no reserve.

    A small file lies in a log directory, or in a subdirectory of one.
    """
    for _ in range(2):
        path = path.rpartition("/")[0]
        try:
            return path, disk.size(f"{path}/{RESERVE_FILE}")
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None, 0
