"""How fast a log is compacted, and what a produce beside it notices.

`python -m benchmarks.compaction` measures only this.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks import load
from benchmarks.measure import Figure, Table
from quorumlog import Admin, LocalCluster
from quorumlog.client import NewTopic
from quorumlog.storage.core.cleaning import CleaningRules
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.cleaning import GROUP_MAX
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import Record, encode_batch

RECORD_BYTES: Final = 1024
KEYS: Final = 4096
_RECORDS_IN_BATCH: Final = 16
_LOG_BYTES: Final = 256 << 20
_SEGMENT_BYTES: Final = 16 << 20
_RATE: Final = 200
_SECONDS: Final = 5.0
_CLEANED, _OTHER = "cleaned", "other"


def compaction(table: Table) -> None:
    """Compact a log alone, for its CPU; then one of a node, beside produces to another topic."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as directory:
        name = f"compaction of {_LOG_BYTES >> 20} MiB of {RECORD_BYTES} byte records"
        rate, slice_ms = _compact_alone(directory)
        table.add(
            Figure(name=f"{name}, per core", value=rate, unit="MB/s", goal=100, at_most=False)
        )
        table.add(Figure(name=f"{name}: longest swap", value=slice_ms, unit="ms", goal=20))
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as directory:
        _beside_produces(table, Path(directory))


def _batches(count: int) -> Iterable[bytes]:
    """Return batches in which every key comes again and again."""
    value = bytes(RECORD_BYTES - 32)
    for number in range(count):
        first = number * _RECORDS_IN_BATCH
        yield encode_batch(
            [
                Record(index, 1, f"key-{(first + index) % KEYS}".encode(), value)
                for index in range(_RECORDS_IN_BATCH)
            ]
        )


def _compact_alone(directory: str) -> tuple[float, float]:
    """Return MB in a second of CPU, and the longest time of the work of the event loop, ms.

    Small segments become large ones, as many at once as may: the most names to change.
    """
    settings = LogSettings(segment_bytes=_SEGMENT_BYTES, cleanup_policy="compact")
    small = replace(settings, segment_bytes=_SEGMENT_BYTES // GROUP_MAX)
    log = Log.open(RealDisk(), directory, small, clean=False)
    batches = [*_batches(KEYS // _RECORDS_IN_BATCH)]
    while log.size < _LOG_BYTES:
        for batch in batches:
            log.append_as_leader(batch, leader_epoch=0, wall_ms=0)
    end_offset = log.flush()
    log.share_flushed_segments()
    rules = CleaningRules(
        first_dirty_offset=0,
        end_offset=end_offset,
        wall_ms=0,
        delete_retention_ms=0,
        producers_since_ms=0,
    )
    size, longest_s = log.size, 0.0
    began_s = time.process_time()
    cleaning = log.compaction.begin(rules, settings, flushed_offset=end_offset)
    for cleaned in cleaning.run():
        if cleaned is not None:
            swap_began_s = time.monotonic()
            names = log.compaction.swap_in(cleaned, settings)
            longest_s = max(longest_s, time.monotonic() - swap_began_s)
            log.compaction.remove_replaced(names or ())
    cpu_s = time.process_time() - began_s
    log.close(clean=False)
    return size / cpu_s / 1e6, longest_s * 1000


def _beside_produces(table: Table, directory: Path) -> None:
    config = {"log.cleaner.backoff.ms": "100", "log.segment.bytes": str(_SEGMENT_BYTES)}
    cluster = LocalCluster(directory, nodes=1, config=config)
    cluster.start()
    try:
        asyncio.run(_create(cluster.bootstrap))
        _fill(cluster.bootstrap)
        quiet = _p99(cluster)
        asyncio.run(_begin_to_compact(cluster.bootstrap))
        beside = _p99(cluster)
    finally:
        cluster.stop()
    text = f"acks=all, RF 1, {_RATE}/s: p99"
    table.add(Figure(name=f"{text} without compaction", value=quiet, unit="ms"))
    table.add(Figure(name=f"{text} beside compaction", value=beside, unit="ms"))
    table.add(Figure(name="beside compaction, of without", value=beside / quiet, unit="x", goal=2))


def _p99(cluster: LocalCluster) -> float:
    seen = load.latencies_ms(cluster.bootstrap, _OTHER, rate_per_s=_RATE, seconds=_SECONDS)
    return load.percentile(seen, 0.99)


async def _create(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(
            [
                NewTopic(name=name, num_partitions=1, replication_factor=1)
                for name in (_CLEANED, _OTHER)
            ]
        )


def _fill(bootstrap: str) -> None:
    batches = [*_batches(KEYS // _RECORDS_IN_BATCH)]
    load.send_batches(bootstrap, _CLEANED, batches, rounds=_LOG_BYTES // (KEYS * RECORD_BYTES))


async def _begin_to_compact(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.alter_configs("topic", _CLEANED, {"cleanup.policy": "compact"})


if __name__ == "__main__":
    compaction(Table())
