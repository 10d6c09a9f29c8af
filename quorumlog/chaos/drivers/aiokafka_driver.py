"""aiokafka: the asyncio client that most Python services use. Real processes only."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Unpack

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from quorumlog.chaos.drivers.aiokafka_checks import CoordinatorChecks, Positions, check_lookups
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
    EARLIEST,
    LATEST,
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
from quorumlog.chaos.drivers.security import SecuredDriver, of_aiokafka
from quorumlog.chaos.history import UNKNOWN_OFFSET
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition as Place

_POLL_RECORDS_MAX: Final = 500
_COMMON: Final[dict[str, Any]] = {"request_timeout_ms": 5_000, "retry_backoff_ms": 20}
_READING: Final[dict[str, Any]] = {
    **_COMMON,
    "enable_auto_commit": False,
    "check_crcs": True,
    "fetch_max_wait_ms": 100,
    "metadata_max_age_ms": 5_000,
}
_translated: Final = partial(
    translating, driver_error, KafkaError, OSError, asyncio.InvalidStateError
)


@contextmanager
def _in_state() -> Iterator[None]:
    """Translate errors, also assertions of the library about its own states."""
    try:
        with _translated():
            yield
    except AssertionError as error:
        raise DriverError("ILLEGAL_STATE", str(error)) from error


class _Client:
    """A producer or a consumer of the library.

    It and its subclasses have the methods of the protocols in `driver`, documented there.
    """

    def __init__(self, client: Any) -> None:
        self._client: Final = client

    async def close(self) -> None:
        """Release all resources; a producer waits for its records in flight, as the library."""
        with _translated():
            await self._client.stop()


class _Producer(_Client):
    async def send(
        self, topic: str, partition: int, value: bytes, **options: Unpack[SendOptions]
    ) -> asyncio.Future[int]:
        headers = [*options.pop("headers", ())] or None
        try:
            pending = await self._client.send(
                topic, value, partition=partition, headers=headers, **options
            )
        except (KafkaError, OSError) as error:  # it was not queued
            raise SendFailed(str(driver_error(error)), definite=True) from error
        return asyncio.ensure_future(_acknowledged(pending))


async def _acknowledged(pending: asyncio.Future[Any]) -> int:
    try:
        metadata = await pending
        # Without an offset, the library (0.14) counts from -1: the second record would be at 0.
        return int(metadata.offset) if metadata.log_start_offset >= 0 else UNKNOWN_OFFSET
    except (KafkaError, OSError) as error:
        # The library does not report earlier attempts.
        raise SendFailed(str(driver_error(error)), definite=False) from error


class _Transactions(_Producer):
    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._sent: list[asyncio.Future[int]] = []  # in this transaction

    async def begin(self) -> None:
        self._sent = []
        with _in_state():
            await self._client.begin_transaction()

    async def send(self, *record: Any, **options: Any) -> asyncio.Future[int]:
        pending = await super().send(*record, **options)
        self._sent.append(pending)
        return pending

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        with _in_state():
            await self._client.send_offsets_to_transaction(_by_place(topic, offsets), group_id)

    async def commit(self) -> None:
        """Commit. Raises DriverError, definite only after a failed send.

        The library (0.14) commits the other records then, and does not report other outcomes.
        """
        for result in await asyncio.gather(*self._sent, return_exceptions=True):
            if isinstance(result, SendFailed):
                raise DriverError("SEND_FAILED", str(result), definite=True)
        with _in_state():
            await self._client.commit_transaction()

    async def abort(self) -> None:
        with _in_state():
            await self._client.abort_transaction()


class _Polling(_Client):
    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._positions: Final = Positions(client)

    async def poll(self, timeout_ms: int) -> list[Record]:
        with _translated():
            try:
                polled = await self._client.getmany(
                    timeout_ms=timeout_ms, max_records=_POLL_RECORDS_MAX
                )
            except KafkaError:
                self._positions.restore()
                raise
            self._positions.note()
            return records_of(polled)


class _Consumer(_Polling):
    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        self._client.assign(_places(topic, partitions))
        self._seek(topic, dict.fromkeys(partitions, 0))

    def _seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        for place, offset in _by_place(topic, offsets).items():
            self._client.seek(place, offset)
        self._positions.note()

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        with _translated():
            ends = await self._client.end_offsets(_places(topic, partitions))
        return {place.partition: end for place, end in ends.items()}


class _Committed(_Polling):
    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._checks: Final = CoordinatorChecks(client._coordinator)  # noqa: SLF001 - no public hook

    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        found: dict[int, int] = {}
        with _translated():
            for place in _places(topic, partitions):
                offset = await self._client.committed(place)
                if offset is not None:
                    found[place.partition] = offset
        return found


class _Reader(_Committed, _Consumer):
    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        self._seek(topic, offsets)


class _Member(Rebalancing, _Committed, aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
    async def on_partitions_assigned(self, assigned: Sequence[Place]) -> None:
        """Record the owned partitions: the library revokes all of them before it joins."""
        self._note("assigned", assigned)

    async def on_partitions_revoked(self, revoked: Sequence[Place]) -> None:
        self._note("revoked", revoked)

    async def subscribe(self, topic: str) -> None:
        self._client.subscribe([topic], listener=self)

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        with _translated():
            await self._checks.commit(self._client, _by_place(topic, offsets))


class _Lookup(_Client):
    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        """Look up a time, EARLIEST or LATEST, in each partition. Raises DriverError."""
        first = _places(topic, [index for index, asked in timestamps.items() if asked == EARLIEST])
        last = _places(topic, [index for index, asked in timestamps.items() if asked == LATEST])
        times = _by_place(
            topic, {index: asked for index, asked in timestamps.items() if asked >= 0}
        )
        answers: dict[int, OffsetAt] = {}
        with _translated():
            if first:
                found = await self._client.beginning_offsets(first)
                answers |= {place.partition: OffsetAt(at, -1) for place, at in found.items()}
            if last:
                found = await self._client.end_offsets(last)
                answers |= {place.partition: OffsetAt(at, -1) for place, at in found.items()}
            if times:
                found = await self._client.offsets_for_times(times)
                answers |= {
                    place.partition: OffsetAt(-1, -1) if at is None else OffsetAt(*at)
                    for place, at in found.items()
                }
        return answers


@contextmanager
def _at_a_controller() -> Iterator[None]:
    """Translate errors, also the library's (0.14) own if its metadata names no controller."""
    try:
        with _translated():
            yield
    except AttributeError as error:
        raise DriverError(ErrorCode.NOT_CONTROLLER.name, str(error)) from error


class _Admin:
    def __init__(self, admin: AIOKafkaAdminClient) -> None:
        self._admin: Final = admin

    async def create(self, topic: str, **options: Unpack[TopicOptions]) -> None:
        partitions, factor = options["partitions"], options["replication_factor"]
        wanted = NewTopic(topic, partitions, factor, topic_configs={**options.get("config", {})})
        with _at_a_controller():
            answer: Any = await self._admin.create_topics([wanted])
        for name, code, *text in answer.topic_errors:
            _check_answer(code, f"{name}: {text}")

    async def delete(self, topic: str) -> None:
        with _at_a_controller():
            answer: Any = await self._admin.delete_topics([topic])
        for name, code in answer.topic_error_codes:
            _check_answer(code, name)

    async def exists(self, topic: str) -> bool:
        with _translated():
            return topic in await self._admin.list_topics()  # describing would create it

    async def close(self) -> None:
        with _translated():
            await self._admin.close()


def _check_answer(code: int, text: str) -> None:
    if code != ErrorCode.NONE:
        raise DriverError(ErrorCode(code).name, text)


class AiokafkaDriver(SecuredDriver, TopicCreation):
    """aiokafka. Its methods raise DriverError if no broker answers."""

    capabilities: Final = frozenset({"groups", "offsets", "topics", "transactions"})
    options_of = staticmethod(of_aiokafka)

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> _Producer:
        """Make a producer."""
        producer = aiokafka.AIOKafkaProducer(
            **self._at(bootstrap),
            client_id=client_id,
            enable_idempotence=True,
            linger_ms=batching.linger_ms,
            compression_type=compression_type(batching),
            **_COMMON,
        )
        return _Producer(await _started(producer))

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> _Transactions:
        """Make the producer of an id. Raises DriverError if its predecessors are not fenced."""
        producer = aiokafka.AIOKafkaProducer(
            **self._at(bootstrap),
            client_id=client_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            **_COMMON,
        )
        return _Transactions(await _started(producer))

    async def consumer(self, bootstrap: str, client_id: str) -> _Consumer:
        """Make a consumer; a reset of its offsets would hide a gap."""
        return _Consumer(await _consumer(self._at(bootstrap), client_id, auto_offset_reset="none"))

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> _Reader:
        """Make a read_committed reader."""
        return _Reader(
            await _consumer(
                self._at(bootstrap),
                client_id,
                group_id=group_id,
                isolation_level="read_committed",
                auto_offset_reset="none",
            )
        )

    async def member(self, bootstrap: str, client_id: str, membership: Membership) -> _Member:
        """Make a consumer that can join a group."""
        return _Member(
            await _consumer(self._at(bootstrap), client_id, **member_settings(membership))
        )

    async def offsets(self, bootstrap: str, client_id: str) -> _Lookup:
        """Make a client that looks up offsets."""
        return _Lookup(await _consumer(self._at(bootstrap), client_id))

    async def admin(self, bootstrap: str, client_id: str) -> _Admin:
        """Make an administrator."""
        admin = AIOKafkaAdminClient(
            **self._at(bootstrap),
            client_id=client_id,
            request_timeout_ms=_COMMON["request_timeout_ms"],
        )
        try:
            with _translated():
                await admin.start()
        except BaseException:
            await admin.close()
            raise
        return _Admin(admin)


async def _consumer(place: Mapping[str, Any], client_id: str, **settings: Any) -> Any:
    consumer = await _started(
        aiokafka.AIOKafkaConsumer(**place, client_id=client_id, **_READING, **settings)
    )
    check_lookups(consumer)
    return consumer


async def _started(client: Any) -> Any:
    """Start a client and return it, or stop it if that fails. Raises DriverError."""
    try:
        with _translated():
            await client.start()
    except BaseException:  # the caller may have been cancelled
        await client.stop()
        raise
    return client


def _places(topic: str, partitions: Sequence[int]) -> list[Any]:
    return [aiokafka.TopicPartition(topic, partition) for partition in partitions]


def _by_place(topic: str, offsets: Mapping[int, int]) -> dict[Any, int]:
    return {aiokafka.TopicPartition(topic, index): offset for index, offset in offsets.items()}


DRIVER: Final = AiokafkaDriver()
