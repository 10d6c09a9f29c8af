"""kafka-python: blocking, so each client has a thread. Real processes only."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import kafka
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from quorumlog.chaos.drivers.driver import (
    AT_ONCE,
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
from quorumlog.chaos.drivers.foreign_errors import driver_error
from quorumlog.chaos.drivers.kafka_python_threads import Threaded, made
from quorumlog.chaos.drivers.kafka_python_transactions import Committed, Transactions
from quorumlog.chaos.drivers.worker import Worker

_TIMEOUT_MS: Final = 5_000
_REQUEST_TIMEOUT_MS: Final = 2_000
_POLL_RECORDS_MAX: Final = 500
_QUIET: Final[dict[str, Any]] = {
    "bootstrap_timeout_ms": _TIMEOUT_MS,
    "request_timeout_ms": _REQUEST_TIMEOUT_MS,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 500,
    "retry_backoff_ms": 20,
}
_READING: Final[dict[str, Any]] = {
    **_QUIET,
    "enable_auto_commit": False,
    "check_crcs": True,
    "fetch_max_wait_ms": 100,
    "metadata_max_age_ms": 5_000,
}


class KafkaPythonProducer(Threaded):
    """An idempotent producer."""

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
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()

        def settle(offset: int | None, error: BaseException | None) -> None:
            if done.done():
                return
            if offset is not None:
                done.set_result(offset)
            else:  # the library does not report earlier attempts
                reason = str(driver_error(error or RuntimeError("no reason")))
                done.set_exception(SendFailed(reason, definite=False))

        def tell(offset: int | None, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is waiting
                loop.call_soon_threadsafe(settle, offset, error)

        def send() -> None:
            pending = self._client.send(
                topic,
                value,
                key,
                headers=[*headers],
                partition=partition,
                timestamp_ms=timestamp_ms,
            )
            pending.add_callback(lambda metadata: tell(metadata.offset, None))
            pending.add_errback(lambda error: tell(None, error))

        try:
            await self._worker.call(send)
        except (KafkaError, OSError) as error:  # it was not queued
            raise SendFailed(str(driver_error(error)), definite=True) from error
        return done

    async def close(self) -> None:
        """Discard the records in flight and release all resources."""
        try:
            await self._call(self._give_up)
        finally:
            self._worker.close()

    def _give_up(self) -> None:
        """Close at once. The library's `close` sends first, and closes nothing if that fails."""
        sender = self._client._sender  # noqa: SLF001 - no public call drops records in flight
        sender.force_close()
        sender.join(_TIMEOUT_MS / 1000)
        self._client.close(timeout=0)


class KafkaPythonTransactions(Transactions, KafkaPythonProducer):
    """The producer of a transactional id."""


class _Reader(Threaded):
    """The methods that all consumers share."""

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return the records that arrived, in order per partition. Raises DriverError."""
        polled = await self._call(
            lambda: self._client.poll(timeout_ms=timeout_ms, max_records=_POLL_RECORDS_MAX)
        )
        return [_record(record) for records in polled.values() for record in records]


class KafkaPythonConsumer(_Reader):
    """A consumer of assigned partitions."""

    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Assign these partitions, from their beginning."""
        wanted = _places(topic, partitions)

        def assign() -> None:
            self._client.assign(wanted)
            for place in wanted:
                self._client.seek(place, 0)

        await self._call(assign)

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the high watermark of each partition (exclusive). Raises DriverError."""
        wanted = _places(topic, partitions)
        ends = await self._call(lambda: self._client.end_offsets(wanted, timeout_ms=_TIMEOUT_MS))
        return {place.partition: end for place, end in ends.items()}


class KafkaPythonReader(Committed, KafkaPythonConsumer):
    """A consumer of assigned partitions with isolation level read_committed."""


class KafkaPythonMember(Committed, _Reader, kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
    """A consumer in a group."""

    def __init__(self, worker: Worker, client: Any) -> None:
        super().__init__(worker, client)
        self._changes: list[Rebalance] = []

    def on_partitions_assigned(self, assigned: Sequence[Any]) -> None:
        """Record the added partitions."""
        self._note("assigned", assigned)

    def on_partitions_revoked(self, revoked: Sequence[Any]) -> None:
        """Record the revoked partitions."""
        self._note("revoked", revoked)

    def on_partitions_lost(self, lost: Sequence[Any]) -> None:
        """Record the lost partitions: other members may own them already."""
        self._note("lost", lost)

    def _note(self, change: str, partitions: Sequence[Any]) -> None:
        indexes = tuple(sorted(one.partition for one in partitions))
        self._changes.append(Rebalance(change, indexes, self.generation()))

    async def subscribe(self, topic: str) -> None:
        """Join the group, from the next polls on."""
        await self._call(lambda: self._client.subscribe([topic], listener=self))

    def rebalances(self) -> list[Rebalance]:
        """Return the rebalances since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def generation(self) -> int:
        """Return the member's current generation, or NO_GENERATION."""
        generation = self._client.group_metadata().generation_id
        return int(generation) if generation is not None and generation >= 0 else NO_GENERATION

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit the next offset to read of each partition. Raises DriverError."""
        wanted = {
            kafka.TopicPartition(topic, index): kafka.OffsetAndMetadata(offset, "", -1)
            for index, offset in offsets.items()
        }
        await self._call(lambda: self._client.commit(wanted, timeout_ms=_TIMEOUT_MS))


class KafkaPythonAdmin(Threaded):
    """Changes and describes topics, and looks up offsets by time."""

    async def create(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic. Raises DriverError."""
        wanted = {
            topic: {
                "num_partitions": partitions,
                "replication_factor": replication_factor,
                "configs": {**(config or {})},
            }
        }
        await self._call(lambda: self._client.create_topics(wanted, timeout_ms=_TIMEOUT_MS))

    async def delete(self, topic: str) -> None:
        """Delete a topic. Raises DriverError."""
        await self._call(lambda: self._client.delete_topics([topic], timeout_ms=_TIMEOUT_MS))

    async def exists(self, topic: str) -> bool:
        """Return whether a broker has the topic. Raises DriverError."""
        return topic in await self._call(self._client.list_topics)  # describing would create it

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        """Look up the offset of a time in each partition. Raises DriverError."""
        wanted = {kafka.TopicPartition(topic, index): asked for index, asked in timestamps.items()}
        found = await self._call(
            lambda: self._client.list_partition_offsets(wanted, timeout_ms=_TIMEOUT_MS)
        )
        return {
            place.partition: OffsetAt(one.offset, one.timestamp) for place, one in found.items()
        }


class KafkaPythonDriver:
    """kafka-python."""

    capabilities: Final = frozenset(
        {"groups", "offsets", "max-timestamp", "topics", "transactions"}
    )

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> KafkaPythonProducer:
        """Make a producer. Raises DriverError if no broker answers."""
        return KafkaPythonProducer(
            *await made(
                client_id,
                lambda: kafka.KafkaProducer(
                    bootstrap_servers=bootstrap,
                    client_id=client_id,
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=batching.linger_ms,
                    compression_type=None
                    if batching.compression == "none"
                    else batching.compression,
                    delivery_timeout_ms=_TIMEOUT_MS,
                    max_block_ms=_TIMEOUT_MS,
                    **_QUIET,
                ),
            )
        )

    async def consumer(self, bootstrap: str, client_id: str) -> KafkaPythonConsumer:
        """Make a consumer. Raises DriverError if no broker answers."""
        return KafkaPythonConsumer(
            *await made(
                client_id,
                lambda: kafka.KafkaConsumer(
                    bootstrap_servers=bootstrap,
                    client_id=client_id,
                    auto_offset_reset="none",  # a reset would hide a gap
                    **_READING,
                ),
            )
        )

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> KafkaPythonTransactions:
        """Make the producer of an id. Raises DriverError if its predecessors are not fenced."""
        producer = KafkaPythonTransactions(
            *await made(
                client_id,
                lambda: kafka.KafkaProducer(
                    bootstrap_servers=bootstrap,
                    client_id=client_id,
                    transactional_id=transactional_id,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                    delivery_timeout_ms=_TIMEOUT_MS,
                    max_block_ms=_TIMEOUT_MS,
                    **_QUIET,
                ),
            )
        )
        try:
            await producer.initialize()
        except BaseException:
            await producer.close()
            raise
        return producer

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> KafkaPythonReader:
        """Make a read_committed reader. Raises DriverError if no broker answers."""
        return KafkaPythonReader(
            *await made(
                client_id,
                lambda: kafka.KafkaConsumer(
                    bootstrap_servers=bootstrap,
                    client_id=client_id,
                    group_id=group_id,
                    isolation_level="read_committed",
                    auto_offset_reset="none",
                    **_READING,
                ),
            )
        )

    async def member(
        self, bootstrap: str, client_id: str, membership: Membership
    ) -> KafkaPythonMember:
        """Make a consumer that can join a group. Raises DriverError if no broker answers."""
        return KafkaPythonMember(
            *await made(
                client_id,
                lambda: kafka.KafkaConsumer(
                    bootstrap_servers=bootstrap,
                    client_id=client_id,
                    group_id=membership.group_id,
                    group_instance_id=membership.instance_id,
                    auto_offset_reset="earliest",
                    session_timeout_ms=membership.session_timeout_ms,
                    heartbeat_interval_ms=membership.session_timeout_ms // 10,
                    max_poll_interval_ms=membership.max_poll_interval_ms,
                    **_READING,
                ),
            )
        )

    async def admin(self, bootstrap: str, client_id: str) -> KafkaPythonAdmin:
        """Make an administrator. Raises DriverError if no broker answers."""
        return KafkaPythonAdmin(
            *await made(
                client_id,
                lambda: KafkaAdminClient(
                    bootstrap_servers=bootstrap, client_id=client_id, **_QUIET
                ),
            )
        )

    async def offsets(self, bootstrap: str, client_id: str) -> KafkaPythonAdmin:
        """Make a client that looks up offsets. Raises DriverError if no broker answers."""
        return await self.admin(bootstrap, client_id)

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


def _places(topic: str, partitions: Sequence[int]) -> list[Any]:
    return [kafka.TopicPartition(topic, partition) for partition in partitions]


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


DRIVER: Final = KafkaPythonDriver()
