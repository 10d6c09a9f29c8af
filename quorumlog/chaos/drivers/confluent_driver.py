"""confluent-kafka: librdkafka, by far the most used client outside the JVM."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from quorumlog.chaos.drivers.driver import Record, SendFailed

_Result = TypeVar("_Result")

_DELIVERY_TIMEOUT_MS: Final = 5_000
_POLL_S: Final = 0.1
_POLL_RECORDS_MAX: Final = 500
_END_OFFSETS_TIMEOUT_S: Final = 2.0
_CREATE_TIMEOUT_S: Final = 30.0

_QUIET: Final[dict[str, Any]] = {
    "log_level": 0,  # lost connections are what a chaos run is about
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.connection.setup.timeout.ms": 2_000,
}


class _Worker:
    """One thread per client: the library's calls block, and one client is used by one caller."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def call(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False)


class ConfluentProducer:
    """A producer; a thread of its own serves its delivery reports."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer = confluent_kafka.Producer(
            {
                **_QUIET,
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "delivery.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "request.timeout.ms": 2_000,
                "retry.backoff.ms": 20,
            }
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=client_id, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(_POLL_S)

    async def send(self, topic: str, partition: int, value: bytes) -> asyncio.Future[int]:
        """Put a record in line; its future gives the acknowledged offset. Raises SendFailed."""
        done: asyncio.Future[int] = self._loop.create_future()

        def delivered(error: Any, message: Any) -> None:
            def settle() -> None:
                if done.done():
                    return
                if error is None:
                    done.set_result(message.offset())
                else:
                    # A report does not say whether an earlier attempt was written to a socket.
                    done.set_exception(SendFailed(str(error), definite=False))

            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                self._loop.call_soon_threadsafe(settle)

        try:
            self._producer.produce(topic, value, partition=partition, on_delivery=delivered)
        except (BufferError, confluent_kafka.KafkaException) as error:
            raise SendFailed(str(error), definite=True) from error  # it was never queued
        return done

    async def close(self) -> None:
        """Give up what is in flight and let go of all resources."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join)
        self._producer.purge()


class ConfluentConsumer:
    """A consumer of assigned partitions."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._worker = _Worker(client_id)
        self._consumer = confluent_kafka.Consumer(
            {
                **_QUIET,
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "group.id": f"unused-{client_id}",  # the library insists on a name
                "enable.auto.commit": False,
                "auto.offset.reset": "error",  # a reset would hide a gap
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
            }
        )

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Take these partitions from their beginning."""
        wanted = [
            confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)
            for partition in partitions
        ]
        await self._worker.call(lambda: self._consumer.assign(wanted))

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return what arrived, in order per partition. Raises ConnectionError."""
        return await self._worker.call(lambda: self._poll(timeout_ms / 1000))

    def _poll(self, timeout_s: float) -> list[Record]:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        polled = [first, *self._consumer.consume(_POLL_RECORDS_MAX, timeout=0)]
        errors = [message.error() for message in polled if message.error() is not None]
        messages = [
            Record(
                message.topic() or "",
                -1 if (partition := message.partition()) is None else partition,
                -1 if (offset := message.offset()) is None else offset,
                message.value() or b"",
            )
            for message in polled
            if message.error() is None
        ]
        if errors and not messages:
            raise ConnectionError(str(errors[0]))
        return messages

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises ConnectionError."""

        def ask() -> dict[int, int]:
            ends = {}
            for partition in partitions:
                asked = confluent_kafka.TopicPartition(topic, partition)
                _, ends[partition] = self._consumer.get_watermark_offsets(
                    asked, timeout=_END_OFFSETS_TIMEOUT_S
                )
            return ends

        try:
            return await self._worker.call(ask)
        except confluent_kafka.KafkaException as error:
            raise ConnectionError(str(error)) from error

    async def close(self) -> None:
        """Let go of all resources."""
        await self._worker.call(self._consumer.close)
        self._worker.close()


class ConfluentDriver:
    """confluent-kafka."""

    async def producer(self, bootstrap: str, client_id: str) -> ConfluentProducer:
        """Make a producer."""
        return ConfluentProducer(bootstrap, client_id)

    async def consumer(self, bootstrap: str, client_id: str) -> ConfluentConsumer:
        """Make a consumer."""
        return ConfluentConsumer(bootstrap, client_id)

    async def create_topic(
        self, bootstrap: str, topic: str, *, partitions: int, replication_factor: int
    ) -> None:
        """Create a topic and return when its metadata is committed. Raises ConnectionError."""

        def create() -> None:
            admin = AdminClient({**_QUIET, "bootstrap.servers": bootstrap})
            wanted = NewTopic(topic, partitions, replication_factor)
            admin.create_topics([wanted])[topic].result(_CREATE_TIMEOUT_S)

        try:
            await asyncio.to_thread(create)
        except confluent_kafka.KafkaException as error:
            raise ConnectionError(str(error)) from error


DRIVER: Final = ConfluentDriver()
