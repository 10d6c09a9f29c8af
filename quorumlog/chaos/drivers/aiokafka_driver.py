"""aiokafka: the asyncio client that most Python services use. Real processes only."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from quorumlog.chaos.drivers.aiokafka_transactions import Committed, Transactions, translated
from quorumlog.chaos.drivers.driver import (
    AT_ONCE,
    EARLIEST,
    LATEST,
    NO_GENERATION,
    TRANSACTION_TIMEOUT_MS,
    Batching,
    Headers,
    Membership,
    OffsetAt,
    Rebalance,
    Record,
    SendFailed,
)
from quorumlog.chaos.drivers.foreign_errors import check_answer, driver_error
from quorumlog.wire.codec.identifiers import TopicPartition as Place

_REQUEST_TIMEOUT_MS: Final = 5_000
_POLL_RECORDS_MAX: Final = 500
_READING: Final[dict[str, Any]] = {
    "enable_auto_commit": False,
    "check_crcs": True,
    "fetch_max_wait_ms": 100,
    "request_timeout_ms": _REQUEST_TIMEOUT_MS,
    "retry_backoff_ms": 20,
    "metadata_max_age_ms": 5_000,
}


class AiokafkaProducer:
    """An idempotent producer."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

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
        try:
            pending = await self._producer.send(
                topic,
                value,
                key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=[*headers] or None,
            )
        except (KafkaError, OSError) as error:  # it was not queued
            raise SendFailed(str(driver_error(error)), definite=True) from error
        return asyncio.ensure_future(_acknowledged(pending))

    async def close(self) -> None:
        """Wait for the records in flight, as the library does, and release all resources."""
        with translated():
            await self._producer.stop()


async def _acknowledged(pending: asyncio.Future[Any]) -> int:
    try:
        return int((await pending).offset)
    except (KafkaError, OSError) as error:
        # The library does not report earlier attempts.
        raise SendFailed(str(driver_error(error)), definite=False) from error


class _Reader:
    """The methods that all consumers share."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return the records that arrived, in order per partition. Raises DriverError."""
        with translated():
            polled = await self._consumer.getmany(
                timeout_ms=timeout_ms, max_records=_POLL_RECORDS_MAX
            )
        return [_record(record) for records in polled.values() for record in records]

    async def close(self) -> None:
        """Release all resources."""
        with translated():
            await self._consumer.stop()


class AiokafkaConsumer(_Reader):
    """A consumer of assigned partitions."""

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Assign these partitions, from their beginning."""
        wanted = _places(topic, partitions)
        self._consumer.assign(wanted)
        for place in wanted:
            self._consumer.seek(place, 0)

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises DriverError."""
        with translated():
            ends = await self._consumer.end_offsets(_places(topic, partitions))
        return {place.partition: end for place, end in ends.items()}


class AiokafkaTransactions(Transactions, AiokafkaProducer):
    """The producer of a transactional id."""


class AiokafkaReader(Committed, AiokafkaConsumer):
    """A consumer of assigned partitions with isolation level read_committed."""


class AiokafkaLookup(_Reader):
    """Looks up offsets by time."""

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        """Look up a time, EARLIEST or LATEST, in each partition. Raises DriverError."""
        first = _places(topic, [index for index, asked in timestamps.items() if asked == EARLIEST])
        last = _places(topic, [index for index, asked in timestamps.items() if asked == LATEST])
        times = {
            aiokafka.TopicPartition(topic, index): asked
            for index, asked in timestamps.items()
            if asked >= 0
        }
        answers: dict[int, OffsetAt] = {}
        with translated():
            if first:
                found = await self._consumer.beginning_offsets(first)
                answers |= {place.partition: OffsetAt(at, -1) for place, at in found.items()}
            if last:
                found = await self._consumer.end_offsets(last)
                answers |= {place.partition: OffsetAt(at, -1) for place, at in found.items()}
            if times:
                found = await self._consumer.offsets_for_times(times)
                answers |= {
                    place.partition: OffsetAt(-1, -1) if at is None else OffsetAt(*at)
                    for place, at in found.items()
                }
        return answers


class AiokafkaMember(Committed, _Reader, aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
    """A consumer in a group. The library does not report its generation."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(consumer)
        self._changes: list[Rebalance] = []

    async def on_partitions_assigned(self, assigned: Sequence[Place]) -> None:
        """Record the owned partitions: the library revokes all of them before it joins."""
        self._note("assigned", assigned)

    async def on_partitions_revoked(self, revoked: Sequence[Place]) -> None:
        """Record the revoked partitions."""
        self._note("revoked", revoked)

    def _note(self, change: str, partitions: Sequence[Place]) -> None:
        indexes = tuple(sorted(one.partition for one in partitions))
        self._changes.append(Rebalance(change, indexes, NO_GENERATION))

    async def subscribe(self, topic: str) -> None:
        """Join the group, from the next polls on."""
        self._consumer.subscribe([topic], listener=self)

    def rebalances(self) -> list[Rebalance]:
        """Return the rebalances since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def generation(self) -> int:
        """Return NO_GENERATION: the library does not report the generation."""
        return NO_GENERATION

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition. Raises DriverError."""
        wanted = {
            aiokafka.TopicPartition(topic, index): offset for index, offset in offsets.items()
        }
        with translated():
            await self._consumer.commit(wanted)


class AiokafkaAdmin:
    """Changes and describes topics."""

    def __init__(self, admin: AIOKafkaAdminClient) -> None:
        self._admin: Final = admin

    async def create(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic. Raises DriverError."""
        wanted = NewTopic(topic, partitions, replication_factor, topic_configs={**(config or {})})
        with translated():
            answer: Any = await self._admin.create_topics([wanted])
        for name, code, *text in answer.topic_errors:
            check_answer(code, f"{name}: {text}")

    async def delete(self, topic: str) -> None:
        """Delete a topic. Raises DriverError."""
        with translated():
            answer: Any = await self._admin.delete_topics([topic])
        for name, code in answer.topic_error_codes:
            check_answer(code, name)

    async def exists(self, topic: str) -> bool:
        """Return whether a broker has the topic. Raises DriverError."""
        with translated():
            return topic in await self._admin.list_topics()  # describing would create it

    async def close(self) -> None:
        """Close the connections."""
        with translated():
            await self._admin.close()


class AiokafkaDriver:
    """aiokafka."""

    capabilities: Final = frozenset({"groups", "offsets", "topics", "transactions"})

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> AiokafkaProducer:
        """Make a producer. Raises DriverError if no broker answers."""
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            enable_idempotence=True,
            linger_ms=batching.linger_ms,
            compression_type=None if batching.compression == "none" else batching.compression,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            retry_backoff_ms=20,
        )
        await _started(producer)
        return AiokafkaProducer(producer)

    async def consumer(self, bootstrap: str, client_id: str) -> AiokafkaConsumer:
        """Make a consumer. Raises DriverError if no broker answers."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            auto_offset_reset="none",  # a reset would hide a gap
            **_READING,
        )
        await _started(consumer)
        return AiokafkaConsumer(consumer)

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> AiokafkaTransactions:
        """Make the producer of an id. Raises DriverError if its predecessors are not fenced."""
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            retry_backoff_ms=20,
        )
        await _started(producer)
        return AiokafkaTransactions(producer)

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> AiokafkaReader:
        """Make a read_committed reader. Raises DriverError if no broker answers."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            group_id=group_id,
            isolation_level="read_committed",
            auto_offset_reset="none",
            **_READING,
        )
        await _started(consumer)
        return AiokafkaReader(consumer)

    async def offsets(self, bootstrap: str, client_id: str) -> AiokafkaLookup:
        """Make a client that looks up offsets. Raises DriverError if no broker answers."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, client_id=client_id, **_READING
        )
        await _started(consumer)
        return AiokafkaLookup(consumer)

    async def member(
        self, bootstrap: str, client_id: str, membership: Membership
    ) -> AiokafkaMember:
        """Make a consumer that can join a group. Raises DriverError if no broker answers."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            group_id=membership.group_id,
            group_instance_id=membership.instance_id,
            auto_offset_reset="earliest",
            session_timeout_ms=membership.session_timeout_ms,
            heartbeat_interval_ms=membership.session_timeout_ms // 10,
            max_poll_interval_ms=membership.max_poll_interval_ms,
            **_READING,
        )
        await _started(consumer)
        return AiokafkaMember(consumer)

    async def admin(self, bootstrap: str, client_id: str) -> AiokafkaAdmin:
        """Make an administrator. Raises DriverError if no broker answers."""
        admin = AIOKafkaAdminClient(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
        )
        try:
            with translated():
                await admin.start()
        except BaseException:
            await admin.close()
            raise
        return AiokafkaAdmin(admin)

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
        admin = await self.admin(bootstrap, "creator")
        try:
            await admin.create(
                topic, partitions=partitions, replication_factor=replication_factor, config=config
            )
        finally:
            await admin.close()


async def _started(client: Any) -> None:
    """Start a client, or stop it if that fails. Raises DriverError."""
    try:
        with translated():
            await client.start()
    except BaseException:  # the caller may have been cancelled
        await client.stop()
        raise


def _places(topic: str, partitions: Sequence[int]) -> list[Any]:
    return [aiokafka.TopicPartition(topic, partition) for partition in partitions]


def _record(record: Any) -> Record:
    return Record(
        record.topic,
        record.partition,
        record.offset,
        record.value or b"",
        record.key,
        tuple(record.headers),
        record.timestamp,
    )


DRIVER: Final = AiokafkaDriver()
