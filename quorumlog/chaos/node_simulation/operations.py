"""A nemesis's operations on simulated machines, at one instant, and the waits after them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.node_simulation.disk_faults import HEALTHY
from quorumlog.chaos.node_simulation.machine import Machine

START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.01
OF_FILES: Final = frozenset({"damage", "put_back", "put_back_one"})  # need a stopped process

AT_ONCE: Final[Mapping[str, Callable[[Machine, int], None]]] = {
    "kill": lambda machine, _: machine.kill(),
    "pause": lambda machine, _: machine.pause(),
    "resume": lambda machine, _: machine.resume(),
    "fail_fsync": lambda machine, _: machine.disk_faults.fail_next_fsync(),
    "fail_flush": lambda machine, _: machine.disk_faults.fail_next_flush(),
    "damage": lambda machine, kind: machine.damage(kind),
    "copy_directories": lambda machine, name: machine.copy_directories(name),
    "put_back": lambda machine, name: machine.put_back(name),
    "put_back_one": lambda machine, name: machine.put_back(name, only_last=True),
    "slow_fsync": lambda machine, longest_us: machine.disk_faults.slow(longest_us),
    "mend_fsync": lambda machine, _: machine.disk_faults.slow(HEALTHY.spread_us),
    "fill_disk": lambda machine, left_bytes: machine.disk_faults.fill(left_bytes),
    "free_disk": lambda machine, _: machine.disk_faults.free(),
    "fail_disk": lambda machine, calls: machine.disk_faults.fail(calls),
    "mend_disk": lambda machine, _: machine.disk_faults.fail(0),
    "drift_clock": lambda machine, rate_ppm: machine.set_clock_rate(rate_ppm / 1e6),
    "steady_clock": lambda machine, _: machine.set_clock_rate(1.0),
    "step_clock": lambda machine, step_ms: machine.step_clock(step_ms),
    "reset_clock": lambda machine, _: machine.reset_clock(),
    "lose_power": lambda machine, _: machine.lose_power(),
    "starve": lambda machine, share_percent: machine.starve(share_percent),
    "feed": lambda machine, _: machine.feed(),
    "wipe": lambda machine, _: machine.wipe(),
    "start": lambda machine, _: machine.start(),
    "stop": lambda machine, _: machine.stop(),
}
"""Operation -> its call, which acts at one instant."""


async def _until_ready(machine: Machine) -> None:
    loop = asyncio.get_running_loop()
    process, deadline_s = machine.process, loop.time() + START_TIMEOUT_S
    while machine.process is process and not machine.is_ready:
        if loop.time() > deadline_s:
            raise NodeUnavailable(f"node {machine.node_id} is not ready in {START_TIMEOUT_S:g} s")
        await asyncio.sleep(_POLL_S)
    if machine.process is not process:
        raise NodeUnavailable(f"node {machine.node_id} has ended: {machine.failure}")


async def _until_ended(machine: Machine) -> None:
    """Wait until the process has ended; kill it after a timeout, as an operator would."""
    loop = asyncio.get_running_loop()
    process, deadline_s = machine.process, loop.time() + STOP_TIMEOUT_S
    while machine.process is process and process is not None:
        if loop.time() > deadline_s:
            machine.kill()
        await asyncio.sleep(_POLL_S)


LATER: Final = {"start": _until_ready, "stop": _until_ended}
"""Operation -> the wait for its end."""
