"""Requests that wait for an offset or for bytes, with their deadlines. Each is completed once.

A produce waits for the high watermark of one partition, a fetch for bytes in any of its
partitions. This module keeps the entries; its caller has the clock and sends the responses.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final, Generic, TypeVar

from quorumlog.broker.partitions.core.data_path import RunDone
from quorumlog.broker.partitions.core.fetch_wakeup import ANY_CHANGE, FetchWakeups
from quorumlog.wire.codec.identifiers import TopicPartition

# Kafka's broker writes within the request, so its own disk never makes a request time out.
OWN_DISK_MS: Final = 1000
EMPTY_PLACES_MAX: Final = 64  # of ended entries, beside as many as wait


def deadline_of(now_ms: int, timeout_ms: int, *, lacks_disk_alone: bool) -> int:
    """Return the deadline of a request; at least OWN_DISK_MS away if it waits only for our disk."""
    return now_ms + max(timeout_ms, OWN_DISK_MS if lacks_disk_alone else 0)


@dataclass(slots=True, eq=False)
class Wait:
    """One entry, which waits until `deadline_ms` at most. `is_over`: completed or expired."""

    deadline_ms: int
    is_over: bool = field(default=False, init=False)
    place: list[Any] = field(init=False)  # among `Deadlines`; empty: not among them any more


WaitT = TypeVar("WaitT", bound=Wait)


class Deadlines(Generic[WaitT]):
    """All waiting entries, the earliest deadline first; of equal deadlines, the oldest first.

    Most entries end long before their deadline. Their places stay in the heap, vacant, until they
    are first or are most of it: so an entry costs one push. An entry that is added again takes its
    vacant place, which moves to the new deadline when it is first: so it costs none.
    """

    def __init__(self) -> None:
        # Places: [deadline or an earlier one, serial, entry or None, serial of the last addition].
        self._heap: list[list[Any]] = []
        self._serial = self._waiting = 0

    def __len__(self) -> int:
        """Return how many entries wait."""
        return self._waiting

    def add(self, wait: WaitT) -> bool:
        """Add a deadline; True if it is now the earliest."""
        self._serial += 1
        self._waiting += 1
        heap = self._heap
        wait.place = place = [wait.deadline_ms, self._serial, wait, self._serial]
        heappush(heap, place)
        return heap[0] is place or self._first() is wait

    def add_again(self, wait: WaitT, deadline_ms: int) -> bool:
        """Add an entry that has ended, with another deadline; True if `add` has done it.

        False: its place was used again, so a timer rings at or before the deadline already.
        """
        wait.is_over, wait.deadline_ms, place = False, deadline_ms, wait.place
        if not place or place[0] >= deadline_ms:
            self.add(wait)
            return True
        self._serial += 1
        self._waiting += 1
        place[2], place[3] = wait, self._serial
        return False

    def end(self, wait: WaitT) -> bool:
        """Mark an entry as over; False if it already was."""
        if wait.is_over:
            return False
        wait.is_over = True
        wait.place[2] = None
        self._waiting -= 1
        if len(self._heap) > 2 * self._waiting + EMPTY_PLACES_MAX:
            for place in self._heap:
                if place[2] is None:
                    place.clear()
            self._heap = [place for place in self._heap if place]
            heapify(self._heap)
        return True

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of the waiting entries."""
        first = self._first()
        return None if first is None else first.deadline_ms

    def expire(self, now_ms: int) -> list[WaitT]:
        """End and return the entries whose deadline has come, in order."""
        expired: list[WaitT] = []
        while (first := self._first()) is not None and first.deadline_ms <= now_ms:
            heappop(self._heap).clear()
            first.is_over = True
            expired.append(first)
        self._waiting -= len(expired)
        return expired

    def _first(self) -> WaitT | None:
        """Return the entry with the earliest deadline; remove the vacant places before it."""
        heap = self._heap
        while heap:
            place = heap[0]
            first: WaitT | None = place[2]
            if first is None:
                heappop(heap).clear()
            elif first.deadline_ms > place[0]:  # added again
                place[0], place[1] = first.deadline_ms, place[3]
                heapreplace(heap, place)
            else:
                return first
        return None


@dataclass(slots=True, eq=False)
class PendingProduce(Wait):
    """Batches appended together, until the high watermark has reached each of their `ends`.

    `done(error_code, count)` receives the outcome of the next `count` batches.
    """

    ends: Sequence[int]
    done: RunDone
    completed: int = field(default=0, init=False)  # the number of leading batches

    @property
    def required_offset(self) -> int:
        """The high watermark that commits the next batch."""
        return self.ends[self.completed]

    @property
    def left(self) -> int:
        """The number of batches that wait."""
        return len(self.ends) - self.completed


class ProduceQueue:
    """The produces that wait on one partition.

    Invariant: required offsets never decrease from first to last.
    """

    __slots__ = ("_deadlines", "_queue")

    def __init__(self, deadlines: Deadlines[PendingProduce]) -> None:
        self._deadlines = deadlines
        self._queue: deque[PendingProduce] = deque()

    def add(self, deadline_ms: int, ends: Sequence[int], done: RunDone) -> bool:
        """Add an entry; True if its deadline is now the earliest of all."""
        wait, queue = PendingProduce(deadline_ms, ends, done), self._queue
        while queue and queue[0].is_over:
            queue.popleft()  # timed out: the high watermark may never reach it
        slot = len(queue)
        while slot and queue[slot - 1].required_offset > ends[0]:
            slot -= 1  # a duplicate batch waits for the offset of its first append
        queue.insert(slot, wait)
        return self._deadlines.add(wait)

    def complete_below(self, high_watermark: int) -> list[tuple[PendingProduce, int]]:
        """Return the produces with newly committed batches, in order, and the number of these.

        A produce ends with its last batch.
        """
        queue, completed = self._queue, []
        while queue and queue[0].required_offset <= high_watermark:
            wait = queue.popleft()
            if wait.is_over:
                continue
            count = bisect_right(wait.ends, high_watermark) - wait.completed
            wait.completed += count
            if wait.left:
                self._keep(wait)
            else:
                self._deadlines.end(wait)
            completed.append((wait, count))
        return completed

    def _keep(self, wait: PendingProduce) -> None:
        """Queue a produce again for its other batches, nearly always as the first."""
        queue, slot = self._queue, 0
        while slot < len(queue) and queue[slot].required_offset < wait.required_offset:
            slot += 1
        queue.insert(slot, wait)

    def fail(self) -> list[PendingProduce]:
        """End and return all produces."""
        failed = [wait for wait in self._queue if self._deadlines.end(wait)]
        self._queue.clear()
        return failed


@dataclass(slots=True, eq=False)
class WaitingFetch(Wait):
    """A fetch until its partitions hold enough bytes; the `awaited` changes may add them."""

    keys: Sequence[TopicPartition]
    awaited: FetchWakeups = ANY_CHANGE


FetchT = TypeVar("FetchT", bound=WaitingFetch)


class FetchPurgatory(Generic[FetchT]):
    """The waiting fetches; `by_key` holds them by partition."""

    def __init__(self) -> None:
        self.deadlines: Final[Deadlines[FetchT]] = Deadlines()
        self.by_key: Final[dict[TopicPartition, dict[FetchT, None]]] = {}

    def park(self, wait: FetchT) -> bool:
        """Add an entry; True if its deadline is now the earliest of all."""
        for key in wait.keys:
            self.by_key.setdefault(key, {})[wait] = None
        return self.deadlines.add(wait)

    def waiting_on(self, key: TopicPartition, changes: FetchWakeups = ANY_CHANGE) -> list[FetchT]:
        """Return, and keep, the fetches that wait for such changes here, oldest first."""
        return [wait for wait in self.by_key.get(key, ()) if wait.awaited & changes]

    def end(self, wait: FetchT) -> bool:
        """Remove a fetch; False if it is already over."""
        if not self.deadlines.end(wait):
            return False
        if wait.keys:
            self._forget(wait)
        return True

    def expire(self, now_ms: int) -> list[FetchT]:
        """End and return the fetches whose deadline has come, in order."""
        expired = self.deadlines.expire(now_ms)
        for wait in expired:
            self._forget(wait)
        return expired

    def _forget(self, wait: FetchT) -> None:
        for key in wait.keys:
            waiting = self.by_key.get(key)
            if waiting is not None:
                waiting.pop(wait, None)
                if not waiting:
                    del self.by_key[key]
