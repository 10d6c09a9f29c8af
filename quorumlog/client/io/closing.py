"""Closes all parts of a client in order, even if the caller is cancelled."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

from quorumlog.tasks import Tasks, log_failure

Close = Callable[[], Coroutine[None, None, None]]

_logger: Final = logging.getLogger(__name__)

_dropped: Final = Tasks(log_failure(_logger, "closing a client that was dropped"))


async def close_all(*closings: Close) -> None:
    """Run all `closings` in order, even if one fails. A cancelled caller does not wait."""
    await asyncio.shield(asyncio.ensure_future(_run(closings)))


async def _run(closings: Sequence[Close]) -> None:
    if closings:
        try:
            await closings[0]()
        finally:
            await _run(closings[1:])


def begin_closing(*closings: Close) -> None:
    """Run all `closings` in a task of the running event loop; log errors."""
    _dropped.start(close_all(*closings))
