"""One simulated machine: its disk, its clock, and the process on it while that runs."""

import errno
from collections.abc import Callable
from typing import Final, Protocol

from quorumlog.chaos.faults.fault import MILLION
from quorumlog.chaos.faults.machines import InterruptedWrite
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.chaos.simulation.kernel.timeline import Timeline, Trace
from quorumlog.storage.errors import StorageError

RESTART_US: Final = MILLION  # after a disk error
WRITES: Final = frozenset({"append", "truncate", "fsync", "fsync_dir", "rename", "unlink"})


class PowerLost(StorageError):
    """The machine has lost its power: its unfinished operations never complete."""


class Process(Protocol):
    """The process of a machine. The object stays for ever; `boot` begins a new life of it."""

    def boot(self) -> None:
        """Start from the files on the disk, with empty memory. Raises StorageError."""

    def stopped(self, *, loses_power: bool) -> None:
        """Note that the process ended at once; its peers may see closed connections."""

    def resumed(self) -> None:
        """Go on after a pause, and after a wait for the disk."""


class Machine:
    """A machine. `process` is set once, before the run.

    Invariant: an action of `later` runs only in the life of the process that scheduled it.
    """

    def __init__(self, node_id: int, seed: int, timeline: Timeline, trace: Trace) -> None:
        self.node_id: Final = node_id
        self.timeline: Final = timeline
        self.trace: Final = trace
        self.disk: Final = SimDisk()
        self.process: Process
        self.incarnation = 0  # counts the lives of the process
        self.is_up = False
        self.is_paused = False
        self.is_left_down = False  # it never starts again
        self._disk_rng: Final = seeded(f"disk {node_id}", seed)
        self._rate_ppm = MILLION
        self._rate_since_us = self._local_since_us = 0

    # --- the clock ---

    def now_ms(self) -> int:
        """Return the machine's own monotonic time."""
        passed_us = (self.timeline.now_us - self._rate_since_us) * self._rate_ppm // MILLION
        return (self._local_since_us + passed_us) // 1000

    def until_us(self, deadline_ms: int) -> int:
        """Return how long it is, in true time, until the machine's own clock shows `deadline_ms`.

        It is 0 for a deadline that is past.
        """
        local_us = deadline_ms * 1000 - self._local_since_us
        at_us = self._rate_since_us - (-local_us * MILLION // self._rate_ppm)
        return max(at_us - self.timeline.now_us, 0)

    def set_clock_rate(self, rate_ppm: int) -> None:
        """Let the clock run at this rate from now on."""
        now_us = self.timeline.now_us
        passed_us = (now_us - self._rate_since_us) * self._rate_ppm // MILLION
        self._local_since_us += passed_us
        self._rate_since_us, self._rate_ppm = now_us, rate_ppm

    # --- the process ---

    def later(self, after_us: int, action: Callable[..., None], *arguments: object) -> None:
        """Call `action` after so many microseconds, unless the process ends before."""
        self.timeline.push(after_us, self._in_life, self.incarnation, action, arguments)

    def _in_life(
        self, incarnation: int, action: Callable[..., None], arguments: tuple[object, ...]
    ) -> None:
        if self.is_up and incarnation == self.incarnation:
            action(*arguments)

    def start(self) -> None:
        """Start the process, unless it runs."""
        if self.is_up or self.is_left_down:
            return
        self.trace.happened(self.timeline.now_us, str(self.node_id), "starts")
        self.incarnation += 1
        self.is_up, self.is_paused = True, False
        try:
            self.process.boot()
        except StorageError:
            self.fail()

    def stop(self, down_us: int, *, loses_power: bool) -> None:
        """End the process at once and start it again later.

        A power loss takes all unfsynced changes, too.
        """
        if not self.is_up:
            return
        self.is_up = False
        if loses_power:
            self.disk.crash(self._disk_rng)
        else:
            self.disk.kill()
        self.timeline.push(down_us, self.start)
        self.process.stopped(loses_power=loses_power)

    def fail(self) -> None:
        """End the process, and the machine with it: after a disk error its memory is not true."""
        self.stop(RESTART_US, loses_power=True)

    def pause(self, duration_us: int) -> None:
        """Let the process stand still for a while."""
        self.is_paused = True
        self.later(duration_us, self.resume)

    def resume(self) -> None:
        """Let a paused process go on."""
        self.is_paused = False
        self.process.resumed()

    # --- faults of the disk ---

    def fail_next_fsync(self) -> None:
        """Let the next fsync of a file fail, once."""

        def fail(operation: str, path: str) -> None:
            if operation == "fsync":
                self.disk.on_operation = None
                raise OSError(errno.EIO, "simulated", path)

        self.disk.on_operation = fail

    def interrupt_write(self, fault: InterruptedWrite) -> None:
        """Lose the power just before the n-th write from now, and again n writes after that.

        It may be a part of anything: an election, an append, a truncation, a recovery.
        """
        left, times_left = fault.writes, fault.times

        def count(operation: str, path: str) -> None:
            nonlocal left, times_left
            left -= operation in WRITES and fault.file in path
            if left > 0:
                return
            left, times_left = fault.writes, times_left - 1
            if not times_left:
                self.disk.on_operation = None
            self.disk.crash(self._disk_rng)
            raise PowerLost(f"simulated, at {operation} of {path}")

        self.disk.on_operation = count
