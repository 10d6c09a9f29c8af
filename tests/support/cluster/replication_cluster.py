"""Three brokers' data paths in one process: real logs and sockets, and a controller of our own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.broker.handlers import fetch, list_offsets, offset_for_leader_epoch, produce
from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.partitions.core.data_path import ProduceResult, ReadEnd
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.server.api import BrokerContext
from quorumlog.broker.server.server import Server
from quorumlog.broker.settings import BrokerSettings
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
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.replica_calls import append_to, partition_of
from tests.support.settings import static_config

BROKERS = tuple(map(BrokerId, (1, 2, 3)))
TOPIC_ID = TopicId(bytes(range(16)))
AT = TopicPartition("orders", 0)
SETTINGS = BrokerSettings(
    replica_lag_time_max_ms=3000,  # a busy machine must not make an ISR too small for a test
    replica_fetch_backoff_ms=50,
    replica_fetch_wait_max_ms=100,
    min_insync_replicas=2,
)


def batch(
    *values: bytes, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1
) -> bytes:
    return encode_batch(
        [Record(index, 1000 + index, None, value) for index, value in enumerate(values)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


class Node:
    """One broker: replicas, and a listener with the handlers of the data path."""

    def __init__(self, cluster: "Cluster", broker_id: BrokerId, directory: Path) -> None:
        self.cluster, self.broker_id, self.directory = cluster, broker_id, directory
        self.port = 0

    async def start(self, broker_epoch: int) -> None:
        self.replicas = Replicas(
            broker_id=self.broker_id,
            settings=SETTINGS,
            logs=LogDirectories([LogDirectory(RealDisk(), str(self.directory), LogSettings())]),
            disk_queue=HeldQueue(),
            controller=cast(ControllerClient, self.cluster),
        )
        await self.replicas.start()
        self.replicas.registered(broker_epoch)
        self.watch = ImageWatch(self.replicas.is_to_lead)
        self.replicas.add_leadership_listener(self.watch)
        apis = (produce, fetch, list_offsets, offset_for_leader_epoch)
        api_versions = HANDLERS[18]
        handlers = {api.handle.api_key: api.handle for api in apis}
        context = BrokerContext(
            broker_id=self.broker_id,
            cluster_id="test",
            settings=SETTINGS,
            static=static_config(SETTINGS, LogSettings()),
            metadata=self.watch,
            replicas=self.replicas,
            groups=cast(Any, None),
            transactions=cast(Any, None),
            verifier=cast(Any, None),
            producer_ids=cast(Any, None),
            controller=cast(ControllerClient, self.cluster),
            handlers={**handlers, api_versions.api_key: api_versions},
            wall_ms=lambda: 0,
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
        driver = self.replicas.drivers.get(AT)
        assert driver is not None
        read = driver.read(Offset(0), max_bytes=1 << 20, end=end, at_least_one=True, may_wait=True)
        batches = decode_batches(b"".join(read.chunks))
        return [record.value for _, records in batches for record in records]

    def offsets(self) -> tuple[int, int]:
        partition = partition_of(self.replicas, AT)
        assert partition is not None
        return partition.state.high_watermark, partition.state.log_end_offset


class Cluster:
    """The nodes, and the metadata that a controller would commit."""

    kraft_version = 0  # as a ControllerClient tells

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

    async def report_logs(self, broker_epoch: int, reports: object) -> ErrorCode:
        raise AssertionError(f"every log is whole: {reports}")

    async def assign_replicas(self, broker_epoch: int, replicas: object) -> ErrorCode:
        raise AssertionError(f"a broker with one directory assigns {replicas}")

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
        self, who: BrokerId, *values: bytes, acks: int = -1, timeout_ms: int = 30_000
    ) -> ProduceResult:
        return await append_to(
            self.nodes[who].replicas, AT, batch(*values), acks=acks, timeout_ms=timeout_ms
        )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
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
