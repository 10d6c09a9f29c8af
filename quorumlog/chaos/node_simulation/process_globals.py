"""Replaces this process's clocks, randomness, and the sources of both that aiohttp uses itself.

It is never undone: a run has a process of its own.
"""

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from aiohttp import client_reqrep, connector, web_response
from aiohttp._websocket.writer import WebSocketWriter

from quorumlog import chance, clock
from quorumlog.advances import Advances
from quorumlog.chaos.node_simulation.loop import EPOCH_NS, START_S, SimulatedLoop, numbered
from quorumlog.chaos.node_simulation.process import OWNER
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.native import lane
from quorumlog.wire.io import frames


def replace_process_globals(loop: SimulatedLoop, seed: int) -> None:
    """Derive all time and all randomness of this process from the loop and the seed."""
    lane.turn_off("a simulation is to be the same on every machine")
    wall_ns = _wall_clock(loop)
    clock.wall_ns = wall_ns
    clock.busy_s = loop.time  # work takes no time
    clock.advances = _advances_of_the_owner()
    chance.substitute(seeded("chance", seed))
    # aiohttp: the Date header, the key of a WebSocket, and the mask of its frames.
    time.time = lambda: wall_ns() / 1e9
    os.urandom = seeded("urandom", seed).randbytes
    _seed_masks(seed)
    # aiohttp: Python's version, in the headers User-Agent and Server.
    for module in (client_reqrep, web_response):
        module.SERVER_SOFTWARE = "simulated"  # type: ignore[attr-defined]
    # aiohttp: the order in which a session that is closed closes its connections.
    for name in ("ResponseHandler", "_TransportPlaceholder"):
        setattr(connector, name, numbered(getattr(connector, name), loop.numbers_in_sets))
    random.seed(seed)
    _start_no_task_early()
    # Our `frames` avoids a bug of some Python versions' writelines; these transports lack the bug.
    frames.WRITELINES_NEVER_PAUSES = False  # type: ignore[misc]


class _SysOfPython311:
    """The module `sys`, with the version of a Python without eager tasks."""

    version_info = (3, 11, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


def _start_no_task_early() -> None:
    """Make aiohttp start its tasks as on Python 3.11: on later versions it starts them eagerly."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("aiohttp.") and getattr(module, "sys", None) is sys:
            vars(module)["sys"] = _SysOfPython311()


def _wall_clock(loop: SimulatedLoop) -> Callable[[], int]:
    def wall_ns() -> int:
        process = OWNER.get()
        offset_ns = 0 if process is None else process.clock.wall_offset_ns
        return EPOCH_NS + int((loop.time() - START_S) * 1e9) + offset_ns

    return wall_ns


def _advances_of_the_owner() -> Callable[[], Advances]:
    """Return the source of the advances of the running process; the kernel's clock has none."""
    none = Advances()

    def advances() -> Advances:
        process = OWNER.get()
        return none if process is None else process.advances

    return advances


def _seed_masks(seed: int) -> None:
    """Seed the random generator that is a default argument of WebSocketWriter."""
    made: Any = WebSocketWriter.__init__
    defaults = [*(made.__defaults__ or ()), *(made.__kwdefaults__ or {}).values()]
    for value in defaults:
        if isinstance(value, random.Random):
            value.seed(seed)
