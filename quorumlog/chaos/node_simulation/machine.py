"""A machine: a disk, a clock, a boot id, and at most one node's process.

The node is the product's; only `main` is replaced, with its signals, locks and files. A killed
process leaves its writes in the page cache; a power loss destroys all writes without an fsync.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from errno import ENOSPC
from functools import partial
from random import Random
from typing import Any, Final, cast

from quorumlog.advances import Advance
from quorumlog.chaos.faults.links import Plane
from quorumlog.chaos.node_simulation.disk_faults import DiskFaults, damage, put_back
from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.chaos.node_simulation.process import Clock, Process
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.sim_disk import DirectoryCopy, SimDisk
from quorumlog.cluster.shape import BROKER, CONTROLLER
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.settings import NEW_CLUSTER_FILE
from quorumlog.node import config as configuration
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.main import (
    CANNOT_RUN,
    EXIT_CANNOT_RUN,
    EXIT_OK,
    EXIT_OUR_BUG,
    end_if_it_is_our_bug,
)
from quorumlog.node.node import Node
from quorumlog.node.room import Room, StartEnded
from quorumlog.storage.errors import StorageError, lacks_room
from quorumlog.storage.io.disk import Disk

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


LOG_DIR: Final = "/data"
WALL_OFFSET_NS_MAX: Final = 2_000_000_000
KAFKA_PORT: Final = 9092
CONTROL_PORT: Final = 9093
REBOOT_SHARE: Final = 0.3  # of the ends of processes after a failed fsync, where pages may go
PLANES: Final[Mapping[int, Plane]] = {KAFKA_PORT: "kafka", CONTROL_PORT: "control"}

Happened = Callable[[str], None]
"""Called with each event of a machine, for the digest and the trace of a run."""


def host_of(node_id: int) -> str:
    """Return the address of a node's machine."""
    return f"10.0.0.{node_id}"


class Machine:
    """One machine of a run.

    Invariants:
      1. At most one process runs on it, and only that process uses the disk.
      2. Every start after a power loss has a new boot id; every start is a new process.
    """

    def __init__(
        self,
        node_id: int,
        seed: int,
        *,
        loop: SimulatedLoop,
        network: Network,
        settings: Mapping[str, str],
        dependencies: NodeDependencies,
        seen_disk: Callable[[Disk], Disk],
        happened: Happened,
    ) -> None:
        """`seen_disk` wraps the disk in the disk that the node uses."""
        self.node_id: Final = node_id
        self.host: Final = host_of(node_id)
        rng = seeded(f"clock {node_id}", seed)
        self.clock: Final = Clock(rng.randint(-WALL_OFFSET_NS_MAX, WALL_OFFSET_NS_MAX))
        self._wall_offset_ns: Final = self.clock.wall_offset_ns
        self.process: Process | None = None
        self.node: Node | None = None
        self.failure = ""  # the error with which the last process ended; `status`: its exit status
        self.status = EXIT_OK
        self.violation = ""  # a broken invariant, or another forbidden end of the process
        self.may_lack_records = False  # that others hold, until all replicas are in sync again
        self.may_lose_memory: Callable[[], bool] = lambda: True
        self.copies_changed: Callable[[], object] = lambda: None
        self._is_dark = False
        self._before_dark: Process | None = None
        self._starts = self._boots = 0
        self._stopping: asyncio.Event | None = None
        self._room = Room()
        self._starved: Starved | None = None
        self.disk_faults: Final = DiskFaults(
            seeded(f"disk {node_id}", seed),
            may_lose_memory=lambda: self.may_lose_memory(),  # noqa: PLW0108 - it is set later
            pages_lost=self._pages_lost,
            happened=lambda what: happened(f"disk {node_id}: {what}"),
        )
        self._crash_rng: Final[Random] = seeded(f"crash {node_id}", seed)
        self._loop, self._network, self._happened = loop, network, happened
        self.is_broker: Final = BROKER in settings["process.roles"]
        self.is_controller: Final = CONTROLLER in settings["process.roles"]
        self._settings: Final = dict(settings)
        self._dependencies: Final = replace(
            dependencies,
            open_disk=lambda: seen_disk(self.disk),
            bind=cast(Any, lambda _, address: network.bound(address.host, address.port)),
            quorum=replace(
                dependencies.quorum, socket_factory=cast(Any, lambda _: network.socket())
            ),
            boot_id_file=self,
        )
        self._damage_rng: Final[Random] = seeded(f"damage {node_id}", seed)
        self._copies: Final[dict[int, dict[str, DirectoryCopy]]] = {}
        self.log_dirs: Final = settings["log.dirs"].split(",")
        self.disk_faults.fails_below = self.log_dirs[-1] if self.log_dirs[1:] else ""
        self._insert(SimDisk())
        self.disk.open(f"{LOG_DIR}/{NEW_CLUSTER_FILE}", create=True).fsync()
        self.disk.fsync_dir(LOG_DIR)

    @property
    def disk(self) -> SimDisk:
        """The machine's current disk."""
        return self.disk_faults.disk

    def _insert(self, disk: SimDisk) -> None:
        """Put an empty disk into the machine, with a log directory."""
        disk.mkdir(LOG_DIR)
        disk.on_operation = self.disk_faults.on_operation
        disk.now_ms = self._loop.machine_clock_ms
        self.disk_faults.disk = disk

    def read_text(self) -> str:
        """Return the boot id, in place of the system's boot id file."""
        return f"boot-{self.node_id}-{self._boots}"

    @property
    def is_ready(self) -> bool:
        """True if its node has started and is ready."""
        return self.node is not None and self.node.ready.is_set()

    # --- operations of a nemesis ---

    def start(self) -> None:
        """Start the node; it is ready later. A machine without power gets it back first.

        A node that runs without its failed log directory is restarted, as by an operator.
        """
        self.disk_faults.spare_next_fsync()
        if self.process is not None:
            if not self._serves_no_logs():
                return
            self.kill()
        self.disk_faults.process_began()
        if self._is_dark:
            self._is_dark = False
            self._network.power_restored(self.host, self._before_dark)
            self._before_dark = None
        self._starts += 1
        self.failure, self.status = "", EXIT_OK
        process = self.process = Process(f"n{self.node_id}.{self._starts}", self.host, self.clock)
        process.after_work = self.disk_faults.took_s
        self._happened(f"start {process.name}")
        self._loop.spawn(process, lambda: self._main(process))

    def _serves_no_logs(self) -> bool:
        """Whether the disk has failed, and the broker has given up its log directory."""
        broker = None if self.node is None else self.node.broker
        if broker is None or not self.disk_faults.has_failed:
            return False
        return broker.replicas._has_failed_log  # noqa: SLF001 - nodes do not publish it

    def kill(self) -> None:
        """SIGKILL: the disk keeps all writes, and peers see the connections closed."""
        if self.process is not None:
            self._happened(f"kill {self.process.name}")
            self._end(self.process)

    def lose_power(self) -> None:
        """Lose the writes without an fsync, perhaps with a torn tail, and send nothing more."""
        process, self.process, self.node = self.process, None, None
        self._starved = None
        self._happened(f"power {self.node_id}")
        if process is not None:
            self._loop.kill(process)
            self._before_dark = process
        self._network.power_lost(self.host, self._before_dark)
        self._lose_memory()
        self._is_dark = True

    def _lose_memory(self) -> None:
        self.disk.crash(self._crash_rng)
        self.disk_faults.memory_lost()
        self._boots += 1
        self.may_lack_records = True
        self.copies_changed()

    def _lose_pages(self) -> None:
        """Boot again; or continue without the pages that a failed fsync has dropped."""
        if not self.disk_faults.evicts_pages or self._crash_rng.random() < REBOOT_SHARE:
            self._lose_memory()
            return
        self._happened(f"evict {self.node_id}")
        self.disk.evict_lost_pages(self._crash_rng)
        self.disk_faults.memory_lost()
        self.copies_changed()

    def _pages_lost(self) -> None:
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
            self.process.is_paused = False
            self._loop.wake(self.process)

    def starve(self, share_percent: int) -> None:
        """Give the process a small share of a CPU, until it ends or `feed` is called."""
        if self.process is not None:
            self._happened(f"starve {self.process.name} {share_percent}")
            self._starved = Starved(self._loop, self.process, share_percent)

    def feed(self) -> None:
        """Let the process run at any time again."""
        if self._starved is not None:
            self._happened(f"feed {self.node_id}")
            self._starved.feed()
            self._starved = None

    def wipe(self) -> None:
        """Replace the disk of a machine without a process by an empty disk.

        With several log directories, only the last one is emptied: it is a disk of its own.
        """
        self._happened(f"wipe {self.node_id}")
        if self.disk_faults.fails_below:
            self.disk.empty(self.disk_faults.fails_below)
        else:
            self._insert(SimDisk())
        self.may_lack_records = True
        self.copies_changed()

    def damage(self, kind: int) -> None:
        """Damage a file of a machine without a process; `kind`: see damage.py."""
        done = damage(self.disk, self.log_dirs, kind, self._damage_rng)
        self._happened(f"damage {self.node_id}: {done or 'there is no such file'}")
        self.copies_changed()

    def copy_directories(self, name: int) -> None:
        """Copy all log directories, with the content that reads see now."""
        self._happened(f"copy {self.node_id} #{name}")
        self._copies[name] = {one: self.disk.copied(one) for one in self.log_dirs}

    def put_back(self, name: int, *, only_last: bool = False) -> None:
        """Replace the log directories, or only the last one, by a copy."""
        self._happened(f"put back {self.node_id} #{name}")
        copies = self._copies.pop(name)
        for directory in self.log_dirs[-1:] if only_last else self.log_dirs:
            put_back(self.disk, directory, copies[directory])
        self.copies_changed()

    def stop(self) -> None:
        """SIGTERM: let the node hand over its leaderships and end; returns before it has ended."""
        if self._stopping is not None:
            self._happened(f"stop {self.node_id}")
            self._stopping.set()
            self._room.end()

    def set_clock_rate(self, rate: float) -> None:
        """Let the clocks run faster or slower than true time."""
        self._happened(f"clock {self.node_id} {rate}")
        self.clock.set_rate(rate, self._loop.now_s)

    def step_clock(self, step_ms: int) -> None:
        """Set the wall clock forward, or back."""
        self._happened(f"step {self.node_id} {step_ms}")
        self.clock.wall_offset_ns += step_ms * 1_000_000

    def reset_clock(self) -> None:
        """Set the wall clock back to its offset at the start."""
        self._happened(f"reset {self.node_id}")
        self.clock.wall_offset_ns = self._wall_offset_ns

    def advance(self, made: Sequence[Advance]) -> None:
        """Make these advances of the wall clock, the earlier ones included; keep them in restarts.

        The node makes them in its next turns; a dead or paused one, when it runs again.
        """
        self._happened(f"advance {self.node_id} {made[-1].by_ms}")
        self._settings["clock.advances"] = ",".join(f"{one.at_ms}:{one.by_ms}" for one in made)
        process, node = self.process, self.node
        if process is None or node is None:
            return

        async def advance() -> None:
            await node.time.roll()
            await node.time.advance(made)

        self._loop.spawn(process, advance)

    # --- the process ---

    async def _main(self, process: Process) -> None:
        """Run the node as `main` does, up to the end of the process."""
        try:
            await self._serve(process)
        except Exception as error:  # noqa: BLE001 - the outermost frame of the process
            self.failure = f"{type(error).__name__}: {error}"
            self.status = (
                EXIT_CANNOT_RUN if isinstance(error, (*CANNOT_RUN, OSError)) else EXIT_OUR_BUG
            )
            if isinstance(error, InvariantViolation):
                self.violation = str(error)
            elif lacks_room(error) or os.strerror(ENOSPC) in str(error):
                self.violation = f"the disk is full: {error}"
        self._happened(f"end {process.name} {self.failure}")
        self._end(process)

    async def _serve(self, process: Process) -> None:
        stopping = self._stopping = asyncio.Event()
        room = self._room = Room()
        config = configuration.build(self._settings)
        try:
            node = self.node = await Node.made(config, self._dependencies, room)
            process.failed = partial(end_if_it_is_our_bug, node.fail)
            await node.start()
        except StartEnded:
            return
        stopped = asyncio.create_task(stopping.wait())
        waiting: set[asyncio.Future[Any]] = {stopped, node.fatal}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if node.fatal.done():
            error = node.fatal.exception()
            if isinstance(error, StorageError) and not self.disk_faults.has_failed:
                self.violation = f"it has ended, and its disk was at most full: {error}"
            node.fatal.result()
        await node.stop()

    def _end(self, process: Process) -> None:
        self._loop.kill(process)
        self._network.process_died(process)
        self.disk.kill()
        if self.disk_faults.has_lost_pages:  # reads show pages that the disk lacks
            self._lose_pages()
        self.process = self.node = self._stopping = self._starved = None
