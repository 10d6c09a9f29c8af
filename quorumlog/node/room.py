"""The room that a node waits for while it starts.

A step of the start that finds no room on a disk, or no file handle, is repeated until it succeeds:
the node must not end, because room comes back, and then no person may be there to start it.
docs/decisions/0150-a-voter-without-room-refuses-and-lives.md
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from quorumlog.clock import monotonic_ms
from quorumlog.lasting import LastingCondition
from quorumlog.node.errors import StartFailed
from quorumlog.node.progress import Obstacles
from quorumlog.storage.errors import DiskExhausted

T = TypeVar("T")

FIRST_WAIT_S: Final = 0.1  # then twice as long, up to
WAIT_MAX_S: Final = 5.0  # a repeated step may read a whole log
_logger: Final = logging.getLogger("quorumlog.node")


class StartEnded(StartFailed):
    """The node was to stop while its start waited for room."""


class Room:
    """Repeats the steps of one start. `obstacles` has the reason while one waits."""

    def __init__(self) -> None:
        self.obstacles: Final = Obstacles()
        self._ended: Final = asyncio.Event()
        self._condition: Final = LastingCondition(_logger)

    def end(self) -> None:
        """Wait no more, now or later."""
        self._ended.set()

    async def wait_for(self, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step until no DiskExhausted comes of it; return its result.

        Raises StartEnded after `end`, if the step still finds no room; and what the step raises.
        """
        wait_s = FIRST_WAIT_S
        while True:
            try:
                result = await step()
            except DiskExhausted as refusal:
                reason = f"it waits for room on the disk, or for a file handle: {refusal}"
            else:
                self._condition.end(monotonic_ms(), "the start goes on: there is room")
                self.obstacles.clear("room")
                return result
            self._condition.note(monotonic_ms(), f"the start cannot go on: {reason}")
            self.obstacles.note("room", reason)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), wait_s)
                raise StartEnded(f"it has ended while it started: {reason}")
            wait_s = min(2 * wait_s, WAIT_MAX_S)
