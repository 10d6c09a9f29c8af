"""The progress of opening or closing a broker's logs. It distinguishes slow work from hung work.

docs/decisions/0044-node-starts.md
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from quorumlog.lasting_condition import LastingCondition

_logger: Final = logging.getLogger(__name__)


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
        self._postponed: Final = LastingCondition(_logger)

    def note_read(self, size: int) -> None:
        """Count bytes of a log that is being opened."""
        with self._lock:
            self._read_bytes += size

    def note_postponed(self, now_ms: int, log: str, reason: object) -> None:
        """Stop counting bytes: a log is opened again and again, which is no progress.

        It lacks disk space or a file handle; that is logged the first time and once a minute.
        """
        self._counts_bytes = False
        self._postponed.note(now_ms, f"{log}: {reason}", log)

    def note_opened(self, now_ms: int, log: str) -> None:
        """End the logged condition of a log that had to wait."""
        self._postponed.end(now_ms, "all logs that lacked room are open", log)

    def close(self, close: Callable[[], None]) -> None:
        """Close a log by `close`, and count it. Raises the errors of `close`."""
        close()
        with self._lock:
            self._closed += 1

    def describe(self, *, opened: int, left: int) -> str:
        """Describe the progress; empty if no log is left to open, and no log was closed.

        `opened`: the number of open logs; `left`: the number of logs still to open.
        """
        if self._closed:
            return f"closing logs: {self._closed} of {opened}"
        if left:
            text = f"opening logs: {opened} of {opened + left}"
            return f"{text}, {self._read_bytes >> 20} MiB read" if self._counts_bytes else text
        return ""
