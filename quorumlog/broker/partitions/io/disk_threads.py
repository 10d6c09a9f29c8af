"""The disk queue of a running broker: a few threads, and for each key one work item at a time.

Submitting work and receiving its outcome takes up to a third of the CPU for opening a small log.
When many keys wait, a thread therefore gets several work items at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from quorumlog.broker.partitions.log.disk_queue import DiskQueue, outcome_of
from quorumlog.storage.errors import StorageError

THREADS: Final = 8  # enough that a file system makes the fsyncs of several logs durable together
# Threads that open logs wait little for the disk: more would take CPU from the event loop.
OPENING_THREADS: Final = 3
# With n waiting keys, a thread gets n / WAITING_PER_WORK work items at once, at most WORKS_MAX.
WAITING_PER_WORK: Final = 25
WORKS_MAX: Final = 8  # the outcome of the first item arrives together with the last

T = TypeVar("T")
_Work = tuple[Callable[[], Any], Callable[[Any], None]]


class _Bug(NamedTuple):
    """An exception from a work item that is not a StorageError."""

    error: Exception


class DiskThreads:
    """A DiskQueue. It is used on one event loop's thread; the work is done in other threads.

    `on_error` receives every exception other than a StorageError: a bug in a work item or in its
    callback.
    """

    def __init__(self, on_error: Callable[[BaseException], None], threads: int = THREADS) -> None:
        self._on_error: Final = on_error
        self._pool: Final = ThreadPoolExecutor(threads, thread_name_prefix="disk")
        self._handed_over_max: Final = 2 * threads  # so that no thread waits for the event loop
        self._lanes: Final[dict[Hashable, deque[_Work]]] = {}  # of keys with work under way
        self._running: Final[set[asyncio.Future[Any]]] = set()
        self._waiting: Final[deque[tuple[Hashable, _Work]]] = deque()  # for a thread

    def submit(
        self, key: Hashable, work: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        """Do `work` in a thread, after the earlier work of `key`; `done` gets the outcome."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque()
            self._begin(key, (work, done))
        else:
            lane.append((work, done))

    async def drain(self) -> None:
        """Wait until no work of any key is left."""
        while self._running:  # without running work, none is waiting either
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # let `done` run: it may submit more

    def close(self) -> None:
        """Accept no more work. Call it after `drain`."""
        self._pool.shutdown(wait=False)

    def _begin(self, key: Hashable, one: _Work) -> None:
        """Submit work to the threads, or queue it: submitting thousands of items takes long."""
        if len(self._running) >= self._handed_over_max:
            self._waiting.append((key, one))
        else:
            self._hand_over([(key, one)])

    def _hand_over(self, works: list[tuple[Hashable, _Work]]) -> None:
        to_do = [work for _, (work, _) in works]
        running = asyncio.get_running_loop().run_in_executor(self._pool, _outcomes, to_do)
        self._running.add(running)
        running.add_done_callback(partial(self._ended, works))

    def _ended(self, works: list[tuple[Hashable, _Work]], ended: asyncio.Future[list[Any]]) -> None:
        self._running.discard(ended)
        for (key, (_, done)), outcome in zip(works, ended.result(), strict=True):
            self._tell(done, outcome)
            lane = self._lanes[key]
            if lane:
                self._waiting.append((key, lane.popleft()))
            else:
                del self._lanes[key]
        while self._waiting and len(self._running) < self._handed_over_max:
            count = min(max(len(self._waiting) // WAITING_PER_WORK, 1), WORKS_MAX)
            self._hand_over([self._waiting.popleft() for _ in range(count)])

    def _tell(self, done: Callable[[Any], None], outcome: object) -> None:
        try:
            if isinstance(outcome, _Bug):
                self._on_error(outcome.error)
            else:
                done(outcome)
        except Exception as bug:  # noqa: BLE001 - a callback's outermost frame: the owner decides
            self._on_error(bug)


def _outcomes(works: Iterable[Callable[[], Any]]) -> list[Any]:
    outcomes: list[Any] = []
    for work in works:
        try:
            outcomes.append(outcome_of(work))
        except Exception as bug:  # noqa: BLE001 - a thread's outermost frame: the owner decides
            outcomes.append(_Bug(bug))
    return outcomes


async def performed(queue: DiskQueue, key: Hashable, work: Callable[[], T]) -> T:
    """Do `work` in the queue and return its result. Raises StorageError."""
    outcome: asyncio.Future[T | StorageError] = asyncio.get_running_loop().create_future()

    def done(result: T | StorageError) -> None:
        if not outcome.done():
            outcome.set_result(result)

    queue.submit(key, work, done)
    result = await outcome
    if isinstance(result, StorageError):
        raise result
    return result
