"""A node's program that notes how long single turns of its event loop take.

A task sleeps and compares: the CPU time of the loop's thread between two of its turns is at least
what the longest turn took, and counts no other process. Every second it appends a line to
`$QUORUMLOG_WATCH/PID`: the time, the longest turn in CPU seconds and in seconds, and the longest
pause of the garbage collector in CPU seconds, since the line before. SIGUSR2
stops it, so that it costs nothing when an idle node is measured.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from quorumlog.node.main import main
from quorumlog.node.node import Node

DIRECTORY: Final = "QUORUMLOG_WATCH"  # the variable of the environment
_TURN_S: Final = 0.005


class _Collector:
    """Notes the longest pause of the garbage collector."""

    def __init__(self) -> None:
        self.longest_s = self._began_s = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


async def _watch(path: Path) -> None:
    collector = _Collector()
    line_due_s = time.monotonic() + 1.0
    longest_cpu_s = longest_s = 0.0
    while True:
        cpu_s, now_s = time.thread_time(), time.monotonic()
        await asyncio.sleep(_TURN_S)
        longest_cpu_s = max(longest_cpu_s, time.thread_time() - cpu_s)
        longest_s = max(longest_s, time.monotonic() - now_s - _TURN_S)
        if now_s >= line_due_s:
            with path.open("a") as file:
                file.write(f"{now_s} {longest_cpu_s} {longest_s} {collector.longest_s}\n")
            line_due_s = now_s + 1.0
            longest_cpu_s = longest_s = collector.longest_s = 0.0


class _WatchedStart:
    """Starts the watch with the node, and keeps its task."""

    def __init__(self) -> None:
        self._start = Node.start
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, node: Node) -> None:
        path = Path(os.environ[DIRECTORY]) / str(os.getpid())
        self._task = asyncio.create_task(_watch(path))
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._task.cancel)
        await self._start(node)


if __name__ == "__main__":
    _watched = _WatchedStart()

    async def _start(node: Node) -> None:
        await _watched(node)

    setattr(Node, "start", _start)  # noqa: B010  mypy allows no assignment to a method
    sys.exit(main(sys.argv[1:]))
