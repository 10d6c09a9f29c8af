"""Waiting without guessing how long: until something holds, or for turns of the event loop."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], *, within_s: float = 30.0) -> None:
    """Return when it holds. Raises TimeoutError: it never did."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.001)


async def loop_turns(count: int = 100) -> None:
    """Let the event loop go round, to see that something does *not* happen.

    All that needs no timer is done then, what lies in this process's own sockets included.
    """
    for _ in range(count):
        await asyncio.sleep(0)
