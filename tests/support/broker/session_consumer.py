"""A consumer with a fetch session, for the tests of sessions over a connection."""

import asyncio
from typing import Any

from quorumlog.broker.following.core.session_client import SessionClient
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.one_broker import BATCH
from tests.support.broker.replica_calls import append_to, partition_of
from tests.support.groups.asking import create
from tests.support.groups.single_broker import SingleBroker

TOPIC = "orders"


class Consumer:
    """Fetches in a session; `told`: the last response, by partition."""

    def __init__(self, connection: KafkaConnection, topic_id: bytes, version: int = 17) -> None:
        self.connection, self.topic_id, self.version = connection, topic_id, version
        self.session: SessionClient[int, int] = SessionClient()
        self.positions: dict[int, int] = {}
        self.told: dict[int, PartitionData] = {}
        self.leader_epoch = -1
        self.now_ms = 0

    def request(self, max_wait_ms: int = 0, max_bytes: int = 1_000_000) -> FetchRequest:
        self.now_ms += 1000
        for index in (*self.positions, *self.session.asked):
            self.session.touch(index)  # a test changes positions without a word
        changes = self.session.changes(self.now_ms, self.positions, self.positions.get)
        named = [
            FetchPartition(
                partition=index,
                fetch_offset=self.positions[index],
                current_leader_epoch=self.leader_epoch,
                partition_max_bytes=1_000_000,
            )
            for index in changes.named
        ]
        name: dict[str, Any] = (
            {"topic": TOPIC} if self.version < 13 else {"topic_id": self.topic_id}
        )
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            session_id=self.session.session_id,
            session_epoch=self.session.epoch,
            topics=[FetchTopic(partitions=named, **name)] if named else [],
            forgotten_topics_data=[ForgottenTopic(partitions=changes.forgotten, **name)]
            if changes.forgotten
            else [],
        )

    def take(self, response: FetchResponse) -> dict[int, PartitionData]:
        assert self.session.answered(response.error_code, response.session_id)
        self.told = {
            answer.partition_index: answer
            for topic in response.responses
            for answer in topic.partitions
        }
        for index, answer in self.told.items():
            self.positions[index] += len(answer.records or b"") // len(BATCH)
        return self.told

    async def fetch(self, max_wait_ms: int = 0) -> dict[int, PartitionData]:
        request = self.request(max_wait_ms)
        async with asyncio.timeout(20):
            return self.take(await self.connection.send(request, version=self.version))


async def created(broker: SingleBroker, connection: KafkaConnection, partitions: int) -> bytes:
    """Create the topic; return its id when all logs are open."""
    topic_id = await create(connection, TOPIC, partitions=partitions)
    async with asyncio.timeout(20):
        while any(
            partition_of(broker.replicas, TopicPartition(TOPIC, index)) is None
            for index in range(partitions)
        ):
            await asyncio.sleep(0)
    return topic_id


async def parked(broker: SingleBroker) -> None:
    async with asyncio.timeout(20):
        while not broker.replicas.fetches._purgatory.deadlines:
            await asyncio.sleep(0)


def append(broker: SingleBroker, index: int) -> None:
    at = TopicPartition(TOPIC, index)
    assert append_to(broker.replicas, at, BATCH, acks=1, timeout_ms=0).result().error_code == 0
