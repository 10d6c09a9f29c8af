"""Brokers that answer a producer's requests in every wrong way, by one seed.

They hold one log per partition and check numbers as Kafka does (KIP-98, kept in one place here): a
new epoch starts at 0, a number must be the next, the last five batches are known again. What they
lie about is only what a real broker, or the network before it, may do to a client.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdResponse
from quorumlog.wire.codec.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from quorumlog.wire.codec.records import read_header, restamp
from quorumlog.wire.codec.schemas import decode_request, encode_response
from tests.support.client import fake_cluster as fake

WINDOW = 5
E = ErrorCode
REFUSALS = (  # before the append
    E.NOT_LEADER_OR_FOLLOWER,
    E.NOT_ENOUGH_REPLICAS,
    E.KAFKA_STORAGE_ERROR,
    E.REQUEST_TIMED_OUT,
    E.LEADER_NOT_AVAILABLE,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.OUT_OF_ORDER_SEQUENCE_NUMBER,
    E.UNKNOWN_PRODUCER_ID,
    E.CORRUPT_MESSAGE,
    E.MESSAGE_TOO_LARGE,
    E.INVALID_RECORD,
    E.TOPIC_AUTHORIZATION_FAILED,
    E.UNKNOWN_SERVER_ERROR,
)
DOUBTS = (  # after it
    E.NOT_LEADER_OR_FOLLOWER,
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    E.REQUEST_TIMED_OUT,
    E.KAFKA_STORAGE_ERROR,
    E.NETWORK_EXCEPTION,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNKNOWN_SERVER_ERROR,
)
WAYS = (
    "lose it", "never answer", "do it and hang up", "do it and never answer", "do it later",
    "refuse", "do it and doubt", "do it and answer for another topic",
    "do it and leave a partition out", "answer nonsense", "do it and answer nonsense",
    "answer to another request", "answer twice", "answer late", "elect", "hint", "fence", "reload",
)  # fmt: skip


class _Connection(fake._Connection):
    cluster: "Adversary"
    next_at = 0.0

    def frame_received(self, frame: memoryview) -> None:
        if not self.is_closing:
            header, request = decode_request(bytes(frame))
            self.cluster.receive(self, header, request)

    def answer(self, header: Any, response: Any, *, after_s: float = 0.0) -> None:
        """In the order of the requests, as a broker does."""
        loop = asyncio.get_running_loop()
        self.next_at = max(self.next_at, loop.time() + after_s)
        frame = encode_response(header, response)
        loop.call_at(self.next_at, self.write, frame)


class Adversary(fake.FakeCluster):
    connection_class = _Connection

    def __init__(self, seed: int, *, faults: float) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.faults = faults
        self.topics = {"t": 2}
        self.held_back = 0  # requests that are done later
        self.batches: dict[tuple[int, TopicPartition], list[tuple[int, int, int, int]]] = {}

    def receive(self, connection: _Connection, header: Any, request: Any) -> None:
        way = "honest"
        if self.random.random() < self.faults:
            way = self.random.choice(WAYS)
        if header.api_key == fake.PRODUCE:
            self.strike(connection, header, request, way)
            return
        if way in WAYS[:2]:
            if way == "lose it":
                connection.abort()
            return
        broker = connection.broker_id
        if header.api_key == fake.INIT_PRODUCER_ID:
            self.producers += 1
            busy = E.COORDINATOR_LOAD_IN_PROGRESS if way == "refuse" else E.NONE
            answer = InitProducerIdResponse(producer_id=self.producers, error_code=busy)
            connection.answer(header, answer)
        else:
            connection.answer(header, self.handle(broker, header.api_key, request, None))

    def strike(self, connection: _Connection, header: Any, request: Any, way: str) -> None:  # noqa: C901 - one flat case per kind of fault
        broker, rng = connection.broker_id, self.random
        match way:
            case "lose it":
                connection.abort()
            case "never answer":
                pass
            case "do it and hang up":
                self.produce(broker, request, None)
                connection.abort()
            case "do it and never answer":
                self.produce(broker, request, None)
            case "do it later":
                self.held_back += 1
                loop = asyncio.get_running_loop()
                loop.call_later(rng.uniform(0, 0.3), self.produce_late, broker, request)
                connection.abort()
            case "refuse":
                connection.answer(header, self.refuse(request, rng.choice(REFUSALS)))
            case "do it and doubt":
                done = self.produce(broker, request, None)
                connection.answer(header, self.spoil(done, rng.choice(DOUBTS)))
            case "do it and answer for another topic":
                done = self.produce(broker, request, None)
                done.responses[0].name = "other"
                connection.answer(header, done)
            case "do it and leave a partition out":
                done = self.produce(broker, request, None)
                done.responses[0].partition_responses.pop()
                connection.answer(header, done)
            case "answer nonsense":
                connection.write([rng.randbytes(rng.randrange(40))])
            case "do it and answer nonsense":
                self.produce(broker, request, None)
                connection.write([rng.randbytes(rng.randrange(40))])
            case "answer to another request":
                done = self.produce(broker, request, None)
                connection.answer(header._replace(correlation_id=77_777), done)
            case "answer twice":
                done = self.produce(broker, request, None)
                connection.answer(header, done)
                connection.answer(header, done)
            case "answer late":
                done = self.produce(broker, request, None)
                connection.answer(header, done, after_s=rng.uniform(0, 0.12))
            case _:
                self.change(request, way)
                connection.answer(header, self.produce(broker, request, None))

    def produce_late(self, broker: int, request: Any) -> None:
        self.produce(broker, request, None)
        self.held_back -= 1

    def change(self, request: Any, way: str) -> None:
        data = self.random.choice(request.topic_data[0].partition_data)
        name = TopicPartition(request.topic_data[0].name, data.index)
        if way in {"elect", "hint"}:
            self.elect(3 - self.leader(name).broker_id, name)
        elif way == "fence":  # somebody else raised the epoch
            producer = read_header(bytearray(data.records)).producer_id
            known = self.batches.setdefault((producer, name), [])
            if known:
                known.append((known[-1][0] + 1, 0, 0, -1))
        elif way == "reload":  # from a snapshot, which keeps a producer's last batch alone
            for known in self.batches.values():
                del known[:-1]

    def refuse(self, request: Any, code: ErrorCode) -> ProduceResponse:
        topics = []
        for topic in request.topic_data:
            refused = [
                PartitionProduceResponse(index=data.index, error_code=code)
                for data in topic.partition_data
            ]
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=refused))
        return ProduceResponse(responses=topics)

    def spoil(self, done: ProduceResponse, code: ErrorCode) -> ProduceResponse:
        for topic in done.responses:
            for one in topic.partition_responses:
                if one.error_code == E.NONE:
                    one.error_code, one.base_offset = code, -1
        return done

    def produce(self, broker: int, request: Any, fault: object) -> ProduceResponse:
        done = super().produce(broker, request, fault)
        assert done is not None
        done.throttle_time_ms = self.random.choice((0, 0, 50))
        for topic in done.responses:
            for one in topic.partition_responses:
                if one.error_code == E.NOT_LEADER_OR_FOLLOWER and self.random.random() < 0.5:
                    leader, epoch, _ = self.leader(TopicPartition(topic.name, one.index))
                    one.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
        done.node_endpoints = [
            NodeEndpoint(node_id=number, host=host, port=port)
            for number, (host, port) in self.addresses.items()
        ]
        return done

    def append(self, name: TopicPartition, batch: bytearray) -> tuple[ErrorCode, int]:
        header, log = read_header(batch), self.logs.setdefault(name, [])
        known = self.batches.setdefault((header.producer_id, name), [])
        epoch, sequence, count = header.producer_epoch, header.base_sequence, header.record_count
        if known:
            last_epoch, last_sequence, last_count, _ = known[-1]
            if epoch < last_epoch:
                return E.INVALID_PRODUCER_EPOCH, -1
            for one in known[-WINDOW:]:
                if one[:3] == (epoch, sequence, count):
                    return E.NONE, one[3]
            expected = last_sequence + last_count if epoch == last_epoch else 0
            if sequence != expected:
                return E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = sum(read_header(one).record_count for one in log)
        known.append((epoch, sequence, count, offset))
        restamp(batch, 0, base_offset=offset, leader_epoch=self.leader(name).leader_epoch)
        log.append(bytes(batch))
        return E.NONE, offset


@asynccontextmanager
async def adversary(seed: int, *, faults: float) -> AsyncIterator[Adversary]:
    cluster = Adversary(seed, faults=faults)
    for broker_id in (1, 2):
        await cluster.start(broker_id)
    try:
        yield cluster
    finally:
        await cluster.kill(*cluster.servers)
