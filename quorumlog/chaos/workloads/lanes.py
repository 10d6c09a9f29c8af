"""The lanes of a run: producers, and the readers of their records.

One lane is one client with one operation at a time. A lane whose operation ends in `info` continues
as a new process with a new client, because the old one may still act (Jepsen).
"""

import asyncio
import random
from collections.abc import Coroutine, Iterable, Iterator
from itertools import count
from typing import Any, Final, Generic, TypeVar

from quorumlog.chaos.workloads.readers import Readers
from quorumlog.chaos.workloads.workload import LaneOptions, Setup

OptionsT = TypeVar("OptionsT", bound=LaneOptions)


class Lanes(Generic[OptionsT]):
    """The clients of one run. A workload writes `produce`, and `consumers` if it has its own."""

    def __init__(self, setup: Setup[OptionsT], readers: Readers | None = None) -> None:
        self._setup: Final = setup
        self._history: Final = setup.history
        self._readers: Final = readers or Readers(setup)
        self._next_value = 0

    def next_process(self, process: int) -> int:
        """Return the number of the process that continues the lane of `process`."""
        options = self._setup.options
        return process + options.producers + options.consumers + options.final_readers

    def processes(self, process: int) -> Iterator[int]:
        """Return the numbers of all processes of the lane that begins with `process`."""
        return count(process, self.next_process(0))

    async def produce(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:
        """Send values until `working` is cleared."""
        raise NotImplementedError

    def consumers(self, working: asyncio.Event) -> Iterable[Coroutine[Any, Any, None]]:
        """Return the work of all consumers until `working` is cleared."""
        return [self._readers.work(working)]

    async def work(self, working: asyncio.Event) -> None:
        """Produce and consume until `working` is cleared."""
        async with asyncio.TaskGroup() as tasks:
            for lane in range(self._setup.options.producers):
                rng = self._setup.rng(f"producer {lane}")
                tasks.create_task(self.produce(lane, rng, working))
            for consumer in self.consumers(working):
                tasks.create_task(consumer)

    async def final_reads(self, timeout_s: float) -> bool:
        """Read every partition from its beginning to its end; return whether all readers did."""
        return await self._readers.final_reads(timeout_s)
