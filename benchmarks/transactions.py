"""Transactions and groups: rates, an exactly-once copy, and the same on Apache Kafka where it is.

`python -m benchmarks.transactions` measures only this. Our own client is the load on both, so the
client's share of the time is the same.
"""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.load import percentile
from benchmarks.measure import Figure, Table
from benchmarks.peers import apache_kafka
from quorumlog import Admin, Consumer, LocalCluster, Producer
from quorumlog.client import ErrorCode, KafkaError, NewTopic, TopicPartition

PARTITIONS: Final = 10
PATIENCE_S: Final = 60.0
_SECONDS: Final = 5.0
_TRANSACTION_S: Final = 0.01
_COMMITTERS: Final = 20
_MEMBERS: Final = 20
_COPIES: Final = 200
_COPIES_PER_S: Final = 20
_TOPICS: Final = {"from": 1, "to": 1, "many": PARTITIONS}


class Measured(NamedTuple):
    """A figure of one server."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = False


async def _create_topics(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        topics = [
            NewTopic(name=name, num_partitions=count, replication_factor=3)
            for name, count in _TOPICS.items()
        ]
        await admin.create_topics(topics)
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


async def _transactions_per_s(bootstrap: str, partitions: int) -> float:
    """One producer, one transaction after the other, a record for each partition."""
    async with Producer(bootstrap, transactional_id=f"rate-{partitions}") as producer:
        await producer.init_transactions()
        started_s, count = time.perf_counter(), 0
        while time.perf_counter() - started_s < _SECONDS:
            async with producer.transaction():
                for index in range(partitions):
                    await producer.send("many", b"x" * 100, partition=index)
            count += 1
        return count / (time.perf_counter() - started_s)


async def _records_per_s(bootstrap: str, partitions: int, transactional_id: str | None) -> float:
    """1 KiB records, as fast as they go; in transactions of 10 ms if there is an id."""
    value, count = b"v" * 1024, 0
    async with Producer(bootstrap, transactional_id=transactional_id, linger_ms=2) as producer:
        if transactional_id is not None:
            await producer.init_transactions()
        started_s = time.perf_counter()
        while time.perf_counter() - started_s < _SECONDS:
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


async def _throughput(bootstrap: str, partitions: int) -> list[Measured]:
    """Return the throughput without transactions, and which part of it is left with them."""
    plain = await _records_per_s(bootstrap, partitions, None)
    transactional = await _records_per_s(bootstrap, partitions, f"throughput-{partitions}")
    return [
        Measured(f"1 KiB records without transactions, {_counted(partitions)}", plain, "/s"),
        Measured(
            f"the same in transactions of 10 ms, of that, {_counted(partitions)}",
            transactional / plain,
            "x",
            0.7,
        ),
    ]


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'' if partitions == 1 else 's'}"


async def _offset_commits_per_s(bootstrap: str) -> float:
    """Let groups of one member each commit one offset after the other."""
    at, ends_s = TopicPartition("from", 0), time.perf_counter() + _SECONDS

    async def commit(group: int) -> int:
        count = 0
        async with Consumer(bootstrap, group_id=f"commits-{group}") as consumer:
            consumer.assign([at])
            while time.perf_counter() < ends_s:
                await consumer.commit({at: count})
                count += 1
        return count

    return sum(await asyncio.gather(*map(commit, range(_COMMITTERS)))) / _SECONDS


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


async def _measure(bootstrap: str) -> list[Measured]:
    await _create_topics(bootstrap)
    one = await _transactions_per_s(bootstrap, 1)
    many = await _transactions_per_s(bootstrap, PARTITIONS)
    throughput = [*await _throughput(bootstrap, 1), *await _throughput(bootstrap, PARTITIONS)]
    commits = await _offset_commits_per_s(bootstrap)
    joins = await _joins_per_s(bootstrap)
    copied_ms = await _copied_ms(bootstrap)
    return [
        Measured("transactions of 1 partition, one producer", one, "/s"),
        Measured(f"transactions of {PARTITIONS} partitions, one producer", many, "/s"),
        *throughput,
        Measured(f"offset commits, {_COMMITTERS} groups at once", commits, "/s"),
        Measured(f"joins, {_MEMBERS} members of one group at once", joins, "/s"),
        Measured("exactly-once copy, send -> read: p50", percentile(copied_ms, 0.5), "ms"),
        Measured("exactly-once copy, send -> read: p99", percentile(copied_ms, 0.99), "ms"),
    ]


def transactions(table: Table) -> None:
    """Measure three nodes of ours; then Apache Kafka, if it is here."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as scratch:
        cluster = LocalCluster(Path(scratch) / "cluster")
        try:
            cluster.start()
            for name, value, unit, goal, at_most in asyncio.run(_measure(cluster.bootstrap)):
                table.add(Figure(name=name, value=value, unit=unit, goal=goal, at_most=at_most))
        finally:
            cluster.stop()
    with apache_kafka(table) as bootstrap:
        if bootstrap is not None:
            for name, value, unit, _, _ in asyncio.run(_measure(bootstrap)):
                table.add(Figure(name=f"Apache Kafka: {name}", value=value, unit=unit))


if __name__ == "__main__":
    transactions(Table())
