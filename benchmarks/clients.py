"""CPU time that Python clients need for a record of 100 B, ours beside aiokafka and kafka-python.

`python -m benchmarks.clients` measures only this. Rates on loopback depend on the broker and on
other work; the CPU time of the client's process does much less. The clients take turns, and each
row is the least of its rounds. One node, one partition; libraries that are absent are skipped.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.measure import Figure, Table
from quorumlog import LocalCluster
from quorumlog.client import Consumer, Producer, TopicPartition
from quorumlog.client.sync import SyncConsumer, SyncProducer

RECORDS: Final = 20_000
ROUNDS: Final = 5
TOPIC: Final = "clients"
PARTITION: Final = TopicPartition(TOPIC, 0)
VALUE: Final = bytes(100)
LINGER_MS: Final = 5
TABLE_ROWS: Final = 100_000
READ_MS: Final = 1_000

Measure = Callable[[str], Coroutine[Any, Any, float]]
"""From a bootstrap address to the microseconds of CPU for a record."""


@contextmanager
def _cpu(into: list[float]) -> Iterator[None]:
    gc.collect()
    began_s = time.process_time()
    yield
    into.append((time.process_time() - began_s) / RECORDS * 1e6)


async def _send(bootstrap: str) -> float:
    used: list[float] = []
    async with Producer(bootstrap, linger_ms=LINGER_MS) as producer:
        await producer.send_and_wait(TOPIC, VALUE)
        with _cpu(used):
            for _ in range(RECORDS):
                await producer.send(TOPIC, VALUE)
            await producer.flush()
    return used[0]


async def _send_many(bootstrap: str) -> float:
    used: list[float] = []
    async with Producer(bootstrap, linger_ms=LINGER_MS) as producer:
        await producer.send_and_wait(TOPIC, VALUE)
        with _cpu(used):
            await producer.send_many(TOPIC, [VALUE] * RECORDS)
            await producer.flush()
    return used[0]


async def _send_blocking(bootstrap: str) -> float:
    used: list[float] = []
    with SyncProducer(bootstrap, linger_ms=LINGER_MS) as producer:
        producer.send_and_wait(TOPIC, VALUE)
        with _cpu(used):
            for _ in range(RECORDS):
                producer.send(TOPIC, VALUE)
            producer.flush()
    return used[0]


async def _send_aiokafka(bootstrap: str) -> float:
    import aiokafka

    used: list[float] = []
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=LINGER_MS
    )
    async with producer:
        await producer.send_and_wait(TOPIC, VALUE)
        with _cpu(used):
            for _ in range(RECORDS):
                await producer.send(TOPIC, VALUE)
            await producer.flush()
    return used[0]


async def _send_kafka_python(bootstrap: str) -> float:
    import kafka

    used: list[float] = []
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=LINGER_MS)
    producer.send(TOPIC, VALUE).get(30)
    with _cpu(used):
        for _ in range(RECORDS):
            producer.send(TOPIC, VALUE)
        producer.flush()
    producer.close()
    return used[0]


async def _read(poll: Callable[[], Awaitable[dict[Any, Any]]]) -> float:
    used: list[float] = []
    count = 0
    with _cpu(used):
        while count < RECORDS:
            count += sum(map(len, (await poll()).values()))
    return used[0] * RECORDS / count


async def _poll(bootstrap: str) -> float:
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        await consumer.position(PARTITION)
        return await _read(lambda: consumer.poll(READ_MS))


async def _poll_batches(bootstrap: str) -> float:
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        await consumer.position(PARTITION)
        return await _read(lambda: consumer.poll_batches(READ_MS, TABLE_ROWS))


async def _poll_blocking(bootstrap: str) -> float:
    with SyncConsumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        consumer.position(PARTITION)

        async def poll() -> dict[Any, Any]:
            return consumer.poll(READ_MS)

        return await _read(poll)


async def _poll_aiokafka(bootstrap: str) -> float:
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    async with consumer:
        place = aiokafka.TopicPartition(TOPIC, 0)
        consumer.assign([place])
        await consumer.position(place)
        return await _read(lambda: consumer.getmany(timeout_ms=READ_MS, max_records=500))


async def _poll_kafka_python(bootstrap: str) -> float:
    import kafka

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    place = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([place])
    consumer.position(place)

    async def poll() -> dict[Any, Any]:
        polled: dict[Any, Any] = consumer.poll(READ_MS)
        return polled

    used = await _read(poll)
    consumer.close()
    return used


_SEND, _POLL = "aiokafka: send", "aiokafka: getmany"
_SEND_BLOCKING, _POLL_BLOCKING = "kafka-python: send", "kafka-python: poll"
_ROWS: Final[tuple[tuple[str, Measure, str, str, float | None], ...]] = (
    (_SEND, _send_aiokafka, "aiokafka", "", None),
    ("send", _send, "", _SEND, 0.6),
    ("send_many", _send_many, "", _SEND, None),
    (_SEND_BLOCKING, _send_kafka_python, "kafka", "", None),
    ("blocking send", _send_blocking, "", _SEND_BLOCKING, 0.5),
    (_POLL, _poll_aiokafka, "aiokafka", "", None),
    ("poll", _poll, "", _POLL, 1.0),
    ("poll_batches", _poll_batches, "pyarrow", _POLL, None),
    (_POLL_BLOCKING, _poll_kafka_python, "kafka", "", None),
    ("blocking poll", _poll_blocking, "", _POLL_BLOCKING, 0.5),
)
"""The name, its measurement, the package that it needs, the row it is compared with, the goal."""


def clients(table: Table) -> None:
    """Measure each client in turn, and its ratio to its peer."""
    rows = [row for row in _ROWS if not row[2] or find_spec(row[2]) is not None]
    best = dict.fromkeys((name for name, *_ in rows), float("inf"))
    with LocalCluster(nodes=1) as cluster:
        for _ in range(ROUNDS):
            for name, measure, *_ in rows:
                best[name] = min(best[name], asyncio.run(measure(cluster.bootstrap)))
    for name, _, _, peer, goal in rows:
        table.add(Figure(name=f"client CPU for a record, {name}", value=best[name], unit="us"))
        if peer in best:
            ratio = best[name] / best[peer]
            table.add(Figure(name=f"  of {peer}", value=ratio, unit="x", goal=goal))


if __name__ == "__main__":
    clients(Table())
