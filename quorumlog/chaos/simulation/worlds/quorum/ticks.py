"""When the core of a simulated node is due, by the clock of its machine."""

from collections.abc import Callable
from typing import Final

from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.quorum import Quorum


class Ticks:
    """Feeds `Ticked` when the quorum's deadline has come."""

    def __init__(
        self,
        machine: Machine,
        quorum: Callable[[], Quorum],
        feed: Callable[[events.Event], None],
    ) -> None:
        self._machine: Final = machine
        self._quorum: Final = quorum
        self._feed: Final = feed
        self._at_us = -1  # when the next one is due; -1: none is scheduled

    def forget(self) -> None:
        """Begin a new life of the process: none is scheduled."""
        self._at_us = -1

    def schedule(self) -> None:
        """Schedule the next one, unless it comes anyway."""
        deadline_ms = self._quorum().next_deadline_ms()
        if deadline_ms is None:
            return
        after_us = self._machine.until_us(deadline_ms)
        at_us = self._machine.timeline.now_us + after_us
        if self._at_us < 0 or at_us < self._at_us:
            self._at_us = at_us
            self._machine.later(after_us, self._tick, at_us)

    def _tick(self, at_us: int) -> None:
        if self._at_us != at_us:
            return  # another one was scheduled before it
        self._at_us = -1
        deadline_ms = self._quorum().next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self._machine.now_ms():
            self._feed(events.Ticked())
        else:
            self.schedule()
