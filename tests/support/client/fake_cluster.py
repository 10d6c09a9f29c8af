"""Brokers on loopback under control of a test: they answer, keep silent, hang up, or stop.

They share one log per partition, as if replication were perfect, and check producers' numbers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.client import Producer
from quorumlog.client.core.metadata_cache import Leader
from quorumlog.cluster.ports import free_ports
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse
from quorumlog.wire.codec.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdResponse
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from quorumlog.wire.codec.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from quorumlog.wire.codec.records import decode_batch, read_header, restamp
from quorumlog.wire.codec.schemas import decode_request, encode_response
from quorumlog.wire.io.frames import FrameProtocol

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 22
SPOKEN = {
    PRODUCE: 10,
    FETCH: 12,
    LIST_OFFSETS: 7,
    METADATA: 9,
    API_VERSIONS: 3,
    INIT_PRODUCER_ID: 4,
}
T = TopicPartition("t", 0)
SILENCE, HANG_UP = "keep silent", "hang up"

Fault = Callable[[int, int], ErrorCode | str | None]
"""(broker id, API key) -> what goes wrong: the error of Produce or Fetch, or SILENCE or HANG_UP."""


class _Connection(FrameProtocol):
    def __init__(self, cluster: "FakeCluster", broker_id: int) -> None:
        super().__init__()
        self.cluster, self.broker_id = cluster, broker_id

    def connection_opened(self) -> None:
        self.cluster.connections[self.broker_id].add(self)

    def connection_closed(self, error: Exception | None) -> None:
        self.cluster.connections[self.broker_id].discard(self)

    def frame_received(self, frame: memoryview) -> None:
        header, request = decode_request(frame)
        fault = self.cluster.fault(self.broker_id, header.api_key)
        response = self.cluster.handle(self.broker_id, header.api_key, request, fault)
        if fault == HANG_UP:
            self.close()
        elif fault != SILENCE and response is not None:
            self.write(encode_response(header, response))


class FakeCluster:
    connection_class = _Connection

    def __init__(self) -> None:
        self.servers: dict[int, asyncio.Server] = {}
        self.addresses: dict[int, tuple[str, int]] = {}
        self.connections: dict[int, set[_Connection]] = {}
        self.topics: dict[str, int] = {"t": 1}
        self.racks: dict[int, str] = {}
        self.denied: set[str] = set()  # topics that clients may not describe any more
        self.leaders: dict[TopicPartition, Leader] = {}
        self.logs: dict[TopicPartition, list[bytes]] = {}
        self.numbers: dict[tuple[int, TopicPartition], list[tuple[int, int, int]]] = {}
        self.fault: Fault = lambda _broker, _api: None
        self.asked: list[tuple[int, int]] = []
        self.producers = 0

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses.values())

    async def start(self, broker_id: int) -> None:
        if broker_id not in self.addresses:  # it keeps its port, also while it is down
            self.addresses[broker_id] = ("127.0.0.1", free_ports("127.0.0.1", 1)[0])
        host, port = self.addresses[broker_id]
        self.connections[broker_id] = set()
        server = await asyncio.get_running_loop().create_server(
            lambda: self.connection_class(self, broker_id), host, port
        )
        self.servers[broker_id] = server

    async def kill(self, *broker_ids: int) -> None:
        for _ in range(4):  # turns of the loop, which opens a connection that waits in the backlog
            await asyncio.sleep(0)
        for broker_id in broker_ids:
            server = self.servers.pop(broker_id)
            server.close()
            while connections := list(self.connections[broker_id]):
                for connection in connections:
                    connection.abort()
                await asyncio.sleep(0)
            await server.wait_closed()

    def hang_up(self) -> None:
        """End every connection; clients may open others."""
        for connections in self.connections.values():
            for connection in list(connections):
                connection.abort()

    def leader(self, name: TopicPartition) -> Leader:
        return self.leaders.get(name, Leader(1, 0))

    def elect(self, broker_id: int, name: TopicPartition = T) -> None:
        self.leaders[name] = Leader(broker_id, self.leader(name).leader_epoch + 1)

    def values(self, name: TopicPartition = T) -> list[bytes]:
        batches = self.logs.get(name, [])
        return [record.value or b"" for batch in batches for record in decode_batch(batch)]

    # --- requests ---

    def handle(self, broker: int, api: int, request: Any, fault: object) -> Response | None:
        self.asked.append((broker, api))
        match api:
            case 18:
                keys = [ApiVersion(api_key=k, max_version=v) for k, v in SPOKEN.items()]
                return ApiVersionsResponse(api_keys=keys)
            case 3:
                return self.metadata(request)
            case 22:
                self.producers += 1
                return InitProducerIdResponse(producer_id=self.producers)
            case 0:
                return self.produce(broker, request, fault)
            case 1:
                return self.fetch(request, fault)
            case _:
                return refused_by(self.list_offsets(request), fault)

    def metadata(self, request: Any) -> MetadataResponse:
        brokers = [
            MetadataResponseBroker(
                node_id=number, host=host, port=port, rack=self.racks.get(number)
            )
            for number, (host, port) in self.addresses.items()
        ]
        topics = []
        names = list(self.topics)
        if request.topics is not None:
            names = [topic.name for topic in request.topics]
        for name in names:
            partitions = []
            for index in range(0 if name in self.denied else self.topics.get(name, 0)):
                leader, epoch, _ = self.leader(TopicPartition(name, index))
                one = MetadataResponsePartition(
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=epoch,
                    replica_nodes=[leader],
                )
                partitions.append(one)
            code = ErrorCode.NONE if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if name in self.denied:
                code, partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
            topics.append(MetadataResponseTopic(name=name, error_code=code, partitions=partitions))
        return MetadataResponse(brokers=brokers, topics=topics)

    def produce(self, broker: int, request: Any, fault: object) -> ProduceResponse | None:
        topics = []
        for topic in request.topic_data:
            answers = []
            for data in topic.partition_data:
                name = TopicPartition(topic.name, data.index)
                code, offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
                if isinstance(fault, ErrorCode):
                    code = fault
                elif self.leader(name).broker_id == broker:
                    code, offset = self.append(name, bytearray(data.records))
                one = PartitionProduceResponse(
                    index=data.index, error_code=code, base_offset=offset
                )
                answers.append(one)
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
        return ProduceResponse(responses=topics) if request.acks else None

    def append(self, name: TopicPartition, batch: bytearray) -> tuple[ErrorCode, int]:
        header, log = read_header(batch), self.logs.setdefault(name, [])
        offset = sum(read_header(one).record_count for one in log)
        if header.producer_id >= 0:
            known = self.numbers.setdefault((header.producer_id, name), [])
            for sequence, count, place in known:
                if (sequence, count) == (header.base_sequence, header.record_count):
                    return ErrorCode.NONE, place
            if known and header.base_sequence != known[-1][0] + known[-1][1]:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known.append((header.base_sequence, header.record_count, offset))
        restamp(batch, 0, base_offset=offset, leader_epoch=self.leader(name).leader_epoch)
        log.append(bytes(batch))
        return ErrorCode.NONE, offset

    def fetch(self, request: Any, fault: object) -> FetchResponse:
        code = fault if isinstance(fault, ErrorCode) else ErrorCode.NONE
        topics = []
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                log = self.logs.get(TopicPartition(topic.topic, one.partition), [])
                later = [b for b in log if read_header(b).next_offset > one.fetch_offset]
                records = b"".join(later[:1]) if code == ErrorCode.NONE else b""
                answers.append(
                    PartitionData(partition_index=one.partition, error_code=code, records=records)
                )
            topics.append(FetchableTopicResponse(topic=topic.topic, partitions=answers))
        return FetchResponse(responses=topics)

    def list_offsets(self, request: Any) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                log = self.logs.get(TopicPartition(topic.name, one.partition_index), [])
                end = sum(read_header(batch).record_count for batch in log)
                offset = end if one.timestamp == -1 else 0
                answer = ListOffsetsPartitionResponse(
                    partition_index=one.partition_index, offset=offset
                )
                if topic.name in self.denied:
                    answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                answers.append(answer)
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)


def refused_by(response: ListOffsetsResponse, fault: object) -> ListOffsetsResponse:
    """The response, with the error of `fault` in each partition."""
    if isinstance(fault, ErrorCode):
        for topic in response.topics:
            for one in topic.partitions:
                one.error_code = fault
    return response


@asynccontextmanager
async def fake_cluster(brokers: int = 2) -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster()
    for broker_id in range(1, brokers + 1):
        await cluster.start(broker_id)
    try:
        yield cluster
    finally:
        await cluster.kill(*cluster.servers)


async def until_noticed(producer: Producer) -> None:
    """Wait until the client has noticed that both brokers were killed."""
    cluster, _ = producer._running()
    while any(cluster.connected(broker) is not None for broker in (1, 2)):
        await asyncio.sleep(0.001)
