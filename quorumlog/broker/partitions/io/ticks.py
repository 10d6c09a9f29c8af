"""What replicas do because time goes by."""

import asyncio
from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import monotonic_ms

TICK_MS_MAX: Final = 500


class Ticks:
    """Runs one task: leaders look at the clock, idle producers are forgotten, logs tried again."""

    def __init__(
        self, replicas: ReplicaSet, settings: BrokerSettings, wall_ms: Callable[[], int]
    ) -> None:
        self._replicas: Final = replicas
        self._settings: Final = settings
        self._wall_ms: Final = wall_ms

    async def run(self) -> None:
        """Tick until cancelled."""
        drivers, settings = self._replicas.drivers, self._settings
        interval_ms = min(TICK_MS_MAX, max(1, settings.replica_lag_time_max_ms // 2))
        expire_ms = settings.producer_id_expiration_check_interval_ms
        next_expiry_ms = monotonic_ms() + expire_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            now_ms = monotonic_ms()
            for driver in list(drivers.values()):
                driver.note_tick(now_ms)
            self._replicas.retry()
            if now_ms >= next_expiry_ms:
                next_expiry_ms = now_ms + expire_ms
                for driver in drivers.values():
                    driver.producers.expire(self._wall_ms(), settings.producer_id_expiration_ms)
