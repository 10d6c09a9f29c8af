"""The producer without an event loop."""

from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Generic, TypeVar, Unpack, overload

from quorumlog import clock
from quorumlog.client.core.batch import Batch, check_timestamp, checked_record_size
from quorumlog.client.core.record_columns import Column
from quorumlog.client.io.delivery import Deliveries, Outcome, wait_until_done
from quorumlog.client.io.inbox import PENDING, Inbox
from quorumlog.client.io.outgoing import Outgoing
from quorumlog.client.producer import ManyOptions, Producer, buffer_of, inbox_of, outgoing_of
from quorumlog.client.records import KeyT, ProducerRecord, RecordMetadata, ValueT
from quorumlog.client.settings import BootstrapServers, ProducerOptions, with_servers
from quorumlog.client.sync.blocking_client import Blocking, blocking, on_loop
from quorumlog.client.sync.loop_thread import CLOSED, LoopThread

Result = TypeVar("Result")


class SyncDelivery(Outcome):
    """The future of one record of a SyncProducer."""

    __slots__ = ("_inbox", "_loop")

    def __init__(self, timestamp_ms: int, loop: LoopThread, inbox: Inbox | None) -> None:
        super().__init__(PENDING, -1, timestamp_ms)
        self._loop: Final = loop
        self._inbox: Final = inbox

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait until the record is acknowledged. Raises KafkaError, or TimeoutError."""
        if not self.done():
            self._loop.run(self._wait(), timeout_s)
        return self.metadata()

    async def _wait(self) -> None:
        if self._inbox is not None:
            self._inbox.admit_all()
        await wait_until_done(self._batch)


class _NotedDelivery(SyncDelivery):
    """A delivery whose outcome interceptors receive."""

    __slots__ = ("_outgoing", "_record")

    def __init__(
        self,
        timestamp_ms: int,
        loop: LoopThread,
        inbox: Inbox,
        outgoing: Outgoing,
        record: ProducerRecord[Any, Any],
    ) -> None:
        super().__init__(timestamp_ms, loop, inbox)
        self._outgoing: Final = outgoing
        self._record: Final = record

    def place(self, batch: Batch, index: int) -> None:
        """Set the record's batch: on the loop, or at the end of the producer."""
        super().place(batch, index)
        self.call_when_done(partial(self._outgoing.acknowledge, self._record, self))


class SyncDeliveries(Sequence[SyncDelivery]):
    """The outcomes of the records of one `send_many`, in their order."""

    def __init__(self, deliveries: Deliveries, loop: LoopThread, inbox: Inbox | None) -> None:
        self._deliveries: Final = deliveries
        self._loop: Final = loop
        self._inbox: Final = inbox

    def __len__(self) -> int:
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> SyncDelivery: ...

    @overload
    def __getitem__(self, index: slice) -> list[SyncDelivery]: ...

    def __getitem__(self, index: int | slice) -> SyncDelivery | list[SyncDelivery]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        delivery = SyncDelivery(self._deliveries.timestamp_ms(index), self._loop, self._inbox)
        delivery.follow(self._deliveries[index])
        return delivery

    def done(self) -> bool:
        """Return whether every record is acknowledged or failed: `result` does not block then."""
        return self._deliveries.done()

    def result(self, timeout_s: float | None = None) -> None:
        """Wait until all are acknowledged. Raises a record's first KafkaError, or TimeoutError."""
        if not self.done():
            self._loop.run(self._deliveries.wait(), timeout_s)
        self._deliveries.raise_error()


class SyncProducer(Blocking[Producer[Any, Any]], Generic[KeyT, ValueT]):
    """Producer without an event loop: `with SyncProducer("host:port") as producer: ...`.

    Serializers and `on_send` of interceptors run in the thread that calls `send`. Those of
    `send_many`, and `on_acknowledgement`, run on the event loop that all blocking clients share.
    """

    _holds_records = True
    _inbox: Inbox | None = None  # until the producer is open
    _bytes_inbox: Inbox | None = (
        None  # of a producer without serializers, partitioner, interceptors
    )

    @with_servers
    def __init__(
        self, bootstrap_servers: BootstrapServers, **options: Unpack[ProducerOptions]
    ) -> None:
        producer: Producer[Any, Any] = Producer(bootstrap_servers, **options)
        super().__init__(producer)
        self._outgoing: Final = outgoing_of(producer)
        self._inbox = inbox_of(producer)
        self._bytes_inbox = self._inbox if self._outgoing is None else None

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._inbox is not None:
            self._inbox.admit_soon()  # the records of earlier calls of `send`
        return super()._run(work)

    def send(
        self,
        topic: str,
        value: ValueT | None,
        key: KeyT | None = None,
        *,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> SyncDelivery:
        """Buffer a record; `result()` of the delivery waits until it is acknowledged.

        Blocks and raises as `Producer.send` does. Threads may share the producer: the records of
        each thread keep their order.
        """
        inbox = self._bytes_inbox
        if inbox is None:
            record = ProducerRecord(topic, value, key, partition, headers, timestamp_ms)
            return self._send_prepared(self._outgoing, record)
        own_headers = tuple(headers)
        size = checked_record_size(key, value, own_headers)
        if timestamp_ms is None:
            timestamp_ms = clock.wall_ns() // 1_000_000
        else:
            check_timestamp(timestamp_ms)
        delivery = SyncDelivery(timestamp_ms, self._loop, inbox)
        if self._is_open and self._loop.may_be_called():
            fields: Any = (timestamp_ms, key, value, own_headers)  # bytes: they are checked
            if inbox.put(topic, partition, fields, size, delivery):
                return delivery
        call = self._client.send(
            topic, value, key, partition=partition, headers=own_headers, timestamp_ms=timestamp_ms
        )
        delivery.follow(self._run(call))
        return delivery

    def _send_prepared(
        self, outgoing: Outgoing | None, record: ProducerRecord[Any, Any]
    ) -> SyncDelivery:
        """Prepare a record in this thread, then buffer it."""
        if outgoing is None:
            raise RuntimeError(CLOSED)  # a signal handler calls before the producer is open
        prepared, inbox = outgoing.prepare(record), self._inbox
        record, partition, fields, size = prepared
        delivery = SyncDelivery(fields[0], self._loop, inbox)
        if inbox is not None and self._is_open and self._loop.may_be_called():
            noted = delivery
            if outgoing.acknowledges:
                noted = _NotedDelivery(fields[0], self._loop, inbox, outgoing, record)
            try:
                if callable(partition) and (known := inbox.topic(record.topic)) is not None:
                    partition = partition(known)
                is_in = not callable(partition) and inbox.put(
                    record.topic, partition, fields, size, noted
                )
            except Exception as error:
                outgoing.refuse(record, error)
                raise
            if is_in:
                return noted
        call = outgoing.send_prepared(
            prepared._replace(partition=partition), buffer_of(self._client)
        )
        delivery.follow(self._run(call))
        return delivery

    def send_many(
        self,
        topic: str,
        values: Column[ValueT | None],
        keys: Column[KeyT | None] | None = None,
        **options: Unpack[ManyOptions],
    ) -> "SyncDeliveries":
        """Buffer many records as `Producer.send_many` does: the fastest way to send."""
        call = self._client.send_many(topic, values, keys, **options)
        return SyncDeliveries(self._run(call), self._loop, self._inbox)

    send_and_wait = blocking(Producer.send_and_wait)
    flush = blocking(Producer.flush)
    partitions_for = blocking(Producer.partitions_for)

    init_transactions = blocking(Producer.init_transactions)
    begin_transaction = on_loop(Producer.begin_transaction)
    send_offsets_to_transaction = blocking(Producer.send_offsets_to_transaction)
    commit_transaction = blocking(Producer.commit_transaction)
    abort_transaction = blocking(Producer.abort_transaction)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end of the block; abort if an exception leaves it."""
        earlier = self._run(_transactions(self._client))
        try:
            self.begin_transaction()
            yield
            self.commit_transaction()
        except BaseException as error:
            if self._is_open:  # else closing has aborted the transaction
                self._run(_abort_after(self._client, error, earlier))
            raise


async def _transactions(producer: Producer[Any, Any]) -> int:
    return producer._transactor().transactions.number  # noqa: SLF001 - ours


async def _abort_after(producer: Producer[Any, Any], error: BaseException, earlier: int) -> None:
    """Abort an open transaction after `error`, if its number is above `earlier`."""
    transactor = producer._transactor()  # noqa: SLF001 - ours
    if transactor.transactions.number > earlier:
        await transactor.abort_after(error)
