"""Writes `responses.jsonl` in a thread: nothing that forwards bytes waits for a disk."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Full, Queue
from typing import Final, TextIO

from quorumlog.chaos.network.error_responses import ErrorResponse
from quorumlog.chaos.network.response_errors import ErrorLog
from quorumlog.chaos.network.response_watch import Answered

_QUEUE_MAX: Final = 10_000
_END_TIMEOUT_S: Final = 3.0


class RecorderFull(Exception):
    """The disk did not take the lines for longer than the queue lasts."""


class Recorder:
    """Records the responses with errors, from `start` on. Not for use by several threads.

    `failed` is called once, in any thread, if a line cannot be written; no line is written then.
    """

    def __init__(
        self,
        *,
        failed: Callable[[BaseException], object],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._failed: Final = failed
        self._now_ns: Final = now_ns
        self._log: Final = ErrorLog()
        self._queue: Final[Queue[ErrorResponse | None]] = Queue(_QUEUE_MAX)
        self._started_ns = 0
        self._thread: threading.Thread | None = None

    def start(self, file: Path, started_ns: int) -> None:
        """Begin a file. `started_ns`: `now_ns` at time 0 of the history. Raises OSError."""
        if self._thread is not None:
            raise ValueError("the responses are recorded already")
        self._started_ns = started_ns
        opened = file.open("w", encoding="utf-8")
        self._thread = threading.Thread(target=self._serve, args=(opened,), daemon=True)
        self._thread.start()

    def record(self, node: int, answered: Answered) -> None:
        """Record the errors of a response that a node has sent to a client."""
        if self._thread is not None:
            time_ns = self._now_ns() - self._started_ns
            self._put(self._log.lines(time_ns, node, answered))

    def close(self) -> None:
        """Write the remaining lines, and end the file."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._put(self._log.left_out())
            self._queue.put(None, timeout=_END_TIMEOUT_S)
            thread.join(_END_TIMEOUT_S)

    def _put(self, lines: Iterable[ErrorResponse]) -> None:
        try:
            for line in lines:
                self._queue.put_nowait(line)
        except Full:
            self._thread = None
            self._failed(RecorderFull(f"more than {_QUEUE_MAX} responses wait to be written"))

    def _serve(self, file: TextIO) -> None:
        try:
            with file:
                while (line := self._queue.get()) is not None:
                    file.write(json.dumps(line.as_json()) + "\n")
                    if self._queue.empty():
                        file.flush()
        except OSError as error:
            self._failed(error)
