"""What a node does for others while it waits for its disk, and what old records cost a log.

`python -m benchmarks.slow_disk` measures only this. A node is *silent* from a request until its
answer, which its event loop could give at once.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import load
from benchmarks.measure import Figure, Table
from quorumlog import Admin, LocalCluster, Producer
from quorumlog.broker.partitions.log.loaded_log import load_producers
from quorumlog.client import NewTopic
from quorumlog.cluster.layout import NodeSpec
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.schemas import encode_request

_NODE: Final = "benchmarks.slow_disk_node"
_PARTITIONS: Final = 600
_LARGE_BYTES: Final = 1 << 30
_BATCHES: Final = 200_000
_SEGMENTS: Final = 20
_PING_S: Final = 0.005


@dataclass(slots=True)
class Silence:
    """`longest_s`: the longest wait for an answer so far."""

    longest_s: float = 0.0


@contextmanager
def _pinged(nodes: Sequence[NodeSpec]) -> Iterator[Silence]:
    """Ask each node again and again for its API versions, and note how long it is silent."""
    silence, is_over = Silence(), threading.Event()
    frame = b"".join(
        encode_request(ApiVersionsRequest(), api_version=0, correlation_id=1, client_id="ping")
    )

    def ping(node: NodeSpec) -> None:
        host, _, port = str(node.kafka).rpartition(":")
        connection = load.Connection(host, int(port))
        while not is_over.wait(_PING_S):
            asked_s = time.monotonic()
            connection.socket.sendall(frame)
            while not connection.frames():
                pass
            silence.longest_s = max(silence.longest_s, time.monotonic() - asked_s)
        connection.socket.close()

    threads = [threading.Thread(target=ping, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield silence
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


async def _create(cluster: LocalCluster, topic: str, partitions: int, replicas: int) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(name=topic, num_partitions=partitions, replication_factor=replicas)]
        )


async def _write_to_each(producer: Producer, topic: str, partitions: int) -> None:
    sent = [await producer.send(topic, b"x", partition=index) for index in range(partitions)]
    await asyncio.gather(*sent)


def _epoch(cluster: LocalCluster, node_id: int) -> int:
    status = cluster.node_status(node_id)
    assert status is not None
    return int(status["quorum"]["leader_epoch"])


async def _fail_over(table: Table, cluster: LocalCluster) -> None:
    """Kill a node that is not the active controller, with many partitions."""
    topic = "many"
    await _create(cluster, topic, _PARTITIONS, replicas=3)
    controller = int((await asyncio.to_thread(cluster.status))["controller_id"])
    victim = next(node.id for node in cluster.nodes if node.id != controller)
    survivors = [node for node in cluster.nodes if node.id != victim]
    async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0) as producer:
        await _write_to_each(producer, topic, _PARTITIONS)  # then all logs are open
        epoch = await asyncio.to_thread(_epoch, cluster, controller)
        with _pinged(survivors) as silence:
            started_s = time.monotonic()
            await asyncio.to_thread(cluster.kill, victim)
            await _write_to_each(producer, topic, _PARTITIONS)
            taken_s = time.monotonic() - started_s
            await asyncio.sleep(2.0)
        elections = await asyncio.to_thread(_epoch, cluster, controller) - epoch
    name = f"kill -9 of a node, {_PARTITIONS} partitions"
    table.add(Figure(name=f"{name}: acknowledged on each", value=taken_s, unit="s", goal=3.0))
    _add_silence(table, name, silence)
    table.add(Figure(name=f"{name}: elections", value=elections, unit="", goal=0))
    await asyncio.to_thread(cluster.start_node, victim)


async def _deletion(table: Table, cluster: LocalCluster) -> None:
    """Delete a large topic, and wait until its files are gone."""
    topic = "large"
    await _create(cluster, topic, 1, replicas=1)
    batch_bytes = 1 << 20
    written = 0
    async with Producer(
        bootstrap_servers=cluster.bootstrap,
        batch_size=batch_bytes,
        max_request_size=2 * batch_bytes,
    ) as producer:
        while written < _LARGE_BYTES:
            record = bytes(batch_bytes * 9 // 10)
            await asyncio.gather(
                *[await producer.send(topic, record, partition=0) for _ in range(16)]
            )
            written += 16 * len(record)
    with _pinged(cluster.nodes) as silence:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.delete_topics([topic])
        await asyncio.to_thread(_await_removal, cluster.directory, topic)
    _add_silence(table, f"deletion of {_LARGE_BYTES >> 30} GiB", silence)


def _stop(table: Table, cluster: LocalCluster) -> None:
    """Stop all nodes at once; each closes all its logs."""
    started_s = time.monotonic()
    cluster.stop()
    name = f"stop of 3 nodes, {_PARTITIONS} partitions each"
    table.add(Figure(name=name, value=time.monotonic() - started_s, unit="s"))
    clean = len(list(cluster.directory.rglob(".kafka_cleanshutdown")))
    table.add(Figure(name=f"{name}: clean", value=clean, unit="nodes", goal=3, at_most=False))


def _await_removal(directory: Path, topic: str) -> None:
    while any(directory.rglob(f"{topic}-0*")):
        time.sleep(0.05)


def _add_silence(table: Table, name: str, silence: Silence) -> None:
    longest_ms = silence.longest_s * 1000
    table.add(Figure(name=f"{name}: longest silence", value=longest_ms, unit="ms", goal=500))


def _old_records(table: Table, directory: Path) -> None:
    """Open, look into and cut one log of many batches, all in the page cache: CPU."""
    batch = encode_batch([Record(0, 0, None, b"x")])
    settings = LogSettings(segment_bytes=len(batch) * _BATCHES // _SEGMENTS, index_interval_bytes=0)
    disk = RealDisk()

    def opened() -> Log:
        log = Log.open(disk, str(directory), settings, clean=True)
        load_producers(log)
        return log

    log = opened()
    for wall_ms in range(_BATCHES):
        records = encode_batch([Record(0, wall_ms, None, b"x")])
        log.append_as_leader(records, leader_epoch=0, wall_ms=wall_ms)
        if log.log_end_offset - 1 == log.active_base_offset:
            log.producers.keep(ProducerSnapshot(log.active_base_offset, ()))
    log.producers.keep(ProducerSnapshot(log.log_end_offset, ()))
    log.close()

    def cut() -> None:
        log.truncate_to(_BATCHES - 3)
        load_producers(log)

    _add_cpu(table, "open it after a clean stop", opened)
    log = opened()
    _add_cpu(table, "first lookup by time", lambda: log.time_lookup().first_since(_BATCHES - 1))
    _add_cpu(table, "another lookup by time", lambda: log.time_lookup().first_since(_BATCHES // 2))
    _add_cpu(table, "cut 3 batches, learn the producers", cut)
    log.close()


def _add_cpu(table: Table, name: str, work: Callable[[], object]) -> None:
    started_s = time.process_time()
    work()
    cpu_ms = (time.process_time() - started_s) * 1000
    table.add(Figure(name=f"a log of {_BATCHES} batches: {name}", value=cpu_ms, unit="ms"))


def slow_disk(table: Table) -> None:
    """Start a cluster of nodes with slow disks, and measure it."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as scratch:
        _old_records(table, Path(scratch) / "topic-0")
        with LocalCluster(Path(scratch) / "cluster", node_module=_NODE) as cluster:
            asyncio.run(_fail_over(table, cluster))
            asyncio.run(_deletion(table, cluster))
            _stop(table, cluster)


if __name__ == "__main__":
    slow_disk(Table())
