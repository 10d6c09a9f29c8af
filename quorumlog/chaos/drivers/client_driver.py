"""quorumlog's own client."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final, cast

from quorumlog.chaos.drivers.client_transactions import Committed, Transactions, translated
from quorumlog.chaos.drivers.driver import (
    AT_ONCE,
    NO_GENERATION,
    TRANSACTION_TIMEOUT_MS,
    Batching,
    DriverError,
    Headers,
    Membership,
    OffsetAt,
    Rebalance,
    Record,
    SendFailed,
)
from quorumlog.client import (
    Admin,
    Consumer,
    ConsumerRecord,
    Delivery,
    KafkaError,
    NewTopic,
    Producer,
    RebalanceListener,
)
from quorumlog.client.settings import CompressionType, GroupProtocol
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

_DELIVERY_TIMEOUT_MS: Final = 5_000
_REQUEST_TIMEOUT_MS: Final = 2_000
_POLL_RECORDS_MAX: Final = 500
_WRITING: Final[Mapping[str, Any]] = {
    "delivery_timeout_ms": _DELIVERY_TIMEOUT_MS,
    "request_timeout_ms": _REQUEST_TIMEOUT_MS,
    "max_block_ms": _DELIVERY_TIMEOUT_MS,
    "retry_backoff_ms": 20,
}
_READING: Final[Mapping[str, Any]] = {
    "fetch_max_wait_ms": 100,
    "request_timeout_ms": _REQUEST_TIMEOUT_MS,
    "retry_backoff_ms": 20,
    "default_api_timeout_ms": _DELIVERY_TIMEOUT_MS,
}


class ClientProducer:
    """A producer with acks=all and idempotence."""

    def __init__(self, producer: Producer) -> None:
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
            delivery = await self._producer.send(
                topic, value, key, partition=partition, headers=headers, timestamp_ms=timestamp_ms
            )
        except KafkaError as error:
            raise SendFailed(str(error), definite=error.definite) from error
        return asyncio.ensure_future(_acknowledged(delivery))

    async def close(self) -> None:
        """Discard the records in flight and release all resources."""
        await self._producer.stop(timeout_ms=0)


async def _acknowledged(delivery: Delivery) -> int:
    try:
        return (await delivery).offset
    except KafkaError as error:
        raise SendFailed(str(error), definite=error.definite) from error


class ClientConsumer:
    """A consumer of assigned partitions."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Assign these partitions, from their beginning."""
        wanted = _places(topic, partitions)
        self._consumer.assign(wanted)
        self._consumer.seek_to_beginning(*wanted)

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return the records that arrived, in order per partition. Raises DriverError."""
        with translated():
            polled = await self._consumer.poll(timeout_ms, max_records=_POLL_RECORDS_MAX)
        return [_record(record) for records in polled.values() for record in records]

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises DriverError."""
        with translated():
            ends = await self._consumer.end_offsets(_places(topic, partitions))
        return {asked.partition: end for asked, end in ends.items()}

    async def close(self) -> None:
        """Release all resources."""
        await self._consumer.stop()


class ClientTransactions(Transactions, ClientProducer):
    """The producer of a transactional id."""


class ClientReader(Committed, ClientConsumer):
    """A consumer of assigned partitions with isolation level read_committed."""


class ClientMember(Committed, RebalanceListener):
    """A consumer in a group, which records its own rebalances."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._changes: list[Rebalance] = []
        self._has_generation = consumer.settings.group_protocol == "classic"

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Record the added partitions."""
        self._note("assigned", partitions)

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Record the revoked partitions."""
        self._note("revoked", partitions)

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Record the lost partitions: other members may own them already."""
        self._note("lost", partitions)

    def _note(self, change: str, partitions: frozenset[TopicPartition]) -> None:
        indexes = tuple(sorted(one.partition for one in partitions))
        self._changes.append(Rebalance(change, indexes, self.generation()))

    async def subscribe(self, topic: str) -> None:
        """Join the group, from the next polls on."""
        self._consumer.subscribe([topic], self)

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return new records of the partitions owned now. Raises DriverError."""
        with translated():
            polled = await self._consumer.poll(timeout_ms, max_records=_POLL_RECORDS_MAX)
        return [_record(record) for records in polled.values() for record in records]

    def rebalances(self) -> list[Rebalance]:
        """Return the rebalances since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def generation(self) -> int:
        """Return the member's current generation, or NO_GENERATION.

        In the consumer protocol, each member has an epoch of its own, and the group no generation.
        """
        if not self._has_generation:
            return NO_GENERATION
        generation = self._consumer.group_metadata().generation_id
        return generation if generation >= 0 else NO_GENERATION

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition. Raises DriverError."""
        with translated():
            await self._consumer.commit(
                {TopicPartition(topic, index): offset for index, offset in offsets.items()},
                timeout_ms=_DELIVERY_TIMEOUT_MS,
            )

    async def close(self) -> None:
        """Leave the group without a commit, and release all resources."""
        await self._consumer.stop()


class ClientLookup:
    """Looks up offsets by time."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        """Look up the offset of a time in each partition. Raises DriverError."""
        wanted = {TopicPartition(topic, index): asked for index, asked in timestamps.items()}
        with translated():
            found = await self._admin.list_offsets(wanted)
        return {asked.partition: OffsetAt(one[0], one[1]) for asked, one in found.items()}

    async def close(self) -> None:
        """Close the connections."""
        await self._admin.stop()


class ClientTopicAdmin:
    """Changes and describes topics."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def create(self, topic: str, *, partitions: int, replication_factor: int) -> None:
        """Create a topic. Raises DriverError."""
        with translated():
            await self._admin.create_topics([NewTopic(topic, partitions, replication_factor)])

    async def delete(self, topic: str) -> None:
        """Delete a topic. Raises DriverError."""
        with translated():
            await self._admin.delete_topics([topic])

    async def exists(self, topic: str) -> bool:
        """Return whether a broker has the topic. Raises DriverError."""
        try:
            with translated():
                await self._admin.describe_topics([topic])
        except DriverError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name:
                return False
            raise
        return True

    async def close(self) -> None:
        """Close the connections."""
        await self._admin.stop()


class ClientDriver:
    """quorumlog's own client. Consumers take turns in `racks`, if there are any."""

    capabilities: Final = frozenset(
        {"groups", "offsets", "max-timestamp", "topics", "transactions", "consumer-protocol"}
    )

    def __init__(self, racks: Sequence[str] = ()) -> None:
        self._racks: Final = cycle(racks or ("",))

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> ClientProducer:
        """Make a producer. Raises DriverError if no broker answers."""
        producer = Producer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            linger_ms=batching.linger_ms,
            compression_type=cast(CompressionType, batching.compression),
            **_WRITING,
        )
        with translated():
            await producer.start()
        return ClientProducer(producer)

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> ClientTransactions:
        """Make the producer of an id. Raises DriverError if its predecessors are not fenced."""
        producer = Producer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            **_WRITING,
        )
        with translated():
            await producer.start()
            try:
                await producer.init_transactions()
            except BaseException:  # the caller may have been cancelled
                await producer.stop(timeout_ms=0)
                raise
        return ClientTransactions(producer)

    async def consumer(self, bootstrap: str, client_id: str) -> ClientConsumer:
        """Make a consumer. Raises DriverError if no broker answers."""
        consumer = Consumer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            client_rack=next(self._racks),
            auto_offset_reset="none",  # a reset would hide a gap
            **_READING,
        )
        with translated():
            await consumer.start()
        return ClientConsumer(consumer)

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> ClientReader:
        """Make a read_committed reader. Raises DriverError if no broker answers."""
        consumer = Consumer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            client_rack=next(self._racks),
            group_id=group_id,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="none",
            **_READING,
        )
        with translated():
            await consumer.start()
        return ClientReader(consumer)

    async def member(self, bootstrap: str, client_id: str, membership: Membership) -> ClientMember:
        """Make a consumer that can join a group. Raises DriverError if no broker answers."""
        consumer = Consumer(
            bootstrap_servers=bootstrap,
            client_id=client_id,
            group_id=membership.group_id,
            group_instance_id=membership.instance_id,
            group_protocol=cast(GroupProtocol, membership.protocol),
            session_timeout_ms=membership.session_timeout_ms,
            heartbeat_interval_ms=membership.session_timeout_ms // 10,
            max_poll_interval_ms=membership.max_poll_interval_ms,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # no record is deleted: it applies only without a commit
            **_READING,
        )
        with translated():
            await consumer.start()
        return ClientMember(consumer)

    async def offsets(self, bootstrap: str, client_id: str) -> ClientLookup:
        """Make a client that looks up offsets. Raises DriverError if no broker answers."""
        return ClientLookup(await _admin(bootstrap, client_id))

    async def admin(self, bootstrap: str, client_id: str) -> ClientTopicAdmin:
        """Make an administrator. Raises DriverError if no broker answers."""
        return ClientTopicAdmin(await _admin(bootstrap, client_id))

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
        with translated():
            async with Admin(bootstrap_servers=bootstrap) as admin:
                wanted = NewTopic(topic, partitions, replication_factor, configs={**(config or {})})
                await admin.create_topics([wanted])


async def _admin(bootstrap: str, client_id: str) -> Admin:
    admin = Admin(
        bootstrap_servers=bootstrap,
        client_id=client_id,
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        default_api_timeout_ms=_DELIVERY_TIMEOUT_MS,
    )
    with translated():
        await admin.start()
    return admin


def _places(topic: str, partitions: Sequence[int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in partitions]


def _record(record: ConsumerRecord) -> Record:
    return Record(
        record.topic,
        record.partition,
        record.offset,
        record.value or b"",
        record.key,
        record.headers,
        record.timestamp_ms,
    )


DRIVER: Final = ClientDriver()
