"""Durable log starts: a moved start is written to its checkpoint, then dead segments are renamed.

Their files are removed after `file.delete.delay.ms`.

A replica reports a log start to other brokers only when it is in `log-start-offset-checkpoint`:
records whose DeleteRecords was answered do not reappear after a restart.

# DEVIATION: Kafka writes that file once a minute, and reports log starts before.
# docs/decisions/0024-log-start-offsets.md
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from quorumlog.broker.partitions.io.disk_threads import performed
from quorumlog.broker.partitions.log.dependencies import Removals
from quorumlog.broker.partitions.log.directory_checkpoints import DirectoryCheckpoints
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import REMOVAL
from quorumlog.clock import monotonic_ms
from quorumlog.lasting_condition import LastingCondition
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import TopicPartition

LANE: Final = "log starts"  # in the disk queue
RETRY_S: Final = 1.0

_logger: Final = logging.getLogger(__name__)


class LogStarts:
    """Runs one task. Starts that move during a write share the next write.

    `fetch_now` is called when a follower's start is durable: its leader may wait for it.
    """

    def __init__(
        self,
        disk: DiskQueue,
        checkpoints: DirectoryCheckpoints,
        drivers: Mapping[TopicPartition, PartitionDriver],
        fetch_now: Callable[[], None],
        removals: Removals,
    ) -> None:
        self._disk: Final = disk
        self._checkpoints: Final = checkpoints
        self._drivers: Final = drivers
        self._fetch_now: Final = fetch_now
        self._removals: Final = removals
        self._moved: dict[PartitionDriver, None] = {}
        self._has_moved: Final = asyncio.Event()
        self._refused: Final = LastingCondition(_logger)

    def note(self, driver: PartitionDriver) -> None:
        """Queue this log: its start is made durable, and its dead segments are removed."""
        self._moved[driver] = None
        self._has_moved.set()

    async def run(self) -> None:
        """Write starts and remove dead segments until cancelled; retry after storage errors."""
        while True:
            await self._has_moved.wait()
            self._has_moved.clear()
            moved, self._moved = self._moved, {}
            here = [driver for driver in moved if self._is_here(driver)]
            try:
                if here:
                    await self._keep(here)
                for driver in here:
                    await self._remove_dead_segments(driver)
                self._refused.end(monotonic_ms(), "log starts are written again")
            except StorageError as error:
                self._refused.note(monotonic_ms(), f"to be tried again: {error}")
                await asyncio.sleep(RETRY_S)
                for driver in here:
                    self.note(driver)

    async def _keep(self, moved: list[PartitionDriver]) -> None:
        logs = {driver.topic_partition: driver.log for driver in moved}
        starts = self._checkpoints.note_log_starts(logs)
        await performed(self._disk, LANE, self._checkpoints.write_log_starts)
        for driver in moved:
            if self._is_here(driver):
                driver.note_log_start_kept(monotonic_ms(), starts[driver.topic_partition])
        if not all(driver.partition.state.is_leader for driver in moved):
            self._fetch_now()

    async def _remove_dead_segments(self, driver: PartitionDriver) -> None:
        log = driver.log
        if self._is_here(driver) and log.has_dead_segments:
            paths = await performed(self._disk, REMOVAL, log.rename_dead_segments)
            topic = driver.topic_partition.topic
            self._removals.add_of_topic(topic, partial(log.remove_files, paths))

    def _is_here(self, driver: PartitionDriver) -> bool:
        return self._drivers.get(driver.topic_partition) is driver
