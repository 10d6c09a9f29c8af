"""Ends a run at a signal: in order, once, and with all faults healed."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Within the block, the first of these signals raises KeyboardInterrupt, or calls `cancel`.

    Later signals are ignored, because paused and killed nodes must be resumed and started. A signal
    that was ignored before (by nohup, by a shell's background job) stays ignored. Outside the main
    thread handlers are unchanged: no signal arrives there.
    """

    def __init__(self) -> None:
        self.cancel: Callable[[], object] | None = None
        self._has_happened = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._has_happened:
            return
        self._has_happened = True
        if self.cancel is None:
            raise KeyboardInterrupt
        self.cancel()
