"""A real disk that refuses operations chosen by a test."""

from collections.abc import Callable, Sequence

from quorumlog.storage.io.disk import RealDisk, RealFile
from quorumlog.wire.codec.message import Buffer


class FaultyDisk(RealDisk):
    """`errors`: the errno of each operation (append, rename, fsync) on a path with `on` in it."""

    def __init__(self) -> None:
        super().__init__()
        self.on = ".log"
        self.errors: dict[str, int] = {}

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        return FaultyFile(file, lambda operation: self.fail(operation, path))

    def rename(self, source: str, target: str) -> None:
        self.fail("rename", source)
        super().rename(source, target)

    def fail(self, operation: str, path: str) -> None:
        if operation in self.errors and self.on in path:
            raise OSError(self.errors[operation], f"{operation} is refused")


class FaultyFile(RealFile):
    def __init__(self, file: RealFile, fail: Callable[[str], None]) -> None:
        self._file, self._fail = file, fail

    def append(self, chunks: Sequence[Buffer]) -> None:
        try:
            self._fail("append")
        except OSError:
            self._file.append([bytes(chunks[0])[:7]])  # a part of it is written all the same
            raise
        self._file.append(chunks)

    def pread(self, size: int, position: int) -> bytes:
        self._fail("pread")
        return self._file.pread(size, position)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        self._fail("pread")
        return self._file.pread_cached(size, position)

    def truncate(self, size: int) -> None:
        self._fail("truncate")
        self._file.truncate(size)

    def fsync(self) -> None:
        self._fail("fsync")
        self._file.fsync()

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()
