"""A driver whose broker answers questions for offsets, with faults on demand."""

import asyncio
from collections.abc import Callable, Mapping

from quorumlog.chaos.drivers.driver import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAt
from tests.support.chaos.log_in_memory import TOPIC, LogInMemory

Times = list[int]


class OffsetsInMemory(LogInMemory):
    """A driver. `answer` takes the times of a log and a request; a test replaces it."""

    capabilities = frozenset({"offsets", "max-timestamp"})

    def __init__(self, partitions: int = 2) -> None:
        super().__init__(partitions)
        self.answer: Callable[[Times, int], OffsetAt] = answer
        self.asked = 0

    async def offsets(self, bootstrap: str, client_id: str) -> "Lookup":
        assert (bootstrap, client_id[0]) == ("b", "o")
        self.open += 1
        return Lookup(self)


class Lookup:
    """A client that requests offsets."""

    def __init__(self, driver: OffsetsInMemory) -> None:
        self._driver = driver

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        assert topic == TOPIC
        await asyncio.sleep(0.001)
        driver = self._driver
        driver.asked += 1
        return {
            index: driver.answer([int(value) for value in driver.logs[index]], asked)
            for index, asked in timestamps.items()
        }

    async def close(self) -> None:
        self._driver.open -= 1


def answer(times: Times, asked: int) -> OffsetAt:
    """Answer as a broker should."""
    if asked == EARLIEST:
        return OffsetAt(0, -1)
    if asked == LATEST:
        return OffsetAt(len(times), -1)
    wanted = max(times, default=0) if asked == MAX_TIMESTAMP else asked
    for offset, time_ms in enumerate(times):
        if time_ms >= wanted:
            return OffsetAt(offset, time_ms)
    return OffsetAt(-1, -1)
