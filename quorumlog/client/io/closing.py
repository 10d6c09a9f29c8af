"""How a client ends: everything it holds, whatever happens to the caller."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

Close = Callable[[], Coroutine[None, None, None]]


async def close_all(*closings: Close) -> None:
    """Run all, one after the other. A caller that is cancelled does not wait for the rest."""
    await asyncio.shield(asyncio.ensure_future(_run(closings)))


async def _run(closings: Sequence[Close]) -> None:
    if closings:
        try:
            await closings[0]()
        finally:
            await _run(closings[1:])
