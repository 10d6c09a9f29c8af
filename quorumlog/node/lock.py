"""The lock by which others know that a node lives: held until the process ends, however it ends."""

import fcntl
import os
from pathlib import Path
from typing import TextIO


class AlreadyRunning(Exception):
    """Another process holds the lock: two nodes must never share one directory."""


def hold(path: Path) -> TextIO:
    """Lock `path` and write our process id into it. Keep the result: closing it lets go.

    Raises AlreadyRunning. A reader sees either no holder, or the holder's process id.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise AlreadyRunning(f"{path.parent} is in use by another process") from None
    file.seek(0)
    file.truncate()
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
