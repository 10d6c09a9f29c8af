"""What a process holds of a simulated disk as a whole."""

import errno
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk


class SimFileSystem:
    """All files of the disk. A sync that fails drops every page that was not durable."""

    def __init__(self, disk: "SimDisk") -> None:
        self._disk: Final = disk
        self._known_losses = disk.losses

    def sync(self) -> None:
        """Make all durable; a write that was lost in silence is told of once: see FileSystem."""
        try:
            self._disk.begin("sync_file_system", "/")
            self._require_no_loss()
        except OSError:
            for content in self._disk.contents():
                content.lose_pages()
            raise
        for content in self._disk.contents():
            content.fsync()
        self._disk.make_names_last()

    def _require_no_loss(self) -> None:
        known, self._known_losses = self._known_losses, self._disk.losses
        if known != self._known_losses:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def close(self) -> None:  # noqa: D102 - see FileSystem
        pass


class SimLock:
    """A lock that a crash or a death releases."""

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:  # noqa: D102 - see DiskLock
        self._held.discard(self._path)
