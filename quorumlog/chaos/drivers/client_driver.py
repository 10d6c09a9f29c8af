"""quorumlog's own client."""

import asyncio
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import cycle
from types import MappingProxyType
from typing import Any, Final, Self, TypeVar, Unpack

from quorumlog.chaos.drivers.common import Rebalancing, member_settings, records_of, translating
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
from quorumlog.chaos.drivers.security import SecuredDriver, of_client
from quorumlog.chaos.registered import registered
from quorumlog.client import (
    Admin,
    Consumer,
    Delivery,
    GroupMetadata,
    KafkaError,
    NewTopic,
    Producer,
    RebalanceListener,
)
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
PRODUCER_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "acks": {"all": "all", "1": 1},
    "enable.idempotence": {"true": True, "false": False},
}
"""The settings of producers that a run may have, and their values. Without any, acks=all with
idempotence. The others lose or repeat records, and show that a verdict finds it."""
_READING: Final[Mapping[str, Any]] = {
    "fetch_max_wait_ms": 100,
    "request_timeout_ms": _REQUEST_TIMEOUT_MS,
    "retry_backoff_ms": 20,
    "default_api_timeout_ms": _DELIVERY_TIMEOUT_MS,
}
_Started = TypeVar("_Started", Producer, Consumer, Admin)
_translated: Final = partial(
    translating,
    lambda error: DriverError(error.code.name, error.message, definite=error.definite),
    KafkaError,
)


class _Producer:
    """It and the other clients have the methods of the protocols in `driver`, documented there."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def send(
        self, topic: str, partition: int, value: bytes, **options: Unpack[SendOptions]
    ) -> asyncio.Future[int]:
        try:
            delivery = await self._producer.send(topic, value, partition=partition, **options)
        except KafkaError as error:
            raise SendFailed(str(error), definite=error.definite) from error
        return asyncio.ensure_future(_acknowledged(delivery))

    async def close(self) -> None:
        await self._producer.stop(timeout_ms=0)


async def _acknowledged(delivery: Delivery) -> int:
    try:
        return (await delivery).offset
    except KafkaError as error:
        raise SendFailed(str(error), definite=error.definite) from error


class _Transactions(_Producer):
    async def begin(self) -> None:
        with _translated():
            self._producer.begin_transaction()

    async def send_offsets(self, group_id: str, topic: str, offsets: Mapping[int, int]) -> None:
        with _translated():
            await self._producer.send_offsets_to_transaction(
                _by_place(topic, offsets), GroupMetadata(group_id, -1, "", None)
            )

    async def commit(self) -> None:
        """Commit; `definite` refers to the transaction. Raises DriverError."""
        with _translated():
            await self._producer.commit_transaction()

    async def abort(self) -> None:
        with _translated():
            await self._producer.abort_transaction()


class _Polling:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def poll(self, timeout_ms: int) -> list[Record]:
        with _translated():
            polled = await self._consumer.poll(timeout_ms, max_records=_POLL_RECORDS_MAX)
        return records_of(polled, time="timestamp_ms")

    async def close(self) -> None:
        await self._consumer.stop()


class _Consumer(_Polling):
    async def assign(self, topic: str, partitions: Sequence[int]) -> None:
        wanted = _places(topic, partitions)
        self._consumer.assign(wanted)
        self._consumer.seek_to_beginning(*wanted)

    async def end_offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        with _translated():
            ends = await self._consumer.end_offsets(_places(topic, partitions))
        return {asked.partition: end for asked, end in ends.items()}


class _Committed(_Polling):
    async def committed(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        with _translated():
            found = await self._consumer.committed(_places(topic, partitions))
        return {asked.partition: place.offset for asked, place in found.items()}


class _Reader(_Committed, _Consumer):
    async def seek(self, topic: str, offsets: Mapping[int, int]) -> None:
        for place, offset in _by_place(topic, offsets).items():
            self._consumer.seek(place, offset)


class _Member(Rebalancing, _Committed, RebalanceListener):
    """A consumer in a group, which records its own rebalances."""

    def __init__(self, consumer: Consumer) -> None:
        super().__init__(consumer)
        self._has_generation = consumer.settings.group_protocol == "classic"

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("assigned", partitions)

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("revoked", partitions)

    async def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("lost", partitions)

    async def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic], self)

    def generation(self) -> int:
        """Return the member's current generation, or NO_GENERATION.

        In the consumer protocol, each member has an epoch of its own, and the group no generation.
        """
        if not self._has_generation:
            return NO_GENERATION
        generation = self._consumer.group_metadata().generation_id
        return generation if generation >= 0 else NO_GENERATION

    async def commit(self, topic: str, offsets: Mapping[int, int]) -> None:
        with _translated():
            await self._consumer.commit(_by_place(topic, offsets), timeout_ms=_DELIVERY_TIMEOUT_MS)


class _Admin:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def ask(self, topic: str, timestamps: Mapping[int, int]) -> dict[int, OffsetAt]:
        with _translated():
            found = await self._admin.list_offsets(_by_place(topic, timestamps))
        return {asked.partition: OffsetAt(one[0], one[1]) for asked, one in found.items()}

    async def create(self, topic: str, **options: Unpack[TopicOptions]) -> None:
        with _translated():
            await self._admin.create_topics([_new_topic(topic, options)])

    async def delete(self, topic: str) -> None:
        with _translated():
            await self._admin.delete_topics([topic])

    async def exists(self, topic: str) -> bool:
        try:
            with _translated():
                await self._admin.describe_topics([topic])
        except DriverError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name:
                return False
            raise
        return True

    async def close(self) -> None:
        await self._admin.stop()


class ClientDriver(SecuredDriver):
    """quorumlog's own client. Consumers take turns in `racks`, if there are any."""

    capabilities: Final = frozenset(
        {"groups", "offsets", "max-timestamp", "topics", "transactions", "consumer-protocol"}
    )

    options_of = staticmethod(of_client)
    producing: Mapping[str, Any] = MappingProxyType({})  # arguments of its producers

    def __init__(self, racks: Sequence[str] = ()) -> None:
        self._racks: Final = cycle(racks or ("",))

    def with_producers(self, settings: Mapping[str, str]) -> Self:
        """Return this driver with settings of `PRODUCER_SETTINGS`, by Kafka's names.

        Raises ValueError for another name or value.
        """
        driver = copy(self)
        producing: dict[str, Any] = {}
        for name, value in settings.items():
            known = registered(PRODUCER_SETTINGS, name, "setting of the producers")
            argument = registered(known, value, f"value of {name}")
            producing[name.replace(".", "_")] = argument
        driver.producing = producing
        return driver

    async def producer(
        self, bootstrap: str, client_id: str, batching: Batching = AT_ONCE
    ) -> _Producer:
        """Make a producer. Raises DriverError if no broker answers."""
        batches = {"linger_ms": batching.linger_ms, "compression_type": batching.compression}
        return _Producer(
            await _started(
                Producer, self._at(bootstrap), client_id, **batches, **_WRITING, **self.producing
            )
        )

    async def transactional(
        self, bootstrap: str, client_id: str, transactional_id: str
    ) -> _Transactions:
        """Make the producer of an id. Raises DriverError if its predecessors are not fenced."""
        producer = await _started(
            Producer,
            self._at(bootstrap),
            client_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            **_WRITING,
        )
        try:
            with _translated():
                await producer.init_transactions()
        except BaseException:  # the caller may have been cancelled
            await producer.stop(timeout_ms=0)
            raise
        return _Transactions(producer)

    async def consumer(self, bootstrap: str, client_id: str) -> _Consumer:
        """Make a consumer; a reset of its offsets would hide a gap. Raises DriverError."""
        return _Consumer(await self._consumer(bootstrap, client_id))

    async def reader(self, bootstrap: str, client_id: str, group_id: str) -> _Reader:
        """Make a read_committed reader. Raises DriverError if no broker answers."""
        own = {"group_id": group_id, "isolation_level": "read_committed"}
        return _Reader(await self._consumer(bootstrap, client_id, **own, enable_auto_commit=False))

    async def _consumer(self, bootstrap: str, client_id: str, **settings: Any) -> Consumer:
        rack = next(self._racks)
        own = {"client_rack": rack, "auto_offset_reset": "none", **settings}
        return await _started(Consumer, self._at(bootstrap), client_id, **own, **_READING)

    async def member(self, bootstrap: str, client_id: str, membership: Membership) -> _Member:
        """Make a consumer that can join a group. Raises DriverError if no broker answers."""
        own = {"group_protocol": membership.protocol, **member_settings(membership), **_READING}
        own["enable_auto_commit"] = False
        return _Member(await _started(Consumer, self._at(bootstrap), client_id, **own))

    async def admin(self, bootstrap: str, client_id: str) -> _Admin:
        """Make an administrator, which looks up offsets, too. Raises DriverError."""
        limits = {
            "request_timeout_ms": _REQUEST_TIMEOUT_MS,
            "default_api_timeout_ms": _DELIVERY_TIMEOUT_MS,
        }
        return _Admin(await _started(Admin, self._at(bootstrap), client_id, **limits))

    offsets = admin

    async def create_topic(
        self, bootstrap: str, topic: str, **options: Unpack[TopicOptions]
    ) -> None:
        """Create a topic and return when its metadata is committed. Raises DriverError."""
        with _translated():
            async with Admin(**self._at(bootstrap)) as admin:
                await admin.create_topics([_new_topic(topic, options)])


async def _started(
    kind: type[_Started], place: Mapping[str, Any], client_id: str, **settings: Any
) -> _Started:
    client = kind(**place, client_id=client_id, **settings)
    with _translated():
        await client.start()
    return client


def _new_topic(topic: str, options: TopicOptions) -> NewTopic:
    partitions, factor = options["partitions"], options["replication_factor"]
    return NewTopic(topic, partitions, factor, configs={**options.get("config", {})})


def _by_place(topic: str, offsets: Mapping[int, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, index): offset for index, offset in offsets.items()}


def _places(topic: str, partitions: Sequence[int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in partitions]


DRIVER: Final = ClientDriver()
