"""A small share of a CPU: a process runs for a part of each period."""

from typing import Final

from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.process import Process

PERIOD_S: Final = 0.06


class Starved:
    """A process that runs `share_percent` of each period, until it ends or `feed` is called."""

    def __init__(self, loop: SimulatedLoop, process: Process, share_percent: int) -> None:
        self._loop: Final = loop
        self._process: Final = process
        self._with_s: Final = PERIOD_S * share_percent / 100
        self._is_fed = False
        self._take_cpu()

    def feed(self) -> None:
        """Let the process run at any time again, from its next turn on."""
        self._is_fed = True

    def _take_cpu(self) -> None:
        if self._process.is_alive and not self._is_fed:
            self._process.lacks_cpu = True
            self._loop.in_kernel(PERIOD_S - self._with_s, self._give_cpu)

    def _give_cpu(self) -> None:
        self._process.lacks_cpu = False
        self._loop.wake(self._process)
        self._loop.in_kernel(self._with_s, self._take_cpu)
