"""How far a broker's logs are opened or closed: this tells slow work from work that hangs.

docs/decisions/0052-time-limits-of-nodes-are-renewed-by-progress.md
"""

import threading
from collections.abc import Callable
from typing import Final


class LogProgress:
    """Counts work on logs. The threads that do the work call it.

    Invariant: two texts of `describe` differ only if bytes were read, or a log was opened or
    closed, between them.
    """

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._read_bytes = 0
        self._counts_bytes = True
        self._closed = 0

    def note_read(self, size: int) -> None:
        """Count bytes of a log that is opened."""
        with self._lock:
            self._read_bytes += size

    def note_postponed(self) -> None:
        """Count no more bytes: a log is opened again and again, which is no progress."""
        self._counts_bytes = False

    def close(self, close: Callable[[], None]) -> None:
        """Close a log by `close`, and count it. Raises what that raises."""
        close()
        with self._lock:
            self._closed += 1

    def describe(self, *, opened: int, left: int) -> str:
        """Say how far it is; empty if no log is to be opened, and none was closed.

        `opened`: logs that were opened; `left`: logs that are to be opened yet.
        """
        if self._closed:
            return f"closing logs: {self._closed} of {opened}"
        if left:
            text = f"opening logs: {opened} of {opened + left}"
            return f"{text}, {self._read_bytes >> 20} MiB read" if self._counts_bytes else text
        return ""
