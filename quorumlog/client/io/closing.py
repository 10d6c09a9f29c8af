"""How a client ends: everything it holds, whatever happens to the caller."""

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

Close = Callable[[], Coroutine[None, None, None]]

_closing: Final[set["asyncio.Task[None]"]] = set()  # what dropped clients left


async def close_all(*closings: Close) -> None:
    """Run all, one after the other. A caller that is cancelled does not wait for the rest."""
    await asyncio.shield(asyncio.ensure_future(_run(closings)))


async def _run(closings: Sequence[Close]) -> None:
    if closings:
        try:
            await closings[0]()
        finally:
            await _run(closings[1:])


def begin_closing(*closings: Close) -> None:
    """Run all in a task of the running event loop."""
    task = asyncio.get_running_loop().create_task(close_all(*closings))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def warn_unclosed(client: object, loss: str) -> None:
    """Warn that `client` was dropped while it was open. `loss`: what that costs, "" if nothing."""
    message = f"unclosed {type(client).__name__}: use `async with`, or stop()"
    warnings.warn(message + loss, ResourceWarning, stacklevel=2, source=client)
