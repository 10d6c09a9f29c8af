"""Log starts that last: written to their checkpoint as they move, and then files are removed.

A replica tells others of a log start only when it is in `log-start-offset-checkpoint`: so records
that DeleteRecords has answered for do not come back with a restart.

# DEVIATION: Kafka writes that file once a minute, and tells others before.
# docs/decisions/0029-a-log-start-is-told-once-it-is-on-the-disk.md
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.broker.clocks import monotonic_ms
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import TopicPartition


class LogStarts:
    """Runs one task. Starts that move while a write is under way share the next one.

    `fetch_now` is called when a start of a follower is kept: its leader may be waiting to hear it.
    """

    def __init__(
        self,
        logs: LogDirectory,
        drivers: Mapping[TopicPartition, PartitionDriver],
        fetch_now: Callable[[], None],
    ) -> None:
        self._logs: Final = logs
        self._drivers: Final = drivers
        self._fetch_now: Final = fetch_now
        self._moved: dict[PartitionDriver, None] = {}
        self._has_moved: Final = asyncio.Event()

    def note(self, driver: PartitionDriver) -> None:
        """Let the start of this log last, and remove its dead segments."""
        self._moved[driver] = None
        self._has_moved.set()

    async def run(self) -> None:
        """Write and remove what is noted until cancelled. Raises StorageError."""
        while True:
            await self._has_moved.wait()
            self._has_moved.clear()
            moved, self._moved = self._moved, {}
            here = [driver for driver in moved if self._is_here(driver)]
            if here:
                await self._keep(here)
            for driver in here:
                await self._remove_dead_segments(driver)

    async def _keep(self, moved: list[PartitionDriver]) -> None:
        starts = {driver.topic_partition: driver.log.log_start_offset for driver in moved}
        self._logs.note_log_starts(starts)
        await asyncio.to_thread(self._logs.write_log_starts)
        for driver in moved:
            if self._is_here(driver):
                driver.note_log_start_kept(monotonic_ms(), starts[driver.topic_partition])
        if not all(driver.partition.state.is_leader for driver in moved):
            self._fetch_now()

    async def _remove_dead_segments(self, driver: PartitionDriver) -> None:
        if not driver.log.has_dead_segments:
            return
        try:
            await asyncio.to_thread(driver.log.remove_dead_segments)
        except StorageError:
            if self._is_here(driver):
                raise  # else the replica was removed, and its directory renamed, meanwhile

    def _is_here(self, driver: PartitionDriver) -> bool:
        return self._drivers.get(driver.topic_partition) is driver
