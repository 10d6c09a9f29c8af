"""A disk that has no room for some of its operations."""

import errno
import os
from typing import Final

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk

NEEDS_ROOM: Final = frozenset({"append", "mkdir", "add_dir", "rename", "unlink"})
"""Also to remove a name takes room, on file systems that copy on write."""


class Refusing:
    """Refuses operations that need room: from the one of this number on, `at_most` so many."""

    def __init__(self, disk: SimDisk, first: int, at_most: int = 1 << 30) -> None:
        self.has_refused = False
        self._disk: Final = disk
        self._refused: Final = range(first, first + at_most)
        self._count = 0
        disk.on_operation = self._on_operation

    def _on_operation(self, operation: str, path: str) -> None:
        is_made = operation == "open" and not self._disk.exists(path)
        if is_made or operation in NEEDS_ROOM:
            self._count += 1
            if self._count - 1 in self._refused:
                self.has_refused = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def free(self) -> None:
        """Let there be room."""
        self._disk.on_operation = None
