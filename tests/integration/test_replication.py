"""Three brokers' data paths in one process, with real logs and sockets; the controller is ours.

What is produced with acks=all survives: a follower that dies, a leader that dies, a leader that
was cut off and wrote what nobody else has.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from quorumlog.broker.core.data_path import ProduceResult, ReadEnd
from quorumlog.broker.core.settings import BrokerSettings
from quorumlog.broker.handlers import fetch, list_offsets, offset_for_leader_epoch, produce
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.io.context import BrokerContext
from quorumlog.broker.io.image_watch import ImageWatch
from quorumlog.broker.io.replica_manager import ReplicaManager
from quorumlog.broker.io.server import Server
from quorumlog.metadata_quorum.controller_client import ControllerClient, IsrProposal, IsrResult
from quorumlog.metadata_quorum.image import (
    BrokerImage,
    ClusterDelta,
    ClusterImage,
    PartitionImage,
    TopicImage,
)
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    NO_LEADER,
    BrokerId,
    Epoch,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from quorumlog.wire.codec.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from quorumlog.wire.io.connection import KafkaConnection

BROKERS = tuple(map(BrokerId, (1, 2, 3)))
TOPIC_ID = TopicId(bytes(range(16)))
AT = TopicPartition("orders", 0)
SETTINGS = BrokerSettings(
    replica_lag_time_max_ms=300,
    replica_fetch_backoff_ms=50,
    replica_fetch_wait_max_ms=100,
    min_insync_replicas=2,
)


def batch(*values: bytes, **producer: int) -> bytes:
    return encode_batch(
        [Record(i, 1000 + i, None, value) for i, value in enumerate(values)], **producer
    )


class Node:
    """One broker: replicas, and a listener with the handlers of the data path."""

    def __init__(self, cluster: "Cluster", broker_id: BrokerId, directory: Path) -> None:
        self.cluster, self.broker_id, self.directory = cluster, broker_id, directory
        self.port = 0

    async def start(self, broker_epoch: int) -> None:
        self.replicas = ReplicaManager(
            broker_id=self.broker_id,
            settings=SETTINGS,
            log_settings=LogSettings(),
            disk=RealDisk(),
            log_directory=str(self.directory),
            controller=cast(ControllerClient, self.cluster),
        )
        await self.replicas.start()
        self.replicas.registered(broker_epoch)
        self.watch = ImageWatch()
        apis = (produce, fetch, list_offsets, offset_for_leader_epoch)
        api_versions = HANDLERS[18]
        handlers = {api.HANDLER.api_key: api.HANDLER for api in apis}
        context = BrokerContext(
            broker_id=self.broker_id,
            cluster_id="test",
            settings=SETTINGS,
            metadata=self.watch,
            replicas=self.replicas,
            groups=cast(Any, None),
            producer_ids=cast(Any, None),
            controller=cast(ControllerClient, self.cluster),
            handlers={**handlers, api_versions.api_key: api_versions},
            now_ms=lambda: 0,
        )
        self.server = Server(context, on_fatal=self.replicas.failure.set_exception)
        self.port = await self.server.start("127.0.0.1", 0)

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        self.replicas.publish(delta, image)
        self.watch.publish(delta, image)

    async def stop(self) -> None:
        await self.server.stop(grace_ms=0)
        failure = self.replicas.failure
        await self.replicas.stop()
        assert failure.cancelled(), failure.exception()

    def records(self, end: ReadEnd = ReadEnd.LOG_END) -> list[bytes | None]:
        read = self.replicas.read_local(AT, 0, 1 << 20, end)
        return [record.value for _, records in decode_batches(read.records) for record in records]

    def offsets(self) -> tuple[int, int]:
        partition = self.replicas.partition(AT)
        assert partition is not None
        return partition.high_watermark, partition.log_end_offset


class Cluster:
    """The nodes, and what a controller would commit."""

    def __init__(self, directory: Path) -> None:
        self.nodes = {who: Node(self, who, directory / str(who)) for who in BROKERS}
        self.up: set[BrokerId] = set()
        self.image = ClusterImage()
        self.deaf: set[BrokerId] = set()  # nodes that the metadata does not reach
        self.asked: list[IsrProposal] = []

    async def start_node(self, who: BrokerId, broker_epoch: int = 1) -> None:
        node = self.nodes[who]
        await node.start(broker_epoch)
        self.up.add(who)
        broker = BrokerImage(
            broker_id=who,
            broker_epoch=broker_epoch,
            incarnation_id="",
            host="127.0.0.1",
            port=node.port,
            control_address="",
            fenced=False,
        )
        brokers = {**self.image.brokers, who: broker}
        self.image = replace(self.image, brokers=brokers)
        everything = frozenset({AT}) if AT.topic in self.image.topics else frozenset()
        node.publish(ClusterDelta(brokers=frozenset(brokers), partitions=everything), self.image)
        self.publish(ClusterDelta(brokers=frozenset({who})))

    async def stop_node(self, who: BrokerId) -> None:
        self.up.discard(who)
        await self.nodes[who].stop()

    def publish(self, delta: ClusterDelta) -> None:
        for who in sorted(self.up - self.deaf):
            self.nodes[who].publish(delta, self.image)

    def set_partition(self, partition: PartitionImage | None) -> None:
        topics, names = {}, {}
        deleted = {AT.topic: TOPIC_ID} if partition is None else {}
        if partition is not None:
            topic = TopicImage(name=AT.topic, topic_id=TOPIC_ID, partitions=(partition,))
            topics, names = {AT.topic: topic}, {TOPIC_ID: AT.topic}
        self.image = replace(self.image, topics=topics, topic_names=names)
        touched = frozenset() if partition is None else frozenset({AT})
        self.publish(ClusterDelta(partitions=touched, deleted_topics=deleted))

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics[AT.topic].partitions[0]

    def elect(self, leader_id: int, isr: Sequence[int]) -> None:
        old = self.partition
        self.set_partition(
            replace(
                old,
                leader_id=BrokerId(leader_id),
                leader_epoch=Epoch(old.leader_epoch + 1),
                partition_epoch=Epoch(old.partition_epoch + 1),
                isr=tuple(map(BrokerId, isr)),
            )
        )

    async def alter_partitions(
        self, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> tuple[ErrorCode, list[IsrResult]]:
        results = []
        for proposal in proposals:
            self.asked.append(proposal)
            old = self.partition
            epochs = proposal.leader_epoch, proposal.partition_epoch
            if epochs != (old.leader_epoch, old.partition_epoch):
                error_code = ErrorCode.INVALID_UPDATE_VERSION
                results.append(
                    IsrResult(
                        topic_id=TOPIC_ID, partition=proposal.partition, error_code=error_code
                    )
                )
                continue
            isr = tuple(member for member, _ in proposal.new_isr)
            new = replace(old, isr=isr, partition_epoch=Epoch(old.partition_epoch + 1))
            self.set_partition(new)
            results.append(
                IsrResult(
                    topic_id=TOPIC_ID,
                    partition=PartitionIndex(0),
                    error_code=ErrorCode.NONE,
                    leader_id=new.leader_id,
                    leader_epoch=new.leader_epoch,
                    partition_epoch=new.partition_epoch,
                    isr=isr,
                )
            )
        return ErrorCode.NONE, results

    async def produce(
        self, who: BrokerId, *values: bytes, acks: int = -1, timeout_ms: int = 5000
    ) -> ProduceResult:
        return await self.nodes[who].replicas.append(
            AT, batch(*values), acks=acks, timeout_ms=timeout_ms
        )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def three_brokers(directory: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory)
    for who in BROKERS:
        await cluster.start_node(who)
    cluster.set_partition(
        PartitionImage(
            leader_id=BROKERS[0],
            leader_epoch=Epoch(0),
            partition_epoch=Epoch(0),
            replicas=BROKERS,
            isr=BROKERS,
        )
    )
    try:
        yield cluster
    finally:
        for who in sorted(cluster.up):
            await cluster.stop_node(who)


def run(directory: Path, story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with three_brokers(directory) as cluster:
            await story(cluster)

    asyncio.run(whole())


def test_acks_all_is_on_every_replica(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        for number in range(20):
            produced = await cluster.produce(BROKERS[0], b"%d" % number)
            assert produced == (ErrorCode.NONE, number, -1, 0, None)
            for node in cluster.nodes.values():
                assert node.offsets()[1] == number + 1
        await until(lambda: all(node.offsets() == (20, 20) for node in cluster.nodes.values()))
        logs = [node.records() for node in cluster.nodes.values()]
        assert logs == [[b"%d" % number for number in range(20)]] * 3

    run(tmp_path, story)


def test_a_dead_follower_leaves_the_isr_and_comes_back(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.produce(BROKERS[0], b"a")
        await cluster.stop_node(BROKERS[2])
        produced = await cluster.produce(BROKERS[0], b"b")  # waits until the ISR has shrunk
        assert produced.error_code is ErrorCode.NONE
        assert cluster.partition.isr == BROKERS[:2]
        await cluster.start_node(BROKERS[2], broker_epoch=2)
        await until(lambda: cluster.partition.isr == BROKERS)
        assert dict(cluster.asked[-1].new_isr)[BROKERS[2]] == 2
        assert cluster.nodes[BROKERS[2]].records() == [b"a", b"b"]

    run(tmp_path, story)


def test_a_deposed_leader_gives_up_what_nobody_else_has(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.produce(BROKERS[0], b"a")
        cluster.deaf.add(BROKERS[0])
        cluster.elect(2, (2, 3))
        lost = [cluster.produce(BROKERS[0], b"lost %d" % number) for number in range(3)]
        waiting = [asyncio.ensure_future(one) for one in lost]
        kept = await cluster.produce(BROKERS[1], b"kept")
        assert kept.error_code is ErrorCode.NONE
        assert not any(one.done() for one in waiting)
        assert cluster.nodes[BROKERS[0]].offsets() == (1, 4)
        cluster.deaf.clear()
        cluster.publish(ClusterDelta(partitions=frozenset({AT})))
        refused = {(await one).error_code for one in waiting}
        assert refused == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        await until(lambda: cluster.partition.isr in {BROKERS, (2, 3, 1)})
        assert [node.records() for node in cluster.nodes.values()] == [[b"a", b"kept"]] * 3

    run(tmp_path, story)


def test_too_small_an_isr_refuses_and_a_timeout_says_so(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.stop_node(BROKERS[1])
        await cluster.stop_node(BROKERS[2])
        timed_out = await cluster.produce(BROKERS[0], b"a", timeout_ms=30)
        assert timed_out.error_code is ErrorCode.REQUEST_TIMED_OUT
        await until(lambda: cluster.partition.isr == BROKERS[:1])
        refused = await cluster.produce(BROKERS[0], b"b")
        assert refused.error_code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await cluster.produce(BROKERS[0], b"c", acks=1)).base_offset == 1
        assert cluster.nodes[BROKERS[0]].offsets() == (0, 2)  # strict min ISR

    run(tmp_path, story)


def test_deletion_answers_who_waits_and_removes_the_logs(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.stop_node(BROKERS[2])
        waiting = asyncio.ensure_future(cluster.produce(BROKERS[0], b"a"))
        await asyncio.sleep(0)
        cluster.set_partition(None)
        assert (await waiting).error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not (tmp_path / "1" / "orders-0").exists()
        assert (tmp_path / "3" / "orders-0").exists()
        await cluster.start_node(BROKERS[2], broker_epoch=2)  # it was down: now a stray
        assert [path.name[:9] for path in (tmp_path / "3").glob("*-stray")] == ["orders-0."]

    run(tmp_path, story)


def test_a_cluster_that_stops_cleanly_starts_with_all_it_had(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.produce(BROKERS[0], b"a")
        for who in BROKERS:
            await cluster.stop_node(who)
        no_leader = replace(cluster.partition, leader_id=NO_LEADER, leader_epoch=Epoch(1))
        cluster.set_partition(replace(no_leader, partition_epoch=Epoch(9)))
        for who in BROKERS:
            await cluster.start_node(who, broker_epoch=2)
            assert cluster.nodes[who].replicas.clean_shutdown_epoch == 1
        cluster.elect(3, (1, 2, 3))
        assert (await cluster.produce(BROKERS[2], b"b")).base_offset == 1

    run(tmp_path, story)


def test_clients_through_the_socket(tmp_path: Path) -> None:
    async def story(cluster: Cluster) -> None:
        client = await KafkaConnection.open(
            "127.0.0.1", cluster.nodes[BROKERS[0]].port, client_id="test"
        )

        async def send(records: bytes, acks: int = -1) -> tuple[int, int]:
            data = PartitionProduceData(index=0, records=records)
            topic = TopicProduceData(name=AT.topic, topic_id=TOPIC_ID, partition_data=[data])
            request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[topic])
            answer = (await client.send(request)).responses[0].partition_responses[0]
            return answer.error_code, answer.base_offset

        first = batch(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
        assert await send(first) == (ErrorCode.NONE, 0)
        assert await send(first) == (ErrorCode.NONE, 0)  # a duplicate
        gap = batch(b"z", producer_id=7, producer_epoch=0, base_sequence=9)
        assert (await send(gap))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        torn = bytearray(batch(b"c"))
        torn[-1] ^= 1
        assert (await send(torn))[0] == ErrorCode.CORRUPT_MESSAGE
        assert (await send(batch(b"c"), acks=2))[0] == ErrorCode.INVALID_REQUIRED_ACKS

        async def read(offset: int, max_wait_ms: int) -> tuple[int, bytes]:
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
            topic = FetchTopic(topic=AT.topic, topic_id=TOPIC_ID, partitions=[partition])
            request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic])
            answer = (await client.send(request)).responses[0].partitions[0]
            assert isinstance(answer.records, bytes | memoryview)
            return answer.error_code, bytes(answer.records)

        error_code, records = await read(0, 0)
        assert [record.value for _, all_of in decode_batches(records) for record in all_of] == [
            b"a",
            b"b",
        ]
        assert await read(99, 0) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        assert await read(2, 20) == (ErrorCode.NONE, b"")  # a long poll that ends empty
        poll = asyncio.ensure_future(read(2, 5000))
        await asyncio.sleep(0.01)
        await cluster.produce(BROKERS[0], b"c")
        assert b"c" in (await poll)[1]

        async def offset(timestamp: int) -> tuple[int, int, int]:
            partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            topic = ListOffsetsTopic(name=AT.topic, partitions=[partition])
            answer = (await client.send(ListOffsetsRequest(topics=[topic]))).topics[0].partitions[0]
            return answer.error_code, answer.offset, answer.timestamp

        assert await offset(-1) == (0, 3, -1)
        assert await offset(-2) == (0, 0, -1)
        assert await offset(-3) == (0, 1, 1001)
        assert await offset(1001) == (0, 1, 1001)
        assert await offset(5000) == (0, -1, -1)
        asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=0, leader_epoch=0)
        end = await client.send(
            OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderTopic(topic=AT.topic, partitions=[asked])]
            )
        )
        assert end.topics[0].partitions[0].end_offset == 3
        await client.close()

    run(tmp_path, story)
