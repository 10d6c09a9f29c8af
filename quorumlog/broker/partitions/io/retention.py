"""Deletes segments by age and by size, on every replica independently.

The log start moves as with DeleteRecords; `storage.core.retention` decides the new start.
Source: Kafka's `LogManager.cleanupLogs`.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog import clock
from quorumlog.broker.partitions.io.disk_threads import performed
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.clock import monotonic_ms
from quorumlog.lasting_condition import LastingCondition
from quorumlog.storage.core.retention import Retention, RetentionLimits, retention_limits
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import Offset

LOGS_PER_TURN: Final = 100  # idle logs visited before the event loop gets a turn


def is_at_rest(replicas: ReplicaSet, driver: PartitionDriver) -> bool:
    """Whether the log is still open and usable, and no thread truncates it."""
    is_here = replicas.drivers.get(driver.topic_partition) is driver
    return is_here and not driver.is_truncating and driver.log.failure is None


_logger: Final = logging.getLogger(__name__)


class LogRetention:
    """Runs one task: it checks one log after the other, each in a thread.

    It uses the topic's settings at the time of the check. After a storage error the next round
    retries.
    """

    def __init__(
        self,
        replicas: ReplicaSet,
        disk: DiskQueue,
        rule: Retention,
        *,
        interval_ms: int,
        wall_ms: Callable[[], int],
    ) -> None:
        self._replicas: Final = replicas
        self._disk: Final = disk
        self._rule: Final = rule
        self._interval_s: Final = interval_ms / 1000
        self._wall_ms: Final = wall_ms
        self._refused: Final = LastingCondition(_logger)

    async def run(self) -> None:
        """Check all logs periodically until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check_all()

    async def check_all(self) -> None:
        """Check every open log."""
        for number, driver in enumerate(list(self._replicas.drivers.values()), 1):
            try:
                await self.check(driver)
            except StorageError as error:
                at = driver.topic_partition
                self._refused.note(monotonic_ms(), f"{at}: to be tried again: {error}", at)
            else:
                self._refused.end(monotonic_ms(), "retention works again", driver.topic_partition)
            if not number % LOGS_PER_TURN:
                await asyncio.sleep(0)

    async def check(self, driver: PartitionDriver) -> None:
        """Delete the expired and surplus segments of a log. Raises StorageError."""
        log, state = driver.log, driver.partition.state
        limits = retention_limits(self._replicas.config_of(driver.topic_partition.topic))
        if limits.keep_everything or not is_at_rest(self._replicas, driver):
            return
        end, high_watermark = state.log_end_offset, state.high_watermark
        work = partial(self._start_after, driver, limits, end, high_watermark)
        start = await performed(self._disk, driver.topic_partition, work)
        if start > log.log_start_offset and self._may_roll(driver, start):  # nothing will be left
            # First keep the producers: after the deletion no start can rebuild them from records.
            keep_producers = driver.work_to_keep_producers()
            await performed(self._disk, driver.topic_partition, keep_producers)
            if start > log.active_base_offset and self._may_roll(driver, start):
                log.roll(start)
        if (
            is_at_rest(self._replicas, driver) and log.log_end_offset >= end
        ):  # it was not truncated meanwhile
            start = min(start, log.active_base_offset)  # after an append the active segment stays
            driver.advance_log_start(monotonic_ms(), Offset(start))

    def _start_after(
        self, driver: PartitionDriver, limits: RetentionLimits, end: int, high_watermark: int
    ) -> int:
        facts = driver.log.survey.facts(clock.advances().made)
        if not facts:
            return 0
        return self._rule.start_after(
            facts,
            limits,
            high_watermark=high_watermark,
            log_end_offset=end,
            wall_ms=self._wall_ms(),
        )

    def _may_roll(self, driver: PartitionDriver, start: int) -> bool:
        """Whether the active segment has had no append since it was checked."""
        return is_at_rest(self._replicas, driver) and start == driver.log.log_end_offset
