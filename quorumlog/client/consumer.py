"""The asynchronous consumer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, Unpack

from quorumlog.client.async_client import AsyncClient
from quorumlog.client.checks import (
    checked_callback,
    checked_max_records,
    checked_partition,
    checked_partitions,
    checked_places,
    checked_subscription,
    checked_time,
    checked_timestamps,
)
from quorumlog.client.core.membership_events import PollBegan, PollEnded
from quorumlog.client.core.position import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, PositionState
from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.closing import Close
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.committer import CommitCallback
from quorumlog.client.io.fetcher import Fetcher
from quorumlog.client.io.interception import ConsumerInterception
from quorumlog.client.io.list_offsets import list_offsets
from quorumlog.client.rebalance_listener import RebalanceListener
from quorumlog.client.records import (
    ConsumerRecord,
    GroupMetadata,
    KeyT,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    ValueT,
)
from quorumlog.client.settings import (
    BootstrapServers,
    ConsumerOptions,
    ConsumerSettings,
    build,
    check_batches,
    with_servers,
)
from quorumlog.extras import why_no_packages
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumlog.client.group_client import GroupClient

K = TypeVar("K")
V = TypeVar("V")

ITERATION_POLL_MS: Final = 1_000
_NO_TOPIC_IDS: Final[Mapping[str, bytes]] = {}

Records = dict[TopicPartition, list[ConsumerRecord[KeyT, ValueT]]]


class _Opened(NamedTuple):
    """The open consumer. `may_return`: set when `poll` may have records or an error."""

    cluster: Cluster
    fetcher: Fetcher
    group: "GroupClient | None"
    may_return: asyncio.Event


class Consumer(AsyncClient[_Opened], Generic[KeyT, ValueT]):
    """Reads records, alone (`assign`) or as a member of a group (`subscribe`).

    `async with Consumer("host:port", group_id="g") as consumer: ... await consumer.poll(1000)`.
    The keyword arguments are the fields of ConsumerSettings. Use it in one task of one event loop.
    Keys and values are bytes; with deserializers, annotate their types for a type checker:
    `consumer: Consumer[str, Order] = Consumer("host:port", value_deserializer=...)`.
    """

    @with_servers
    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[ConsumerOptions]
    ) -> None:
        self.settings: Final = build(ConsumerSettings, bootstrap_servers, options)
        self._positions: Final = Positions(self.settings)
        self._interception: Final = ConsumerInterception(self.settings)
        self._topics: tuple[str, ...] = ()
        self._is_polling = False

    # --- life ---

    async def _open(self) -> _Opened:
        settings, group = self.settings, None
        cluster = Cluster(
            settings, auto_create_topics=settings.allow_auto_create_topics, topic_right="READ"
        )
        await cluster.start()
        may_return = asyncio.Event()

        def wake() -> None:
            may_return.set()
            fetcher.wake()

        if settings.group_id is not None:
            from quorumlog.client.group_client import GroupClient

            group = GroupClient(cluster, settings, settings.group_id, self._positions, wake)
            group.committer.on_commit = self._interception.committed
        fetcher = Fetcher(
            cluster,
            settings,
            self._positions,
            look_up_committed=group.committed if group is not None else None,
            wake_poll=may_return.set,
        )
        return _Opened(cluster, fetcher, group, may_return)

    async def stop(self) -> None:
        """Commit the polled records' offsets (with enable_auto_commit), leave the group, close.

        Takes a few seconds at most, even without a live broker, plus the time of the listener.
        """
        self._positions.mark_consumed()
        await self._revoke_and_close()

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            await self.stop()
        else:  # the last poll's records may not be processed: do not commit them
            await self._revoke_and_close()

    async def _revoke_and_close(self) -> None:
        opened = self._opened
        if opened is None:
            return
        opened.cluster.check_loop(self)
        try:
            if opened.group is not None:
                await opened.group.committer.finish()
                await opened.group.revoke_all()
        finally:
            await self._close(opened)

    def _closings(self, opened: _Opened) -> list[Close]:
        group = opened.group
        leave = [] if group is None else [group.leave, group.committer.close]
        return [*leave, opened.fetcher.close, opened.cluster.close]

    # --- subscription and assignment ---

    def subscribe(
        self,
        topics: Iterable[str] = (),
        listener: RebalanceListener | None = None,
        *,
        pattern: str | None = None,
    ) -> None:
        """Read these topics as a member of `group_id`, which assigns partitions to its members.

        The consumer waits for a topic that does not exist, with a WARNING in the log. `pattern`: a
        regular expression; also topics whose whole name matches, and that are not internal. New
        topics are found within `metadata_max_age_ms`. In a classic group it is one of Python's
        `re`, with group_protocol="consumer" one of RE2, and brokers find the topics.
        """
        opened = self._running()
        group = opened.group
        if group is None:
            raise ValueError("subscribe needs a group_id; without one, use assign")
        wanted = {*checked_subscription(topics, pattern, self.settings.group_protocol)}
        if not group.is_subscribed and self._positions.by_partition:
            raise ValueError("the consumer has partitions from assign; unsubscribe first")
        opened.cluster.add_topics(wanted)
        self._topics = tuple(sorted(wanted))
        self._positions.report_topics({})
        opened.fetcher.missing_is_error = False
        group.subscribe(self._topics, listener or RebalanceListener(), pattern)

    async def unsubscribe(self) -> None:
        """Leave the group, or drop the partitions of `assign`."""
        group = self._running().group
        if group is not None and group.is_subscribed:
            self._positions.mark_consumed()
            await group.committer.finish()
            await group.revoke_all()
            await group.leave()
        self._topics = ()
        self._positions.assign(())
        self._positions.report_topics({})

    def assign(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, bytes] = _NO_TOPIC_IDS
    ) -> None:
        """Read exactly these partitions, without assignments by a group.

        `poll` raises UNKNOWN_TOPIC_OR_PARTITION for a partition that was missing for
        `default_api_timeout_ms`. topic_ids: by name, the topics to which the offsets of following
        calls of `seek` belong (KIP-516); a topic that was created again is then not read at them.
        """
        opened = self._running()
        if opened.group is not None and opened.group.is_subscribed:
            raise ValueError("the consumer is subscribed; unsubscribe first")
        wanted = checked_partitions(partitions)
        opened.fetcher.missing_is_error = True
        opened.cluster.add_topics({partition.topic for partition in wanted})
        self._positions.assign(wanted, topic_ids, by_group=False)
        self._positions.report_topics({})
        opened.fetcher.wake()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are assigned now."""
        return frozenset(self._positions.by_partition)

    def subscription(self) -> frozenset[str]:
        """Return the topics that `subscribe` was called with."""
        return frozenset(self._topics)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions from `poll` until `resume`. Raises KeyError."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undo `pause`. Raises KeyError if a partition is not assigned."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        opened = self._running()
        for partition in checked_partitions(partitions):
            self._positions.of(partition).paused = paused
        opened.fetcher.wake()

    # --- reading ---

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> Records[KeyT, ValueT]:
        """Return records as soon as there are any, at most `max_records` (max_poll_records).

        Returns {} after `timeout_ms` without records. The records of earlier polls count as
        processed from now on. Raises KafkaError; DeserializationError, before all other records,
        until the consumer seeks behind its record. After an error or a cancellation, later calls
        return the remaining records.
        """
        records = await self._poll(timeout_ms, max_records, self._positions.take)
        return self._interception.consumed(records)

    async def poll_batches(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> "dict[TopicPartition, pa.Table]":
        """Return records as `poll` does, as one Arrow table for each partition.

        Columns: offset and timestamp_ms (int64), key and value (binary, null if they have none),
        headers (list of structs of key, string, and value, binary), leader_epoch (int32) and
        timestamp_type (int8), all as in ConsumerRecord. No Python object is made for a record:
        with a `max_records` of many thousands this takes a fraction of the time of `poll`, which
        may follow at any time. Raises ImportError, with the extra to install, without numpy or
        pyarrow; ValueError with deserializers or interceptors, which are for single records.
        """
        check_batches(self.settings)
        try:
            import quorumlog.client.core.columns  # noqa: F401 - loads Arrow, once
        except ImportError as error:
            raise ImportError(why_no_packages("poll_batches needs") or str(error)) from error
        return await self._poll(timeout_ms, max_records, self._positions.take_tables)

    async def _poll(
        self, timeout_ms: float, max_records: int | None, take: Callable[[int], dict[K, V]]
    ) -> dict[K, V]:
        opened = self._running()
        if self._is_polling:
            raise RuntimeError("another task is in poll: a consumer belongs to one task")
        limit = self.settings.max_poll_records
        if max_records is not None:
            limit = checked_max_records(max_records)
        self._positions.mark_consumed()
        group = opened.group
        if group is not None:
            group.committer.maybe_commit()
            group.post(PollBegan())  # partitions may be revoked
        self._is_polling = True
        try:
            # A caller in a loop must not starve other tasks. No await after `_take`: a cancelled
            # caller would lose the records.
            await asyncio.sleep(0)
            records = self._take(opened, limit, take)
            if records or timeout_ms <= 0:
                return records
            return await self._wait_for_records(opened, limit, timeout_ms, take)
        finally:
            self._is_polling = False
            if group is not None:
                group.post(PollEnded())  # no partition is revoked

    async def _wait_for_records(
        self, opened: _Opened, limit: int, timeout_ms: float, take: Callable[[int], dict[K, V]]
    ) -> dict[K, V]:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    opened.may_return.clear()
                    records = self._take(opened, limit, take)
                    if records:
                        return records
                    await opened.may_return.wait()
        except TimeoutError:
            return {}

    def _take(self, opened: _Opened, limit: int, take: Callable[[int], dict[K, V]]) -> dict[K, V]:
        opened.fetcher.follow_topics()
        if opened.group is not None:
            opened.group.raise_failure()
            if opened.group.is_changing:
                return {}
        error = self._positions.take_undecoded()
        records = {} if error is not None else take(limit)
        if error is None and not records:
            error = self._positions.take_error()
        # The buffers may have room again, also without records: aborted transactions were skipped.
        opened.fetcher.wake()
        if error is not None:
            raise error
        return records

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[KeyT, ValueT]]:
        """Yield record after record, for ever. Each is processed when the next is requested."""
        while True:
            for records in (await self.poll(ITERATION_POLL_MS, 1)).values():
                for record in records:
                    yield record
            # A poll for each record would be slow. Between two polls partitions do not change.
            for _ in range(1, self.settings.max_poll_records):
                found = self._next_at_hand()
                if found is None:
                    break
                if not self.settings.interceptors:
                    yield found
                    continue
                for record in self._interception.consumed_record(found):
                    yield record

    def _next_at_hand(self) -> ConsumerRecord[KeyT, ValueT] | None:
        opened = self._running()
        if opened.group is not None and opened.group.is_changing:
            return None
        record: ConsumerRecord[Any, Any] | None = self._positions.take_next()
        if record is not None:
            opened.fetcher.wake()
        return record

    # --- positions ---

    def seek(self, partition: TopicPartition, offset: OffsetAndMetadata | int) -> None:
        """Continue at `offset`. Raises KeyError if unassigned, TypeError, ValueError.

        With the leader epoch of the record before it, the leader detects that its log was truncated
        below this offset (KIP-320).
        """
        opened = self._running()
        ((name, place),) = checked_places({partition: offset}).items()
        self._positions.seek(name, place.offset, place.leader_epoch)
        opened.fetcher.wake()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the first record of the partitions; by default, of all assigned ones."""
        self._seek_by_time(partitions, EARLIEST_TIMESTAMP)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue at the end of the partitions; by default, of all assigned ones."""
        self._seek_by_time(partitions, LATEST_TIMESTAMP)

    def seek_to_time(self, time: datetime | int, *partitions: TopicPartition) -> None:
        """Continue at the first record of the partitions that is not older than `time`.

        `time`: a datetime with a time zone, or ms since 1970. By default, of all assigned
        partitions. If all records of a partition are older: at its end. Raises KeyError if
        unassigned, TypeError, ValueError.
        """
        self._seek_by_time(partitions, checked_time(time))

    def _seek_by_time(self, partitions: tuple[TopicPartition, ...], timestamp: int) -> None:
        opened = self._running()
        for partition in checked_partitions(partitions) or self.assignment():
            self._positions.seek_by_time(partition, timestamp)
        opened.fetcher.wake()

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """Wait for the partition's position, and return it. Raises KafkaError, KeyError."""
        may_return = self._running().may_return
        position = self._positions.of(checked_partition(partition))
        limit_ms = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while position.state is not PositionState.FETCHING:
                    error = self._positions.take_error()
                    if error is not None:
                        raise error
                    self._positions.of(partition)
                    may_return.clear()
                    await may_return.wait()
        except TimeoutError:
            name = "default_api_timeout_ms" if timeout_ms is None else "timeout_ms"
            message = f"no position of {partition} within {name}={limit_ms:g}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=True) from None
        return position.offset

    def highwater(self, partition: TopicPartition) -> int:
        """Return the partition's high watermark as of the last fetch; -1 before."""
        return self._positions.of(partition).high_watermark

    # --- commits ---

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
        timeout_ms: float | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit `offsets` (of the next record to read), or the position of every partition.

        Retries for `timeout_ms` (None: default_api_timeout_ms). Raises KafkaError:
        ILLEGAL_GENERATION or REBALANCE_IN_PROGRESS after a rebalance, UNKNOWN_TOPIC_OR_PARTITION,
        and others; TypeError or ValueError for an illegal partition or offset.

        With `callback`, the commit goes on in the background, as Java's commitAsync, but with the
        same retries: commits are made in the order of their calls. `callback(offsets, error)` is
        called once, on the event loop; closing waits a few seconds for it. It must not be async.
        """
        committer = self._known_group().committer
        if callback is not None:
            checked_callback(callback)
        if offsets is None:
            self._positions.mark_consumed()
            places = committer.consumed()
        else:
            places = checked_places(offsets)
        limit_ms = self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        if callback is None:
            await committer.commit(places, limit_ms)
        else:
            await committer.begin(places, limit_ms, callback)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets; partitions without one are left out."""
        return {**await self._known_group().committed(checked_partitions(partitions))}

    def group_metadata(self) -> GroupMetadata:
        """Return the group, the generation (-1: no member) and the member's id (KIP-447)."""
        return self._known_group().metadata()

    def _known_group(self) -> "GroupClient":
        group = self._running().group
        if group is None:
            raise ValueError("committing needs a group_id")
        return group

    # --- offsets of any partition, assigned or not ---

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition. Raises KafkaError."""
        return await self._offsets_at(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return each partition's high watermark or, for read_committed, last stable offset.

        Raises KafkaError.
        """
        return await self._offsets_at(partitions, LATEST_TIMESTAMP)

    async def _offsets_at(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(checked_partitions(partitions), timestamp))
        return {partition: place.offset for partition, place in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time (ms); None if all are older."""
        found = await self._list_offsets(checked_timestamps(timestamps))
        return {name: place if place.offset >= 0 else None for name, place in found.items()}

    async def _list_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        cluster, settings = self._running().cluster, self.settings
        timeout_ms = settings.default_api_timeout_ms
        return await list_offsets(cluster, timestamps, settings.isolation_level, timeout_ms)

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION after a few seconds without such a topic.
        """
        view = await self._running().cluster.topic(topic, self.settings.default_api_timeout_ms)
        return [*view.partitions]
