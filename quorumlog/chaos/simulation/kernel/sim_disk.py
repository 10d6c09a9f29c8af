"""A disk in memory that loses unfsynced changes.

A file has a written content (seen by reads) and a durable content (seen after a power loss); so
has the list of names of a directory. `crash` keeps, of each, the durable state and a random
beginning of the later changes. `kill` is a process's death: the system still writes everything.

The model, on the harsh side of POSIX:
  - An fsync of a file makes its content and size durable, not its name: `fsync_dir` does.
  - Unsynced changes of one file, and of the names of one directory, reach the disk in order;
    different files and directories are independent. The last append may be torn, with garbage.
    A file system without a journal keeps no order of names: `keeps_order_of_names`.
  - A failed fsync drops the unsynced pages: reads still see them, the disk never will (zeros),
    and a later fsync succeeds without them ("fsyncgate").
  - Unfsynced changes may be lost without an error when a pool closes their handle, and with the
    pages, so that reads see zeros: `loses_write_back` decides when.
Directories themselves are durable when made or removed; a rename of one is durable with the names
of its parent, or with the next directory that is made or removed there.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any, Final, cast

from quorumlog.chaos.simulation.kernel.sim_content import FAR_FUTURE_MS, SimContent
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.append_handles import AppendFile, AppendHandles
from quorumlog.storage.io.disk import FileIdentity
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.message import Buffer

ROOT: Final = "/"
APPEND_HANDLES_MAX: Final = 2  # so few that logs lose theirs all the time
NameChange = tuple[str, SimContent | None]  # a name, and its content from then on
DirectoryCopy = Mapping[str, Mapping[str, bytes]]  # directory below the copied one -> its files
OnOperation = Callable[[str, str], None]  # (operation, path); raises the error of the disk


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
        self._content.written_ms = self._disk.now_ms()

    def overwrite(self, data: Buffer, position: int) -> None:  # noqa: D102 - see DiskFile
        self._begin("append")
        self._content.overwrite(bytes(data), position)
        self._content.written_ms = self._disk.now_ms()

    def pread(self, size: int, position: int) -> bytes:  # noqa: D102 - see DiskFile
        self._begin("pread")
        return bytes(self._content.written[position : position + size])

    def pread_cached(self, size: int, position: int) -> bytes:  # noqa: D102 - see ReadableFile
        return self.pread(size, position)

    def lend(self, size: int, position: int) -> FileRange:
        """Lend bytes of any number: see ReadableFile. Like sockets, the range copies none."""
        self._begin("pread")
        return FileRange(self._content, position, size)

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


class SimLock:
    """A lock that a crash or a death releases."""

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:  # noqa: D102 - see DiskLock
        self._held.discard(self._path)


class SimDisk:
    """Implements `Disk`. `on_operation` sees every operation first and may raise OSError.

    Invariant: for every directory, replaying its name changes on its durable names gives the
    names that are seen.
    """

    def __init__(
        self, *, capacity_bytes: int | None = None, on_operation: OnOperation | None = None
    ) -> None:
        self._append_handles: Final = AppendHandles(APPEND_HANDLES_MAX)
        self._numbers: Final = count(1)
        self.capacity_bytes = capacity_bytes
        self.on_operation = on_operation
        self.loses_write_back: Callable[[str], bool] = lambda _: False
        self.keeps_order_of_names = True
        self.now_ms: Callable[[], int] = lambda: FAR_FUTURE_MS  # then no file ever looks old
        self.generation = 0
        self._names: dict[str, dict[str, SimContent]] = {"/": {}}
        self._durable_names: dict[str, dict[str, SimContent]] = {"/": {}}
        self._name_changes: dict[str, list[tuple[NameChange, ...]]] = {"/": []}
        self._moves: dict[str, list[tuple[str, str]]] = {}  # parent -> old and new names
        self._added: dict[str, None] = {}  # directories whose names are not durable
        self._locks: set[str] = set()

    def wipe(self) -> None:
        """Lose all: the machine gets a new disk. Every handle is dead."""
        self.generation += 1
        for names in (self._names, self._durable_names, self._name_changes):
            names.clear()
        self._names["/"], self._durable_names["/"], self._name_changes["/"] = {}, {}, []
        self._moves.clear()
        self._locks.clear()

    def begin(self, operation: str, path: str) -> None:
        """Let the faults fail the operation."""
        if self.on_operation is not None:
            self.on_operation(operation, path)

    def bytes_free(self) -> int:
        """Return the number of bytes that still fit on the disk."""
        if self.capacity_bytes is None:
            return 1 << 62
        return max(0, self.capacity_bytes - self.bytes_used())

    def bytes_used(self) -> int:
        """Return the size of all files in bytes."""
        return sum(
            len(content.written) for names in self._names.values() for content in names.values()
        )

    # --- Disk ---

    def open(self, path: str, *, create: bool = False) -> SimFile:  # noqa: D102 - see Disk
        return SimFile(self, path, self._opened(path, create=create))

    def open_to_append(  # noqa: D102 - see Disk
        self, path: str, *, create: bool = False
    ) -> AppendFile:
        generation, new = self.generation, None
        if create:
            new = LetGoFile(self, path, self._opened(path, create=True))
            new.truncate(0)

        def open_again() -> SimFile:
            if self.generation != generation:  # a process that has ended
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
            return LetGoFile(self, path, self._opened(path))

        return AppendFile(self._append_handles, open_again, new=new)

    def _opened(self, path: str, *, create: bool = False) -> SimContent:
        self.begin("open", path)
        directory, name = _split(path)
        names = self._directory(directory)
        if name not in names:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._change_names(directory, (name, SimContent(next(self._numbers))))
        return names[name]

    def open_to_read(self, path: str) -> SimFile:  # noqa: D102 - see Disk
        return self.open(path)

    def exists(self, path: str) -> bool:  # noqa: D102 - see Disk
        directory, name = _split(path)
        return path in self._names or name in self._names.get(directory, {})

    def size(self, path: str) -> int:  # noqa: D102 - see Disk
        return len(self._content(path).written)

    def modified_ms(self, path: str) -> int:
        """Return the time of the last write by `now_ms`."""
        return self._content(path).written_ms

    def identity(self, path: str) -> FileIdentity:
        """Return the identity on a file system that gives each file the inode of the last."""
        return FileIdentity(1, self._content(path).number)

    def listdir(self, path: str) -> list[str]:  # noqa: D102 - see Disk
        self.begin("listdir", path)
        names = [*self._directory(path)]
        names += [name for parent, name in map(_split, self._names) if name and parent == path]
        return sorted(names)

    def mkdir(self, path: str) -> None:  # noqa: D102 - see Disk
        self.begin("mkdir", path)
        while path not in self._names:
            self._moves.pop(_split(path)[0], None)
            self._names[path], self._durable_names[path], self._name_changes[path] = {}, {}, []
            path = _split(path)[0]

    def add_dir(self, path: str) -> None:  # noqa: D102 - see Disk
        self.begin("add_dir", path)
        self._directory(_split(path)[0])
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._names[path], self._durable_names[path], self._name_changes[path] = {}, {}, []
        self._added[path] = None

    def rename(self, source: str, target: str) -> None:  # noqa: D102 - see Disk
        self.begin("rename", source)
        (directory, old), (target_directory, new) = _split(source), _split(target)
        if directory != target_directory:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), target)
        if source in self._names:
            if self.exists(target):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
            self._move(source, target)
            self._moves.setdefault(directory, []).append((old, new))
            return
        self._change_names(directory, (new, self._content(source)), (old, None))

    def unlink(self, path: str) -> None:  # noqa: D102 - see Disk
        self.begin("unlink", path)
        self._content(path)
        directory, name = _split(path)
        self._change_names(directory, (name, None))

    def space(self, path: str) -> tuple[int, int]:  # noqa: D102 - see Disk
        self.begin("space", path)
        return self.bytes_used() + self.bytes_free(), self.bytes_free()

    def rmdir(self, path: str) -> None:  # noqa: D102 - see Disk
        self.begin("rmdir", path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._moves.pop(_split(path)[0], None)
        self._forget_directory(path)

    def fsync_dir(self, path: str) -> None:  # noqa: D102 - see Disk
        self.begin("fsync_dir", path)
        self._durable_names[path] = dict(self._directory(path))
        self._name_changes[path].clear()
        self._moves.pop(path, None)
        self._added = {one: None for one in self._added if _split(one)[0] != path}

    def lock(self, path: str) -> SimLock:  # noqa: D102 - see Disk
        if path in self._locks:
            raise StorageError(f"{path} is locked: another process uses this directory")
        self._locks.add(path)
        return SimLock(self._locks, path)

    # --- faults ---

    def empty(self, path: str) -> None:
        """Replace the disk mounted at `path` by an empty one. No process may use it."""
        for name in [one for one in self._names if one == path or one.startswith(f"{path}/")]:
            self._forget_directory(name)
            self._moves.pop(name, None)
        self._names[path], self._durable_names[path], self._name_changes[path] = {}, {}, []

    def copied(self, path: str) -> DirectoryCopy:
        """Return a copy of the directory at `path`, and of those in it, as reads see them."""
        return {
            name[len(path) :]: {one: bytes(names[one].written) for one in sorted(names)}
            for name, names in sorted(self._names.items())
            if name == path or name.startswith(f"{path}/")
        }

    def put_back(self, path: str, copy: DirectoryCopy) -> None:
        """Replace the files at `path` by an earlier copy: new files. No process may use them."""
        self.empty(path)
        for below, files in copy.items():
            contents = {}
            for name, data in files.items():
                contents[name] = SimContent(next(self._numbers))
                contents[name].append(data)
                contents[name].fsync()
            self._names[path + below], self._durable_names[path + below] = contents, {**contents}
            self._name_changes[path + below] = []

    def kill(self) -> None:
        """End the process: its handles and locks are gone, its written bytes stay."""
        self.generation += 1
        self._locks.clear()

    def crash(self, rng: Random) -> None:
        """Lose power: keep the durable content, and of the rest a part drawn by `rng`."""
        self.kill()
        self._undo_moves(rng)
        self._lose_directories(rng)
        for directory in sorted(self._names):
            names = self._durable_names[directory]
            changes = self._name_changes[directory]
            kept = changes[: rng.randint(0, len(changes))]
            if not self.keeps_order_of_names:
                kept = [change for change in changes if rng.random() < 0.5]
            for change in kept:
                _rename(names, change)
            changes.clear()
            self._names[directory] = dict(names)
            for name in sorted(names):
                names[name].crash(rng)

    def lose_handles(self, is_meant: Callable[[str], bool]) -> None:
        """Let a pool close its handles; the unfsynced changes of the chosen handles are lost."""
        before, self.loses_write_back = self.loses_write_back, is_meant
        while self._append_handles.close_oldest():
            pass
        self.loses_write_back = before

    def evict_lost_pages(self, rng: Random) -> None:
        """Let reads see the bytes of the disk where an fsync failed: zeros, or an earlier end."""
        for directory in sorted(self._names):
            for _, content in sorted(self._names[directory].items()):
                if content.has_lost_pages:
                    content.forget_pages(keeps_size=rng.random() < 0.5)

    def lose(self, path: str) -> None:
        """Lose a file, durably."""
        directory, name = _split(path)
        self._change_names(directory, (name, None))
        self._durable_names[directory].pop(name, None)

    def cut(self, path: str, size: int) -> None:
        """Lose the end of a file, durably."""
        content = self._content(path)
        content.truncate(size)
        content.fsync()

    def flip_bit(self, path: str, rng: Random) -> int:
        """Bit rot: change one bit of a file that is not empty; return the byte's position."""
        content = self._content(path)
        position, bit = rng.randrange(len(content.written)), 1 << rng.randrange(8)
        content.fsync()
        content.written[position] ^= bit
        content.durable[position] ^= bit
        return position

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path and the content of every file, as reads see them, in order."""
        for directory in sorted(self._names):
            for name, content in sorted(self._names[directory].items()):
                yield f"{directory}/{name}", bytes(content.written)

    def durable_bytes(self, path: str) -> bytes | None:
        """Return the content that survives any power loss; None if the name is not durable."""
        directory, name = _split(path)
        content = self._durable_names.get(directory, {}).get(name)
        return None if content is None else bytes(content.durable)

    # --- names ---

    def _directory(self, path: str) -> dict[str, SimContent]:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._names[path]

    def _content(self, path: str) -> SimContent:
        directory, name = _split(path)
        content = self._directory(directory).get(name)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return content

    def _move(self, source: str, target: str) -> None:
        """Give a directory another path, and all that is in it."""
        trees = (self._names, self._durable_names, self._name_changes, self._moves, self._added)
        for tree in trees:
            paths = cast(dict[str, Any], tree)
            for path in [*paths]:
                if path == source or path.startswith(f"{source}/"):
                    paths[f"{target}{path[len(source) :]}"] = paths.pop(path)

    def _undo_moves(self, rng: Random) -> None:
        """Take back, in each parent, all renames of directories but a random beginning."""
        moves, self._moves = self._moves, {}
        for parent in sorted(moves, reverse=True):  # its content before the directory itself
            lost = moves[parent][rng.randint(0, len(moves[parent])) :]
            prefix = parent.rstrip("/")
            for old, new in reversed(lost):
                self._move(f"{prefix}/{new}", f"{prefix}/{old}")

    def _lose_directories(self, rng: Random) -> None:
        """Lose each added directory that is not durable, with all in it, or keep it."""
        added, self._added = self._added, {}
        for path in sorted(added):
            if path in self._names and rng.randrange(2):
                for inner in [one for one in self._names if one.startswith(f"{path}/")]:
                    self._forget_directory(inner)
                self._forget_directory(path)

    def _forget_directory(self, path: str) -> None:
        del self._names[path], self._durable_names[path], self._name_changes[path]
        self._added.pop(path, None)

    def _change_names(self, directory: str, *change: NameChange) -> None:
        self._name_changes[directory].append(change)
        _rename(self._directory(directory), change)


def _rename(names: dict[str, SimContent], change: Sequence[NameChange]) -> None:
    for name, content in change:
        if content is None:
            names.pop(name, None)
        else:
            names[name] = content


def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    return directory or ROOT, name
