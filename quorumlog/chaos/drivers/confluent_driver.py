"""confluent-kafka: librdkafka, by far the most used client outside the JVM."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, Unpack

import confluent_kafka

from quorumlog.chaos.drivers.common import Rebalancing, TopicCreation
from quorumlog.chaos.drivers.confluent_admin import (
    QUIET,
    ConfluentAdmin,
    check_places,
    driver_error,
    error_code,
    translated,
)
from quorumlog.chaos.drivers.driver import (
    AT_ONCE,
    TRANSACTION_TIMEOUT_MS,
    Batching,
    DriverError,
    Membership,
    Record,
    SendFailed,
    SendOptions,
)
from quorumlog.chaos.drivers.security import SecuredDriver
from quorumlog.chaos.drivers.worker import Worker, settled_elsewhere
from quorumlog.chaos.history import UNKNOWN_OFFSET
from quorumlog.client.librdkafka import TOKENS, librdkafka_settings

_DELIVERY_TIMEOUT_MS: Final = 5_000
_POLL_S: Final = 0.1
_POLL_RECORDS_MAX: Final = 500
_END_OFFSETS_TIMEOUT_S: Final = 2.0
_COMMITTED_TIMEOUT_S: Final = 5.0
_TRANSACTION_TIMEOUT_S: Final = 10.0
_REBALANCES: Final = {"assign": "assigned", "revoke": "revoked", "lost": "lost"}
# In KIP-848 they are settings of the group, which the broker sends.
_OF_THE_CLASSIC_PROTOCOL: Final = ("session.timeout.ms", "heartbeat.interval.ms")

_Result = TypeVar("_Result")
# By default librdkafka waits for a response for 60 s (in transactions for their timeout less 0.1 s)
# before it looks for another coordinator: a paused node would silence its clients for that long.
_IMPATIENT: Final[dict[str, Any]] = {**QUIET, "socket.timeout.ms": 2_000}
_READING: Final[dict[str, Any]] = {
    **_IMPATIENT,
    "check.crcs": True,
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 20,
}


class _Producer:
    """A `driver.DriverProducer`; a thread of its own serves its delivery reports."""

    def __init__(
        self,
        place: Mapping[str, Any],
        client_id: str,
        batching: Batching,
        settings: Mapping[str, Any] = MappingProxyType({}),
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._producer = confluent_kafka.Producer(
            {
                **_IMPATIENT,
                **place,
                "client.id": client_id,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": max(1, batching.linger_ms),
                "compression.type": batching.compression,
                "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "request.timeout.ms": 2_000,
                "retry.backoff.ms": 20,
                **settings,
            }
        )
        self._closing, self._has_ended = threading.Event(), asyncio.Event()
        self._miscounted: dict[tuple[object, ...], int] = {}  # the next wrong offset, by partition
        threading.Thread(target=self._serve, name=client_id, daemon=True).start()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._producer.poll(_POLL_S)
            except confluent_kafka.KafkaException:  # it is fenced; its next call raises
                self._closing.wait(_POLL_S)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._has_ended.set)

    async def send(
        self, topic: str, partition: int, value: bytes, **options: Unpack[SendOptions]
    ) -> asyncio.Future[int]:
        done, settle = settled_elsewhere()

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                settle(self._offset_of(message), None)
            else:
                # A report does not include whether an earlier attempt was written to a socket.
                reason = f"{error_code(error)}: {error.str()}"
                settle(None, SendFailed(reason, definite=False))

        timestamp_ms, headers = options.get("timestamp_ms"), options.get("headers")
        optional: dict[str, Any] = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        if headers:
            optional["headers"] = [*headers]
        try:
            self._producer.produce(
                topic,
                value,
                options.get("key"),
                partition=partition,
                on_delivery=delivered,
                **optional,
            )
        except (BufferError, confluent_kafka.KafkaException) as error:  # it was not queued
            raise SendFailed(str(driver_error(error)), definite=True) from error
        return done

    def _offset_of(self, message: confluent_kafka.Message) -> int:
        """Return the acknowledged offset, or UNKNOWN_OFFSET if the response had none.

        The library (2.16) then counts from -1, which it reports as None: the second record of the
        batch gets offset 0. Offset 0 has been taken by then: the response is for a repeated batch.
        """
        place, offset = (message.topic(), message.partition()), message.offset()
        if offset is not None and self._miscounted.get(place) != offset:
            self._miscounted.pop(place, None)
            return offset
        self._miscounted[place] = 0 if offset is None else offset + 1
        return UNKNOWN_OFFSET

    async def close(self) -> None:
        self._closing.set()
        await self._has_ended.wait()
        self._producer.purge()


class _Transactions(_Producer):
    """A `driver.TransactionalProducer`. The calls of the library block, so a thread serves them."""

    def __init__(
        self,
        place: Mapping[str, Any],
        client_id: str,
        transactional_id: str,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        settings = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        super().__init__(place, client_id, AT_ONCE, settings, loop=loop)
        self._worker = Worker(f"transactions of {client_id}")

    async def initialize(self) -> None:
        """Fence the predecessors. Raises DriverError."""
        await self._call(lambda: self._producer.init_transactions(_TRANSACTION_TIMEOUT_S))

    async def begin(self) -> None:
        await self._call(self._producer.begin_transaction)

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        places = _places(topic, offsets)

        def send() -> None:
            nameless = confluent_kafka.Consumer({"group.id": group_id})  # it connects to no broker
            try:
                group = nameless.consumer_group_metadata()
                self._producer.send_offsets_to_transaction(places, group, _TRANSACTION_TIMEOUT_S)
            finally:
                nameless.close()

        await self._call(send)

    async def commit(self) -> None:
        """Commit. Raises DriverError.

        The library does not report whether it sent the commit. After a failed commit, a successful
        abort proves that the transaction is not committed.
        """

        def commit() -> None:
            try:
                self._producer.commit_transaction(_TRANSACTION_TIMEOUT_S)
            except confluent_kafka.KafkaException as error:
                told = driver_error(error)
                if not _must_abort(error):
                    raise told from error
                with contextlib.suppress(confluent_kafka.KafkaException):
                    self._producer.abort_transaction(_TRANSACTION_TIMEOUT_S)
                    raise DriverError(told.code, str(error), definite=True) from error
                raise told from error

        await self._worker.call(commit)

    async def abort(self) -> None:
        await self._call(lambda: self._producer.abort_transaction(_TRANSACTION_TIMEOUT_S))

    async def _call(self, work: Callable[[], Any]) -> None:
        with translated():
            await self._worker.call(work)

    async def close(self) -> None:
        """Release all resources; the broker aborts an open transaction after its timeout."""
        self._worker.close()
        await super().close()


def _must_abort(error: confluent_kafka.KafkaException) -> bool:
    cause = error.args[0] if error.args else None
    return isinstance(cause, confluent_kafka.KafkaError) and cause.txn_requires_abort()


class _Polling:
    """A consumer of the library in its thread.

    It and its subclasses have the methods of the protocols in `driver`, documented there.
    """

    def __init__(
        self, place: Mapping[str, Any], client_id: str, settings: Mapping[str, Any]
    ) -> None:
        own = {**place, "client.id": client_id}
        self._worker: Final = Worker(client_id)
        self._consumer: Final = confluent_kafka.Consumer({**_READING, **own, **settings})
        self._errors: list[confluent_kafka.KafkaError] = []

    async def _call(self, work: Callable[[], _Result]) -> _Result:
        with translated():
            return await self._worker.call(work)

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Poll; an error beside records is raised by the next poll."""
        return await self._call(lambda: self._poll(timeout_ms / 1000))

    def _poll(self, timeout_s: float) -> list[Record]:
        if not self._errors:
            first = self._consumer.poll(timeout_s)
            if first is None:
                return []
            polled = [first, *self._consumer.consume(_POLL_RECORDS_MAX, timeout=0)]
            self._errors = [error for message in polled if (error := message.error()) is not None]
            records = [_record(message) for message in polled if message.error() is None]
            if records or not self._errors:
                return records
        error, *self._errors = self._errors
        raise DriverError(error_code(error), error.str())

    async def close(self) -> None:
        await self._call(self._consumer.close)
        self._worker.close()


def _record(message: confluent_kafka.Message) -> Record:
    _, timestamp_ms = message.timestamp()
    partition, offset = message.partition(), message.offset()
    key = message.key()
    return Record(
        message.topic() or "",
        -1 if partition is None else partition,
        -1 if offset is None else offset,
        _bytes(message.value()),
        None if key is None else _bytes(key),
        tuple(message.headers() or ()),  # type: ignore[arg-type]  # of a record: a list of pairs
        timestamp_ms,
    )


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


class _Consumer(_Polling):
    def __init__(
        self,
        place: Mapping[str, Any],
        client_id: str,
        group_id: str = "",
        isolation: str = "read_uncommitted",
    ) -> None:
        settings = {
            "group.id": group_id or f"unused-{client_id}",  # the library requires a name
            "auto.offset.reset": "error",  # a reset would hide a gap
            "isolation.level": isolation,
        }
        super().__init__(place, client_id, settings)

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        await self.seek(topic, dict.fromkeys(partitions, confluent_kafka.OFFSET_BEGINNING))

    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Seek by a new assignment: the library cannot seek before it has begun to read."""
        places = _places(topic, offsets)
        await self._call(lambda: self._consumer.assign(places))

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        def ask() -> dict[int, int]:
            ends = {}
            for partition in partitions:
                asked = confluent_kafka.TopicPartition(topic, partition)
                found = self._consumer.get_watermark_offsets(asked, timeout=_END_OFFSETS_TIMEOUT_S)
                if found is None:
                    raise DriverError("_TIMED_OUT", f"no end of {topic}-{partition}")
                ends[partition] = found[1]
            return ends

        return await self._call(ask)


class _Committed(_Polling):
    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        wanted = [confluent_kafka.TopicPartition(topic, partition) for partition in partitions]
        found = await self._call(
            lambda: self._consumer.committed(wanted, timeout=_COMMITTED_TIMEOUT_S)
        )
        check_places(found)
        return {one.partition: one.offset for one in found if one.offset >= 0}


class _Reader(_Committed, _Consumer):
    pass


class _Member(Rebalancing, _Committed):
    def __init__(self, place: Mapping[str, Any], client_id: str, membership: Membership) -> None:
        settings: dict[str, Any] = {
            "group.id": membership.group_id,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": membership.session_timeout_ms,
            "heartbeat.interval.ms": membership.session_timeout_ms // 10,
            # The library refuses an interval shorter than a session.
            "max.poll.interval.ms": max(
                membership.max_poll_interval_ms, membership.session_timeout_ms
            ),
        }
        if membership.protocol == "consumer":
            for name in _OF_THE_CLASSIC_PROTOCOL:
                del settings[name]
            settings["group.protocol"] = "consumer"
        if membership.instance_id is not None:
            settings["group.instance.id"] = membership.instance_id
        super().__init__(place, client_id, settings)

    async def subscribe(self, topic: str) -> None:
        noting = {f"on_{event}": self._noting(change) for event, change in _REBALANCES.items()}
        await self._call(lambda: self._consumer.subscribe([topic], **noting))

    def _noting(self, change: str) -> Callable[[Any, Sequence[Any]], None]:
        return lambda _, partitions: self._note(change, partitions)

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = _places(topic, offsets)
        answered = await self._call(
            lambda: self._consumer.commit(offsets=wanted, asynchronous=False)
        )
        check_places(answered or ())


def _places(topic: str, offsets: Mapping[int, int]) -> list[confluent_kafka.TopicPartition]:
    return [
        confluent_kafka.TopicPartition(topic, partition, offset)
        for partition, offset in offsets.items()
    ]


class ConfluentDriver(SecuredDriver, TopicCreation):
    """confluent-kafka."""

    capabilities: Final = frozenset(
        {"groups", "offsets", "max-timestamp", "topics", "transactions", "consumer-protocol"}
    )
    bootstrap_name = "bootstrap.servers"
    options_of = staticmethod(librdkafka_settings)

    async def _made(
        self, kind: Callable[..., _Result], bootstrap: str, *arguments: Any, **options: Any
    ) -> _Result:
        """Return a client. With a source of tokens the library waits in the constructor for one."""
        make = partial(kind, self._at(bootstrap), *arguments, **options)
        return await asyncio.to_thread(make) if TOKENS in self.protection else make()

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> _Producer:
        """Make a producer."""
        loop = asyncio.get_running_loop()
        return await self._made(_Producer, bootstrap, client_id, batching, loop=loop)

    async def consumer(self, bootstrap: str, client_id: str) -> _Consumer:
        """Make a consumer."""
        return await self._made(_Consumer, bootstrap, client_id)

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> _Transactions:
        """Make the producer of an id. Raises DriverError if its predecessors are not fenced."""
        loop = asyncio.get_running_loop()
        producer = await self._made(
            _Transactions, bootstrap, client_id, transactional_id, loop=loop
        )
        try:
            await producer.initialize()
        except BaseException:  # the caller may have been cancelled
            await producer.close()
            raise
        return producer

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> _Reader:
        """Make a read_committed reader."""
        return await self._made(_Reader, bootstrap, client_id, group_id, "read_committed")

    async def member(self, bootstrap: str, client_id: str, membership: Membership) -> _Member:
        """Make a consumer that can join a group."""
        return await self._made(_Member, bootstrap, client_id, membership)

    async def admin(self, bootstrap: str, client_id: str) -> ConfluentAdmin:
        """Make an administrator, which looks up offsets, too."""
        return await self._made(ConfluentAdmin, bootstrap, client_id)

    offsets = admin


DRIVER: Final = ConfluentDriver()
