"""What it costs a broker to look at the records of a batch, and at its header alone.

No cluster: `admit` is called on batches as a producer sends them. CPU time, the best of several
runs. `python -m benchmarks.admission` measures only this.
"""

import random
import time
from collections.abc import Callable
from typing import Final

from benchmarks.measure import Figure, Table
from quorumlog.broker.partitions.core.admission import admit, topic_limits
from quorumlog.broker.settings import BrokerSettings
from quorumlog.settings.servers import texts_of
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch

_AT: Final = TopicPartition("bench", 0)
_NOW_MS: Final = 1_700_000_000_000
_RECORDS_PER_MS: Final = 20
_RUNS: Final = 15
_RUN_S: Final = 0.05
_WORDS: Final = tuple(f"{number:x}".encode() for number in range(0, 1_000_000, 997))


def admission(table: Table) -> None:
    """Measure batches of small and of larger records, as they are and compressed."""
    settings = BrokerSettings(message_max_bytes=1 << 22)
    limits = topic_limits(TopicConfig({}, texts_of(settings)), is_internal=False)
    by_header = topic_limits(TopicConfig({}, texts_of(settings)), is_internal=True)
    for batch_bytes in (1 << 14, 1 << 20):
        for record_bytes in (1024, 100):
            for compression in (Compression.NONE, Compression.LZ4):
                batch = _batch(batch_bytes, record_bytes, compression)
                whole_us = _cpu_us(lambda: admit(batch, limits, _NOW_MS, _AT))  # noqa: B023 - called here only
                header_us = _cpu_us(lambda: admit(batch, by_header, _NOW_MS, _AT))  # noqa: B023 - the same
                size = f"{batch_bytes >> 10} KiB of {record_bytes} B records"
                name = f"admission, {size}, {compression.name.lower()}"
                table.add(Figure(name=f"{name}: CPU", value=whole_us, unit="us"))
                ratio = whole_us / header_us
                table.add(Figure(name=f"{name}: over header alone", value=ratio, unit="x"))


def _batch(batch_bytes: int, record_bytes: int, compression: Compression) -> bytes:
    """Build a batch of text; `batch_bytes` is its size before compression."""
    draw = random.Random(7)
    records = []
    for index in range(batch_bytes // record_bytes):
        words = draw.choices(_WORDS, k=record_bytes // 4)
        value = b" ".join(words)[:record_bytes]
        records.append(Record(index, _NOW_MS + index // _RECORDS_PER_MS, None, value))
    batch = encode_batch(records, compression=compression)
    limits = topic_limits(TopicConfig({"max.message.bytes": str(1 << 22)}, {}), is_internal=False)
    assert admit(batch, limits, _NOW_MS, _AT).error_code is ErrorCode.NONE
    return batch


def _cpu_us(call: Callable[[], object]) -> float:
    """Return the CPU time of one call, us."""
    started_s = time.process_time()
    call()
    count = max(1, int(_RUN_S / max(time.process_time() - started_s, 1e-6)))
    best_s = float("inf")
    for _ in range(_RUNS):
        started_s = time.process_time()
        for _ in range(count):
            call()
        best_s = min(best_s, (time.process_time() - started_s) / count)
    return best_s * 1e6


if __name__ == "__main__":
    admission(Table())
