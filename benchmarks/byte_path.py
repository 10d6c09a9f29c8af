"""The CPU of a node for a megabyte, from the socket to the log and back: docs/where-a-byte-goes.md.

`python -m benchmarks.byte_path` measures only this, on one node. Beside the CPU stand the bytes
of its read and write calls, on sockets and files, for each byte of records (/proc/PID/io, Linux).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import load
from benchmarks.measure import Figure, Table, cpu_seconds
from quorumlog import Admin, LocalCluster
from quorumlog.client import NewTopic

_SECONDS: Final = 4.0
_KIB: Final = 1024
_BATCHES: Final = (16 * _KIB, 256 * _KIB)
_FETCHES: Final = (64 * _KIB, 256 * _KIB, 1024 * _KIB)


async def _create(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topics([NewTopic(_topic(size), 1, 1) for size in _BATCHES])


def _topic(batch_bytes: int) -> str:
    return f"bytes-{batch_bytes}"


def _called_bytes(pid: int) -> tuple[int, int]:
    """Return the bytes of a process's read calls and of its write calls; sendfile is both."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])


def _measured(table: Table, name: str, pid: int, act: Callable[[], load.Throughput]) -> None:
    cpu_s, (read, written) = cpu_seconds(pid), _called_bytes(pid)
    done = act()
    megabytes = done.mb_per_s * done.seconds
    cpu_us = (cpu_seconds(pid) - cpu_s) * 1e6 / megabytes
    after_read, after_written = _called_bytes(pid)
    table.add(Figure(name=f"{name}: CPU of the node for a MB", value=cpu_us, unit="us"))
    for verb, count in (("read", after_read - read), ("written", after_written - written)):
        bytes_per_byte = count / megabytes / 1e6
        table.add(Figure(name=f"the same: bytes {verb} for a byte", value=bytes_per_byte, unit="x"))


def byte_path(table: Table) -> None:
    """Measure produces of two sizes, and fetches of three, on one node."""
    with LocalCluster(nodes=1) as cluster:
        asyncio.run(_create(cluster.bootstrap))
        pid = cluster.pid(cluster.nodes[0].id)
        if pid is None:
            raise RuntimeError("the node has ended")
        for size in _BATCHES:
            name = f"produce, acks=1, batches of {size // _KIB} KiB"

            def produce(size: int = size) -> load.Throughput:
                return load.throughput(
                    cluster.bootstrap, _topic(size), batch_bytes=size, acks=1, seconds=_SECONDS
                )

            _measured(table, name, pid, produce)
        for size in _FETCHES:

            def fetch(size: int = size) -> load.Throughput:
                topic = _topic(_BATCHES[0])
                return load.fetches(cluster.bootstrap, topic, seconds=_SECONDS, fetch_bytes=size)

            _measured(table, f"fetches of {size // _KIB} KiB", pid, fetch)


if __name__ == "__main__":
    byte_path(Table())
