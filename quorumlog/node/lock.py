"""The lock that marks a running node: held until its process ends.

It is a POSIX record lock: a test of it (F_TEST), unlike flock, does not acquire it for a moment,
and so never blocks a node that starts.
"""

import fcntl
import os
from pathlib import Path
from typing import TextIO


class AlreadyRunning(Exception):
    """Another process holds the lock: two nodes must never share one directory."""


def is_held(descriptor: int) -> bool:
    """Return whether another process holds the lock of an open file."""
    try:
        os.lockf(descriptor, os.F_TEST, 0)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return True
    return False


def hold(path: Path) -> TextIO:
    """Lock `path` and write our process id into it. Keep the result: closing it releases the lock.

    Raises AlreadyRunning. A reader sees either no holder, or the holder's process id. Other code of
    this process must not open `path`: closing that file would release the lock, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        file.close()
        raise AlreadyRunning(f"{path.parent} is in use by another process") from None
    try:
        # In place, in one write: an existing file needs no space on a full disk.
        line = f"{os.getpid()}\n".ljust(os.fstat(file.fileno()).st_size, "\n")
        os.pwrite(file.fileno(), line.encode(), 0)
    except OSError as error:  # for example a full disk: the error lacks the path
        raise OSError(error.errno, error.strerror, str(path)) from error
    return file
