"""A deterministic event loop: virtual time, one thread, callbacks that belong to processes.

Time stands still while a callback runs, and jumps to the next timer when no callback is ready.
OWNER in the context of a callback is its simulated process; tasks and callbacks that it starts
inherit the context. So SIGKILL and SIGSTOP are exact, and each process sees its own clock.
"""

import asyncio
import contextvars
import gc
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, Unpack, cast

from quorumlog.chaos.node_simulation.process import KERNEL, OWNER, Process, ThreadPool
from quorumlog.chaos.simulation.kernel.randomness import seeded

if TYPE_CHECKING:
    from quorumlog.chaos.node_simulation.network import Network

T = TypeVar("T")


def numbered(made: type[T], numbers: Iterator[int]) -> type[T]:
    """Return a subclass of `made` whose objects take their number at their first hash.

    By default, the hash is the object's address, so the order of a set depends on the memory
    layout. But asyncio and aiohttp cancel, wake and close objects in the order of a set.
    """

    def take_number(self: Any) -> int:
        try:
            number: int = self.number_in_sets
        except AttributeError:
            self.number_in_sets = number = next(numbers)
        return number

    return cast("type[T]", type(made.__name__, (made,), {"__hash__": take_number}))


EPOCH_NS: Final = 1_700_000_000_000_000_000  # the wall clock at the start of a run
START_S: Final = 1_000.0
COLLECT_EVERY_S: Final = 20.0  # virtual: the seed determines when finalizers run
CALLBACKS_AT_ONE_INSTANT_MAX: Final = 200_000
_DEFAULT_THREADS: Final = 8

Ts = TypeVarTuple("Ts")


class NoProgress(Exception):
    """All simulated processes wait without a timer, or run callbacks endlessly at one instant."""


class Scheduled(asyncio.TimerHandle):
    """A callback that is ready, or due at a time."""

    __slots__ = ("args", "callback", "context", "due_s")

    def __init__(  # without the parent's, which is as slow as the rest of a callback here
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, due_s: float
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.due_s = due_s

    def cancel(self) -> None:
        """Cancel the callback. The loop drops it when it is due."""
        self.callback, self.args = None, ()

    def cancelled(self) -> bool:
        """Return whether it was cancelled, or called."""
        return self.callback is None

    def when(self) -> float:
        """Return its due time by the clock of its process."""
        return self.due_s

    def __repr__(self) -> str:
        return f"<Scheduled {self.callback} at {self.due_s}>"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulatedLoop(asyncio.BaseEventLoop):
    """The scheduler of all processes of a run. Set `sockets` before the first connection.

    after_turn: called after the callbacks of each turn; it must not schedule callbacks.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now_s = START_S
        self.callbacks = 0
        self.sockets: Network | None = None
        self.after_turn: Callable[[], None] | None = None
        self._queue: Final = deque[Scheduled]()
        self._timers: Final[list[tuple[float, int, Scheduled]]] = []
        self._numbers: Final = count()
        self.numbers_in_sets: Final = count()  # see `numbered`
        self._thread_rng: Final[Random] = seeded("threads", seed)
        # The tasks of killed processes: a collection of their frames would run their `finally`.
        self._graveyard: Final[list[Any]] = []
        self._next_collection_s = START_S + COLLECT_EVERY_S
        self._kernel_pools: Final[dict[Any, ThreadPool]] = {}
        self._instant_began_at = 0  # the number of callbacks then
        self.set_exception_handler(_failed)
        new_task = numbered(asyncio.Task, self.numbers_in_sets)
        self.set_task_factory(lambda loop, work, **options: new_task(work, loop=loop, **options))

    # --- time and callbacks ---

    def time(self) -> float:
        """Return the monotonic clock of the calling process."""
        process = OWNER.get()
        if process is None or process.clock.is_true:
            return self.now_s
        return process.clock.local_s(self.now_s)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        if context is None:
            context = contextvars.copy_context()
        handle = Scheduled(callback, args, context, self.now_s)
        self._queue.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio; there is only one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See asyncio."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See asyncio; `when` is by the clock of the calling process."""
        process = OWNER.get()
        true_s = when if process is None else process.clock.true_s(when)
        if context is None:
            context = contextvars.copy_context()
        handle = Scheduled(callback, args, context, when)
        heapq.heappush(self._timers, (true_s, next(self._numbers), handle))
        return handle

    def in_kernel(self, after_s: float, action: Callable[..., object], *args: Any) -> None:
        """Call `action` after `after_s`, outside of all processes."""
        handle = Scheduled(action, args, KERNEL, self.now_s + after_s)
        heapq.heappush(self._timers, (handle.due_s, next(self._numbers), handle))

    def _run_once(self) -> None:
        """Advance to the next timer if no callback is ready; then run the ready callbacks."""
        queue, timers = self._queue, self._timers
        if not queue:
            self._advance()
        while timers and timers[0][0] <= self.now_s:
            queue.append(heapq.heappop(timers)[2])
        for _ in range(len(queue)):
            handle = queue.popleft()
            callback, context = handle.callback, handle.context
            if callback is None:
                continue
            process = context.get(OWNER)
            if process is not None and not process.begins(handle, self.callbacks + 1):
                continue
            self.callbacks += 1
            args = handle.args
            handle.callback, handle.args = None, ()
            try:
                context.run(callback, *args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio: the loop goes on
                said = {"message": f"exception in {callback!r}", "exception": error}
                context.run(self.call_exception_handler, said)
        if self.after_turn is not None:
            self.after_turn()

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if not timers:
            raise NoProgress("every process waits, and no timer is due")
        if timers[0][0] > self.now_s:
            self.now_s = timers[0][0]
            self._instant_began_at = self.callbacks
            if self.now_s >= self._next_collection_s:
                self._next_collection_s = self.now_s + COLLECT_EVERY_S
                gc.collect()
        elif self.callbacks - self._instant_began_at > CALLBACKS_AT_ONE_INSTANT_MAX:
            raise NoProgress(f"more than {CALLBACKS_AT_ONE_INSTANT_MAX} callbacks at one instant")

    # --- processes ---

    def machine_clock_ms(self) -> int:
        """Return the ms since 1970 at the true time: for files, and advances of wall clocks."""
        return EPOCH_NS // 1_000_000 + int((self.now_s - START_S) * 1000)

    def spawn(
        self, process: Process, main: Callable[[], Coroutine[Any, Any, T]]
    ) -> asyncio.Task[T]:
        """Start the first task of a process."""
        context = Context()
        context.run(OWNER.set, process)
        return context.run(lambda: self.create_task(main()))

    def kill(self, process: Process) -> None:
        """End the process at once: none of its callbacks runs any more."""
        process.is_alive = False
        process.backlog.clear()
        process.pools.clear()
        self._graveyard.append(asyncio.all_tasks(self))

    def wake(self, process: Process) -> None:
        """If the process runs again, schedule its backlog, in order."""
        if process.runs:
            self._queue.extend(process.backlog)
            process.backlog.clear()

    # --- threads ---

    def run_in_executor(  # type: ignore[override]  # a future, as asyncio's own loops return
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` as a thread would: with a drawn delay before it, and one before its result."""
        future: asyncio.Future[T] = self.create_future()
        process = OWNER.get()
        pools = self._kernel_pools if process is None else process.pools
        pool = pools.get(executor)
        if pool is None:
            size = getattr(executor, "_max_workers", _DEFAULT_THREADS)
            pool = pools[executor] = ThreadPool(size)

        def begin() -> None:
            self.call_later(self._thread_delay_s(), act)

        def act() -> None:
            try:
                result, error = func(*args), None
            except Exception as raised:  # noqa: BLE001 - it is handed to the caller
                result, error = None, raised
            took_s = 0.0 if process is None else process.after_work()
            self.call_later(took_s + self._thread_delay_s(), end, result, error)

        def end(result: Any, error: Exception | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)
            if pool.waiting:
                pool.waiting.popleft()()
            else:
                pool.free += 1

        if pool.free:
            pool.free -= 1
            begin()
        else:
            pool.waiting.append(begin)
        return future

    def _thread_delay_s(self) -> float:
        fraction = self._thread_rng.random()
        return 0.00005 + 0.002 * fraction * fraction * fraction

    # --- sockets ---

    async def getaddrinfo(  # type: ignore[override]
        self, host: Any, port: Any, **_: Any
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """Return the address itself: hosts have no names here."""
        return [(2, 1, 6, "", (str(host), int(port)))]

    async def create_server(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> asyncio.AbstractServer:
        """See asyncio."""
        network = self._network()
        if sock is None:
            sock = network.bound(str(host), int(port))
            sock.listen()
        return network.listen(factory, sock)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """See asyncio."""
        sock.connected = await self._network().connect(address[0], int(address[1]))

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        """See asyncio."""
        network = self._network()
        endpoint = await network.connect(host, int(port)) if sock is None else sock.connected
        return endpoint, await network.attach(endpoint, factory)

    def _network(self) -> "Network":
        return cast("Network", self.sockets)

    # --- abstract methods of the parent class ---

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there is no selector."""

    def _write_to_self(self) -> None:
        """Do nothing: there is no other thread to wake."""


def _failed(loop: asyncio.AbstractEventLoop, said: dict[str, Any]) -> None:
    """Report a failed callback to its process, as main.py of a node does."""
    process = OWNER.get()
    if process is not None and process.failed is not None:
        process.failed(loop, said)
    else:
        loop.default_exception_handler(said)
