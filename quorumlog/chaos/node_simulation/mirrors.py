"""Mirrors in simulation: processes on the clients' host, which copy within the one cluster."""

from collections.abc import Callable
from itertools import count
from typing import Final

from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.chaos.node_simulation.process import Clock, Process
from quorumlog.client import KafkaError
from quorumlog.mirror import Mirror, MirrorError, MirrorSettings
from quorumlog.mirror.dependencies import MirrorDependencies


class SimulatedMirror:
    """One mirror: the product's, without its command line."""

    def __init__(self, process: Process, loop: SimulatedLoop, network: Network) -> None:
        self._process: Final = process
        self._loop: Final = loop
        self._network: Final = network
        self.failure: str | None = None

    async def run(self, settings: MirrorSettings, dependencies: MirrorDependencies) -> None:
        """Be the process, up to its end."""
        try:
            async with Mirror(settings, dependencies=dependencies) as mirror:
                await mirror.run()
            self.failure = "ended"
        except (KafkaError, MirrorError) as error:
            self.failure = f"{type(error).__name__}: {error}"
        self._end()

    async def kill(self) -> None:
        """SIGKILL; also of a mirror that is paused, or has ended."""
        self.failure = self.failure or "killed"
        self._end()

    def _end(self) -> None:
        self._loop.kill(self._process)
        self._network.process_died(self._process)

    async def pause(self) -> None:
        """SIGSTOP."""
        self._process.is_paused = True

    async def resume(self) -> None:
        """SIGCONT."""
        self._process.is_paused = False
        self._loop.wake(self._process)


class SimulatedMirrors:
    """Starts the mirrors of a run."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        *,
        host: str,
        dependencies: MirrorDependencies,
        happened: Callable[[str], None],
    ) -> None:
        self._loop: Final = loop
        self._network: Final = network
        self._host: Final = host
        self._dependencies: Final = dependencies
        self._happened: Final = happened
        self._number: Final = count(1).__next__

    async def start(self, settings: MirrorSettings) -> SimulatedMirror:
        """Start a mirror."""
        process = Process(f"mirror.{self._number()}", self._host, Clock())
        self._happened(f"start {process.name}")
        mirror = SimulatedMirror(process, self._loop, self._network)
        self._loop.spawn(process, lambda: mirror.run(settings, self._dependencies))
        return mirror
