"""The file of orders for one process: what of its disk and its clock is broken now.

The process maps the file, so that an order is obeyed from its next call on. The layout is that of
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
    """The orders for one process, and for those that take its place. `close` lets go of the file.

    Making it writes a file that breaks nothing.
    """

    def __init__(self, file: Path) -> None:
        self.file: Final = file
        file.write_bytes(bytes(_FIELD.size * len(_NAMES)))
        with file.open("r+b") as opened:
            self._page: Final = mmap.mmap(opened.fileno(), 0)
        self.free()

    def fail(self, calls: int) -> None:
        """Let these calls (bits of `faults/disks.py`) fail with EIO; 0: none."""
        self._set("calls", calls)

    def fill(self, room: int) -> None:
        """Let the disk take `room` more bytes, and then be full."""
        self._set("room", room)

    def free(self) -> None:
        """Let the disk have room again."""
        self._set("room", _ANY_NUMBER)

    def slow(self, fsync_us: int) -> None:
        """Let an fsync take up to so much longer."""
        self._set("fsync_us", fsync_us)

    def step_clock(self, ahead_ns: int) -> None:
        """Let the wall clock be ahead by this, or behind."""
        self._set("wall_ns", ahead_ns)

    @property
    def hit(self) -> int:
        """How many calls failed, or were made to wait."""
        return self._get("hit")

    def note_start(self) -> None:
        """Forget that they are read: the next process may start without the library."""
        self._set("attached", 0)

    @property
    def are_read(self) -> bool:
        """Whether a process has mapped them since `note_start`; else no order has any effect."""
        return self._get("attached") != 0

    def close(self) -> None:
        """Let go of the file."""
        self._page.close()

    def _get(self, name: str) -> int:
        value: int = _FIELD.unpack_from(self._page, _NAMES.index(name) * _FIELD.size)[0]
        return value

    def _set(self, name: str, value: int) -> None:
        _FIELD.pack_into(self._page, _NAMES.index(name) * _FIELD.size, value)
