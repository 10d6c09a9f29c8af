"""A transaction service over a log in memory, among brokers that are not there.

Time jumps: each append and each request takes one second of it, so that time counts rounds.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from quorumlog.broker.partitions.core.data_path import ProduceDone
from quorumlog.broker.peer_addresses import PeerAddresses
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch, ProducerResult
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.broker.transactions.io.broker_channels import Peers
from quorumlog.broker.transactions.io.transaction_service import TransactionService
from quorumlog.metadata_quorum.image import (
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicId, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from quorumlog.wire.codec.topic_names import TRANSACTIONS_TOPIC
from quorumlog.wire.io.connection import ConnectionLost, RequestTimedOut
from tests.support.groups.memory_log import MemoryLog
from tests.support.transactions.coordination import add, commit, init

HOME = TopicPartition(TRANSACTIONS_TOPIC, 0)
OWN_ID = BrokerId(1)
ROUND_S = 1.0
TIMEOUT_S = 3.0
SETTINGS = BrokerSettings(transaction_state_log_num_partitions=1)


class SlowLog(MemoryLog):
    """Commits appended records one round later."""

    def __init__(self) -> None:
        super().__init__(HOME)
        self.commits_at_once = False

    def append(
        self, at: TopicPartition, records: Buffer, *, acks: int, timeout_ms: int, done: ProduceDone
    ) -> None:
        super().append(at, records, acks=acks, timeout_ms=timeout_ms, done=done)
        asyncio.get_running_loop().call_later(ROUND_S, self.commit_all)


class FakeBroker:
    """Answers requests, a round later. `errors`: of the markers of partitions."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.is_up = True
        self.is_hanging = False
        self.duration_s = ROUND_S
        self.in_flight = self.in_flight_max = 0
        self.connections: list[FakeConnection] = []
        self.answer: Callable[[Any], Any] = self.marked

    def marked(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=marker.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=self.errors.get(
                                        TopicPartition(topic.name, index), ErrorCode.NONE
                                    ),
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )

    def die(self) -> None:
        self.is_up = False
        for connection in self.connections:
            connection.lose()

    @property
    def marked_partitions(self) -> list[TopicPartition]:
        """The partitions in the marker requests, in order."""
        return [
            TopicPartition(topic.name, index)
            for request in self.requests
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]


class FakeConnection:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.closed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    async def send(self, request: Any) -> Any:
        if self.closed.done():
            raise ConnectionLost("closed")
        broker = self.broker
        broker.requests.append(request)
        broker.in_flight += 1
        broker.in_flight_max = max(broker.in_flight_max, broker.in_flight)
        is_lost = broker.is_hanging
        try:
            await asyncio.wait([self.closed], timeout=TIMEOUT_S if is_lost else broker.duration_s)
        finally:
            broker.in_flight -= 1
        if self.closed.done():
            raise ConnectionLost("lost")
        if is_lost:
            raise RequestTimedOut("no answer")
        return broker.answer(request)

    async def close(self) -> None:
        self.lose()

    def lose(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


class FakeBrokers:
    """Three brokers; number N listens on port N."""

    def __init__(self) -> None:
        self.by_id = {BrokerId(number): FakeBroker() for number in (1, 2, 3)}
        self.failures: list[BaseException] = []
        self.peers = Peers(
            connect=self.connect, addresses=PeerAddresses({}), on_error=self.failures.append
        )

    def __getitem__(self, number: int) -> FakeBroker:
        return self.by_id[BrokerId(number)]

    async def connect(self, _host: str, port: int) -> FakeConnection:
        broker = self[port]
        if not broker.is_up:
            raise ConnectionLost("refused")
        connection = FakeConnection(broker)
        broker.connections.append(connection)
        return connection


def image_of(
    leaders: Mapping[str, Iterable[int]],
    *,
    home_leader: int = OWN_ID,
    home_epoch: int = 0,
    fenced: Iterable[int] = (),
    features: Mapping[str, int] | None = None,
) -> ClusterImage:
    """Return an image in which these brokers lead the partitions of topics, by index."""

    def partition(leader: int, epoch: int = 0) -> PartitionImage:
        return PartitionImage(
            leader_id=BrokerId(leader),
            leader_epoch=Epoch(epoch),
            partition_epoch=Epoch(0),
            replicas=(BrokerId(leader),),
            isr=(BrokerId(leader),),
        )

    def topic(name: str, *partitions: PartitionImage) -> TopicImage:
        topic_id = TopicId(name.encode().ljust(16)[:16])
        return TopicImage(name=name, topic_id=topic_id, partitions=partitions, configs={})

    topics = {name: topic(name, *map(partition, those)) for name, those in leaders.items()}
    topics[TRANSACTIONS_TOPIC] = topic(TRANSACTIONS_TOPIC, partition(home_leader, home_epoch))
    brokers = {
        BrokerId(number): BrokerImage(
            broker_id=BrokerId(number),
            broker_epoch=number,
            incarnation_id="",
            host="localhost",
            port=number,
            control_address="",
            fenced=number in fenced,
        )
        for number in (1, 2, 3)
    }
    levels = {"transaction.version": 2} if features is None else features
    return ClusterImage(brokers=brokers, topics=topics, features=levels)


class ServiceWorld:
    """The coordinator on broker 1 of the only partition of `__transaction_state`."""

    def __init__(self, brokers: FakeBrokers | None = None, log: SlowLog | None = None) -> None:
        self.brokers = brokers or FakeBrokers()
        self.log = log or SlowLog()
        self.last_producer_id = 1000
        self.image = ClusterImage()
        self.service = TransactionService(
            broker_id=OWN_ID,
            replicas=self.log,
            next_producer_id=self.next_producer_id,
            peers=self.brokers.peers,
            settings=SETTINGS,
            wall_ms=lambda: 1_000_000,
            on_fatal=self.brokers.failures.append,
        )

    async def next_producer_id(self) -> tuple[ErrorCode, int]:
        self.last_producer_id += 1
        return ErrorCode.NONE, self.last_producer_id

    def publish(self, image: ClusterImage, *deleted: str) -> None:
        topics = {name: self.image.topics[name].topic_id for name in deleted}
        self.image = image
        self.service.publish(ClusterDelta(deleted_topics=topics), image)

    async def lead(self, leaders: Mapping[str, Iterable[int]], epoch: int = 0) -> None:
        """Coordinate, among these leaders of partitions."""
        self.publish(image_of(leaders, home_epoch=epoch))
        self.service.became_leader(HOME, Epoch(epoch))
        while self.service.coordinator("x") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0.01)

    async def begun(self, name: str = "x", **changes: Any) -> ProducerIdAndEpoch:
        result = await self.service.ask(init(name=name, **changes))
        assert isinstance(result, ProducerResult)
        assert result.error_code is ErrorCode.NONE
        return result.producer

    async def opened(self, *partitions: TopicPartition, name: str = "x") -> ProducerIdAndEpoch:
        """Begin a transaction with these partitions."""
        producer = await self.begun(name)
        added = await self.service.ask(add(producer, *partitions, name=name, api_version=5))
        assert {*added.partitions.values()} == {ErrorCode.NONE}
        return producer

    async def committed(self, producer: ProducerIdAndEpoch, name: str = "x") -> None:
        """Have a commit decided."""
        result = await self.service.ask(commit(producer, name=name))
        assert isinstance(result, ProducerResult)
        assert result.error_code is ErrorCode.NONE

    def state(self, name: str = "x") -> TransactionState | None:
        coordinator = self.service.coordinator(name)
        return None if isinstance(coordinator, ErrorCode) else coordinator.describe(name).state

    async def completed(self, name: str = "x") -> None:
        """Wait until every partition has its marker."""
        complete = {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
        async with asyncio.timeout(60):
            while self.state(name) not in complete:
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        await self.service.stop()
        assert self.brokers.failures == []


def topic_partitions(topic: str, count: int) -> list[TopicPartition]:
    return [*map(partial(TopicPartition, topic), range(count))]
