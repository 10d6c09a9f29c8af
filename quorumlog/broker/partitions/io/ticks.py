"""The periodic work of the replicas."""

import asyncio
from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.io.delayed_removals import DelayedRemovals
from quorumlog.broker.partitions.io.log_cleaner import LogCleaner
from quorumlog.broker.partitions.io.retention import LogRetention
from quorumlog.broker.partitions.log.directory_checkpoints import DirectoryCheckpoints
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.clock import monotonic_ms

TICK_MS_MAX: Final = 500
LOGS_PER_TICK_MS: Final = 1  # with many logs the ticks are rarer, so their total cost is constant
LOGS_PER_TURN: Final = 1000  # ticks before the event loop gets a turn


class Ticks:
    """Runs one task: ticks leaders, expires idle producers, and opens logs that lacked disk space.

    `retention` and `cleaner` have tasks of their own, because they wait for the disk. `removals`
    has timers.
    """

    def __init__(
        self,
        replicas: ReplicaSet,
        wall_ms: Callable[[], int],
        disk: DiskQueue,
        rules: PartitionRules,
        *,
        files: DirectoryCheckpoints,
    ) -> None:
        settings = replicas.settings
        interval_ms = settings.log_retention_check_interval_ms
        self.retention: Final = LogRetention(
            replicas, disk, rules.retention(), interval_ms=interval_ms, wall_ms=wall_ms
        )
        self.removals: Final = DelayedRemovals(disk, replicas.config_of)
        self.cleaner: Final = LogCleaner(
            *(replicas, disk, files, rules.cleanable()), wall_ms=wall_ms, removals=self.removals
        )
        self._replicas: Final = replicas
        self._settings: Final = settings
        self._wall_ms: Final = wall_ms

    async def run(self) -> None:
        """Tick until cancelled."""
        drivers, settings = self._replicas.drivers, self._settings
        rarest_ms = max(1, settings.replica_lag_time_max_ms // 2)
        expire_ms = settings.producer_id_expiration_check_interval_ms
        next_expiry_ms = monotonic_ms() + expire_ms
        while True:
            wanted_ms = max(TICK_MS_MAX, len(drivers) // LOGS_PER_TICK_MS)
            await asyncio.sleep(min(wanted_ms, rarest_ms) / 1000)
            now_ms = monotonic_ms()
            await self._tick_all(now_ms)
            self._replicas.retry()
            if now_ms >= next_expiry_ms:
                next_expiry_ms = now_ms + expire_ms
                self.expire_producers()

    def expire_producers(self) -> None:
        """Drop the state of producers that have appended nothing for producer.id.expiration.ms."""
        after_ms = self._replicas.settings.producer_id_expiration_ms
        for driver in self._replicas.drivers.values():
            driver.producers.expire(self._wall_ms(), after_ms)

    async def _tick_all(self, now_ms: int) -> None:
        drivers = self._replicas.drivers
        for number, at in enumerate(list(drivers), 1):  # pairs would be new objects to collect
            driver = drivers.get(at)
            if driver is not None:  # it was not removed during another task's turn
                driver.note_tick(now_ms)
            if not number % LOGS_PER_TURN:
                await asyncio.sleep(0)
