"""Compacts logs, on every replica independently: the dirtiest first, one at a time.

Sources: Kafka's `LogCleaner`, `LogCleanerManager`; KIP-354 (the longest lag). The removal rules:
`storage.core.cleaning`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Final, TypeVar

from quorumlog import clock
from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.io.disk_threads import performed
from quorumlog.broker.partitions.io.retention import LOGS_PER_TURN, is_at_rest
from quorumlog.broker.partitions.log.dependencies import Removals
from quorumlog.broker.partitions.log.directory_checkpoints import DirectoryCheckpoints
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.clock import monotonic_ms
from quorumlog.lasting_condition import LastingCondition
from quorumlog.settings.kinds import LONG_MAX
from quorumlog.storage.core.cleaning import CleanableRange, CleaningRules, Dirtiness
from quorumlog.storage.core.segment_index import NO_TIMESTAMP
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.cleaning import CleanedSegment, Cleaning
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC

LANE: Final = "cleaner"  # in the disk queue
LOOK_MS: Final = 1000  # how often an idle cleaner reads its settings

T = TypeVar("T")
Slice = CleanedSegment | None
_OVER: Final = "over"

_logger: Final = logging.getLogger(__name__)


class LogCleaner:
    """Runs one task. It reads the settings for each log and while it rests.

    It takes at most half of a core: after each slice it rests for the slice's duration, or longer
    to stay below `log.cleaner.io.max.bytes.per.second` (read and written). A log that cannot be
    read or written is not compacted any more, unless disk space or a file handle is missing.
    """

    def __init__(
        self,
        replicas: ReplicaSet,
        disk: DiskQueue,
        checkpoints: DirectoryCheckpoints,
        rule: CleanableRange,
        *,
        wall_ms: Callable[[], int],
        removals: Removals,
    ) -> None:
        self._replicas: Final = replicas
        self._removals: Final = removals
        self._disk: Final = disk
        self._checkpoints: Final = checkpoints
        self._rule: Final = rule
        self._wall_ms: Final = wall_ms
        self._refused: Final = LastingCondition(_logger)
        self._uncleanable: Final[set[tuple[TopicPartition, TopicId]]] = set()
        self.removed_records: Final = Counter[TopicPartition]()  # since the start
        self.removed_count = 0  # of all partitions, deleted ones included
        self.last_pass_ms = monotonic_ms()  # of a look at all logs, or the start
        self._one_at_a_time: Final = asyncio.Lock()  # the task's passes, and those on request

    @property
    def uncleanable_count(self) -> int:
        """The number of logs that are not compacted any more, deleted ones included."""
        return len(self._uncleanable)

    async def run(self) -> None:
        """Clean logs until cancelled."""
        while True:
            await self._back_off()
            await self.clean_all()

    async def clean_all(self) -> None:
        """Clean all logs that are due."""
        async with self._one_at_a_time:
            while await self.clean_dirtiest():
                pass
            self.last_pass_ms = monotonic_ms()

    async def compact(self, driver: PartitionDriver) -> bool:
        """Clean a log from its start, however little of it is dirty; False: it cannot be now.

        The active segment and records younger than min.compaction.lag.ms stay as they are. Raises
        StorageError.
        """
        async with self._one_at_a_time:
            start = driver.log.log_start_offset
            while True:
                cuts = driver.log.compaction.cuts
                dirty = await self._dirtiness(driver, start)
                if dirty is None:
                    return False
                if not dirty.dirty_bytes:
                    return True
                if not await self._pass(driver, dirty, cuts):
                    return False
                start = self._checkpoints.cleaned(driver.topic_partition)  # the key map may be full

    async def _back_off(self) -> None:
        """Rest for `log.cleaner.backoff.ms`, also if the setting changes meanwhile."""
        began_ms, left_ms = monotonic_ms(), self._replicas.settings.log_cleaner_backoff_ms
        while left_ms > 0:
            await asyncio.sleep(min(left_ms, LOOK_MS) / 1000)
            left_ms = began_ms + self._replicas.settings.log_cleaner_backoff_ms - monotonic_ms()

    async def clean_dirtiest(self) -> bool:
        """Clean the dirtiest log that is due; True if one was cleaned and others may be due.

        If a log cannot be cleaned, the next one is.
        """
        due: list[tuple[float, PartitionDriver]] = []
        drivers = self._replicas.drivers
        compacted = {topic for topic in {at.topic for at in drivers} if self._is_compacted(topic)}
        candidates = [one for at, one in drivers.items() if at.topic in compacted]
        for number, driver in enumerate(candidates, 1):
            found = await self._attempt(driver, self._look_at)
            if found is not None:
                due.append((found.ratio, driver))
            if not number % LOGS_PER_TURN:
                await asyncio.sleep(0)
        for _, driver in sorted(due, key=itemgetter(0), reverse=True):
            if await self._attempt(driver, self._clean):
                return True
        return False

    async def _attempt(
        self, driver: PartitionDriver, work: Callable[[PartitionDriver], Awaitable[T | None]]
    ) -> T | None:
        """Return the result of `work`; None if the log cannot be read or written, now or ever."""
        log = driver.log
        before = log.compaction.cuts, log.log_start_offset
        try:
            return await work(driver)
        except StorageError as error:
            # A file may be missing because the log was truncated or lost its oldest records.
            is_same = (log.compaction.cuts, log.log_start_offset) == before and driver.log is log
            if (
                isinstance(error, DiskExhausted)
                or not is_same
                or not is_at_rest(self._replicas, driver)
            ):
                at = driver.topic_partition
                self._refused.note(monotonic_ms(), f"{at}: to be tried again: {error}", at)
            else:
                _logger.warning("%s is not compacted any more: %s", driver.topic_partition, error)
                self._uncleanable.add((driver.topic_partition, driver.topic_id))
            return None

    def _is_compacted(self, topic: str) -> bool:
        """Whether the topic is compacted here: coordinators rewrite the offsets topic instead."""
        return topic != OFFSETS_TOPIC and "compact" in self._replicas.config_of(topic).policies

    async def _dirtiness(self, driver: PartitionDriver, start: int) -> Dirtiness | None:
        """Return the part from `start` on that may be cleaned; None: the log may not be, now."""
        at = driver.topic_partition
        if (
            not self._is_compacted(at.topic)
            or (at, driver.topic_id) in self._uncleanable
            or driver.is_moving  # the copy would miss the effect of a pass
            or not is_at_rest(self._replicas, driver)
        ):
            return None
        high_watermark = driver.end(ReadEnd.HIGH_WATERMARK)
        log_start, transactions = driver.log.log_start_offset, driver.producers.transactions
        last_stable_offset = transactions.decided_end(log_start, high_watermark)
        survey = partial(driver.log.survey.facts, clock.advances().made)
        return self._rule.dirtiness(
            await performed(self._disk, at, survey),
            first_dirty_offset=max(start, driver.log.log_start_offset),
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            min_lag_ms=self._replicas.config_of(at.topic).min_compaction_lag_ms,
            wall_ms=self._wall_ms(),
        )

    async def _look_at(self, driver: PartitionDriver) -> Dirtiness | None:
        """Return the dirty part of a log that is due; else None."""
        at = driver.topic_partition
        config = self._replicas.config_of(at.topic)
        found = await self._dirtiness(driver, self._checkpoints.cleaned(at))
        if found is None:
            return None
        max_lag_ms, first_ms = config.max_compaction_lag_ms, NO_TIMESTAMP
        if found.dirty_bytes and max_lag_ms < LONG_MAX:
            survey, first = driver.log.survey, found.first_dirty_offset
            read = partial(survey.first_timestamp_from, first, clock.advances().made)
            first_ms = await performed(self._disk, at, read)
        is_due = found.is_due(
            min_ratio=config.min_cleanable_dirty_ratio,
            max_lag_ms=max_lag_ms,
            first_dirty_ms=first_ms,
            wall_ms=self._wall_ms(),
        )
        return found if is_due else None

    async def _clean(self, driver: PartitionDriver) -> bool:
        """Make one pass over a log that is due; return whether it completed."""
        cuts = driver.log.compaction.cuts  # first: the range is valid until the next truncation
        dirty = await self._look_at(driver)  # again: other logs were cleaned meanwhile
        return dirty is not None and await self._pass(driver, dirty, cuts)

    async def _pass(self, driver: PartitionDriver, dirty: Dirtiness, cuts: int) -> bool:
        """Make one pass over the log; return whether it completed. Raises StorageError."""
        at, log = driver.topic_partition, driver.log
        await performed(self._disk, at, log.flush)
        if not self._is_as_it_was(driver, cuts):
            return False
        wall_ms = self._wall_ms()
        rules = CleaningRules(
            first_dirty_offset=dirty.first_dirty_offset,
            end_offset=dirty.end_offset,
            wall_ms=wall_ms,
            delete_retention_ms=self._replicas.config_of(at.topic).delete_retention_ms,
            producers_since_ms=wall_ms
            - clock.advances().ahead_ms  # the timestamps are of clients' clocks
            - self._replicas.settings.producer_id_expiration_ms,
        )
        cleaning = log.compaction.begin(rules, log.settings, flushed_offset=log.flushed_offset)
        try:
            if not await self._run(driver, cleaning, cuts):
                return False
        finally:  # after a slice that may still be under way
            self._disk.submit(LANE, cleaning.remove_draft, lambda _: None)
        self.removed_records[at] += cleaning.removed_records
        self.removed_count += cleaning.removed_records
        end_offset = Offset(cleaning.newest.end_offset)
        self._checkpoints.note_cleaned(at, end_offset)
        try:
            await performed(self._disk, LANE, self._checkpoints.write_cleaned)
        except StorageError as error:  # the log itself is fine
            self._refused.note(monotonic_ms(), f"to be written with the next pass: {error}", LANE)
        else:
            self._refused.end(monotonic_ms(), "the cleaner's checkpoint is written again", LANE)
            self._refused.end(monotonic_ms(), "logs are compacted again", at)
        return end_offset > dirty.first_dirty_offset

    async def _run(self, driver: PartitionDriver, cleaning: Cleaning, cuts: int) -> bool:
        """Do the slices of a pass; return whether it completed. Raises StorageError."""
        at, log, slices = driver.topic_partition, driver.log, cleaning.run()
        while True:
            began_ms, began_bytes = monotonic_ms(), cleaning.io_bytes
            cleaned = await performed(self._disk, LANE, partial(_next, slices))
            if not self._is_as_it_was(driver, cuts):
                return False
            if isinstance(cleaned, str):
                return True
            if cleaned is not None:
                names = await self._swap_in(driver, cleaned)
                if names is None:
                    return False
                renamed = await performed(self._disk, at, partial(log.compaction.settle, names))
                self._removals.add_of_topic(at.topic, partial(log.remove_files, renamed))
            took_s = (monotonic_ms() - began_ms) / 1000
            rate = self._replicas.settings.log_cleaner_io_max_bytes_per_second
            due_s = (cleaning.io_bytes - began_bytes) / rate
            await asyncio.sleep(max(took_s, due_s - took_s))

    async def _swap_in(self, driver: PartitionDriver, cleaned: CleanedSegment) -> list[str] | None:
        """Put a cleaned segment into the log while no thread works on the log.

        A concurrent survey would miss a segment, and retention would take the offsets below it as
        deleted. Raises StorageError.
        """
        log = driver.log
        outcome: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()

        def swap(_: StorageError | None) -> None:
            if outcome.done():
                return  # this task was cancelled
            try:
                is_usable = is_at_rest(self._replicas, driver) and not driver.is_moving
                outcome.set_result(
                    log.compaction.swap_in(cleaned, log.settings) if is_usable else None
                )
            except StorageError as error:
                outcome.set_exception(error)

        # `done` runs before the next work item of this log begins.
        self._disk.submit(driver.topic_partition, lambda: None, swap)
        return await outcome

    def _is_as_it_was(self, driver: PartitionDriver, cuts: int) -> bool:
        """Whether the log is still open, was not truncated, and is not being copied."""
        is_same = driver.log.compaction.cuts == cuts and not driver.is_moving
        return is_same and is_at_rest(self._replicas, driver)


class CorruptLog(StorageError):
    """The records of a batch cannot be read."""


def _next(slices: Iterator[Slice]) -> Slice | str:
    try:
        return next(slices, _OVER)
    except CorruptBatch as error:
        raise CorruptLog(str(error)) from error
