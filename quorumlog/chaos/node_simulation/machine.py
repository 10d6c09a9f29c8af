"""A machine: a disk, a clock, a boot id, and one node's process on it, or none.

The node is the real one: of what ships only `main` is left out, with its signals, locks and files.
A killed process leaves its writes in the page cache; a power loss takes what was not fsynced.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final, cast

from quorumlog.chaos.faults.machines import SlowDisk
from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.chaos.node_simulation.process import Clock, Process
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.io.founding import NEW_CLUSTER_FILE
from quorumlog.node import config as configuration
from quorumlog.node.main import end_if_it_is_our_bug
from quorumlog.node.node import Node
from quorumlog.node.substitutes import Substitutes

LOG_DIR: Final = "/data"
WALL_OFFSET_NS_MAX: Final = 2_000_000_000
HEALTHY_DISK: Final = SlowDisk(min_us=100, spread_us=3_000)
KAFKA_PORT: Final = 9092
CONTROL_PORT: Final = 9093

Happened = Callable[[str], None]
"""Called with what happened to a machine: for the digest and the trace of a run."""


def host_of(node_id: int) -> str:
    """Return the address of a node's machine."""
    return f"10.0.0.{node_id}"


class Machine:
    """One machine of a run.

    Invariants:
      1. At most one process runs on it, and only that process touches the disk.
      2. Every start after a power loss has another boot id; every process is a new one.
    """

    def __init__(
        self,
        node_id: int,
        seed: int,
        *,
        loop: SimulatedLoop,
        network: Network,
        settings: Mapping[str, str],
        substitutes: Substitutes,
        happened: Happened,
    ) -> None:
        self.node_id: Final = node_id
        self.host: Final = host_of(node_id)
        rng = seeded(f"clock {node_id}", seed)
        self.clock: Final = Clock(rng.randint(-WALL_OFFSET_NS_MAX, WALL_OFFSET_NS_MAX))
        self._wall_offset_ns: Final = self.clock.wall_offset_ns
        self.disk: Final = SimDisk(on_operation=self._on_operation)
        self._slow_disk = HEALTHY_DISK
        self.process: Process | None = None
        self.node: Node | None = None
        self.failure = ""  # how the last process ended by itself
        self.violation = ""  # an invariant of the node's own that did not hold
        self._fails_next_fsync = False
        self._fsync_failed = False
        self.may_lack_records = False  # that others hold, until all is in sync again
        self.may_lose_memory: Callable[[], bool] = lambda: True
        self._is_dark = False
        self._before_dark: Process | None = None
        self._starts = self._boots = 0
        self._fsyncs = 0  # since the disk's time was last counted
        self._stopping: asyncio.Event | None = None
        self._disk_rng: Final[Random] = seeded(f"disk {node_id}", seed)
        self._crash_rng: Final[Random] = seeded(f"crash {node_id}", seed)
        self._loop, self._network, self._happened = loop, network, happened
        self._settings: Final = dict(settings)
        self._substitutes: Final = replace(
            substitutes,
            open_disk=lambda: self.disk,
            bind=cast(Any, lambda _, address: network.bound(address.host, address.port)),
            quorum=replace(
                substitutes.quorum, socket_factory=cast(Any, lambda _: network.socket())
            ),
            boot_id_file=self,
        )
        _found(self.disk)

    def read_text(self) -> str:
        """Return the boot id, as the system's file does."""
        return f"boot-{self.node_id}-{self._boots}"

    @property
    def is_ready(self) -> bool:
        """Whether its node takes part."""
        return self.node is not None and self.node.ready.is_set()

    # --- what a nemesis does to it ---

    def start(self) -> None:
        """Start the node; it is ready later. A machine without power gets it back first.

        A node that goes on without its log directory waits for an operator: here it is.
        """
        self._fails_next_fsync = False
        if self.process is not None:
            if not self._serves_no_logs():
                return
            self.kill()
            self._lose_memory()
        self._fsync_failed = False
        if self._is_dark:
            self._is_dark = False
            self._network.power_restored(self.host, self._before_dark)
            self._before_dark = None
        self._starts += 1
        self.failure = ""
        process = self.process = Process(f"n{self.node_id}.{self._starts}", self.host, self.clock)
        process.after_work = self._disk_took_s
        self._happened(f"start {process.name}")
        self._loop.spawn(process, lambda: self._main(process))

    def _serves_no_logs(self) -> bool:
        """Whether an fsync has failed, and the broker has given its log directory up for it."""
        broker = None if self.node is None else self.node.broker
        if broker is None or not self._fsync_failed:
            return False
        return broker.replicas._has_failed_log  # noqa: SLF001 - no node tells it to another

    def kill(self) -> None:
        """SIGKILL: the disk keeps what was written, and peers see the connections closed."""
        if self.process is not None:
            self._happened(f"kill {self.process.name}")
            self._end(self.process)

    def lose_power(self) -> None:
        """Lose what was not fsynced, perhaps with a torn tail, and fall silent."""
        process, self.process, self.node = self.process, None, None
        self._happened(f"power {self.node_id}")
        if process is not None:
            self._loop.kill(process)
            self._before_dark = process
        self._network.power_lost(self.host, self._before_dark)
        self._lose_memory()
        self._is_dark = True

    def _lose_memory(self) -> None:
        self.disk.crash(self._crash_rng)
        self._boots += 1
        self.may_lack_records = True

    def pause(self) -> None:
        """SIGSTOP."""
        if self.process is not None and not self.process.is_paused:
            self._happened(f"pause {self.process.name}")
            self.process.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self.process is not None and self.process.is_paused:
            self._happened(f"resume {self.process.name}")
            self._loop.resume(self.process)

    def stop(self) -> None:
        """SIGTERM: let the node hand over what it leads, and end; it is gone later."""
        if self._stopping is not None:
            self._happened(f"stop {self.node_id}")
            self._stopping.set()

    def fail_next_fsync(self) -> None:
        """Let the next fsync fail, once the machine may lose what is in its memory.

        A process that ends for it leaves a disk whose pages are lost, although reads still see
        them: the machine boots again.
        """
        self._fails_next_fsync = True

    def slow_fsyncs(self, spread_us: int) -> None:
        """Let each fsync take up to this long."""
        self._happened(f"fsyncs {self.node_id} {spread_us}")
        self._slow_disk = replace(HEALTHY_DISK, spread_us=spread_us)

    def set_clock_rate(self, rate: float) -> None:
        """Let the clocks run faster or slower than true time."""
        self._happened(f"clock {self.node_id} {rate}")
        self.clock.set_rate(rate, self._loop.now_s)

    def step_clock(self, step_ms: int) -> None:
        """Set the wall clock forward, or back."""
        self._happened(f"step {self.node_id} {step_ms}")
        self.clock.wall_offset_ns += step_ms * 1_000_000

    def reset_clock(self) -> None:
        """Set the wall clock as it was at the start."""
        self._happened(f"reset {self.node_id}")
        self.clock.wall_offset_ns = self._wall_offset_ns

    # --- the process ---

    async def _main(self, process: Process) -> None:
        """Do what `main` of a node does, up to the end of the process."""
        try:
            await self._serve(process)
        except Exception as error:  # noqa: BLE001 - the outermost frame of the process
            self.failure = f"{type(error).__name__}: {error}"
            if isinstance(error, InvariantViolation):
                self.violation = str(error)
        self._happened(f"end {process.name} {self.failure}")
        fsync_failed = self._fsync_failed and self.failure
        self._end(process)
        if fsync_failed:  # a disk that failed is not trusted: the machine boots again
            self._lose_memory()

    async def _serve(self, process: Process) -> None:
        stopping = self._stopping = asyncio.Event()
        node = Node(configuration.build(self._settings), self._substitutes)
        self.node = node
        process.failed = partial(end_if_it_is_our_bug, node.fail)
        await node.start()
        stopped = asyncio.create_task(stopping.wait())
        waiting: set[asyncio.Future[Any]] = {stopped, node.fatal}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if node.fatal.done():
            node.fatal.result()
        await node.stop()

    def _end(self, process: Process) -> None:
        self._loop.kill(process)
        self._network.process_died(process)
        self.disk.kill()
        self.process = self.node = self._stopping = None

    # --- the disk ---

    def _on_operation(self, operation: str, path: str) -> None:
        if operation == "fsync":
            self._fsyncs += 1
            if self._fails_next_fsync and self.may_lose_memory():
                self._fails_next_fsync = False
                self._fsync_failed = self.may_lack_records = True
                self._happened(f"EIO {self.node_id} {path}")
                raise OSError(errno.EIO, "Input/output error", path)

    def _disk_took_s(self) -> float:
        """Draw how long the fsyncs of one piece of work took."""
        fsyncs, self._fsyncs = self._fsyncs, 0
        taken_us = 0.0
        for _ in range(fsyncs):
            fraction = self._disk_rng.random()
            taken_us += self._slow_disk.min_us
            taken_us += self._slow_disk.spread_us * fraction * fraction * fraction
        return taken_us / 1e6


def _found(disk: SimDisk) -> None:
    """Make the log directory of a voter that never voted."""
    disk.mkdir(LOG_DIR)
    disk.open(f"{LOG_DIR}/{NEW_CLUSTER_FILE}", create=True).fsync()
    disk.fsync_dir(LOG_DIR)
