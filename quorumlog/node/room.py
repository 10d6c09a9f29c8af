"""Waiting for disk space and file handles during a node's start.

A step of the start that lacks disk space or a file handle is repeated until it succeeds: the node
must not end, because space may return when no person is there to start it again.
docs/decisions/0021-disk-errors.md
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from quorumlog.clock import monotonic_ms
from quorumlog.lasting_condition import LastingCondition
from quorumlog.node.listeners import StartFailed
from quorumlog.node.progress import Obstacles
from quorumlog.storage.errors import DiskExhausted

T = TypeVar("T")

FIRST_WAIT_S: Final = 0.1  # then twice as long, up to
WAIT_MAX_S: Final = 5.0  # a repeated step may read a whole log
_logger: Final = logging.getLogger("quorumlog.node")


class StartEnded(StartFailed):
    """The node was stopped while its start waited for space."""


class Room:
    """Repeats the steps of one start. `obstacles` has the reason while a step waits."""

    def __init__(self) -> None:
        self.obstacles: Final = Obstacles()
        self._ended: Final = asyncio.Event()
        self._condition: Final = LastingCondition(_logger)

    def end(self) -> None:
        """End the current wait, and all later ones."""
        self._ended.set()

    async def wait_for(self, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step until it raises no DiskExhausted; return its result.

        Raises StartEnded after `end`, if the step still lacks space; and other errors of the step.
        """
        wait_s = FIRST_WAIT_S
        while True:
            try:
                result = await step()
            except DiskExhausted as refusal:
                reason = f"waiting for disk space, or for a file handle: {refusal}"
            else:
                self._condition.end(monotonic_ms(), "the start continues: disk space is free again")
                self.obstacles.clear("room")
                return result
            self._condition.note(monotonic_ms(), f"the start is blocked: {reason}")
            self.obstacles.note("room", reason)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), wait_s)
                raise StartEnded(f"the node stopped during its start: {reason}")
            wait_s = min(2 * wait_s, WAIT_MAX_S)
