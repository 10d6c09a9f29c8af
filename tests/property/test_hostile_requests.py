"""No client stops a broker: requests of transactions and groups that are wrong in every way.

Each gets an answer with an error code that Kafka gives for that API. Frames of real clients
(`tests/data/client_frames`, by `tools/record_client_frames.py`) with changed bytes are answered, or
close their connection. Afterwards all transactions can be ended, and a sound producer and consumer
are served.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.client.consumer import Consumer
from quorumlog.client.producer import Producer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Message, Struct
from quorumlog.wire.codec.messages.describe_producers import DescribeProducersRequest, TopicRequest
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.peer import connected
from tests.support.groups.asking import coordinator_is_ready, create
from tests.support.groups.single_broker import SETTINGS, SingleBroker, TestController, single_broker
from tests.support.sizes import tries
from tests.support.transactions.hostile_requests import HostileRequests, mutated
from tests.support.waiting import until

NEWEST: Final = {"group.version": 1, "transaction.version": 2}
FEATURES: Final[tuple[dict[str, int], ...]] = (
    NEWEST,
    NEWEST,
    {"group.version": 1, "transaction.version": 1},
    {},
)
HOSTILE: Final = ("t", "u")
SOUND: Final = "sound"

COORDINATORS: Final = 6  # those of three partitions of both topics
NEW_IDS: Final = ("new-0", "new-1", "new-2", "new-3", "new-4")  # some of each coordinator
Committed = tuple[str, str, int, int, str | None]

COORDINATOR: Final = "NOT_COORDINATOR COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS "
PRODUCER: Final = "INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING PRODUCER_FENCED "
TRANSACTION: Final = (
    COORDINATOR + PRODUCER + "INVALID_TXN_STATE CONCURRENT_TRANSACTIONS INVALID_REQUEST "
)
REPLICA: Final = (
    "UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH "
)
GROUP: Final = COORDINATOR + "INVALID_GROUP_ID GROUP_ID_NOT_FOUND UNKNOWN_MEMBER_ID "
COMMIT: Final = (
    GROUP + "UNKNOWN_TOPIC_OR_PARTITION ILLEGAL_GENERATION FENCED_INSTANCE_ID "
    "OFFSET_METADATA_TOO_LARGE "
)
# Beside NONE: by the name of the request.
KAFKA_GIVES: Final = {
    "InitProducerId": TRANSACTION + "INVALID_TRANSACTION_TIMEOUT",
    "FindCoordinator": "INVALID_REQUEST COORDINATOR_NOT_AVAILABLE",
    "AddPartitionsToTxn": TRANSACTION + "UNKNOWN_TOPIC_OR_PARTITION OPERATION_NOT_ATTEMPTED "
    "TOPIC_AUTHORIZATION_FAILED TRANSACTION_ABORTABLE",
    "AddOffsetsToTxn": TRANSACTION,
    "TxnOffsetCommit": COMMIT + TRANSACTION + "TRANSACTION_ABORTABLE",
    "EndTxn": TRANSACTION,
    "WriteTxnMarkers": "UNKNOWN_TOPIC_OR_PARTITION INVALID_PRODUCER_EPOCH "
    "INVALID_PRODUCER_ID_MAPPING TRANSACTION_COORDINATOR_FENCED UNKNOWN_LEADER_EPOCH",
    "DescribeTransactions": COORDINATOR + "TRANSACTIONAL_ID_NOT_FOUND INVALID_REQUEST",
    "ListTransactions": "COORDINATOR_LOAD_IN_PROGRESS",
    "DescribeProducers": "UNKNOWN_TOPIC_OR_PARTITION",
    "Produce": REPLICA + PRODUCER + "INVALID_REQUIRED_ACKS INVALID_TOPIC_EXCEPTION CORRUPT_MESSAGE "
    "INVALID_RECORD INVALID_TIMESTAMP UNSUPPORTED_COMPRESSION_TYPE MESSAGE_TOO_LARGE "
    "OUT_OF_ORDER_SEQUENCE_NUMBER INVALID_TXN_STATE TRANSACTION_ABORTABLE NOT_ENOUGH_REPLICAS "
    "CONCURRENT_TRANSACTIONS TRANSACTIONAL_ID_AUTHORIZATION_FAILED REQUEST_TIMED_OUT "
    "INVALID_REQUEST",
    "Fetch": REPLICA + "OFFSET_OUT_OF_RANGE FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH "
    "FETCH_SESSION_TOPIC_ID_ERROR",
    "ListOffsets": REPLICA + "INVALID_REQUEST UNSUPPORTED_VERSION",
    "ConsumerGroupHeartbeat": GROUP + "INVALID_REQUEST FENCED_MEMBER_EPOCH UNRELEASED_INSTANCE_ID "
    "FENCED_INSTANCE_ID UNSUPPORTED_ASSIGNOR INVALID_REGULAR_EXPRESSION UNSUPPORTED_VERSION",
    "ConsumerGroupDescribe": GROUP + "UNSUPPORTED_VERSION",
    "OffsetCommit": COMMIT + "UNKNOWN_TOPIC_ID STALE_MEMBER_EPOCH REBALANCE_IN_PROGRESS "
    "UNSUPPORTED_VERSION",
    "OffsetFetch": GROUP + "UNKNOWN_TOPIC_ID UNSTABLE_OFFSET_COMMIT STALE_MEMBER_EPOCH",
}


def name_of(request: Any) -> str:
    return type(request).__name__.removesuffix("Request")


def error_codes(answer: Struct) -> Iterator[str]:
    for name in answer.__slots__:
        value = getattr(answer, name)
        if name.endswith("error_code"):
            yield ErrorCode(value).name
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Struct):
                yield from error_codes(one)


class Attacked:
    """A broker that its hostile clients leave alive, and that can be started again."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._controller = TestController()
        features = FEATURES[seed % len(FEATURES)]
        self._controller.image = replace(self._controller.image, features=features)
        self.draw = random.Random(seed)
        self._before: list[Committed] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[SingleBroker, KafkaConnection]]:
        settings = replace(SETTINGS, auto_create_topics_enable=False, group_max_size=3)
        async with single_broker(
            self._directory, settings, self._controller, has_real_verifier=True
        ) as broker:
            client = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
            yield broker, client
            await client.close()

    async def prepare(self, client: KafkaConnection) -> HostileRequests:
        """Create the topics and the coordinators; return what hostile clients send."""
        ids = {name: await create(client, name) for name in HOSTILE}
        await create(client, SOUND)
        search = FindCoordinatorRequest(key_type=1, key="x", coordinator_keys=["x"])
        await client.send(search)
        await coordinator_is_ready(client)
        return HostileRequests(self.draw, ids)

    async def still_serves(self, broker: SingleBroker, client: KafkaConnection) -> None:
        """Sound clients are served, also by the next broker, which reads what the first wrote."""
        await serves(broker, client, runs=1)
        self._before = await committed(client)

    async def starts_again(self) -> None:
        """The next broker reads what the first one wrote, and understands it in the same way."""
        async with self.serving() as (broker, client):
            await until(lambda: all_are_loaded(broker))
            assert await committed(client) == self._before
            await serves(broker, client, runs=2)


async def ask(port: int, request: Any, version: int) -> Message:
    async with connected(port) as peer:
        peer.send(request, 7, version)
        correlation_id, answer = await peer.answer(request.API_KEY, version)
        assert correlation_id == 7
        return answer


# --- What must be so afterwards ---


async def end_all(client: KafkaConnection) -> None:
    """Abort what is open in the hostile clients' topics, as an administrator does."""
    topics = [TopicRequest(name=name, partition_indexes=[0, 1]) for name in HOSTILE]
    described = await client.send(DescribeProducersRequest(topics=topics))
    for topic in described.topics:
        for part in topic.partitions:
            where = WritableTxnMarkerTopic(
                name=topic.name, partition_indexes=[part.partition_index]
            )
            markers = [
                WritableTxnMarker(
                    producer_id=one.producer_id,
                    producer_epoch=one.producer_epoch,
                    coordinator_epoch=max(one.coordinator_epoch, 0),
                    topics=[where],
                )
                for one in part.active_producers
                if one.current_txn_start_offset >= 0
            ]
            answer = await client.send(WriteTxnMarkersRequest(markers=markers), version=1)
            assert {*error_codes(answer)} <= {"NONE"}


async def ends(client: KafkaConnection, isolation: int) -> list[int]:
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1)]
    topics = [ListOffsetsTopic(name=name, partitions=partitions) for name in (*HOSTILE, SOUND)]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)
    answer = await client.send(request)
    assert {*error_codes(answer)} == {"NONE"}
    return [part.offset for topic in answer.topics for part in topic.partitions]


async def write(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap, transactional_id=f"sound-{topic}") as producer:
        await producer.init_transactions()
        for value, commits in ((b"kept", True), (b"gone", False), (b"also kept", True)):
            producer.begin_transaction()
            await producer.send(topic, value, partition=0)
            await producer.flush()
            if commits:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()


async def read(bootstrap: str, topic: str) -> list[bytes | None]:
    """Return all that a consumer of committed records gets."""
    async with Consumer(
        bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        end = (await consumer.end_offsets([where]))[where]
        found: list[bytes | None] = []
        while await consumer.position(where) < end:
            batch = await consumer.poll(timeout_ms=1000)
            found += [record.value for records in batch.values() for record in records]
        return found


async def serves(broker: SingleBroker, client: KafkaConnection, *, runs: int) -> None:
    """A committed record is seen, an aborted one is not, and nothing stays open."""
    async with asyncio.timeout(30):
        for topic in (SOUND, "t"):
            await write(broker.bootstrap, topic)
        for name in NEW_IDS:
            request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
            assert {*error_codes(await client.send(request))} == {"NONE"}
        await end_all(client)
        assert await ends(client, 0) == await ends(client, 1)
        kept = [b"kept", b"also kept"]
        assert await read(broker.bootstrap, SOUND) == kept * runs
        assert (await read(broker.bootstrap, "t"))[-2:] == kept
    assert broker.violations == broker.failures == []
    assert len({*map(broker.transactions.partition_of, NEW_IDS)}) == COORDINATORS / 2


async def committed(client: KafkaConnection) -> list[Committed]:
    groups = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "h")]
    answer = await client.send(OffsetFetchRequest(groups=groups), version=8)
    assert {*error_codes(answer)} <= {"NONE"}
    return sorted(
        (group.group_id, topic.name, part.partition_index, part.committed_offset, part.metadata)
        for group in answer.groups
        for topic in group.topics
        for part in topic.partitions
    )


def all_are_loaded(broker: SingleBroker) -> bool:
    services = broker.groups, broker.transactions
    coordinators = [one for service in services for one in service.coordinators()]
    return len(coordinators) == COORDINATORS and not any(
        isinstance(one, ErrorCode) for one in coordinators
    )


@pytest.mark.parametrize("seed", range(tries(8)))
async def test_what_is_wrong_gets_an_error_that_kafka_gives(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attacked = Attacked(tmp_path, seed)
    given: Counter[str] = Counter()
    async with attacked.serving() as (broker, client):
        requests = await attacked.prepare(client)
        for _ in range(250):
            request, version = requests.next()
            answer = await ask(broker.port, request, version)
            requests.learn(request, answer)
            names = {*error_codes(answer)}
            unexpected = names - {"NONE", *KAFKA_GIVES[name_of(request)].split()}
            assert not unexpected, (version, request, answer)
            given.update(names)
        await attacked.still_serves(broker, client)
    assert len(given) > 10, given
    await attacked.starts_again()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# --- Frames of real clients ---

DIRECTORY = Path(__file__).parents[1] / "data/client_frames"
CLIENTS = ("aiokafka", "confluent", "kafka_python")
OF_TRANSACTIONS = {22, 24, 25, 26, 28}  # InitProducerId, Add..., EndTxn, TxnOffsetCommit
OF_KIP_848 = {68}  # ConsumerGroupHeartbeat
CHANGED = tries(400)  # frames of each client


def frames(client: str) -> Iterator[bytes]:
    data = (DIRECTORY / f"{client}.bin").read_bytes()
    while data:
        size = int.from_bytes(data[:4], "big")
        yield data[4 : 4 + size]
        data = data[4 + size :]


def api_key(frame: bytes) -> int:
    return int.from_bytes(frame[:2], "big")


async def answered(port: int, frame: bytes) -> bytes:
    async with connected(port) as peer:
        peer.writer.write(len(frame).to_bytes(4, "big") + frame)
        return await peer.frame()


async def send(port: int, size: int, body: bytes) -> None:
    """Send a frame, and no more; return when the connection is closed."""
    async with connected(port) as peer:
        peer.writer.write(size.to_bytes(4, "big", signed=True) + body)
        peer.writer.write_eof()
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):  # closed before all was read
                while await peer.reader.read(65_536):
                    pass


def test_the_frames_are_those_of_transactions_and_of_both_protocols_of_groups() -> None:
    keys = {client: {*map(api_key, frames(client))} for client in CLIENTS}
    for found in keys.values():
        assert found >= OF_TRANSACTIONS
        assert found <= HANDLERS.keys()
    assert keys["confluent"] >= OF_KIP_848
    assert not OF_KIP_848 & (keys["aiokafka"] | keys["kafka_python"])


@pytest.mark.parametrize("client", CLIENTS)
async def test_frames_of_a_client_are_answered_and_changed_ones_do_no_harm(
    client: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attacked = Attacked(tmp_path, seed=CLIENTS.index(client))
    recorded = [*frames(client)]
    async with attacked.serving() as (broker, own):
        await attacked.prepare(own)
        for frame in recorded:
            answer = await answered(broker.port, frame)
            assert answer[:4] == frame[4:8], "the answer has the request's correlation id"
        for _ in range(CHANGED):
            draw = attacked.draw
            changed = mutated(draw, draw.choice(recorded))
            size = len(changed) if draw.random() < 0.9 else draw.choice((-1, 0, 1, 2**31 - 1))
            await send(broker.port, size, changed)
        await attacked.still_serves(broker, own)
    await attacked.starts_again()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
