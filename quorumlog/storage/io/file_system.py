"""A whole file system that is made durable by one call: Linux's `syncfs`.

It waits for what other programs have written to the same file system, too. Since Linux 5.8 it tells
of writes that have failed since the file system was opened here; before that it told of none.
"""

import os
import re
import sys
from typing import Final, Protocol, Self
from weakref import finalize

_TELLS_OF_ERRORS: Final = (5, 8)  # the first release of Linux that does


class FileSystem(Protocol):
    """A file system, until `close`, or until nothing refers to it."""

    def sync(self) -> None:
        """Make all files durable, content and names.

        Raises OSError if anything that was written since this was opened may be lost.
        """

    def close(self) -> None:
        """Give up the handle."""


class RealFileSystem:
    """A file system of this machine."""

    def __init__(self, descriptor: int) -> None:
        """Use `open`."""
        self._descriptor: Final = descriptor
        self._finalizer: Final = finalize(self, os.close, descriptor)

    @classmethod
    def open(cls, path: str) -> Self | None:
        """Open that of a directory; None: this system cannot make it durable as a whole.

        Raises OSError.
        """
        if sys.platform != "linux" or not _is_since(os.uname().release, _TELLS_OF_ERRORS):
            return None
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def sync(self) -> None:  # noqa: D102 - the Protocol says it
        import ctypes  # for this one call, which Python lacks

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:  # noqa: D102 - the Protocol says it
        self._finalizer()


def _is_since(release: str, version: tuple[int, int]) -> bool:
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and tuple(map(int, found.groups())) >= version
