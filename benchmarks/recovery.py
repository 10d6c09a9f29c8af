"""How long a log of 1 GiB takes to open after a crash: every batch of it is read and checked.

`python -m benchmarks.recovery` measures only this. The log is one segment, in the page cache, and
no checkpoint says that a part of it was flushed: the worst that a broker finds.
"""

import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.measure import Figure, Table
from quorumlog.broker.partitions.log.loaded_log import load_producers
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import Record, encode_batch

LOG_BYTES: Final = 1 << 30
_BATCH_SIZES: Final = {"16 KiB": 16, "1 KiB": 1}  # records of 1 KiB in each


def recovery(table: Table) -> None:
    """Measure logs of large and of small batches."""
    for name, records in _BATCH_SIZES.items():
        with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as directory:
            _write(Path(directory), records)
            began_s = time.process_time()
            opened_s, learnt_s = _open(directory)
            cpu_s = time.process_time() - began_s
        text = f"an unclean log of {LOG_BYTES >> 30} GiB, batches of {name}"
        table.add(Figure(name=f"{text}: open", value=opened_s + learnt_s, unit="s", goal=5.0))
        table.add(Figure(name=f"{text}: CPU", value=cpu_s, unit="s"))
        table.add(Figure(name=f"{text}: of it, its producers", value=learnt_s, unit="s"))


def _write(directory: Path, records: int) -> None:
    batch = encode_batch([Record(index, index, b"key", bytes(1000)) for index in range(records)])
    log = Log.open(RealDisk(), str(directory), LogSettings(segment_bytes=2**31 - 1), clean=False)
    while log.size < LOG_BYTES:
        log.append_as_leader(batch, leader_epoch=0, wall_ms=0)
    log.flush()  # so that what is measured waits for no writes of before
    log.close(clean=False)


def _open(directory: str) -> tuple[float, float]:
    started_s = time.monotonic()
    log = Log.open(RealDisk(), directory, LogSettings(segment_bytes=2**31 - 1), clean=False)
    opened_s = time.monotonic()
    load_producers(log)
    learnt_s = time.monotonic()
    log.close(clean=False)
    return opened_s - started_s, learnt_s - opened_s


if __name__ == "__main__":
    recovery(Table())
