"""User instructions that a broker spends on one produce of about 16 KiB, counted by valgrind.

Unlike times, they are the same from run to run, however busy the machine is; the kernel is not
counted. A whole broker on a disk in memory gets the bytes of requests without a socket, once few
and once many, and the difference is what the additional ones took, with their copy into the read
buffer. `python -m benchmarks.instructions` measures only this.
"""

import asyncio
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from quorumlog.broker.handlers import produce
from quorumlog.broker.server import turns
from quorumlog.broker.server.connection import Connection
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.schemas import encode_request
from tests.support.groups.single_broker import SingleBroker

_NOW_MS: Final = 1_700_000_000_000
_VERSION: Final = 9  # of Produce
_FRAMES_PER_READ: Final = 3
_WARM_UP_READS: Final = 20
_FEW, _MANY = 10, 60


def _alike(draw: random.Random, index: int) -> Record:
    return Record(index, _NOW_MS, None, draw.randbytes(1024))


def _small(draw: random.Random, index: int) -> Record:
    key = b"key-%06d" % draw.randrange(10**6)
    return Record(index, _NOW_MS + index // 3, key, draw.randbytes(80))


def _varied(draw: random.Random, index: int) -> Record:
    headers = (("trace-id", draw.randbytes(16)), ("content-type", b"application/json"))
    key = b"user-%d" % draw.randrange(10**5)
    return Record(
        index, _NOW_MS + index // 2, key, draw.randbytes(draw.randint(500, 1500)), headers
    )


_SHAPES: Final[dict[str, tuple[int, Callable[[random.Random, int], Record]]]] = {
    "16 records of 1 KiB": (16, _alike),
    "160 records of 100 B with keys": (160, _small),
    "16 records of many sizes, with keys and two headers": (16, _varied),
}


class _Nowhere(asyncio.Transport):
    """A connection to a client that takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent_bytes += len(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def _frames(shape: str) -> bytes:
    draw = random.Random(1)
    count, make = _SHAPES[shape]
    records = encode_batch([make(draw, index) for index in range(count)])
    partition = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="bench", partition_data=[partition])
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
    chunks = encode_request(request, api_version=_VERSION, correlation_id=1, client_id="x")
    return b"".join(chunks) * _FRAMES_PER_READ


async def _produce(shape: str, reads: int) -> None:
    """Feed requests into one connection, and end the process: its end is not to be counted."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        broker = SingleBroker(Path(directory))
        await broker.start()
        await broker.controller.create_topics(
            [NewTopic(name="bench", partitions=1, replication_factor=1)]
        )
        while broker.replicas.drivers.get(TopicPartition("bench", 0)) is None:  # noqa: ASYNC110 - once, and rare
            await asyncio.sleep(0.01)
        connection, transport = Connection(broker.server), _Nowhere()
        connection.connection_made(transport)
        data = memoryview(_frames(shape))
        await _feed(connection, data, _WARM_UP_READS)
        gc.freeze()
        gc.disable()
        before = transport.sent_bytes
        await _feed(connection, data, reads)
        answered = transport.sent_bytes > before
        shutil.rmtree(directory)
        os._exit(0 if answered else 1)


def _take_all_the_time() -> None:
    """Let no request wait for a turn of the loop: under valgrind each takes long."""
    vars(turns)["TURN_S"] = vars(produce)["SLICE_S"] = 3600.0


async def _feed(connection: Connection, data: memoryview, reads: int) -> None:
    for _ in range(reads):
        left = data
        while left:
            buffer = connection.get_buffer(len(left))
            size = min(len(buffer), len(left))
            buffer[:size] = left[:size]
            connection.buffer_updated(size)
            left = left[size:]
        await asyncio.sleep(0)


def _count(shape: str, reads: int) -> int:
    tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command = [*tool, sys.executable, "-m", "benchmarks.instructions", shape, str(reads)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    line = next(line for line in run.stderr.splitlines() if "refs" in line)
    return int(line.rpartition(":")[2].replace(",", ""))


def main() -> None:
    """Count for every shape of batch, or say why not."""
    if len(sys.argv) > 1:
        _take_all_the_time()
        asyncio.run(_produce(sys.argv[1], int(sys.argv[2])))
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed")
        return
    for shape in _SHAPES:
        counted = _count(shape, _MANY) - _count(shape, _FEW)
        print(f"{shape}: {counted / ((_MANY - _FEW) * _FRAMES_PER_READ):,.0f} per produce")


if __name__ == "__main__":
    main()
