"""The asynchronous consumer."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack

from quorumlog.client.checks import (
    checked_names,
    checked_offset,
    checked_partition,
    checked_partitions,
    checked_places,
)
from quorumlog.client.core.positions import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    Positions,
    PositionState,
)
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.closing import Close, close_all, warn_unclosed
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.fetcher import Fetcher
from quorumlog.client.offset_queries import OffsetQueries
from quorumlog.client.rebalance import RebalanceListener
from quorumlog.client.records import ConsumerRecord, OffsetAndMetadata
from quorumlog.client.settings import (
    BootstrapServers,
    ConsumerOptions,
    ConsumerSettings,
    build,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

if TYPE_CHECKING:
    from quorumlog.client.group_client import GroupClient

ITERATION_POLL_MS: Final = 1_000

Records = dict[TopicPartition, list[ConsumerRecord]]


class Consumer(OffsetQueries):
    """Reads records, alone (`assign`) or as a member of a group (`subscribe`).

    `async with Consumer("host:port", group_id="g") as consumer: ... await consumer.poll(1000)`.
    The keyword arguments are those of ConsumerSettings. Use it in one task of one event loop.
    """

    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[ConsumerOptions]
    ) -> None:
        super().__init__(build(ConsumerSettings, bootstrap_servers, options))
        self._positions: Final = Positions(self.settings)
        self._topics: tuple[str, ...] = ()
        self._news: asyncio.Event | None = None
        self._cluster: Cluster | None = None
        self._fetcher: Fetcher | None = None
        self._group: GroupClient | None = None
        self._is_polling = False

    # --- life ---

    async def start(self) -> None:
        """Find the cluster. Raises KafkaError (definite) if no broker answers."""
        if self._cluster is not None:
            raise RuntimeError("the consumer is running already")
        settings, group = self.settings, None
        cluster = Cluster(settings, auto_create_topics=settings.allow_auto_create_topics)
        await cluster.start()
        # Nothing below refers to this object: one that is dropped without `stop` is noticed.
        news = asyncio.Event()

        def look_again() -> None:
            news.set()
            fetcher.wake()

        if settings.group_id is not None:
            from quorumlog.client.group_client import GroupClient

            group = GroupClient(cluster, settings, settings.group_id, self._positions, look_again)
        fetcher = Fetcher(
            cluster,
            settings,
            self._positions,
            look_up_committed=group.committed if group is not None else None,
            on_news=news.set,
        )
        self._cluster, self._fetcher, self._group, self._news = cluster, fetcher, group, news

    async def stop(self) -> None:
        """Commit what `poll` returned (with enable_auto_commit), leave the group, close.

        Takes some seconds at most, even if no broker lives, beside what the listener takes.
        """
        self._positions.mark_consumed()
        await self._stop()

    async def _stop(self) -> None:
        cluster, fetcher, group = self._cluster, self._fetcher, self._group
        if cluster is None or fetcher is None:
            return
        cluster.check_loop("Consumer")
        try:
            if group is not None:
                await group.give_up_partitions()
        finally:
            if self._cluster is cluster:
                self._cluster = self._fetcher = self._group = None
                await close_all(*_closings(cluster, fetcher, group))

    def __del__(self) -> None:
        cluster, fetcher = getattr(self, "_cluster", None), getattr(self, "_fetcher", None)
        if cluster is not None and fetcher is not None:
            warn_unclosed(self, "")
            cluster.close_later(*_closings(cluster, fetcher, self._group))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            await self.stop()
        else:  # the last poll's records may not be processed: they are not committed
            await self._stop()

    def _running(self) -> tuple[Cluster, Fetcher]:
        if self._cluster is None or self._fetcher is None:
            raise RuntimeError("the consumer is not running: use `async with`, or start()")
        self._cluster.check_loop("Consumer")
        return self._cluster, self._fetcher

    def _running_cluster(self) -> Cluster:
        return self._running()[0]

    # --- what to read ---

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener | None = None) -> None:
        """Read these topics as a member of `group_id`; the group decides which partitions.

        A topic that does not exist is waited for; a WARNING in the log says so.
        """
        cluster, fetcher = self._running()
        if self._group is None:
            raise ValueError("subscribe needs a group_id; without one, use assign")
        wanted = {*checked_names(topics, "topics")}
        if not self._group.is_subscribed and self._positions.by_partition:
            raise ValueError("the consumer has partitions from assign; unsubscribe first")
        cluster.want(wanted)
        self._topics = tuple(sorted(wanted))
        fetcher.missing_is_error = False
        self._group.subscribe(self._topics, listener or RebalanceListener())

    async def unsubscribe(self) -> None:
        """Leave the group, or drop what was assigned."""
        self._running()
        group = self._group
        if group is not None and group.is_subscribed:
            self._positions.mark_consumed()
            await group.give_up_partitions()
            await group.leave()
        self._topics = ()
        self._positions.assign(())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without a group's help.

        `poll` raises UNKNOWN_TOPIC_OR_PARTITION for one that does not exist for
        `default_api_timeout_ms`.
        """
        cluster, fetcher = self._running()
        if self._group is not None and self._group.is_subscribed:
            raise ValueError("the consumer is subscribed; unsubscribe first")
        wanted = checked_partitions(partitions)
        fetcher.missing_is_error = True
        cluster.want({partition.topic for partition in wanted})
        self._positions.assign(wanted)
        fetcher.wake()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read now."""
        return frozenset(self._positions.by_partition)

    def subscription(self) -> frozenset[str]:
        """Return the topics of `subscribe`."""
        return frozenset(self._topics)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these from `poll` until `resume`. Raises KeyError."""
        for partition in checked_partitions(partitions):
            self._positions.of(partition).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`. Raises KeyError if a partition is not assigned."""
        _, fetcher = self._running()
        for partition in checked_partitions(partitions):
            self._positions.of(partition).paused = False
        fetcher.wake()

    # --- reading ---

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Return records as soon as there are any, `max_records` (max_poll_records) at most.

        {} after `timeout_ms` without any. What earlier polls returned counts as processed from
        now on. Raises KafkaError; what was not returned is returned by a later call. So it is if
        the caller is cancelled.
        """
        _, fetcher = self._running()
        if self._is_polling:
            raise RuntimeError("another task is in poll: a consumer belongs to one task")
        limit = self.settings.max_poll_records if max_records is None else max_records
        self._positions.mark_consumed()
        group = self._group
        if group is not None:
            group.committer.maybe_commit()
            group.poll_began()
        self._is_polling = True
        try:
            # A caller in a loop must not keep others from working. No await after `_take`: what
            # it takes would be lost if the caller were cancelled there.
            await asyncio.sleep(0)
            records = self._take(fetcher, limit)
            if records or timeout_ms <= 0:
                return records
            return await self._wait_for_records(fetcher, limit, timeout_ms)
        finally:
            self._is_polling = False
            if group is not None:
                group.poll_ended()

    async def _wait_for_records(self, fetcher: Fetcher, limit: int, timeout_ms: float) -> Records:
        news = self._news
        if news is None:
            return {}
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    news.clear()
                    records = self._take(fetcher, limit)
                    if records:
                        return records
                    await news.wait()
        except TimeoutError:
            return {}

    def _take(self, fetcher: Fetcher, limit: int) -> Records:
        if self._group is not None:
            self._group.raise_failure()
            if self._group.is_changing:
                return {}
        records = self._positions.take(limit)
        error = None if records else self._positions.take_error()
        if records or error is not None:
            fetcher.wake()  # there is room again
        if error is not None:
            raise error
        return records

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield record after record, for ever. A record is processed when the next is asked for."""
        while True:
            for records in (await self.poll(ITERATION_POLL_MS, 1)).values():
                yield records[0]
            # A poll for each would be slow. Between two of them the group changes nothing.
            for _ in range(1, self.settings.max_poll_records):
                record = self._next_at_hand()
                if record is None:
                    break
                yield record

    def _next_at_hand(self) -> ConsumerRecord | None:
        _, fetcher = self._running()
        if self._group is not None and self._group.is_changing:
            return None
        record = self._positions.take_next()
        if record is not None:
            fetcher.wake()
        return record

    # --- places ---

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from `offset`. Raises KeyError if the partition is not assigned, ValueError."""
        _, fetcher = self._running()
        self._positions.seek(checked_partition(partition), checked_offset(offset))
        fetcher.wake()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on from the first record there is; all partitions if none is named."""
        self._seek_by_time(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read on from the next record to be written; all partitions if none is named."""
        self._seek_by_time(partitions, LATEST_TIMESTAMP)

    def _seek_by_time(self, partitions: tuple[TopicPartition, ...], timestamp: int) -> None:
        _, fetcher = self._running()
        for partition in checked_partitions(partitions) or self.assignment():
            self._positions.seek_by_time(partition, timestamp)
        fetcher.wake()

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """Return the offset that is read next, when it is known. Raises KafkaError, KeyError."""
        self._running()
        place, news = self._positions.of(checked_partition(partition)), self._news
        limit_ms = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while place.state is not PositionState.FETCHING and news is not None:
                    error = self._positions.take_error()
                    if error is not None:
                        raise error
                    self._positions.of(partition)
                    news.clear()
                    await news.wait()
        except TimeoutError:
            message = f"no position of {partition} within {limit_ms:g} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=True) from None
        return place.offset

    def highwater(self, partition: TopicPartition) -> int:
        """Return the partition's high watermark as of the last fetch; -1 before."""
        return self._positions.of(partition).high_watermark

    # --- commits ---

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit `offsets` (of the next record to read), or the place of every partition.

        Tries for `timeout_ms` (None: default_api_timeout_ms). Raises KafkaError: ILLEGAL_GENERATION
        or REBALANCE_IN_PROGRESS if the group moved on, UNKNOWN_TOPIC_OR_PARTITION, and others;
        TypeError or ValueError for what is no offset of a partition.
        """
        committer = self._known_group().committer
        if offsets is None:
            self._positions.mark_consumed()
            places = committer.consumed()
        else:
            places = checked_places(offsets)
        limit_ms = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await committer.commit(places, limit_ms)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what the group has committed; partitions without an entry are left out."""
        return {**await self._known_group().committed(checked_partitions(partitions))}

    def _known_group(self) -> "GroupClient":
        self._running()
        if self._group is None:
            raise ValueError("committing needs a group_id")
        return self._group


def _closings(cluster: Cluster, fetcher: Fetcher, group: "GroupClient | None") -> list[Close]:
    """List what ends a consumer, in order."""
    leave = [] if group is None else [group.leave, group.committer.close]
    return [*leave, fetcher.close, cluster.close]
