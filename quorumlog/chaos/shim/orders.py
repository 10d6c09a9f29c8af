"""The file of orders for one process: the faults of its disk and its clock in force.

The process maps the file, so that it obeys an order from its next call on. The layout is that of
`faulty_calls.c`.
"""

import mmap
import struct
from pathlib import Path
from typing import Final

_FIELD: Final = struct.Struct("@q")
_NAMES: Final = ("calls", "room", "fsync_us", "wall_ns", "hit", "attached")
_ANY_NUMBER: Final = -1  # of bytes


class Orders:
    """The orders for one process, and for its successors. `close` unmaps the file.

    Making it writes a file without faults.
    """

    def __init__(self, file: Path) -> None:
        self.file: Final = file
        file.write_bytes(bytes(_FIELD.size * len(_NAMES)))
        with file.open("r+b") as opened:
            self._page: Final = mmap.mmap(opened.fileno(), 0)
        self.free()

    def fail(self, calls: int) -> None:
        """Make these calls (bits of `faults/disks.py`) fail with EIO; 0: none."""
        self._set("calls", calls)

    def fill(self, room: int) -> None:
        """Let the disk accept `room` more bytes, and then be full."""
        self._set("room", room)

    def free(self) -> None:
        """End the limit of the disk's space."""
        self._set("room", _ANY_NUMBER)

    def slow(self, fsync_us: int) -> None:
        """Delay each fsync by up to `fsync_us`."""
        self._set("fsync_us", fsync_us)

    def step_clock(self, ahead_ns: int) -> None:
        """Set the wall clock ahead by `ahead_ns`, or behind if negative."""
        self._set("wall_ns", ahead_ns)

    @property
    def hit(self) -> int:
        """The number of calls that failed, or were delayed."""
        return self._get("hit")

    def note_start(self) -> None:
        """Reset `are_read`: the next process may start without the library."""
        self._set("attached", 0)

    @property
    def are_read(self) -> bool:
        """Whether a process has mapped the file since `note_start`; else orders have no effect."""
        return self._get("attached") != 0

    def close(self) -> None:
        """Unmap the file."""
        self._page.close()

    def _get(self, name: str) -> int:
        value: int = _FIELD.unpack_from(self._page, _NAMES.index(name) * _FIELD.size)[0]
        return value

    def _set(self, name: str, value: int) -> None:
        _FIELD.pack_into(self._page, _NAMES.index(name) * _FIELD.size, value)
