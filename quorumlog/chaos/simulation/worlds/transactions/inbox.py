"""The messages and timers of a client process: they wait while it is paused."""

from collections import deque
from collections.abc import Callable
from typing import Final

from quorumlog.chaos.simulation.kernel.machine import Machine


class Inbox:
    """The inbox of one machine. `describe` returns the state after a step, for the trace."""

    def __init__(self, machine: Machine, describe: Callable[[], str]) -> None:
        self._machine: Final = machine
        self._describe: Final = describe
        self._waiting: Final = deque[tuple[Callable[..., None], tuple[object, ...]]]()

    def clear(self) -> None:
        """Drop all waiting steps, for a new process."""
        self._waiting.clear()

    def take(self, action: Callable[..., None], *arguments: object) -> None:
        """Run the action of a message or a timer: now, or after a pause."""
        if self._machine.is_paused or self._waiting:
            self._waiting.append((action, arguments))
        else:
            self._step(action, arguments)

    def resume(self) -> None:
        """Run the steps that arrived during the pause."""
        while self._waiting and self._machine.is_up and not self._machine.is_paused:
            self._step(*self._waiting.popleft())

    def _step(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            action(*arguments)
        finally:
            step = f"{action.__name__.strip('_')} => {self._describe()}"
            now_us = self._machine.timeline.now_us
            shown = tuple(argument for argument in arguments if not callable(argument))
            self._machine.trace.stepped(
                now_us, self._machine.node_id, step.encode(), _render, step, shown
            )


def _render(step: str, arguments: tuple[object, ...]) -> str:
    return " ".join([step, *(str(argument)[:200] for argument in arguments)])
