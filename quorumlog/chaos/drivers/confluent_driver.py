"""confluent-kafka: librdkafka, by far the most used client outside the JVM."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import confluent_kafka

from quorumlog.chaos.drivers.confluent_admin import ConfluentAdmin
from quorumlog.chaos.drivers.confluent_errors import QUIET, driver_error, error_code, translated
from quorumlog.chaos.drivers.confluent_transactions import Committed, Transactions
from quorumlog.chaos.drivers.driver import (
    AT_ONCE,
    NO_GENERATION,
    TRANSACTION_TIMEOUT_MS,
    Batching,
    DriverError,
    Headers,
    Membership,
    Rebalance,
    Record,
    SendFailed,
)
from quorumlog.chaos.drivers.worker import Worker

_DELIVERY_TIMEOUT_MS: Final = 5_000
_POLL_S: Final = 0.1
_POLL_RECORDS_MAX: Final = 500
_END_OFFSETS_TIMEOUT_S: Final = 2.0
# In KIP-848 they are settings of the group, which the broker sends.
_OF_THE_CLASSIC_PROTOCOL: Final = ("session.timeout.ms", "heartbeat.interval.ms")

_READING: Final[dict[str, Any]] = {
    **QUIET,
    "check.crcs": True,
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 20,
}


class ConfluentProducer:
    """A producer; a thread of its own serves its delivery reports."""

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        batching: Batching,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer = confluent_kafka.Producer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
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
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[int]:
        """Queue a record; its future returns the acknowledged offset. Raises SendFailed."""
        done: asyncio.Future[int] = self._loop.create_future()

        def delivered(error: Any, message: Any) -> None:
            def settle() -> None:
                if done.done():
                    return
                if error is None:
                    done.set_result(message.offset())
                else:
                    # A report does not include whether an earlier attempt was written to a socket.
                    reason = f"{error_code(error)}: {error.str()}"
                    done.set_exception(SendFailed(reason, definite=False))

            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is waiting
                self._loop.call_soon_threadsafe(settle)

        optional: dict[str, Any] = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        if headers:
            optional["headers"] = [*headers]
        try:
            self._producer.produce(
                topic, value, key, partition=partition, on_delivery=delivered, **optional
            )
        except (BufferError, confluent_kafka.KafkaException) as error:  # it was not queued
            raise SendFailed(str(driver_error(error)), definite=True) from error
        return done

    async def close(self) -> None:
        """Discard the records in flight and release all resources."""
        self._closing.set()
        await self._has_ended.wait()
        self._producer.purge()


class _Polling:
    """Polls a consumer in its thread. An error beside records is raised by the next poll."""

    def __init__(self, settings: Mapping[str, Any], client_id: str) -> None:
        self.worker: Final = Worker(client_id)
        self.consumer: Final = confluent_kafka.Consumer({**_READING, **settings})
        self._errors: list[confluent_kafka.KafkaError] = []

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return the records that arrived, in order per partition. Raises DriverError."""
        return await self.worker.call(lambda: self._poll(timeout_ms / 1000))

    def _poll(self, timeout_s: float) -> list[Record]:
        if not self._errors:
            with translated():
                first = self.consumer.poll(timeout_s)
                if first is None:
                    return []
                polled = [first, *self.consumer.consume(_POLL_RECORDS_MAX, timeout=0)]
            self._errors = [error for message in polled if (error := message.error()) is not None]
            records = [_record(message) for message in polled if message.error() is None]
            if records or not self._errors:
                return records
        error, *self._errors = self._errors
        raise DriverError(error_code(error), error.str())

    async def close(self) -> None:
        """Release all resources; a member leaves its group."""
        await self.worker.call(self.consumer.close)
        self.worker.close()


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


class ConfluentConsumer:
    """A consumer of assigned partitions."""

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        group_id: str = "",
        isolation: str = "read_uncommitted",
    ) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "group.id": group_id or f"unused-{client_id}",  # the library requires a name
            "auto.offset.reset": "error",  # a reset would hide a gap
            "isolation.level": isolation,
        }
        self._polling = _Polling(settings, client_id)

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Assign these partitions, from their beginning."""
        wanted = [
            confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)
            for partition in partitions
        ]
        await self._polling.worker.call(lambda: self._polling.consumer.assign(wanted))

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return the records that arrived, in order per partition. Raises DriverError."""
        return await self._polling.poll(timeout_ms)

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises DriverError."""

        def ask() -> dict[int, int]:
            ends = {}
            for partition in partitions:
                asked = confluent_kafka.TopicPartition(topic, partition)
                found = self._polling.consumer.get_watermark_offsets(
                    asked, timeout=_END_OFFSETS_TIMEOUT_S
                )
                if found is None:
                    raise DriverError("_TIMED_OUT", f"no end of {topic}-{partition}")
                ends[partition] = found[1]
            return ends

        with translated():
            return await self._polling.worker.call(ask)

    async def close(self) -> None:
        """Release all resources."""
        await self._polling.close()


class ConfluentTransactions(Transactions, ConfluentProducer):
    """The producer of a transactional id."""

    def __init__(self, bootstrap: str, client_id: str, transactional_id: str) -> None:
        settings = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        super().__init__(bootstrap, client_id, AT_ONCE, settings)
        self._worker = Worker(f"transactions of {client_id}")


class ConfluentReader(Committed, ConfluentConsumer):
    """A consumer of assigned partitions with isolation level read_committed."""

    def __init__(self, bootstrap: str, client_id: str, group_id: str) -> None:
        super().__init__(bootstrap, client_id, group_id, "read_committed")
        self._worker = self._polling.worker
        self._consumer = self._polling.consumer


class ConfluentMember(Committed):
    """A consumer in a group. The library does not report its generation."""

    def __init__(self, bootstrap: str, client_id: str, membership: Membership) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
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
        self._polling = _Polling(settings, client_id)
        self._worker, self._consumer = self._polling.worker, self._polling.consumer
        self._changes: list[Rebalance] = []

    async def subscribe(self, topic: str) -> None:
        """Join the group, from the next polls on."""
        await self._polling.worker.call(
            lambda: self._polling.consumer.subscribe(
                [topic],
                on_assign=self._noting("assigned"),
                on_revoke=self._noting("revoked"),
                on_lost=self._noting("lost"),
            )
        )

    def _noting(self, change: str) -> Callable[[Any, Sequence[Any]], None]:
        def note(_: Any, partitions: Sequence[Any]) -> None:
            indexes = tuple(sorted(one.partition for one in partitions))
            self._changes.append(Rebalance(change, indexes, NO_GENERATION))

        return note

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return new records of the partitions owned now. Raises DriverError."""
        return await self._polling.poll(timeout_ms)

    def rebalances(self) -> list[Rebalance]:
        """Return the rebalances since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def generation(self) -> int:
        """Return NO_GENERATION: the library does not report the generation."""
        return NO_GENERATION

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition. Raises DriverError."""
        wanted = [
            confluent_kafka.TopicPartition(topic, partition, offset)
            for partition, offset in offsets.items()
        ]

        def commit() -> Sequence[Any]:
            return self._polling.consumer.commit(offsets=wanted, asynchronous=False) or ()

        with translated():
            answered = await self._polling.worker.call(commit)
        for one in answered:
            if one.error is not None:
                raise DriverError(error_code(one.error), one.error.str())

    async def close(self) -> None:
        """Leave the group (a static member stays in it), and release all resources."""
        await self._polling.close()


class ConfluentDriver:
    """confluent-kafka."""

    capabilities: Final = frozenset(
        {"groups", "offsets", "max-timestamp", "topics", "transactions", "consumer-protocol"}
    )

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> ConfluentProducer:
        """Make a producer."""
        return ConfluentProducer(bootstrap, client_id, batching)

    async def consumer(self, bootstrap: str, client_id: str) -> ConfluentConsumer:
        """Make a consumer."""
        return ConfluentConsumer(bootstrap, client_id)

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> ConfluentTransactions:
        """Make the producer of an id. Raises DriverError if its predecessors are not fenced."""
        producer = ConfluentTransactions(bootstrap, client_id, transactional_id)
        try:
            await producer.initialize()
        except BaseException:  # the caller may have been cancelled
            await producer.close()
            raise
        return producer

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> ConfluentReader:
        """Make a read_committed reader."""
        return ConfluentReader(bootstrap, client_id, group_id)

    async def member(
        self, bootstrap: str, client_id: str, membership: Membership
    ) -> ConfluentMember:
        """Make a consumer that can join a group."""
        return ConfluentMember(bootstrap, client_id, membership)

    async def offsets(self, bootstrap: str, client_id: str) -> ConfluentAdmin:
        """Make a client that looks up offsets."""
        return ConfluentAdmin(bootstrap, client_id)

    async def admin(self, bootstrap: str, client_id: str) -> ConfluentAdmin:
        """Make an administrator."""
        return ConfluentAdmin(bootstrap, client_id)

    async def create_topic(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic and return when its metadata is committed. Raises DriverError."""
        admin = ConfluentAdmin(bootstrap, "creator")
        try:
            await admin.create(
                topic, partitions=partitions, replication_factor=replication_factor, config=config
            )
        finally:
            await admin.close()


DRIVER: Final = ConfluentDriver()
