"""The asynchronous producer."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypedDict, Unpack

from quorumlog import clock
from quorumlog.chance import random_fraction
from quorumlog.client.async_client import AsyncClient
from quorumlog.client.checks import checked_group_metadata, checked_places
from quorumlog.client.core.accumulator import Accumulator, PartitionQueue
from quorumlog.client.core.batch import BATCH_OVERHEAD_BYTES, check_timestamp, checked_record_size
from quorumlog.client.core.partitioner import partition_for_key
from quorumlog.client.core.record_columns import Column, HeaderPairs, records_of, rows_of
from quorumlog.client.core.topic_queues import TopicQueues, refresh_all
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.closing import Close
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.delivery import Deliveries, Delivery
from quorumlog.client.io.inbox import Inbox
from quorumlog.client.io.outgoing import Buffer, Choice, Outgoing, Prepared, make_outgoing
from quorumlog.client.io.sender import Sender
from quorumlog.client.io.transactor import Transactor
from quorumlog.client.records import (
    GroupMetadata,
    KeyT,
    OffsetAndMetadata,
    ProducerRecord,
    RecordMetadata,
    ValueT,
)
from quorumlog.client.settings import (
    BootstrapServers,
    ProducerOptions,
    ProducerSettings,
    build,
    with_servers,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

_logger: Final = logging.getLogger(__name__)


def _wake_first(lines: Mapping[str, deque[asyncio.Event]]) -> None:
    """Wake the first waiting call of each topic: the buffer may have room."""
    for line in lines.values():
        line[0].set()


class _Opened(NamedTuple):
    cluster: Cluster
    sender: Sender


class SendOptions(TypedDict, total=False):
    """The keyword arguments of `send`."""

    partition: int | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int | None


class ManyOptions(TypedDict, total=False):
    """The keyword arguments of `send_many`."""

    partition: int | None
    headers: Column[HeaderPairs | None] | None
    timestamps_ms: Column[int] | None


class Producer(AsyncClient[_Opened], Generic[KeyT, ValueT]):
    """Sends records, in batches, per partition in the order of the calls of `send`.

    Invariant: a call of `send` that must wait is queued by topic, and later calls for that topic
    wait behind it.

    `async with Producer("host:port", linger_ms=5) as producer: await producer.send(...)`.
    The keyword arguments are the fields of ProducerSettings. Use it on one event loop.
    Keys and values are bytes; with serializers, annotate their types for a type checker:
    `producer: Producer[str, Order] = Producer("host:port", value_serializer=...)`.
    """

    @with_servers
    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[ProducerOptions]
    ) -> None:
        self.settings: Final = build(ProducerSettings, bootstrap_servers, options)
        self._outgoing: Final = make_outgoing(self.settings)
        self._accumulator: Final = Accumulator(self.settings)
        limit = min(self.settings.max_request_size, self.settings.buffer_memory)
        self._buffer_memory: Final = self.settings.buffer_memory
        self._record_bytes_max: Final = limit - BATCH_OVERHEAD_BYTES
        self._topics: Final[dict[str, TopicQueues]] = {}
        self._owes_turn = False  # a batch has begun since the event loop last ran
        self._lines: Final[dict[str, deque[asyncio.Event]]] = {}  # waiting calls, by topic

    # --- life ---

    async def _open(self) -> _Opened:
        cluster = Cluster(self.settings, auto_create_topics=True, topic_right="WRITE")
        await cluster.start()
        cluster.on_change.append(partial(refresh_all, self._topics, cluster.metadata))
        wake_first = partial(_wake_first, self._lines)
        inbox = partial(
            Inbox, asyncio.get_running_loop(), self._accumulator, self._topics, self._lines
        )
        return _Opened(cluster, Sender(cluster, self._accumulator, wake_first, inbox))

    async def stop(self, timeout_ms: int | None = None) -> None:
        """Flush for at most `timeout_ms` (None: until every record is done), then close.

        An open transaction is aborted first, within `max_block_ms`. Records that are not
        acknowledged by then fail. Every record is done after `delivery_timeout_ms`, even without a
        live broker. Cancelling the caller closes the producer at once.
        """
        opened = self._opened
        if opened is None:
            return
        opened.cluster.check_loop(self)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await opened.sender.finish()
        except TimeoutError:
            pass
        finally:
            await self._close(opened)

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        await self.stop(timeout_ms=0 if exc_type is asyncio.CancelledError else None)

    def _closings(self, opened: _Opened) -> list[Close]:
        return [opened.sender.close, opened.cluster.close]

    def _drop(self, opened: _Opened) -> list[Close]:
        count = sum(len(batch.records) for batch in self._accumulator.incomplete())
        if count:  # by default, Python does not show the ResourceWarning
            _logger.error(
                "unclosed Producer %s: %d records are not delivered", self.settings.client_id, count
            )
        self._warn_unclosed(f"; {count} records are not delivered" if count else "")
        # The records are still sent if the event loop runs long enough.
        return [opened.sender.finish, *self._closings(opened)]

    # --- sending ---

    async def send(
        self,
        topic: str,
        value: ValueT | None,
        key: KeyT | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Buffer a record to be sent; await the returned Delivery for its RecordMetadata.

        Waits, for at most `max_block_ms`, while the topic's partitions are unknown or the buffer is
        full. Raises KafkaError, definite, if the record was not buffered, and TypeError or
        ValueError for illegal arguments. If the call is cancelled, the record was not buffered.
        With a transactional id: RuntimeError outside of a transaction.
        """
        opened = self._running()
        if self._outgoing is not None:
            given = ProducerRecord(topic, value, key, partition, headers, timestamp_ms)
            return await self._outgoing.send(given, self._send_prepared)
        sender = opened.sender
        transactor = sender.transactor
        ticket = 0 if transactor is None else transactor.transactions.ticket()
        own_headers = tuple(headers)
        size = checked_record_size(key, value, own_headers)
        if size > self._record_bytes_max:
            raise self._too_large(size)
        known = self._topics.get(topic)
        buffered = self._accumulator.buffered_bytes + size
        if (
            known is None
            or self._owes_turn
            or topic in self._lines
            or buffered > self._buffer_memory
        ):
            known = await self._wait_in_line(opened, topic, size)
        if timestamp_ms is None:
            timestamp_ms = clock.wall_ns() // 1_000_000  # called for every record
        else:
            check_timestamp(timestamp_ms)
        queue: PartitionQueue = self._queue_for(known, topic, partition, key, size)
        if transactor is not None:
            transactor.transactions.admit(ticket, queue.topic_partition)
        record: Any = (timestamp_ms, key, value, own_headers)  # bytes: they are checked
        batch, is_ready = self._accumulator.append(opened.cluster.now_ms(), queue, record, size)
        delivery = Delivery(batch, len(batch.records) - 1, timestamp_ms)
        if is_ready:
            sender.wake()
            self._owes_turn = True
        return delivery

    async def _send_prepared(self, prepared: Prepared) -> Delivery:
        """Buffer a record that `_outgoing` has prepared. Raises as `send` does."""
        opened, topic = self._running(), prepared.record.topic
        sender, fields, size = opened.sender, prepared.fields, prepared.size
        transactor = sender.transactor
        ticket = 0 if transactor is None else transactor.transactions.ticket()
        if size > self._record_bytes_max:
            raise self._too_large(size)
        known = self._topics.get(topic)
        if known is None or self._owes_turn or topic in self._lines or not self._has_room(size):
            known = await self._wait_in_line(opened, topic, size)
        queue = self._queue_for(known, topic, prepared.partition, fields[1], size)
        if transactor is not None:
            transactor.transactions.admit(ticket, queue.topic_partition)
        batch, is_ready = self._accumulator.append(opened.cluster.now_ms(), queue, fields, size)
        if is_ready:
            sender.wake()
            self._owes_turn = True
        return Delivery(batch, len(batch.records) - 1, fields[0])

    async def send_many(
        self,
        topic: str,
        values: Column[ValueT | None],
        keys: Column[KeyT | None] | None = None,
        *,
        partition: int | None = None,
        headers: Column[HeaderPairs | None] | None = None,
        timestamps_ms: Column[int] | None = None,
    ) -> Deliveries:
        """Buffer many records, given as columns of one length, as `send` would one after another.

        A column is an iterable or an Arrow array: of binary; of int64 for `timestamps_ms`; of lists
        of structs of key and value for `headers`, as in `Consumer.poll_batches`. `partition` holds
        for all records. Raises TypeError, ValueError, and KafkaError for a record that is too
        large, before any record is buffered. Waits as `send` does; if the wait for one record
        fails, it and all later ones fail in the Deliveries. If the call is cancelled, an unknown
        number of the first records is buffered. All fields are checked in one go: pass some ten
        thousand records in a call.
        """
        opened = self._running()
        now_ms = clock.wall_ns() // 1_000_000
        if self._outgoing is not None:
            rows = rows_of(values, keys, headers, timestamps_ms, now_ms=now_ms)
            return await self._outgoing.send_rows(topic, partition, rows, self._send_prepared)
        records, sizes = records_of(values, keys, headers, timestamps_ms, now_ms=now_ms)
        transactor = opened.sender.transactor
        ticket = 0 if transactor is None else transactor.transactions.ticket()
        if max(sizes, default=0) > self._record_bytes_max:
            raise self._too_large(max(sizes))
        deliveries = Deliveries()
        for record, size in zip(records, sizes, strict=True):
            known = self._topics.get(topic)
            try:
                if (
                    known is None
                    or self._owes_turn
                    or topic in self._lines
                    or not self._has_room(size)
                ):
                    known = await self._wait_in_line(opened, topic, size)
                queue = self._queue_for(known, topic, partition, record[1], size)
                if transactor is not None:
                    transactor.transactions.admit(ticket, queue.topic_partition)
            except KafkaError as error:
                if not deliveries:
                    raise
                deliveries.fail(error, [one[0] for one in records[len(deliveries) :]])
                break
            batch, is_ready = self._accumulator.append(opened.cluster.now_ms(), queue, record, size)
            deliveries.add(batch, record[0])
            if is_ready:
                opened.sender.wake()
                self._owes_turn = True
        return deliveries

    async def send_and_wait(
        self,
        topic: str,
        value: ValueT | None,
        key: KeyT | None = None,
        **options: Unpack[SendOptions],
    ) -> RecordMetadata:
        """Send a record and wait until it is acknowledged. Raises as `send` and Delivery do."""
        return await (await self.send(topic, value, key, **options))

    async def flush(self) -> None:
        """Send all buffered records now, and wait until each is acknowledged or failed."""
        await self._running().sender.flush()

    @property
    def failed_attempts(self) -> dict[ErrorCode, int]:
        """The number of failed attempts to send a batch, by code, retried or not.

        NETWORK_EXCEPTION: the response was lost. Empty before the start, and after the end.
        """
        return {} if self._opened is None else {**self._opened.sender.failed_attempts}

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions; like `send`, creates the topic if brokers allow it.

        Raises KafkaError after `max_block_ms` without partitions.
        """
        return list(range((await self._look_up(topic)).count))

    # --- transactions ---

    async def init_transactions(self) -> None:
        """Become the producer of `transactional_id`; once, before the first transaction.

        An earlier producer of that id is fenced, and its open transaction is aborted. Raises
        KafkaError; after REQUEST_TIMED_OUT (at `max_block_ms`) it may be called again.
        """
        await self._transactor().initialize()

    def begin_transaction(self) -> None:
        """Begin a transaction: `read_committed` consumers read all of its records, or none.

        Raises RuntimeError while another is open, and KafkaError after a fatal error.
        """
        self._transactor().transactions.begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: GroupMetadata,
    ) -> None:
        """Commit a group's offsets (of the next records to read) if the transaction commits.

        `group_metadata` is `consumer.group_metadata()`: offsets of a member with an old generation
        are refused (KIP-447). Raises KafkaError; after an `abortable` error the transaction must be
        aborted.
        """
        transactor = self._transactor()
        group = checked_group_metadata(group_metadata)
        await transactor.send_offsets(checked_places(offsets), group)

    async def commit_transaction(self) -> None:
        """Send all buffered records, and commit the transaction after their acknowledgement.

        Raises KafkaError. `abortable`: call `abort_transaction`. `fatal`: close the producer.
        REQUEST_TIMED_OUT, after `max_block_ms`: the commit is still in progress; call again, as
        often as needed, to get its outcome. `definite`: the transaction is not committed, and never
        will be.
        """
        await self._transactor().commit()

    async def abort_transaction(self) -> None:
        """Fail the unsent records, and abort the transaction. Then the next may begin.

        Raises KafkaError; after REQUEST_TIMED_OUT it may be called again.
        """
        await self._transactor().abort()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Commit at the end of the block; abort if an exception leaves it.

        `async with producer.transaction(): await producer.send("out", b"...")`. Raises the errors
        of `commit_transaction`; after an abortable error the transaction is aborted first.
        """
        self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException as error:
            await self._transactor().abort_after(error)
            raise

    def _transactor(self) -> Transactor:
        transactor = self._running().sender.transactor
        if transactor is None:
            raise ValueError("transactions need a transactional_id")
        return transactor

    # --- helpers of send ---

    async def _look_up(self, name: str) -> TopicQueues:
        view = await self._running().cluster.topic(name, self.settings.max_block_ms)
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TopicQueues(self.settings.batch_size)
        topic.refresh(view)
        return topic

    def _queue_for(
        self, topic: TopicQueues, name: str, partition: int | Choice | None, key: Any, size: int
    ) -> PartitionQueue:
        if partition is None:
            if key is None:
                partition = topic.sticky_partition(size, random_fraction)
            else:
                partition = partition_for_key(key, topic.count)
        elif type(partition) is not int:  # a Choice; and True would find the queue of 1
            return self._queue(name, topic, partition)
        return topic.queues.get(partition) or self._queue(name, topic, partition)

    def _queue(self, name: str, topic: TopicQueues, partition: int | Choice) -> PartitionQueue:
        if callable(partition):
            return self._queue_for(topic, name, partition(topic), None, 0)
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise TypeError(f"partition is an int or None, not {type(partition).__name__}")
        if not 0 <= partition < topic.count:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = f"{name} has {topic.count} partitions; there is no {partition}"
            raise KafkaError(code, message, definite=True)
        queue = self._accumulator.queue(TopicPartition(name, partition))
        topic.queues[partition] = queue
        return queue

    def _has_room(self, size: int) -> bool:
        return self._accumulator.buffered_bytes + size <= self._buffer_memory

    async def _wait_in_line(self, opened: _Opened, name: str, size: int) -> TopicQueues:
        """Wait for the topic's metadata, for earlier calls for the topic, and for buffer room."""
        limit_s = asyncio.get_running_loop().time() + self.settings.max_block_ms / 1000
        line = self._lines.setdefault(name, deque())
        place = asyncio.Event()  # set: look again
        line.append(place)
        try:
            if self._owes_turn and line[0] is place:
                await asyncio.sleep(0)  # callers must not starve other tasks
            self._owes_turn = False
            topic = self._topics.get(name) or await self._look_up(name)
            while line[0] is not place:
                place.clear()
                await place.wait()
            if not self._has_room(size):
                await self._wait_for_room(opened.sender, place, size, limit_s)
        finally:
            line.remove(place)
            if not line:
                del self._lines[name]
            elif not line[0].is_set():
                for waiting in line:  # all, so that they continue in one turn of the event loop
                    waiting.set()
        if self._opened is not opened:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed", definite=True)
        return topic

    async def _wait_for_room(
        self, sender: Sender, place: asyncio.Event, size: int, limit_s: float
    ) -> None:
        self._accumulator.awaiting_room += 1
        try:
            async with asyncio.timeout_at(limit_s):
                while not self._has_room(size):
                    sender.wake()  # lingering batches are due now
                    place.clear()
                    await place.wait()
        except TimeoutError:
            message = (
                f"the buffer was full for {self.settings.max_block_ms} ms (max_block_ms):"
                f" buffer_memory={self._buffer_memory}"
            )
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=True) from None
        finally:
            self._accumulator.awaiting_room -= 1

    def _too_large(self, size: int) -> KafkaError:
        name = "max_request_size"
        if self.settings.buffer_memory < self.settings.max_request_size:
            name = "buffer_memory"
        limit = getattr(self.settings, name)
        message = f"a record of {size} bytes does not fit {name}={limit}"
        return KafkaError(ErrorCode.MESSAGE_TOO_LARGE, message, definite=True)


def inbox_of(producer: Producer[Any, Any]) -> Inbox | None:
    """Return the inbox for records from other threads, while the producer is open."""
    opened = producer._opened  # noqa: SLF001 - ours
    return None if opened is None else opened.sender.inbox


def outgoing_of(producer: Producer[Any, Any]) -> Outgoing | None:
    """Return the callables of a producer; None if it has none."""
    return producer._outgoing  # noqa: SLF001 - ours


def buffer_of(producer: Producer[Any, Any]) -> Buffer:
    """Return the function that buffers a prepared record."""
    return producer._send_prepared  # noqa: SLF001 - ours


def transactor_of(producer: Producer[Any, Any]) -> Transactor:
    """Return the transactions of a producer. Raises ValueError without a transactional id."""
    return producer._transactor()  # noqa: SLF001 - ours
