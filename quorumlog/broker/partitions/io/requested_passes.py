"""Passes of retention and compaction on request, for tests that do not wait for the next interval.

Each replica is handled by the rules and tasks of every other pass. A pass sees the records that are
committed when it begins; so it waits for the commit of the records in the log, but not for ever.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from quorumlog.broker.partitions.io.retention import LOGS_PER_TURN, is_at_rest
from quorumlog.broker.partitions.io.ticks import Ticks
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.storage.core.retention import retention_limits
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC

COMMIT_TIMEOUT_S: Final = 2.0  # a follower learns of a commit with its next fetch
_POLL_S: Final = 0.005


class Refused(ValueError):
    """The topic cannot have the pass; the message has the reason and the remedy."""


class Removed(NamedTuple):
    """The content that a pass has removed from one log, or its size before the pass."""

    records: int
    segments: int
    bytes: int


Report = dict[str, dict[str, int]]
"""The removed records, segments and bytes of each log that has lost some: `orders-0`.

Records: the offsets below the new log start, and the records that compaction has removed.
"""


class RequestedPasses:
    """The passes over the replicas of this broker."""

    def __init__(self, replicas: ReplicaSet, ticks: Ticks) -> None:
        self._replicas: Final = replicas
        self._ticks: Final = ticks

    async def roll_all(self) -> None:
        """End the segments of logs whose records expire or are compacted by time.

        Then no segment has records from both before and after an advance. Raises StorageError.
        """
        for number, driver in enumerate(self._drivers(self._has_time_limit), 1):
            if is_at_rest(self._replicas, driver):
                driver.roll()
            if not number % LOGS_PER_TURN:
                await asyncio.sleep(0)

    async def age(self) -> Report:
        """Make all passes that go by the wall clock, over all logs. Raises StorageError."""
        drivers = self._drivers(self._has_time_limit)
        await _committed(one for one in drivers if one.partition.state.is_leader)
        async with self._reported(drivers) as report:
            await self._ticks.retention.check_all()
            await self._ticks.cleaner.clean_all()
            self._ticks.expire_producers()
        return report

    async def apply_retention(self, topic: str) -> Report:
        """Delete expired and surplus segments. Raises Refused, StorageError."""
        self._require(topic, "delete")
        drivers = self._drivers(topic.__eq__)
        await _committed(one for one in drivers if one.partition.state.is_leader)
        async with self._reported(drivers) as report:
            for driver in drivers:
                await self._ticks.retention.check(driver)
        return report

    async def compact(self, topic: str) -> Report:
        """End the active segments, then compact the whole logs. Raises Refused, StorageError.

        Kafka never compacts the active segment; without its end, the newest records would keep the
        old values of their keys alive.
        """
        self._require(topic, "compact")
        drivers = self._drivers(topic.__eq__)
        await _committed(drivers)
        async with self._reported(drivers) as report:
            for driver in drivers:
                if is_at_rest(self._replicas, driver):
                    driver.roll()
                if not await self._ticks.cleaner.compact(driver):
                    raise Refused(
                        f"{driver.topic_partition} cannot be compacted now: it is truncated or"
                        " moved, or its records cannot be read; node.log has the reason"
                    )
        return report

    def _has_time_limit(self, topic: str) -> bool:
        config = self._replicas.config_of(topic)
        is_compacted = topic != OFFSETS_TOPIC and "compact" in config.policies
        return is_compacted or retention_limits(config).max_age_ms >= 0

    def _drivers(self, concerns: Callable[[str], bool]) -> list[PartitionDriver]:
        """Return the drivers of these topics, sorted by partition."""
        drivers = self._replicas.drivers
        topics = {at.topic for at in drivers}
        concerned = {topic for topic in topics if concerns(topic)}
        return [one for at, one in sorted(drivers.items()) if at.topic in concerned]

    def _require(self, topic: str, policy: str) -> None:
        """Refuse a topic that does not exist, or has not this cleanup.policy."""
        topics = self._replicas.image.topics
        if topic not in topics:
            from difflib import get_close_matches  # costs an import: only errors need it

            near = get_close_matches(topic, topics, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Refused(f"there is no topic {topic}{hint}")
        if topic == OFFSETS_TOPIC:
            raise Refused(f"{topic}: its coordinators rewrite it; expire_groups() expires offsets")
        policies = self._replicas.config_of(topic).policies
        if policy not in policies:
            raise Refused(
                f"topic {topic} has cleanup.policy={','.join(sorted(policies))}; set it to"
                f" {policy}, or to compact,delete, first"
            )

    @asynccontextmanager
    async def _reported(self, drivers: list[PartitionDriver]) -> AsyncIterator[Report]:
        """Fill the report at the end of the block."""
        report: Report = {}
        before = {one.topic_partition: self._size_of(one) for one in drivers}
        yield report
        for driver in drivers:
            at = driver.topic_partition
            old, new = before[at], self._size_of(driver)
            removed = Removed(*(max(0, was - now) for was, now in zip(old, new, strict=True)))
            if removed.records:
                report[f"{at.topic}-{at.partition}"] = removed._asdict()

    def _size_of(self, driver: PartitionDriver) -> Removed:
        """Return the content of a log; its records count down from 0 as they are removed."""
        log, at = driver.log, driver.topic_partition
        removed = log.log_start_offset + self._ticks.cleaner.removed_records[at]
        return Removed(-removed, len(log.segment_base_offsets), log.size)


async def _committed(drivers: Iterable[PartitionDriver]) -> None:
    """Wait until the present records are committed here; return after COMMIT_TIMEOUT_S anyway."""
    ends: dict[TopicPartition, int] = {}
    waiting = {one.topic_partition: one for one in drivers}
    for at, driver in waiting.items():
        ends[at] = driver.partition.state.log_end_offset
    polls = int(COMMIT_TIMEOUT_S / _POLL_S)
    for _ in range(polls):
        waiting = {
            at: one for at, one in waiting.items() if one.partition.state.high_watermark < ends[at]
        }
        if not waiting:
            return
        await asyncio.sleep(_POLL_S)
