"""A driver whose broker is a list per partition, with the faults of a broken broker on demand."""

import asyncio
from collections.abc import Callable, Sequence

from quorumlog.chaos.drivers.driver import AT_ONCE, Batching, Headers, Record, SendFailed

TOPIC = "t"


class LogInMemory:
    """A driver. `append`: how the broker stores a value; a test replaces it by a faulty one.

    `alter`: how the broker changes a record that it serves.
    `stop_after`: called once, when that many values were sent. `answers`: whether producers hear
    of what became of a value.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.append: Callable[[list[bytes], bytes], int] = append
        self.answers: Callable[[bytes], bool] = lambda _: True
        self.stop_after: tuple[int, Callable[[], None]] = (-1, lambda: None)
        self.sent = self.open = 0
        self.extras: dict[bytes, tuple[bytes | None, Headers, int]] = {}  # of each sent value
        self.alter: Callable[[Record], Record] = lambda record: record

    capabilities: frozenset[str] = frozenset()

    def record(self, partition: int, offset: int, value: bytes) -> Record:
        """Return a record as the broker serves it."""
        extras = self.extras.get(value, (None, (), -1))
        return self.alter(Record(TOPIC, partition, offset, value, *extras))

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> "Client":
        assert (bootstrap, client_id[0]) == ("b", "p")
        return Client(self)

    async def consumer(self, bootstrap: str, client_id: str) -> "Client":
        assert (bootstrap, client_id[0]) == ("b", "c")
        return Client(self)

    async def create_topic(self, *_: object, **__: object) -> None:
        raise NotImplementedError


def append(log: list[bytes], value: bytes) -> int:
    log.append(value)
    return len(log) - 1


class Client:
    """A producer or a consumer."""

    def __init__(self, driver: LogInMemory) -> None:
        self._driver = driver
        self._positions: dict[int, int] = {}
        driver.open += 1

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[int]:
        assert topic == TOPIC
        driver = self._driver
        driver.extras[value] = key, headers, -1 if timestamp_ms is None else timestamp_ms
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        driver.sent += 1
        try:
            offset = driver.append(driver.logs[partition], value)
            if driver.answers(value):
                future.set_result(offset)
        except SendFailed as error:
            future.set_exception(error)
        number, call = driver.stop_after
        if driver.sent == number:
            call()
        return future

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        assert topic == TOPIC
        self._positions = dict.fromkeys(partitions, 0)

    async def poll(self, timeout_ms: int) -> list[Record]:
        assert timeout_ms
        await asyncio.sleep(0)
        records = [
            self._driver.record(partition, offset, value)
            for partition, position in self._positions.items()
            for offset, value in enumerate(self._driver.logs[partition])
            if offset >= position
        ]
        self._positions |= {record.partition: record.offset + 1 for record in records}
        return records

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        assert topic == TOPIC
        return {partition: len(self._driver.logs[partition]) for partition in partitions}

    async def close(self) -> None:
        self._driver.open -= 1
