"""The common part of the cases of `benchmarks.instructions`: requests without a socket, and calm.

A case is `run(directory, steps) -> bool`: it prepares all requests, warms up and takes the steps
(`repeat`), and returns whether all were answered. Counted twice, with few steps and with many, the
difference is the cost of the additional steps; so both runs prepare and warm up alike.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from quorumlog.broker.handlers import produce
from quorumlog.broker.server import turns
from quorumlog.broker.server.connection import Connection
from quorumlog.invariants import require
from quorumlog.wire.codec.schemas import decode_response, encode_request

WARM_UP: Final = 20  # steps
FEW, MANY = 10, 60  # steps
STEPS_MAX: Final = WARM_UP + MANY
TURNS_MAX: Final = 10_000  # of the event loop, in a preparation


class QuietLoop(uvloop.Loop):
    """The event loop of a node. Its timers can be stopped: more ring where a machine is busy."""

    rings = True

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """Call back after the delay; if timers are stopped, only at once."""
        if self.rings or delay <= 0:
            return super().call_later(delay, callback, *args, context=context)
        return asyncio.TimerHandle(self.time() + delay, callback, args, self, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """Call back at the time, unless timers are stopped."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Forget nothing: a stopped timer is in no queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table.

    per_step: the units of one step, such as requests or records.
    loop: makes its event loop.
    around: runs in the process that counts, around the counted one, such as a server.
    """

    name: str
    run: Callable[[Path, int], Awaitable[bool]]
    unit: str
    per_step: int = 1
    loop: Callable[[], asyncio.AbstractEventLoop] = QuietLoop
    around: Callable[[Path], AbstractContextManager[None]] = lambda _: nullcontext()


class Nowhere(asyncio.Transport):
    """A connection to a client that takes everything, and keeps the last bytes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = asyncio.Event()
        self.sent_bytes = 0
        self.last: bytes | bytearray | memoryview = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the bytes."""
        self.sent_bytes += len(data)
        self.last = data
        self.written.set()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Keep the last: to join them would be counted."""
        for data in list_of_data:
            self.write(data)

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return 0: the client takes everything."""
        return 0

    def pause_reading(self) -> None:
        """Ignore it: `feed` asks for a buffer each time."""

    def resume_reading(self) -> None:
        """Ignore it, too."""


def receive(connection: Any, data: memoryview) -> None:
    """Let a connection receive the bytes, in as few reads as its buffer allows."""
    while data:
        buffer = connection.get_buffer(len(data))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


async def feed(connection: Any, data: memoryview) -> None:
    """Let a connection receive the bytes, and take a turn of the event loop."""
    receive(connection, data)
    await asyncio.sleep(0)


class Client:
    """A connection of a broker, without a socket."""

    def __init__(self, server: Any) -> None:
        self.connection, self.transport = Connection(server), Nowhere()
        self.connection.connection_made(self.transport)

    async def ask(self, frame: memoryview) -> None:
        """Send a request, and wait for its answer."""
        self.transport.written.clear()
        await feed(self.connection, frame)
        await self.transport.written.wait()

    async def call(self, request: Any, version: int) -> Any:
        """Send a request; return its response."""
        await self.ask(frame_of(request, version))
        return decode_response(request.API_KEY, version, bytes(self.transport.last)[4:])[1]

    async def loaded(self, request: Any, version: int, error_of: Callable[[Any], int]) -> Any:
        """Repeat a request until its coordinator has loaded its log; return the response."""
        for _ in range(TURNS_MAX):
            response = await self.call(request, version)
            if not error_of(response):
                return response
            await asyncio.sleep(0)
        raise TimeoutError(f"no coordinator after {TURNS_MAX} turns")


def frame_of(request: Any, version: int) -> memoryview:
    """Encode a request."""
    chunks = encode_request(request, api_version=version, correlation_id=1, client_id="x")
    return memoryview(b"".join(chunks))


def take_all_the_time() -> None:
    """Let no request wait for a turn of the loop: under valgrind each takes long."""
    vars(turns)["TURN_S"] = vars(produce)["SLICE_S"] = 3600.0


def stop_timers() -> None:
    """Let no timer ring that is set from now on."""
    loop = asyncio.get_running_loop()
    require(isinstance(loop, QuietLoop), "counted cases run in a QuietLoop")
    vars(loop)["rings"] = False


async def repeat(step: Callable[[int], Awaitable[object]], steps: int) -> None:
    """Warm up, then take the steps that count; a step gets its number."""
    for at in range(WARM_UP):
        await step(at)
    stop_timers()
    gc.freeze()
    gc.disable()
    for at in range(WARM_UP, WARM_UP + steps):
        await step(at)
