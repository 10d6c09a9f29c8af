"""Drivers whose broker keeps records with keys, or topics, in memory; a test breaks them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

from quorumlog.chaos.drivers.driver import DriverError, Headers, Record, SendFailed
from tests.support.chaos.log_in_memory import TOPIC


def not_here(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError


class KeysInMemory:
    """A driver. `append`: how the broker stores a record; `serve`: its responses to readers.

    `stop_after`: called once, when that many records were sent.
    """

    capabilities: frozenset[str] = frozenset()

    def __init__(self, partitions: int = 2) -> None:
        self.logs: list[list[Record]] = [[] for _ in range(partitions)]
        self.append: Callable[[list[Record], Record], int] = append
        self.serve: Callable[[list[Record]], list[Record]] = list
        self.stop_after: tuple[int, Callable[[], None]] = (-1, lambda: None)
        self.sent = self.open = 0

    async def producer(self, bootstrap: str, client_id: str, *_: object) -> "KeysClient":
        assert (bootstrap, client_id[0]) == ("b", "p")
        return KeysClient(self)

    async def consumer(self, bootstrap: str, client_id: str) -> "KeysClient":
        assert (bootstrap, client_id[0]) == ("b", "c")
        return KeysClient(self)

    async def create_topic(self, *_: object, **__: object) -> None:
        not_here()


def append(log: list[Record], record: Record) -> int:
    log.append(record._replace(offset=len(log)))
    return len(log) - 1


class KeysClient:
    """A producer or a consumer."""

    def __init__(self, driver: KeysInMemory) -> None:
        self._driver = driver
        self._partition = self._position = 0
        driver.open += 1

    async def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int = -1,
    ) -> asyncio.Future[int]:
        assert topic == TOPIC
        driver = self._driver
        await asyncio.sleep(0.001)
        driver.sent += 1
        if driver.sent == driver.stop_after[0]:
            driver.stop_after[1]()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            record = Record(topic, partition, -1, value, key, headers, timestamp_ms)
            offset = driver.append(driver.logs[partition], record)
        except SendFailed as error:
            future.set_exception(error)
        else:
            future.set_result(offset)
        return future

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        assert topic == TOPIC
        (self._partition,) = partitions
        self._position = 0

    async def poll(self, timeout_ms: int) -> list[Record]:
        await asyncio.sleep(0.001)
        served = self._driver.serve(self._driver.logs[self._partition])
        records = [record for record in served if record.offset >= self._position]
        self._position = max((record.offset + 1 for record in records), default=self._position)
        return records

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        assert topic == TOPIC
        return {partition: len(self._driver.logs[partition]) for partition in partitions}

    async def close(self) -> None:
        self._driver.open -= 1


class TopicsInMemory:
    """A driver whose controller keeps a set of topics. `happens`: whether a change is made."""

    capabilities = frozenset({"topics"})

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.happens: Callable[[str], bool] = lambda _: True
        self.answers: Callable[[str], bool] = lambda _: True
        self.sent_twice: Callable[[int], bool] = lambda _: False
        self.stop_after: tuple[int, Callable[[], None]] = (-1, lambda: None)
        self.changes = self.open = 0

    producer = consumer = create_topic = not_here

    async def admin(self, bootstrap: str, client_id: str) -> "TopicsClient":
        assert (bootstrap, client_id[0]) == ("b", "a")
        self.open += 1
        return TopicsClient(self)


class TopicsClient:
    """An administrator."""

    def __init__(self, driver: TopicsInMemory) -> None:
        self._driver = driver

    async def create(self, topic: str, *, partitions: int, replication_factor: int) -> None:
        assert (partitions, replication_factor) == (1, 1)
        await self._change(topic, topic in self._driver.topics, "TOPIC_ALREADY_EXISTS")

    async def delete(self, topic: str) -> None:
        is_absent = topic not in self._driver.topics
        await self._change(topic, is_absent, "UNKNOWN_TOPIC_OR_PARTITION")

    async def _change(self, topic: str, refuses: bool, code: str) -> None:
        driver = self._driver
        driver.changes += 1
        if driver.changes == driver.stop_after[0]:
            driver.stop_after[1]()
        if not refuses and driver.happens(topic):
            driver.topics ^= {topic}
        refuses |= driver.sent_twice(driver.changes)
        await asyncio.sleep(0.001)
        if not driver.answers(topic):
            raise DriverError("REQUEST_TIMED_OUT")
        if refuses:
            raise DriverError(code)

    async def exists(self, topic: str) -> bool:
        return topic in self._driver.topics

    async def close(self) -> None:
        self._driver.open -= 1
