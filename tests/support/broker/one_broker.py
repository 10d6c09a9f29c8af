"""One broker's data path with a real log, without sockets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

from quorumlog import clock
from quorumlog.backoff import Backoff
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.following.log.followed_partition import FollowedPartition, take_answer
from quorumlog.broker.partitions.core.data_path import (
    FetchedPartition,
    PartitionFetch,
    ProduceResult,
)
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import LogReport
from quorumlog.metadata_quorum.controller_requests import ReportLogs, ReportReply
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage, TopicImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import Disk, RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    NO_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    Epoch,
    Offset,
    TopicId,
    TopicPartition,
)
from quorumlog.wire.codec.messages.fetch import PartitionData
from quorumlog.wire.codec.records import Record, encode_batch, restamp
from quorumlog.wire.io.security import PLAINTEXT
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.replica_calls import append_to
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image
from tests.support.waiting import loop_turns

AT = TopicPartition("orders", 0)
TOPIC_ID = TopicId(b"i" * 16)
BATCH = encode_batch([Record(0, 1, None, b"value")])
AT_ONCE = BrokerSettings(log_segment_delete_delay_ms=0)  # removed files go at once
Story = Callable[[Replicas], Awaitable[None]]


class Reports:
    """A controller that only takes in how far logs are whole."""

    def __init__(self) -> None:
        self.taken: list[LogReport] = []

    async def ask(self, request: object) -> ReportReply:
        assert isinstance(request, ReportLogs)  # a broker with one directory assigns no replicas
        us = BROKERS[0]
        assert (request.broker_id, request.broker_epoch) == (us, ALL_ALIVE[us].broker_epoch)
        self.taken += request.reports
        return ReportReply(error_code=ErrorCode.NONE)


_REPORTS: WeakKeyDictionary[Replicas, Reports] = WeakKeyDictionary()


async def reports_of(replicas: Replicas) -> list[LogReport]:
    """The log reports that it has sent so far."""
    await loop_turns(5)
    return _REPORTS[replicas].taken


async def start(
    directory: Path,
    isr: tuple[int, ...] = (1,),
    disk: Disk | None = None,
    log_settings: LogSettings | None = None,
    *,
    disk_queue: DiskQueue | None = None,
    settings: BrokerSettings | None = None,
) -> Replicas:
    """Start broker 1, which leads `AT` with this ISR. Without a queue, threads work on its disk."""
    reports = Reports()
    replicas = Replicas(
        broker_id=BROKERS[0],
        settings=settings or AT_ONCE,
        logs=LogDirectories(
            [LogDirectory(disk or RealDisk(), str(directory), log_settings or LogSettings())]
        ),
        controller=cast(Any, reports),
        security=PLAINTEXT,
        disk_queue=disk_queue,
    )
    _REPORTS[replicas] = reports
    replicas.note_clock_ahead(clock.advances().ahead_ms)  # as a node does, before it opens logs
    await replicas.start()
    publish(replicas, image(1, 0, 0, isr, replicas=isr))
    return replicas


@asynccontextmanager
async def one_broker(
    directory: Path,
    isr: tuple[int, ...] = (1,),
    disk: Disk | None = None,
    log_settings: LogSettings | None = None,
    *,
    disk_queue: DiskQueue | None = None,
    settings: BrokerSettings | None = None,
) -> AsyncIterator[Replicas]:
    """Start broker 1 as `start` does; without a queue, it waits for its disk."""
    queue = disk_queue or HeldQueue()
    replicas = await start(directory, isr, disk, log_settings, disk_queue=queue, settings=settings)
    try:
        yield replicas
        replicas.check_progress()
    finally:
        await replicas.stop()


def run(directory: Path, story: Story, *arguments: Any, **options: Any) -> None:
    async def whole() -> None:
        async with one_broker(directory, *arguments, **options) as replicas:
            await story(replicas)

    asyncio.run(whole())


def publish(replicas: Replicas, partition: PartitionImage, **configs: str) -> None:
    publish_all(replicas, (partition,), **configs)


def publish_all(replicas: Replicas, partitions: Sequence[PartitionImage], **configs: str) -> None:
    named = {name.replace("_", "."): text for name, text in configs.items()}
    topic = TopicImage(
        name=AT.topic, topic_id=TOPIC_ID, partitions=tuple(partitions), configs=named
    )
    cluster = ClusterImage(
        brokers=ALL_ALIVE, topics={AT.topic: topic}, topic_names={TOPIC_ID: AT.topic}
    )
    changed = frozenset(TopicPartition(AT.topic, index) for index in range(len(partitions)))
    delta = ClusterDelta(partitions=changed, topic_configs=frozenset({AT.topic}))
    replicas.publish(delta, cluster)


def append(replicas: Replicas, acks: int = 1, records: bytes = BATCH) -> ProduceResult:
    future = append_to(replicas, AT, records, acks=acks, timeout_ms=1000)
    assert future.done()
    return future.result()


def fetch_of(offset: int, replica_id: int = -1, leader_epoch: int = -1, **limits: Any) -> FetchSpec:
    partition = PartitionFetch(
        topic_partition=AT,
        topic_id=None,
        fetch_offset=Offset(offset),
        max_bytes=limits.pop("partition_max_bytes", 1000),
        leader_epoch=Epoch(leader_epoch),
        last_fetched_epoch=NO_EPOCH,
        log_start_offset=UNKNOWN_OFFSET,
    )
    spec = FetchSpec(
        replica_id=BrokerId(replica_id),
        replica_epoch=-1,
        max_wait_ms=1000,
        min_bytes=1,
        max_bytes=1000,
        partitions=[partition],
        account=None,
        session=None,
        may_read_follower=False,
        near_rack="",
        is_read_committed=False,
        awaits_commits=False,
    )
    return replace(spec, **limits)


def size(answers: object) -> int:
    assert isinstance(answers, list)
    return sum(map(len, cast(list[FetchedPartition], answers)[0].records))


def sequenced(sequence: int) -> bytes:
    return encode_batch(
        [Record(0, 1, None, b"v")], producer_id=5, producer_epoch=0, base_sequence=sequence
    )


def from_leader(offset: int, sequence: int | None = None, count: int = 1) -> bytearray:
    """Return a batch as the leader of epoch 1 sends it; of `count` records without a sequence."""
    plain = encode_batch([Record(index, 1, None, b"v") for index in range(count)])
    records = bytearray(plain if sequence is None else sequenced(sequence))
    restamp(records, 0, base_offset=offset, leader_epoch=1)
    return records


class Take(Protocol):
    """Takes a leader's answer with these records."""

    def __call__(
        self, records: bytes | bytearray, *, log_start_offset: int = -1
    ) -> FollowedPartition: ...


def follow(replicas: Replicas, isr: tuple[int, ...] = (1, 2)) -> Take:
    """Become a follower; return a function that applies a fetch response with these records."""
    publish(replicas, image(2, 1, 1, isr, replicas=(1, 2)))
    driver = replicas.drivers.get(AT)
    assert driver is not None
    followed = FollowedPartition(driver, Epoch(1))

    def take(records: bytes | bytearray, *, log_start_offset: int = -1) -> FollowedPartition:
        answer = PartitionData(
            partition_index=0, high_watermark=9, records=records, log_start_offset=log_start_offset
        )
        take_answer(
            followed,
            followed.position(),
            answer,
            now_ms=0,
            wall_ms=lambda: 0,
            backoff=Backoff(10, 1000),
            random_fraction=lambda: 0.5,
        )
        return followed

    return take
