"""A real disk whose page cache is the test's, and the queue in which its work may wait.

Nothing is made durable: that takes time, and no power is lost.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import RealDisk, RealFile
from quorumlog.storage.io.lent_descriptor import LentDescriptor
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.message import Buffer
from tests.support.broker.held_queue import HeldQueue

PAGE_BYTES = 64
T = TypeVar("T")


class ColdDisk(RealDisk):
    """`cached`: the pages of logs in memory, while `keeps`. `errno`: of reads that miss them.

    `waits`: how many reads have missed them; `loop_waits`: the paths of those that were not work
    of a ColdQueue, and of indexes that were opened so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cached = set[tuple[str, int]]()
        self.keeps = True
        self.errno: int | None = None
        self.waits = 0
        self.loop_waits: list[str] = []
        self.is_working = False

    def open(self, path: str, *, create: bool = False) -> RealFile:
        file = super().open(path, create=create)
        if path.endswith(".log"):
            return ColdFile(file._descriptor, path, self)
        if path.endswith("index") and not create:
            self.wait(path)
        return file

    def fsync_dir(self, path: str) -> None:
        pass

    def wait(self, path: str) -> None:
        self.waits += 1
        if not self.is_working:
            self.loop_waits.append(path)
        if self.errno is not None:
            raise OSError(self.errno, "the disk refuses")


class ColdFile(RealFile):
    def __init__(self, descriptor: int, path: str, disk: ColdDisk) -> None:
        super().__init__(descriptor)
        self._path, self._disk = path, disk

    def _pages(self, size: int, position: int) -> set[tuple[str, int]]:
        end = min(position + size, self.size())
        pages = range(position // PAGE_BYTES, -(-end // PAGE_BYTES))
        return {(self._path, page) for page in pages}

    def append(self, chunks: Sequence[Buffer]) -> None:
        start = self.size()
        super().append(chunks)
        self._disk.cached |= self._pages(self.size() - start, start)

    def fsync(self) -> None:
        pass

    def pread(self, size: int, position: int) -> bytes:
        pages = self._pages(size, position)
        if not pages <= self._disk.cached:
            self._disk.wait(self._path)
            if self._disk.keeps:
                self._disk.cached |= pages
        return super().pread(size, position)

    def pread_cached(self, size: int, position: int) -> bytes | None:
        is_cached = self._pages(size, position) <= self._disk.cached
        return super().pread(size, position) if is_cached else None

    def lend(self, size: int, position: int) -> FileRange | None:
        """Lend what is in memory, however small."""
        if not self._pages(size, position) <= self._disk.cached:
            return None
        self._lent = self._lent or LentDescriptor(self._descriptor)
        return FileRange(self._lent, position, size)


class ColdQueue(HeldQueue):
    """A HeldQueue that records when it works."""

    def __init__(self, disk: ColdDisk) -> None:
        super().__init__()
        self._disk = disk

    def submit(
        self, key: Hashable, work: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        def at_work() -> T:
            self._disk.is_working = True
            try:
                return work()
            finally:
                self._disk.is_working = False

        super().submit(key, at_work, done)

    def release_one(self) -> None:
        if self.held:
            _, perform = self.held.popleft()
            perform()
