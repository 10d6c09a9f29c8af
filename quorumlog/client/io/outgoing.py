"""The user's callables between `send` and a batch: interceptors, serializers, the partitioner.

A producer without them has no Outgoing, and its `send` makes no call for them.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from quorumlog import clock
from quorumlog.client.core.batch import check_timestamp, checked_record_size
from quorumlog.client.core.record_columns import RecordFields
from quorumlog.client.core.topic_queues import TopicQueues
from quorumlog.client.errors import CallableError, KafkaError
from quorumlog.client.interceptors import AnyProducerRecord, ProducerInterceptor
from quorumlog.client.io.delivery import Deliveries, Delivery, Outcome
from quorumlog.client.io.interception import Interception, is_record, overridden
from quorumlog.client.records import Headers, ProducerRecord
from quorumlog.client.settings import Partitioner, ProducerSettings, Serializer

Choice = Callable[[TopicQueues], int]
"""Chooses the partition, once the topic's metadata is there. Raises CallableError."""


class Prepared(NamedTuple):
    """A serialized record. `record`: as the interceptors have returned it."""

    record: AnyProducerRecord
    partition: int | Choice | None
    fields: RecordFields
    size: int


Buffer = Callable[[Prepared], Awaitable[Delivery]]
"""Buffers a record: `Producer.send_prepared`."""


class Outgoing:
    """The callables of one producer. Threads may share it."""

    def __init__(self, settings: ProducerSettings) -> None:
        interceptors = settings.interceptors
        self._interception: Final = Interception(settings.client_id)
        self._on_send: Final = overridden(interceptors, "on_send", ProducerInterceptor)
        self._on_acknowledgement: Final = overridden(
            interceptors, "on_acknowledgement", ProducerInterceptor
        )
        self._key_serializer: Final = settings.key_serializer
        self._value_serializer: Final = settings.value_serializer
        self._partitioner: Final = settings.partitioner

    # --- sending ---

    async def send(self, record: AnyProducerRecord, buffer: Buffer) -> Delivery:
        """Prepare a record, and buffer it. Raises as `prepare` and `buffer`."""
        return await self.send_prepared(self.prepare(record), buffer)

    async def send_prepared(self, prepared: Prepared, buffer: Buffer) -> Delivery:
        """Buffer a prepared record; the interceptors receive its outcome."""
        try:
            delivery = await buffer(prepared)
        except BaseException as error:
            self.refuse(prepared.record, error)
            raise
        if self._on_acknowledgement:
            delivery.call_when_done(partial(self.acknowledge, prepared.record, delivery))
        return delivery

    async def send_rows(
        self,
        topic: str,
        partition: int | None,
        rows: Iterable[tuple[int, Any, Any, Headers]],
        buffer: Buffer,
    ) -> Deliveries:
        """Prepare all records, then buffer them. `rows`: timestamp_ms, key, value, headers.

        If one cannot be buffered, it and all later records fail in the Deliveries.
        """
        prepared: list[Prepared] = []
        with self._reporting_all(prepared):
            for timestamp_ms, key, value, headers in rows:
                record = ProducerRecord(topic, value, key, partition, headers, timestamp_ms)
                prepared.append(self.prepare(record))
        deliveries = Deliveries()
        left = deque(prepared)
        try:
            with self._reporting_all(left):
                while left:
                    deliveries.follow(await self.send_prepared(left.popleft(), buffer))
        except KafkaError as error:
            if not deliveries:
                raise
            deliveries.fail(error, [one.fields[0] for one in prepared[len(deliveries) :]])
        return deliveries

    def prepare(self, record: AnyProducerRecord) -> Prepared:
        """Intercept and serialize a record.

        Raises CallableError, and TypeError or ValueError for an illegal field.
        """
        if self._on_send:
            record = self._interception.chain(self._on_send, record, is_record)
        try:
            key = _serialized("key_serializer", self._key_serializer, record.key)
            value = _serialized("value_serializer", self._value_serializer, record.value)
            headers = tuple(record.headers)
            size = checked_record_size(key, value, headers)
            timestamp_ms = record.timestamp_ms
            if timestamp_ms is None:
                timestamp_ms = clock.wall_ns() // 1_000_000
            check_timestamp(timestamp_ms)
        except BaseException as error:
            self.refuse(record, error)
            raise
        partition: int | Choice | None = record.partition
        if partition is None and self._partitioner is not None:
            partition = partial(_chosen, self._partitioner, key, record.topic)
        return Prepared(record, partition, (timestamp_ms, key, value, headers), size)

    # --- outcomes ---

    @property
    def acknowledges(self) -> bool:
        """True if an interceptor receives the outcomes of records."""
        return bool(self._on_acknowledgement)

    def acknowledge(self, record: AnyProducerRecord, outcome: Outcome) -> None:
        """Let the interceptors handle the outcome of a record that is done."""
        error = outcome.exception()
        metadata = outcome.metadata() if error is None else None
        self._interception.notify(self._on_acknowledgement, record, metadata, error)

    def refuse(self, record: AnyProducerRecord, error: BaseException) -> None:
        """Let the interceptors handle the error of a record that is not buffered."""
        self._interception.notify(self._on_acknowledgement, record, None, error)

    @contextmanager
    def _reporting_all(self, prepared: Iterable[Prepared]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            for one in prepared:
                self.refuse(one.record, error)
            raise


def make_outgoing(settings: ProducerSettings) -> Outgoing | None:
    """Return the callables of these settings; None if there are none."""
    callables = (settings.key_serializer, settings.value_serializer, settings.partitioner)
    has_any = bool(settings.interceptors) or any(one is not None for one in callables)
    return Outgoing(settings) if has_any else None


def _serialized(setting: str, serializer: Serializer | None, given: Any) -> Any:
    """Return the bytes; None stays None, so that a tombstone stays a tombstone."""
    if serializer is None or given is None:
        return given
    try:
        data: object = serializer(given)
    except Exception as error:
        raise CallableError(setting, f"raised {error!r}; the record is not sent") from error
    if data is not None and not isinstance(data, bytes):
        returned = f"returned {type(data).__name__}, not bytes or None; the record is not sent"
        raise CallableError(setting, returned)
    return data


def _chosen(partitioner: Partitioner, key: bytes | None, name: str, topic: TopicQueues) -> int:
    """Return the partition that the user's function chooses. Raises CallableError."""
    count = topic.count
    try:
        partition: object = partitioner(key, range(count), topic.candidates)
    except Exception as error:
        raise CallableError("partitioner", f"raised {error!r}; the record is not sent") from error
    if isinstance(partition, int) and not isinstance(partition, bool) and 0 <= partition < count:
        return partition
    message = f"returned {partition!r}, not a partition of {name}, 0 to {count - 1}"
    raise CallableError("partitioner", f"{message}; the record is not sent")
