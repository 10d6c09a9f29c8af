"""The checkpoints of a broker that works: high watermarks, and up to where logs are on the disk."""

import asyncio
from collections.abc import Mapping
from typing import Final

from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

RECOVERY_POINT_INTERVAL_S: Final = 60.0


class Checkpoints:
    """Runs one task. The high watermarks are written every `interval_ms`."""

    def __init__(
        self,
        logs: LogDirectory,
        drivers: Mapping[TopicPartition, PartitionDriver],
        interval_ms: int,
    ) -> None:
        self._logs: Final = logs
        self._drivers: Final = drivers
        self._interval_s: Final = interval_ms / 1000

    async def run(self) -> None:
        """Write until cancelled. Raises StorageError."""
        recovery_points_due_s = RECOVERY_POINT_INTERVAL_S
        while True:
            await asyncio.sleep(self._interval_s)
            self._logs.note_high_watermarks(self.high_watermarks())
            await asyncio.to_thread(self._logs.write_high_watermarks)
            recovery_points_due_s -= self._interval_s
            if recovery_points_due_s <= 0:
                recovery_points_due_s = RECOVERY_POINT_INTERVAL_S
                await self._flush_full_segments()

    def high_watermarks(self) -> dict[TopicPartition, Offset]:
        """Return the high watermark of every replica here."""
        return {at: driver.partition.state.high_watermark for at, driver in self._drivers.items()}

    async def _flush_full_segments(self) -> None:
        """Bound what a recovery must read, without an fsync per append."""
        for at, driver in list(self._drivers.items()):
            log = driver.log
            if log.failure is None and log.flushed_offset < log.segment_base_offsets[-1]:
                try:
                    await asyncio.to_thread(log.flush)
                except StorageError:
                    if self._drivers.get(at) is driver:
                        raise  # else the replica was removed, and its log closed, meanwhile
        self._logs.checkpoint_recovery_points({at: d.log for at, d in self._drivers.items()})
