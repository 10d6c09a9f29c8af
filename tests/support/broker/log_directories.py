"""The use of a log directory by a broker, without a broker."""

from collections.abc import Mapping
from pathlib import Path

from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import Disk, RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicPartition


def started(directory: Path | str, disk: Disk | None = None) -> LogDirectory:
    logs = LogDirectory(disk or RealDisk(), str(directory), LogSettings())
    logs.start()
    return logs


def write(log: Log, batch: bytes, count: int = 1, *, leader_epoch: int = 0) -> None:
    """Append the batch so often."""
    for _ in range(count):
        log.append_as_leader(batch, leader_epoch=leader_epoch, wall_ms=0)


def close_all(
    logs: LogDirectory,
    opened: Mapping[TopicPartition, Log],
    high_watermarks: Mapping[TopicPartition, Offset],
    broker_epoch: int,
) -> None:
    """Stop cleanly."""
    for log in opened.values():
        log.close()
    logs.finish(opened, high_watermarks, broker_epoch, is_clean=True)
