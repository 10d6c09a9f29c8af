"""Whole nodes in simulation: members of a group transform records exactly once, under faults.

Workers come, are cancelled, and come again with their transactional ids; other members take over
their partitions meanwhile. In the end each input has one output for readers at `read_committed`.
Meanwhile another member commits with callbacks, and each of them is called once.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any, Final

import pytest

from quorumlog.chaos.node_simulation.machine import KAFKA_PORT, host_of
from quorumlog.chaos.node_simulation.run import SimulatedRun
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.client import (
    Admin,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
    ProducerRecord,
    TopicPartition,
    transform,
    transforms,
)
from quorumlog.client.records import ConsumerRecord, GroupMetadata

pytestmark = pytest.mark.integration
INPUTS, OUTPUTS = "inputs", "outputs"
PARTITIONS = 3
RECORDS = 120
WORKERS = 3
LIFE_S: Final = 4.0  # of a worker, on average
MAX_POLL_S: Final = 0.8
SLOW_SHARE: Final = 0.02  # of the records
PATIENCE_S: Final = 60.0
FAULTS = ("kill", "pause", "restart", "drop_request", "reply_lost", "partition_one")


class Transforms:
    """The clients of one run. `faulty`: cleared when the faults have ended."""

    def __init__(self, run: SimulatedRun, consumers: dict[str, Any]) -> None:
        self.bootstrap = ",".join(f"{host_of(one)}:{KAFKA_PORT}" for one in run._machines)
        self.rng: Rng = seeded("transforms", run._seed)
        self.consumers = consumers
        self.is_faulty = True
        self.is_over = False
        self.errors: Counter[str] = Counter()
        self.callbacks: Counter[int] = Counter()

    async def all(self) -> list[str]:
        """Run all clients; return the broken promises."""
        async with Admin(self.bootstrap) as admin:
            await admin.create_topics(
                [
                    NewTopic(name, num_partitions=PARTITIONS, replication_factor=3)
                    for name in (INPUTS, OUTPUTS)
                ]
            )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.send())
            workers = [tasks.create_task(self.work(number)) for number in range(WORKERS)]
            watcher = tasks.create_task(self.commit_in_the_background())
            found = await self.read()
            self.is_over = True
            await asyncio.wait([*workers, watcher])
        wrong = {value: number for value, number in found.items() if number != 1}
        broken = [f"outputs: {wrong}"] if wrong or len(found) != RECORDS else []
        twice = {commit: number for commit, number in self.callbacks.items() if number != 1}
        return broken + ([f"callbacks: {twice}"] if twice else [])

    async def send(self) -> None:
        async with Producer(self.bootstrap, delivery_timeout_ms=120_000) as producer:
            for number in range(RECORDS):
                await producer.send_and_wait(INPUTS, b"%d" % number, partition=number % PARTITIONS)
                await asyncio.sleep(0.03)

    async def work(self, number: int) -> None:
        while not self.is_over:
            life_s = self.rng.expovariate(1 / LIFE_S) if self.is_faulty else PATIENCE_S
            try:
                async with asyncio.timeout(life_s):
                    await self.live(number)
            except TimeoutError:
                pass
            except KafkaError as error:
                self.errors[str(error)] += 1
                await asyncio.sleep(0.1)

    async def live(self, number: int) -> None:
        async def invoice(record: ConsumerRecord[bytes, bytes]) -> ProducerRecord[bytes, bytes]:
            # Rarely for so long that the group gives the partitions to another member.
            is_slow = self.is_faulty and self.rng.random() < SLOW_SHARE
            await asyncio.sleep(2 * MAX_POLL_S if is_slow else self.rng.random() * 0.02)
            return ProducerRecord(OUTPUTS, record.value, partition=record.partition)

        async with (
            Consumer(
                self.bootstrap,
                group_id="transforms",
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                max_poll_interval_ms=int(MAX_POLL_S * 1000),
                **self.consumers,
            ) as consumer,
            Producer(self.bootstrap, transactional_id=f"worker-{number}") as producer,
        ):
            consumer.subscribe([INPUTS])
            await transform(consumer, producer, invoice, max_records=5, stop=lambda: self.is_over)

    async def commit_in_the_background(self) -> None:
        async with Consumer(
            self.bootstrap,
            group_id="watchers",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **self.consumers,
        ) as consumer:
            consumer.subscribe([INPUTS])
            commits = 0
            while not self.is_over:
                with suppress(KafkaError):
                    if await consumer.poll(100):
                        commits += 1
                        self.callbacks[commits] = 0
                        await consumer.commit(callback=self.noted(commits))

    def noted(self, commit: int) -> Any:
        def note(_offsets: object, _error: KafkaError | None) -> None:
            self.callbacks[commit] += 1

        return note

    async def read(self) -> Counter[bytes]:
        """Read the outputs until all inputs are there and the faults have ended, and a while on."""
        found: Counter[bytes] = Counter()
        async with Consumer(
            self.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TopicPartition(OUTPUTS, index) for index in range(PARTITIONS)])
            late_s = 0.0
            while late_s < 3.0:
                with suppress(KafkaError):
                    for records in (await consumer.poll(100)).values():
                        found.update(record.value or b"" for record in records)
                if len(found) == RECORDS and not self.is_faulty:
                    late_s += 0.1
        return found


def simulate_transforms(
    monkeypatch: pytest.MonkeyPatch, seed: int, consumers: dict[str, Any]
) -> list[str]:
    break_under_load = SimulatedRun._break_under_load

    async def and_transform(run: SimulatedRun, *arguments: Any) -> None:
        moving = Transforms(run, consumers)
        clients = asyncio.ensure_future(moving.all())
        await break_under_load(run, *arguments)
        moving.is_faulty = False
        try:
            async with asyncio.timeout(PATIENCE_S):
                for broken in await clients:
                    run._violated(broken)
        except TimeoutError:
            run._violated(f"the transforms do not end: {moving.errors}")

    monkeypatch.setattr(SimulatedRun, "_break_under_load", and_transform)
    result = simulate_nodes(seed, duration_ms=6_000, faults=FAULTS)
    return [*result.violations, *result.anomalies]


@pytest.mark.parametrize(
    ("seed", "consumers"),
    [
        (1, {"assignor": "sticky"}),
        (2, {"assignor": "cooperative-sticky"}),
        (3, {"group_protocol": "consumer"}),
    ],
    ids=["eager", "cooperative", "KIP-848"],
)
def test_members_transform_each_record_once(
    monkeypatch: pytest.MonkeyPatch, seed: int, consumers: dict[str, Any]
) -> None:
    assert simulate_transforms(monkeypatch, seed, consumers) == []


def test_commits_that_no_group_fences_move_records_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the faults are such that a slow worker commits for its successor."""

    def stranger(consumer: Consumer[Any, Any]) -> GroupMetadata:
        return GroupMetadata(consumer.group_metadata().group_id, -1, "", None)

    monkeypatch.setattr(transforms, "_member", stranger)
    [told, *_] = simulate_transforms(monkeypatch, 3, {"assignor": "sticky"})
    assert told.startswith("outputs: ")
