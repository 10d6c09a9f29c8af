"""Transactions and groups: rates, an exactly-once copy, and the same on Apache Kafka where it is.

`python -m benchmarks.transactions` measures only this. Our own client is the load on both, so the
client's share of the time is the same.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from benchmarks.beside_kafka import Cluster, Pace, compare, nodes_cpu_s
from benchmarks.load import percentile
from benchmarks.measure import Cost, Figure, Table
from quorumlog import Admin, Consumer, Producer
from quorumlog.client import ErrorCode, KafkaError, NewTopic, TopicPartition

PARTITIONS: Final = 10
PATIENCE_S: Final = 60.0
_TRANSACTION_S: Final = 0.01
_COMMITTERS: Final = 20
_MEMBERS: Final = 20
_COPIES: Final = 200
_COPIES_PER_S: Final = 20
_TOPICS: Final = {"from": 1, "to": 1, "many": PARTITIONS}


async def _create_topics(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        topics = [
            NewTopic(name=name, num_partitions=count, replication_factor=3)
            for name, count in _TOPICS.items()
        ]
        known = await admin.list_topics()
        await admin.create_topics([topic for topic in topics if topic.name not in known])
    async with AsyncExitStack() as stack:  # the coordinators' topics are created by this, too
        producer = await stack.enter_async_context(Producer(bootstrap, transactional_id="warm-up"))
        await _patiently(producer.init_transactions)


async def _patiently(call: Callable[[], Awaitable[None]]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await call()
        except KafkaError as error:
            waits = error.code in {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
            if not waits or time.monotonic() > deadline_s:
                raise


async def _transactions_per_s(bootstrap: str, partitions: int, seconds: float) -> float:
    """One producer, one transaction after the other, a record for each partition."""
    async with Producer(bootstrap, transactional_id=f"rate-{partitions}") as producer:
        await producer.init_transactions()
        started_s, count = time.perf_counter(), 0
        while time.perf_counter() - started_s < seconds:
            async with producer.transaction():
                for index in range(partitions):
                    await producer.send("many", b"x" * 100, partition=index)
            count += 1
        return count / (time.perf_counter() - started_s)


async def _records_per_s(
    bootstrap: str, partitions: int, transactional_id: str | None, seconds: float
) -> float:
    """1 KiB records, as fast as they go; in transactions of 10 ms if there is an id."""
    value, count = b"v" * 1024, 0
    async with Producer(bootstrap, transactional_id=transactional_id, linger_ms=2) as producer:
        if transactional_id is not None:
            await producer.init_transactions()
        started_s = time.perf_counter()
        while time.perf_counter() - started_s < seconds:
            if transactional_id is not None:
                producer.begin_transaction()
            until_s = time.perf_counter() + _TRANSACTION_S
            while time.perf_counter() < until_s:
                await producer.send("many", value, partition=count % partitions)
                count += 1
            if transactional_id is not None:
                await producer.commit_transaction()
        await producer.flush()
        return count / (time.perf_counter() - started_s)


async def _throughput(bootstrap: str, partitions: int, seconds: float) -> list[Figure]:
    """Return the throughput without transactions, and which part of it is left with them."""
    plain = await _records_per_s(bootstrap, partitions, None, seconds)
    name = f"throughput-{partitions}"
    transactional = await _records_per_s(bootstrap, partitions, name, seconds)
    name = f"1 KiB records without transactions, {_counted(partitions)}"
    share = f"the same in transactions of 10 ms, of that, {_counted(partitions)}"
    return [
        Figure(name=name, value=plain, unit="/s", at_most=False),
        Figure(name=share, value=transactional / plain, unit="x", goal=0.7, at_most=False),
    ]


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


async def _offset_commits_per_s(bootstrap: str, seconds: float) -> float:
    """Let groups of one member each commit one offset after the other."""
    at, ends_s = TopicPartition("from", 0), time.perf_counter() + seconds

    async def commit(group: int) -> int:
        count = 0
        async with Consumer(bootstrap, group_id=f"commits-{group}") as consumer:
            consumer.assign([at])
            while time.perf_counter() < ends_s:
                await consumer.commit({at: count})
                count += 1
        return count

    return sum(await asyncio.gather(*map(commit, range(_COMMITTERS)))) / seconds


async def _joins_per_s(bootstrap: str) -> float:
    """One group whose members come at the same time, until each has its partitions."""
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(Consumer(bootstrap, group_id="joins"))
            for _ in range(_MEMBERS)
        ]
        started_s = time.perf_counter()

        async def join(consumer: Consumer) -> None:
            consumer.subscribe(["many"])
            while True:
                await consumer.poll(20)
                held = [len(member.assignment()) for member in members]
                if sum(held) == PARTITIONS and max(held) == 1:
                    return

        await asyncio.gather(*map(join, members))
        return _MEMBERS / (time.perf_counter() - started_s)


async def _copied_ms(bootstrap: str) -> list[float]:
    """From `send` to a read_committed reader of what an exactly-once copy makes of it; sorted."""
    sent_s: dict[bytes, float] = {}
    seen_ms: list[float] = []
    copying = asyncio.ensure_future(_copy(bootstrap))
    async with Producer(bootstrap) as producer, _reader(bootstrap) as reader:
        reader.assign([TopicPartition("to", 0)])
        reader.seek_to_end()
        await reader.position(TopicPartition("to", 0))

        async def read() -> None:
            while len(seen_ms) < _COPIES:
                for records in (await reader.poll(200)).values():
                    now_s = time.perf_counter()
                    seen_ms.extend(
                        (now_s - sent_s[record.value]) * 1000
                        for record in records
                        if record.value in sent_s
                    )

        reading = asyncio.ensure_future(read())
        for index in range(_COPIES):
            value = str(index).encode()
            sent_s[value] = time.perf_counter()
            await producer.send("from", value)
            await asyncio.sleep(1 / _COPIES_PER_S)
        async with asyncio.timeout(PATIENCE_S):
            await reading
    copying.cancel()
    await asyncio.gather(copying, return_exceptions=True)
    return sorted(seen_ms)


def _reader(bootstrap: str, group_id: str | None = None) -> Consumer:
    return Consumer(
        bootstrap,
        group_id=group_id,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )


async def _copy(bootstrap: str) -> None:
    """Copy each record in a transaction, with the position in the same transaction."""
    producer = Producer(bootstrap, transactional_id="copy")
    async with producer, _reader(bootstrap, "copy") as consumer:
        await producer.init_transactions()
        consumer.subscribe(["from"])
        while True:
            batch = await consumer.poll(200)
            if not batch:
                continue
            async with producer.transaction():
                for records in batch.values():
                    for record in records:
                        await producer.send("to", record.value)
                places = {at: records[-1].offset + 1 for at, records in batch.items()}
                await producer.send_offsets_to_transaction(places, consumer.group_metadata())


async def _with_cost(
    cluster: Cluster, name: str, rate: Awaitable[float], unit: str, seconds: float
) -> Figure:
    """Return a rate, with the CPU of all nodes."""
    before_s = nodes_cpu_s(cluster)
    value = await rate
    cpu_us = (nodes_cpu_s(cluster) - before_s) * 1e6 / max(value * seconds, 1)
    return Figure(name=name, value=value, unit="/s", at_most=False, cost=Cost(cpu_us, unit))


async def _measure(cluster: Cluster, seconds: float) -> list[Figure]:
    bootstrap = cluster.bootstrap
    await _create_topics(bootstrap)
    figures = []
    for count in (1, PARTITIONS):
        rate = _transactions_per_s(bootstrap, count, seconds)
        name = f"transactions of {_counted(count)}, one producer"
        figures.append(await _with_cost(cluster, name, rate, "transaction", seconds))
    for count in (1, PARTITIONS):
        figures += await _throughput(bootstrap, count, seconds)
    rate = _offset_commits_per_s(bootstrap, seconds)
    name = f"offset commits, {_COMMITTERS} groups at once"
    figures.append(await _with_cost(cluster, name, rate, "commit", seconds))
    name = f"joins, {_MEMBERS} members of one group at once"
    figures.append(Figure(name=name, value=await _joins_per_s(bootstrap), unit="/s"))
    copied_ms = await _copied_ms(bootstrap)
    for shown, fraction in (("p50", 0.5), ("p99", 0.99)):
        name, value = f"exactly-once copy, send -> read: {shown}", percentile(copied_ms, fraction)
        figures.append(Figure(name=name, value=value, unit="ms"))
    return figures


def transactions(cluster: Cluster, pace: Pace) -> list[Figure]:
    """Measure one cluster."""
    return asyncio.run(_measure(cluster, pace.seconds))


if __name__ == "__main__":
    compare(Table(), [transactions], Pace())
