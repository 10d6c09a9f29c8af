"""Scenario 5 of the bench in virtual time: a producer sends bursts while brokers are killed.

The nodes are real, the time is not: four brokers and a controller, topics with four replicas and
min.insync.replicas 2. The history is judged by `kafka_log`, which shares no code with the bench.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quorumlog.chaos.drivers.driver import SendFailed
from quorumlog.chaos.faults.processes import Kill
from quorumlog.chaos.history import read_history
from quorumlog.chaos.node_simulation.forked import run_one
from quorumlog.chaos.node_simulation.settings import NodesResult, NodesSettings
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.chaos.workloads.lanes import Lanes
from quorumlog.chaos.workloads.readers import key_of
from quorumlog.chaos.workloads.sends import complete, record_of
from quorumlog.chaos.workloads.workload import LaneOptions, Setup, Topic, Workload
from quorumlog.client import Delivery, KafkaError, Producer
from quorumlog.cluster import ClusterShape

SHAPE = ClusterShape(controllers=1, brokers=4)
BROKERS = (2, 3, 4, 5)
PARTITIONS = 4
BURST = 8
GAP_S = 0.04
KILL_US = 400_000
IN_FLIGHT_S = (0.85, 1.15)  # from the producer's start: the kill meets records in flight
S = 1_000_000_000
OPTIONS = {"producers": 1, "consumers": 0, "final_readers": 1, "rate": 100.0}


def workload(name: str, codes: Path, **settings: Any) -> Workload[LaneOptions]:
    """Return a workload whose producer has these settings; it writes its failed attempts."""

    class Bursts(Lanes[LaneOptions]):
        """One producer sends bursts, each one operation, and waits for all their outcomes."""

        async def produce(self, lane: int, rng: random.Random, working: asyncio.Event) -> None:
            process, loop = lane, asyncio.get_running_loop()
            began_s = loop.time()
            async with Producer(self._setup.bootstrap, linger_ms=0, **settings) as producer:
                while working.is_set():
                    if not await self._burst(producer, process, rng):
                        process = self.next_process(process)
                    if not IN_FLIGHT_S[0] < loop.time() - began_s < IN_FLIGHT_S[1]:
                        await asyncio.sleep(rng.expovariate(1 / GAP_S))
                attempts = producer.failed_attempts
            codes.write_text("\n".join(code.name for code in attempts))

        async def _burst(self, producer: Producer, process: int, rng: random.Random) -> bool:
            setup = self._setup
            first, self._next_value = self._next_value, self._next_value + BURST
            records = [record_of(setup, first + place) for place in range(BURST)]
            partitions = [rng.randrange(setup.partitions) for _ in records]
            messages = [
                record.message(key_of(setup.topic, partition))
                for record, partition in zip(records, partitions, strict=True)
            ]
            setup.history.append(process, "invoke", "send", messages)
            deliveries = [
                await producer.send(
                    setup.topic,
                    str(record.value).encode(),
                    key=record.key,
                    headers=record.headers,
                    timestamp_ms=record.timestamp_ms,
                    partition=partition,
                )
                for record, partition in zip(records, partitions, strict=True)
            ]
            results = [await outcome(delivery) for delivery in deliveries]
            return complete(setup, process, messages, results)

    return Workload(
        name=name, text=name, options=LaneOptions, clients=Bursts, topics=topics, dense=True
    )


async def outcome(delivery: Delivery) -> int | SendFailed:
    try:
        return (await delivery).offset
    except KafkaError as error:
        return SendFailed(str(error), definite=error.definite)


def topics(setup: Setup[Any]) -> tuple[Topic, ...]:
    config = {"min.insync.replicas": "2"}
    return (
        Topic(
            name=setup.topic,
            partitions=setup.partitions,
            replication_factor=len(BROKERS),
            config=config,
        ),
    )


def settings_of(
    seed: int, name: str, *, kills: int, down_s: float, after_s: float
) -> NodesSettings:
    """Return a run in which so many brokers are killed at once, and start after `down_s`."""
    rng = random.Random(seed)
    kill = Action(
        t_us=KILL_US + rng.randrange(200_000),
        duration_us=int(down_s * 1e6),
        fault=Kill(),
        target=tuple(sorted(rng.sample(BROKERS, kills))),
    )
    schedule = Schedule(
        seed=seed,
        duration_us=kill.end_us + int(after_s * 1e6),
        actions=(kill,),
        workload=name,
        options=OPTIONS,
    )
    return NodesSettings(schedule=schedule, shape=SHAPE, partitions=PARTITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One run. acknowledged: the times in seconds at which bursts ended ok."""

    result: NodesResult
    acknowledged_s: Sequence[float]
    killed_s: float
    started_s: float
    anomalies: dict[str, int]


def run(settings: NodesSettings, directory: Path) -> Seen:
    """Run once; `directory`: a new one for the history."""
    directory.mkdir()
    result = run_one(replace(settings, keep_in=str(directory)))
    rows = read_history(directory).to_pylist()
    nemesis: dict[str, list[float]] = {}
    for row in rows:
        if row["f"] in {"kill", "start"}:
            nemesis.setdefault(row["f"], []).append(row["invoked_ns"] / S)
    found = Counter[str]()
    for name, anomaly in result.verdict["anomalies"].items():
        found[name] += anomaly["count"]
    return Seen(
        result=result,
        acknowledged_s=[
            row["completed_ns"] / S for row in rows if row["f"] == "send" and row["type"] == "ok"
        ],
        killed_s=min(nemesis["kill"]),
        started_s=min(nemesis["start"]),
        anomalies=dict(found),
    )
