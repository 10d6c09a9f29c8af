"""What 10,000 partitions of 3 replicas cost three nodes on one machine.

`python -m benchmarks.many_partitions [TOPICS [PARTITIONS]]` measures only this; `make bench`, with
half as many topics. Wall times suffer from whatever else runs on the machine, so the CPU time of
the three nodes stands beside them.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from benchmarks import load
from benchmarks.measure import Figure, Table, cpu_seconds, parent_of, resident_mb
from benchmarks.watched_node import DIRECTORY
from quorumlog import Admin, LocalCluster
from quorumlog.client import KafkaError, NewTopic
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.schemas import decode_response, encode_request

TOPICS: Final = 10
PARTITIONS: Final = 1_000  # of each topic
_IDLE_S: Final = 10.0
_PATIENCE_S: Final = 300.0
_AGAIN_S: Final = 0.1
_AT_ONCE: Final = 500  # partitions in one Produce
_NODE: Final = "benchmarks.watched_node"
_METADATA_VERSION: Final = 9
_PRODUCE_VERSION: Final = 8


def many_partitions(table: Table, topics: int = TOPICS, partitions: int = PARTITIONS) -> None:
    """Create, leave idle, write to each, leave idle, kill all and start again.

    Then kill them once more, and start them as `quorumlog up` does: these nodes share their
    imports, and nothing watches their event loops.
    """
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as scratch:
        os.environ[DIRECTORY] = scratch
        cluster = LocalCluster(Path(scratch) / "cluster", nodes=3, node_module=_NODE)
        try:
            cluster.start()
            _measure(table, cluster, Path(scratch), topics, partitions)
        finally:
            cluster.stop()
            del os.environ[DIRECTORY]


def _measure(
    table: Table, cluster: LocalCluster, scratch: Path, topics: int, partitions: int
) -> None:
    names = [f"many-{number}" for number in range(topics)]
    every = {(name, index) for name in names for index in range(partitions)}
    name = f"{len(every)} partitions, RF 3"
    phases = _Phases(table, cluster, scratch, name)
    phases.time("created", 10.0, lambda: _create(cluster, names, partitions))
    phases.time("created -> acknowledged on each", None, lambda: _write_to(cluster, every))
    phases.idle("idle")
    cluster.kill(*(node.id for node in cluster.nodes))
    phases.time("kill -9 of all -> ready, watched", None, lambda: _start(cluster))
    phases.time("ready -> acknowledged on each", None, lambda: _write_to(cluster, every))
    phases.idle("idle after a restart")
    cluster.kill(*(node.id for node in cluster.nodes))
    usual = LocalCluster(cluster.directory)
    try:
        _Phases(table, usual, scratch, name, is_watched=False).time(
            "kill -9 of all -> ready", 10.0, lambda: _start(usual)
        )
    finally:
        usual.stop()


class _Phases:
    """Runs one phase after another, and notes what each of them cost the nodes."""

    def __init__(
        self,
        table: Table,
        cluster: LocalCluster,
        scratch: Path,
        name: str,
        *,
        is_watched: bool = True,
    ) -> None:
        self._is_watched = is_watched
        self._table = table
        self._cluster = cluster
        self._scratch = scratch
        self._name = name
        self._cpu_s: dict[int, float] = {}

    def time(self, what: str, goal_s: float | None, work: Callable[[], None]) -> None:
        """Measure how long `work` takes, and what it costs."""
        began_s, before_s = time.monotonic(), self._used_s()
        epoch = self._epoch()
        work()
        taken_s = time.monotonic() - began_s
        used_s = sum(self._used_s().values()) - sum(before_s.values())
        self._add(what, taken_s, "s", goal_s)
        self._add(f"{what}: CPU of 3 nodes", used_s, "s")
        if self._is_watched:
            cpu_s, turn_s, collection_s = self._longest(began_s)
            self._add(f"{what}: longest turn of an event loop, its CPU", cpu_s * 1000, "ms")
            self._add(f"{what}: longest turn of an event loop", turn_s * 1000, "ms")
            self._add(f"{what}: longest garbage collection, its CPU", collection_s * 1000, "ms")
        self._add(f"{what}: elections", self._epoch() - epoch if epoch else 0, "", 0)

    def idle(self, what: str) -> None:
        """Measure nodes that get no requests: after what still had to be done is done."""
        for pid in self._pids():
            os.kill(pid, signal.SIGUSR2)
        time.sleep(_IDLE_S)
        before_s = self._used_s()
        time.sleep(_IDLE_S)
        shares = [(used_s - before_s[pid]) / _IDLE_S for pid, used_s in self._used_s().items()]
        self._add(f"{what}: CPU of the busiest node, share of a core", max(shares) * 100, "%", 5.0)
        self._add(f"{what}: memory, largest node", max(map(resident_mb, self._pids())), "MB", 250.0)
        self._add(f"{what}: open files of a node", max(map(_handles, self._pids())), "", 1024)
        self._add(f"{what}: memory maps of a node", max(map(_maps, self._pids())), "")

    def _add(self, what: str, value: float, unit: str, goal: float | None = None) -> None:
        self._table.add(Figure(name=f"{self._name}: {what}", value=value, unit=unit, goal=goal))

    def _pids(self) -> list[int]:
        nodes = self._cluster.nodes
        return [pid for node in nodes if (pid := self._cluster.pid(node.id)) is not None]

    def _used_s(self) -> dict[int, float]:
        """Return the CPU time of each node, and of the process that has forked them."""
        pids = self._pids()
        parents = {parent for pid in pids if (parent := parent_of(pid)) not in {os.getpid(), 1}}
        return {pid: cpu_seconds(pid) for pid in [*pids, *parents]}

    def _epoch(self) -> int:
        found = [self._cluster.node_status(node.id) for node in self._cluster.nodes]
        return max((int(one["quorum"]["leader_epoch"]) for one in found if one), default=0)

    def _longest(self, began_s: float) -> tuple[float, ...]:
        time.sleep(1.1)  # until what was last is written
        seen = [(0.0, 0.0, 0.0)]
        for pid in self._pids():
            for line in (self._scratch / str(pid)).read_text().splitlines():
                at_s, *longest = map(float, line.split())
                if at_s >= began_s:
                    seen.append((longest[0], longest[1], longest[2]))
        return tuple(map(max, zip(*seen, strict=True)))


def _handles(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _maps(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text().splitlines())


def _create(cluster: LocalCluster, names: Iterable[str], partitions: int) -> None:
    async def create() -> None:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            for name in names:
                topic = NewTopic(name=name, num_partitions=partitions, replication_factor=3)
                while name not in await admin.list_topics():
                    with suppress(KafkaError):  # an election is counted, and ends nothing
                        await admin.create_topics([topic])

    asyncio.run(create())


def _start(cluster: LocalCluster) -> None:
    cluster.start(timeout_s=_PATIENCE_S)


def _write_to(cluster: LocalCluster, every: Iterable[tuple[str, int]]) -> None:
    """Have one record acknowledged by all replicas of each partition, whatever leads it."""
    batch = encode_batch([Record(0, int(time.time() * 1000), None, b"x", ())])
    left = set(every)
    until_s = time.monotonic() + _PATIENCE_S
    while left:
        for address, wanted in _by_leader(cluster.bootstrap, left).items():
            with suppress(ConnectionError):
                connection = load.Connection(*address)
                for first in range(0, len(wanted), _AT_ONCE):
                    left -= _acknowledged(connection, wanted[first : first + _AT_ONCE], batch)
                connection.socket.close()
        if time.monotonic() > until_s:
            raise TimeoutError(f"{len(left)} partitions acknowledge nothing")
        if left:
            time.sleep(_AGAIN_S)


def _by_leader(
    bootstrap: str, wanted: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], list[tuple[str, int]]]:
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    names = sorted({name for name, _ in wanted})
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    frame = b"".join(
        encode_request(request, api_version=_METADATA_VERSION, correlation_id=1, client_id="bench")
    )
    connection = load.Connection(host, int(port))
    _, response = decode_response(
        MetadataRequest.API_KEY, _METADATA_VERSION, _asked(connection, frame)
    )
    connection.socket.close()
    assert isinstance(response, MetadataResponse)
    leaders = {
        (topic.name, one.partition_index): one.leader_id
        for topic in response.topics
        for one in topic.partitions
    }
    addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    found: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for at in sorted(wanted):
        if leaders.get(at) in addresses:
            found.setdefault(addresses[leaders[at]], []).append(at)
    return found


def _asked(connection: load.Connection, frame: bytes) -> bytes:
    connection.socket.sendall(frame)
    frames: list[memoryview] = []
    while not frames:
        frames = connection.frames()
    return bytes(frames[0])


def _acknowledged(
    connection: load.Connection, wanted: list[tuple[str, int]], batch: bytes
) -> set[tuple[str, int]]:
    by_topic: dict[str, list[PartitionProduceData]] = {}
    for name, index in wanted:
        by_topic.setdefault(name, []).append(PartitionProduceData(index=index, records=batch))
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5_000,
        topic_data=[
            TopicProduceData(name=name, partition_data=data) for name, data in by_topic.items()
        ],
    )
    frame = b"".join(
        encode_request(request, api_version=_PRODUCE_VERSION, correlation_id=7, client_id="bench")
    )
    _, response = decode_response(
        ProduceRequest.API_KEY, _PRODUCE_VERSION, _asked(connection, frame)
    )
    assert isinstance(response, ProduceResponse)
    return {
        (topic.name, one.index)
        for topic in response.responses
        for one in topic.partition_responses
        if one.error_code == 0
    }


if __name__ == "__main__":
    many_partitions(Table(), *map(int, sys.argv[1:]))
