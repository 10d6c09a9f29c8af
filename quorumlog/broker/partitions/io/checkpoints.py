"""The checkpoints of a broker, written periodically and when it closes its logs.

They hold high watermarks and recovery points: the offsets up to which logs are on disk.
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import Final

from quorumlog.broker.partitions.io.disk_threads import performed
from quorumlog.broker.partitions.log.directory_checkpoints import DirectoryCheckpoints
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.replica_set import STRAYS, ReplicaSet
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import monotonic_ms
from quorumlog.lasting_condition import LastingCondition
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

RECOVERY_POINT_INTERVAL_S: Final = 60.0
LANE: Final = "checkpoints"  # in the disk queue

_logger: Final = logging.getLogger(__name__)


class Checkpoints:
    """Runs one task; `replica.high.watermark.checkpoint.interval.ms` is its interval.

    A checkpoint that cannot be written is retried the next time: the old one is only behind. If the
    broker can do without the directory, it takes the directory offline.
    """

    def __init__(
        self,
        disk: DiskQueue,
        checkpoints: DirectoryCheckpoints,
        replicas: ReplicaSet,
        settings: BrokerSettings,
    ) -> None:
        self._disk: Final = disk
        self._checkpoints: Final = checkpoints
        self._replicas: Final = replicas
        self._drivers: Final = replicas.drivers
        self._refused: Final = LastingCondition(_logger)
        self._interval_s: Final = settings.replica_high_watermark_checkpoint_interval_ms / 1000

    async def run(self) -> None:
        """Write the checkpoints until cancelled."""
        recovery_points_due_s = RECOVERY_POINT_INTERVAL_S
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                self._checkpoints.note_high_watermarks(self.high_watermarks())
                await performed(self._disk, LANE, self._checkpoints.write_high_watermarks)
                recovery_points_due_s -= self._interval_s
                if recovery_points_due_s <= 0:
                    recovery_points_due_s = RECOVERY_POINT_INTERVAL_S
                    await self.flush_full_segments()
            except StorageError as error:
                self._refused.note(monotonic_ms(), f"to be tried again: {error}")
                self._replicas.note_refusal(error)
            else:
                self._refused.end(monotonic_ms(), "checkpoints are written again")

    def high_watermarks(self) -> dict[TopicPartition, Offset]:
        """Return the high watermark of every local replica, except logs being truncated.

        A truncation notes the remaining high watermark itself.
        """
        return {
            at: driver.partition.state.high_watermark
            for at, driver in self._drivers.items()
            if not driver.is_truncating
        }

    async def close_logs(self, flushes: DiskQueue, broker_epoch: int, *, has_failed: bool) -> None:
        """Close every log and mark a clean shutdown of each intact directory. Raises StorageError.

        `broker_epoch`: -1 if the broker never registered; then an earlier clean shutdown remains
        valid. `has_failed`: the last working directory is no longer trusted.
        """
        logs, drivers = self._replicas.logs, self._drivers
        if broker_epoch == -1 and logs.clean_shutdown_epoch is not None:
            broker_epoch = logs.clean_shutdown_epoch
        closed = {at: driver.log for at, driver in drivers.items()}
        closing = (
            performed(flushes, at, partial(logs.progress.close, driver.close))
            for at, driver in drivers.items()
        )
        outcomes = await asyncio.gather(*closing, return_exceptions=True)
        unclean: list[LogDirectory | None] = [*logs.online] if has_failed else []
        for at, outcome in zip(closed, outcomes, strict=True):
            if outcome is not None:
                _logger.error("%s is not closed cleanly: %s", at, outcome)
                unclean.append(logs.home_of(at))
        known = self.high_watermarks()
        finish = partial(logs.finish, closed, known, broker_epoch, unclean=unclean)
        await performed(self._disk, STRAYS, finish)

    async def flush_full_segments(self) -> None:
        """Bound the bytes that a recovery reads, with few fsyncs. Raises StorageError."""
        for at, driver in list(self._drivers.items()):
            log = driver.log
            if log.failure is None and log.flushed_offset < log.active_base_offset:
                with suppress(StorageError):  # the next tick takes the replica offline
                    await performed(self._disk, at, log.flush)
                    is_same = self._drivers.get(at) is driver and driver.log is log
                    if is_same and not driver.is_truncating:
                        log.share_flushed_segments()  # otherwise another thread has the log
        logs = {at: driver.log for at, driver in self._drivers.items()}
        self._checkpoints.note_recovery_points(logs)
        await performed(self._disk, LANE, self._checkpoints.write_recovery_points)
