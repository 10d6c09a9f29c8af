"""Removals of dead files after `file.delete.delay.ms`: until then they have names for removal.

A start removes the files that a process leaves, whatever their delay. Source: Kafka's
`LocalLog.deleteSegmentFiles` and `LogManager.deleteLogs`.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.replica_set import REMOVAL, log_refusal
from quorumlog.settings.topics import TopicConfig

# DEVIATION: Kafka lets any number of removals wait.
# docs/decisions/0039-limits.md
WAITING_MAX: Final = 10_000
DELAY_MS_MAX: Final = 365 * 24 * 3_600_000  # a timer of the event loop has no longer delay


class DelayedRemovals:
    """The removals that wait for their delay, each with a timer; `stop` leaves them to a start."""

    def __init__(self, disk: DiskQueue, config_of: Callable[[str], TopicConfig]) -> None:
        self._disk: Final = disk
        self._config_of: Final = config_of
        self._waiting: Final[dict[Callable[[], None], asyncio.TimerHandle]] = {}

    def add(self, delay_ms: int, work: Callable[[], None]) -> None:
        """Do `work` in the disk queue after the delay; earlier if too many removals wait."""
        if delay_ms <= 0:
            self._disk.submit(REMOVAL, work, log_refusal)
            return
        if len(self._waiting) >= WAITING_MAX:
            self._perform(next(iter(self._waiting)))
        delay_s = min(delay_ms, DELAY_MS_MAX) / 1000
        loop = asyncio.get_running_loop()
        self._waiting[work] = loop.call_later(delay_s, self._perform, work)

    def add_of_topic(self, topic: str, work: Callable[[], None]) -> None:
        """Do `work` after the topic's delay."""
        self.add(self._config_of(topic).file_delete_delay_ms, work)

    def stop(self) -> None:
        """Stop the timers."""
        while self._waiting:
            self._waiting.popitem()[1].cancel()

    def _perform(self, work: Callable[[], None]) -> None:
        self._waiting.pop(work).cancel()
        self._disk.submit(REMOVAL, work, log_refusal)
