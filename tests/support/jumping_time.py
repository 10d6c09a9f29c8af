"""An event loop without waiting: where nothing is left to do, the next timer is due at once.

A test asks for it with `@pytest.mark.jumping_time`. It is of no use where sockets, threads or
processes do the work: the loop would not wait for them, but time out.
"""

import asyncio
import selectors


class JumpingSelector(selectors.DefaultSelector):
    """Where there is nothing to do before the next timer, it is at once that time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout is not None:
            self.now_s += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of a JumpingSelector."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s
