"""kafka-python: blocking, so each client has a thread. Real processes only."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Unpack

import kafka
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, KafkaTimeoutError

from quorumlog.chaos.drivers.common import (
    Rebalancing,
    TopicCreation,
    compression_type,
    driver_error,
    member_settings,
    records_of,
    translating,
)
from quorumlog.chaos.drivers.driver import (
    AT_ONCE,
    NO_GENERATION,
    TRANSACTION_TIMEOUT_MS,
    Batching,
    DriverError,
    Membership,
    OffsetAt,
    Record,
    SendFailed,
    SendOptions,
    TopicOptions,
)
from quorumlog.chaos.drivers.kafka_python_checks import (
    check_responses,
    close_refused_sockets,
    drop_fetched,
)
from quorumlog.chaos.drivers.security import SecuredDriver, of_kafka_python
from quorumlog.chaos.drivers.worker import Worker, settled_elsewhere
from quorumlog.wire.codec.error_codes import ErrorCode

_TIMEOUT_MS: Final = 5_000
_REQUEST_TIMEOUT_MS: Final = 2_000
_END_TIMEOUT_MS: Final = 10_000  # of a transaction
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
_WRITING: Final[dict[str, Any]] = {
    **_QUIET,
    "delivery_timeout_ms": _TIMEOUT_MS,
    "max_block_ms": _TIMEOUT_MS,
}
_translated: Final = partial(translating, driver_error, KafkaError, OSError)


class _Client:
    """A client of the library, made and used in one thread.

    It and its subclasses have the methods of the protocols in `driver`, documented there.
    """

    def __init__(self, worker: Worker, client: Any) -> None:
        self._worker: Final = worker
        self._client: Final = client

    async def _call(self, work: Callable[[], Any]) -> Any:
        with _translated():
            return await self._worker.call(work)

    async def close(self) -> None:
        """Release all resources; a dynamic member leaves its group."""
        try:
            await self._call(self._end)
        finally:
            self._worker.close()

    def _end(self) -> None:
        self._client.close()


async def _made(client_id: str, make: Callable[..., Any], **settings: Any) -> tuple[Worker, Any]:
    """Return a client and its thread. Raises DriverError if no broker answers."""
    worker = Worker(client_id)
    try:
        with _translated():
            return worker, await worker.call(lambda: make(client_id=client_id, **settings))
    except BaseException:
        worker.close()
        raise


class _Producer(_Client):
    async def send(
        self, topic: str, partition: int, value: bytes, **options: Unpack[SendOptions]
    ) -> asyncio.Future[int]:
        headers = [*options.pop("headers", ())]
        done, settle = settled_elsewhere()

        def fail(error: BaseException) -> None:  # the library does not report earlier attempts
            settle(None, SendFailed(str(driver_error(error)), definite=False))

        def send() -> None:
            pending = self._client.send(
                topic, value, headers=headers, partition=partition, **options
            )
            pending.add_callback(lambda metadata: settle(metadata.offset, None))
            pending.add_errback(fail)

        try:
            await self._worker.call(send)
        except (KafkaError, OSError) as error:  # it was not queued
            raise SendFailed(str(driver_error(error)), definite=True) from error
        return done

    def _end(self) -> None:
        """Close at once. The library's `close` sends first, and closes nothing if that fails."""
        sender = self._client._sender  # noqa: SLF001 - no public call drops records in flight
        sender.force_close()
        sender.join(_TIMEOUT_MS / 1000)
        self._client.close(timeout=0)


class _Transactions(_Producer):
    async def initialize(self) -> None:
        """Fence the predecessors. Raises DriverError."""
        await self._call(self._client.init_transactions)

    async def begin(self) -> None:
        await self._call(self._client.begin_transaction)

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = _committable(topic, offsets)
        await self._ended(lambda manager: manager.send_offsets_to_transaction(wanted, group_id))

    async def commit(self) -> None:
        """Commit. Raises DriverError, never definite: the library does not report the outcome."""
        await self._ended(lambda manager: manager.begin_commit())

    async def abort(self) -> None:
        await self._ended(lambda manager: manager.begin_abort())

    async def _ended(self, begin: Callable[[Any], Any]) -> None:
        """Begin a request and wait for its result. The library's own calls wait without a limit."""

        def work() -> None:
            result = begin(self._client._transaction_manager)  # noqa: SLF001 - as above
            self._client._sender.wakeup()  # noqa: SLF001 - as above
            if not result.wait(timeout_ms=_END_TIMEOUT_MS):
                raise KafkaTimeoutError(f"no answer within {_END_TIMEOUT_MS} ms")

        await self._call(work)


class _Polling(_Client):
    async def poll(self, timeout_ms: int) -> list[Record]:
        def poll() -> Any:
            try:
                return self._client.poll(timeout_ms=timeout_ms, max_records=_POLL_RECORDS_MAX)
            except KafkaError:
                drop_fetched(self._client)
                raise

        return records_of(await self._call(poll))


class _Consumer(_Polling):
    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        wanted = _places(topic, partitions)

        def assign() -> None:
            self._client.assign(wanted)
            for place in wanted:
                self._client.seek(place, 0)

        await self._call(assign)

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        wanted = _places(topic, partitions)
        ends = await self._call(lambda: self._client.end_offsets(wanted, timeout_ms=_TIMEOUT_MS))
        return {place.partition: end for place, end in ends.items()}


class _Committed(_Polling):
    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        def ask() -> dict[int, int]:
            found = {
                place.partition: self._client.committed(place, timeout_ms=_TIMEOUT_MS)
                for place in _places(topic, partitions)
            }
            return {index: offset for index, offset in found.items() if offset is not None}

        found: dict[int, int] = await self._call(ask)
        return found


class _Reader(_Committed, _Consumer):
    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        def seek() -> None:
            for index, offset in offsets.items():
                self._client.seek(kafka.TopicPartition(topic, index), offset)

        await self._call(seek)


class _Member(Rebalancing, _Committed, kafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
    def on_partitions_assigned(self, assigned: Sequence[Any]) -> None:
        self._note("assigned", assigned)

    def on_partitions_revoked(self, revoked: Sequence[Any]) -> None:
        self._note("revoked", revoked)

    def on_partitions_lost(self, lost: Sequence[Any]) -> None:
        self._note("lost", lost)

    async def subscribe(self, topic: str) -> None:
        await self._call(lambda: self._client.subscribe([topic], listener=self))

    def generation(self) -> int:
        generation = self._client.group_metadata().generation_id
        return int(generation) if generation is not None and generation >= 0 else NO_GENERATION

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = _committable(topic, offsets)
        await self._call(lambda: self._client.commit(wanted, timeout_ms=_TIMEOUT_MS))


class _Admin(_Client):
    async def _call(self, work: Callable[[], Any]) -> Any:
        """Call; the library (3.0) raises RuntimeError if no node is the controller, twice."""
        try:
            return await super()._call(work)
        except RuntimeError as error:
            raise DriverError(ErrorCode.NOT_CONTROLLER.name, str(error)) from error

    async def create(self, topic: str, **options: Unpack[TopicOptions]) -> None:
        wanted = {
            topic: {
                "num_partitions": options["partitions"],
                "replication_factor": options["replication_factor"],
                "configs": {**options.get("config", {})},
            }
        }
        await self._call(lambda: self._client.create_topics(wanted, timeout_ms=_TIMEOUT_MS))

    async def delete(self, topic: str) -> None:
        await self._call(lambda: self._client.delete_topics([topic], timeout_ms=_TIMEOUT_MS))

    async def exists(self, topic: str) -> bool:
        return topic in await self._call(self._client.list_topics)  # describing would create it

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        wanted = {kafka.TopicPartition(topic, index): asked for index, asked in timestamps.items()}
        found = await self._call(
            lambda: self._client.list_partition_offsets(wanted, timeout_ms=_TIMEOUT_MS)
        )
        return {
            place.partition: OffsetAt(one.offset, one.timestamp) for place, one in found.items()
        }


class KafkaPythonDriver(SecuredDriver, TopicCreation):
    """kafka-python. Its methods raise DriverError if no broker answers."""

    capabilities: Final = frozenset(
        {"groups", "offsets", "max-timestamp", "topics", "transactions"}
    )
    options_of = staticmethod(of_kafka_python)

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> _Producer:
        """Make a producer."""
        made = await _made(
            client_id,
            kafka.KafkaProducer,
            **self._at(bootstrap),
            acks="all",
            enable_idempotence=True,
            linger_ms=batching.linger_ms,
            compression_type=compression_type(batching),
            **_WRITING,
        )
        return _Producer(*made)

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> _Transactions:
        """Make the producer of an id. Raises DriverError if its predecessors are not fenced."""
        made = await _made(
            client_id,
            kafka.KafkaProducer,
            **self._at(bootstrap),
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            **_WRITING,
        )
        producer = _Transactions(*made)
        try:
            await producer.initialize()
        except BaseException:
            await producer.close()
            raise
        return producer

    async def consumer(self, bootstrap: str, client_id: str) -> _Consumer:
        """Make a consumer; a reset of its offsets would hide a gap."""
        return _Consumer(*await _consumer(self._at(bootstrap), client_id, auto_offset_reset="none"))

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> _Reader:
        """Make a read_committed reader."""
        made = await _consumer(
            self._at(bootstrap),
            client_id,
            group_id=group_id,
            isolation_level="read_committed",
            auto_offset_reset="none",
        )
        return _Reader(*made)

    async def member(self, bootstrap: str, client_id: str, membership: Membership) -> _Member:
        """Make a consumer that can join a group."""
        return _Member(
            *await _consumer(self._at(bootstrap), client_id, **member_settings(membership))
        )

    async def admin(self, bootstrap: str, client_id: str) -> _Admin:
        """Make an administrator, which looks up offsets, too."""
        return _Admin(*await _made(client_id, KafkaAdminClient, **self._at(bootstrap), **_QUIET))

    offsets = admin


async def _consumer(
    place: Mapping[str, Any], client_id: str, **settings: Any
) -> tuple[Worker, Any]:
    def make(**all_settings: Any) -> Any:
        consumer = kafka.KafkaConsumer(**all_settings)
        check_responses(consumer)
        return consumer

    return await _made(client_id, make, **place, **_READING, **settings)


def _places(topic: str, partitions: Sequence[int]) -> list[Any]:
    return [kafka.TopicPartition(topic, partition) for partition in partitions]


def _committable(topic: str, offsets: Mapping[int, int]) -> dict[Any, Any]:
    return {
        kafka.TopicPartition(topic, index): kafka.OffsetAndMetadata(offset, "", -1)
        for index, offset in offsets.items()
    }


close_refused_sockets()
DRIVER: Final = KafkaPythonDriver()
