"""quorumlog's own client."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from quorumlog.chaos.drivers.driver import Record, SendFailed
from quorumlog.client import Admin, Consumer, Delivery, KafkaError, NewTopic, Producer
from quorumlog.wire.codec.identifiers import TopicPartition

_DELIVERY_TIMEOUT_MS: Final = 5_000
_REQUEST_TIMEOUT_MS: Final = 2_000
_POLL_RECORDS_MAX: Final = 500


class ClientProducer:
    """A producer with acks=all and idempotence."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def send(self, topic: str, partition: int, value: bytes) -> asyncio.Future[int]:
        """Put a record in line; its future gives the acknowledged offset. Raises SendFailed."""
        try:
            delivery = await self._producer.send(topic, value, partition=partition)
        except KafkaError as error:
            raise SendFailed(str(error), definite=error.definite) from error
        return asyncio.ensure_future(_acknowledged(delivery))

    async def close(self) -> None:
        """Give up what is in flight and let go of all resources."""
        await self._producer.stop(timeout_ms=0)


async def _acknowledged(delivery: Delivery) -> int:
    try:
        return (await delivery).offset
    except KafkaError as error:
        raise SendFailed(str(error), definite=error.definite) from error


@contextmanager
def _translated() -> Iterator[None]:
    """Turn errors of the client into those of a driver."""
    try:
        yield
    except KafkaError as error:
        raise ConnectionError(str(error)) from error


class ClientConsumer:
    """A consumer of assigned partitions."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Take these partitions from their beginning."""
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        self._consumer.assign(wanted)
        self._consumer.seek_to_beginning(*wanted)

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return what arrived, in order per partition. Raises ConnectionError."""
        with _translated():
            polled = await self._consumer.poll(timeout_ms, max_records=_POLL_RECORDS_MAX)
        return [
            Record(record.topic, record.partition, record.offset, record.value or b"")
            for records in polled.values()
            for record in records
        ]

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises ConnectionError."""
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        with _translated():
            ends = await self._consumer.end_offsets(wanted)
        return {asked.partition: end for asked, end in ends.items()}

    async def close(self) -> None:
        """Let go of all resources."""
        await self._consumer.stop()


class ClientDriver:
    """quorumlog's own client."""

    async def producer(self, bootstrap: str, client_id: str) -> ClientProducer:
        """Make a producer. Raises ConnectionError if no broker answers."""
        producer = Producer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            linger_ms=0,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            max_block_ms=_DELIVERY_TIMEOUT_MS,
            retry_backoff_ms=20,
        )
        with _translated():
            await producer.start()
        return ClientProducer(producer)

    async def consumer(self, bootstrap: str, client_id: str) -> ClientConsumer:
        """Make a consumer. Raises ConnectionError if no broker answers."""
        consumer = Consumer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            auto_offset_reset="none",  # a reset would hide a gap
            fetch_max_wait_ms=100,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            retry_backoff_ms=20,
            default_api_timeout_ms=_DELIVERY_TIMEOUT_MS,
        )
        with _translated():
            await consumer.start()
        return ClientConsumer(consumer)

    async def create_topic(
        self, bootstrap: str, topic: str, *, partitions: int, replication_factor: int
    ) -> None:
        """Create a topic and return when its metadata is committed. Raises ConnectionError."""
        with _translated():
            async with Admin(bootstrap_servers=bootstrap) as admin:
                wanted = NewTopic(
                    name=topic, num_partitions=partitions, replication_factor=replication_factor
                )
                await admin.create_topics([wanted])


DRIVER: Final = ClientDriver()
