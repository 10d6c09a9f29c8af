"""Small batches and logs for tests, distinguished by their content."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.batch_reader import NoteRead
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.message import contents
from quorumlog.wire.codec.records import Record, encode_batch

DIRECTORY = "/data/topic-0"
TINY = LogSettings(segment_bytes=400, index_interval_bytes=0)


COMPACTED = replace(TINY, cleanup_policy="compact")
VALUES = [f"value-{index}" for index in range(20)]


def batch(
    *values: str, base_offset: int = 0, leader_epoch: int = -1, timestamp_ms: int = 1000
) -> bytes:
    """One record for each value, all with the same timestamp."""
    records = [
        Record(base_offset + index, timestamp_ms, None, value.encode())
        for index, value in enumerate(values)
    ]
    return encode_batch(records, base_offset=base_offset, leader_epoch=leader_epoch)


def timed_batch(*timestamps_ms: int) -> bytes:
    """One record for each timestamp."""
    records = [Record(index, time, None, b"x") for index, time in enumerate(timestamps_ms)]
    return encode_batch(records)


def open_log(
    disk: Disk | None = None,
    settings: LogSettings = TINY,
    *,
    clean: bool = False,
    recovery_point: int = 0,
    directory: str = DIRECTORY,
    note_read: NoteRead = lambda _: None,
) -> Log:
    return Log.open(
        disk or SimDisk(),
        directory,
        settings,
        clean=clean,
        recovery_point=recovery_point,
        note_read=note_read,
    )


def fill(log: Log, values: Iterable[str], *, leader_epoch: int = 0) -> None:
    """One batch of one record for each value."""
    for value in values:
        log.append_as_leader(batch(value), leader_epoch=leader_epoch, wall_ms=0)


def read_all(log: Log, *, max_bytes: int = 1 << 20) -> bytes:
    """Everything in the log, read as a follower would."""
    offset, parts = log.log_start_offset, []
    while offset < log.log_end_offset:
        result = log.read(offset, max_bytes=max_bytes, end_offset=log.log_end_offset)
        assert result.next_offset > offset
        parts.append(result.records)
        offset = result.next_offset
    return b"".join(contents(parts))


def stamped(values: Iterable[str], *, leader_epoch: int = 0) -> bytes:
    """The result of `read_all` after `fill`."""
    return b"".join(
        batch(value, base_offset=offset, leader_epoch=leader_epoch)
        for offset, value in enumerate(values)
    )


def log_of(values: Iterable[str] = VALUES, settings: LogSettings = TINY, **how: Any) -> Log:
    """A log on a simulated disk (`disk`, or a new one) with one batch for each value."""
    log = open_log(how.pop("disk", None), settings)
    fill(log, values, **how)
    return log


def file_of(base_offset: int, suffix: str = ".log") -> str:
    """The path of a file of a segment."""
    return f"{DIRECTORY}/{base_offset:020d}{suffix}"
