"""An event loop without waiting: once it is idle, the next timer is due at once.

A test selects it with `@pytest.mark.jumping_time`. It is of no use where sockets, threads or
processes do the work: the loop would not wait for them, but time out.
"""

import asyncio
import selectors

TURNS_MAX = 20_000  # of the loop at one instant: something does the same again and again


class JumpingSelector(selectors.DefaultSelector):
    """Jumps to the time of the next timer once the loop is idle."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout if timeout is None else 0)
        if not ready and timeout:
            self.now_s += timeout
            self._turns = 0
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise RuntimeError(f"time stands still at {self.now_s} s")
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of a JumpingSelector."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s
