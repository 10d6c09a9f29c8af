"""A broker with two log directories on a simulated disk, and the metadata about them.

The metadata lives on when the process of the broker dies: so a test may crash it anywhere.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.controller_requests import AssignReplicas, ReportReply
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from quorumlog.wire.io.security import PLAINTEXT
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.replica_calls import append_to
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, image
from tests.support.waiting import until

AT = TopicPartition("orders", 0)
TOPIC_ID = TopicId(b"i" * 16)
ONE = BROKERS[0]
PATHS = {"a": "/a", "b": "/b", "c": "/c"}


class Metadata:
    """The committed metadata, and a controller that commits the directories of replicas."""

    def __init__(self) -> None:
        self.directory: str | None = None
        self.epoch = ALL_ALIVE[ONE].broker_epoch
        self.leader_epoch = 0
        self.exists = True
        self.replicas: tuple[int, ...] = (1,)  # all in sync; the others never fetch
        self.topic_configs: dict[str, str] = {}
        self.broker_configs: dict[str, str] = {}
        self.told: list[str] = []
        self.is_held = False  # commits nothing, as a controller that is away
        self.publish: Callable[[], None] = lambda: None

    async def ask(self, request: object) -> ReportReply:
        assert isinstance(request, AssignReplicas)  # no log is reported
        assert request.broker_id == ONE
        if self.is_held or request.broker_epoch != self.epoch:
            return ReportReply(error_code=ErrorCode.NOT_CONTROLLER)
        for one in request.replicas:
            self.told.append(one.directory_id)
            self.directory = one.directory_id
        asyncio.get_running_loop().call_soon(self.publish)
        return ReportReply(error_code=ErrorCode.NONE)

    def image(self) -> ClusterImage:
        ours = replace(ALL_ALIVE[ONE], log_dirs=tuple(PATHS), broker_epoch=self.epoch, fenced=False)
        known = () if self.directory is None else ((ONE, self.directory),)
        alone = image(1, self.leader_epoch, 0, self.replicas, replicas=self.replicas)
        partition = replace(alone, directories=known)
        topic = TopicImage(
            name=AT.topic, topic_id=TOPIC_ID, partitions=(partition,), configs=self.topic_configs
        )
        topics = {AT.topic: topic} if self.exists else {}
        names = {TOPIC_ID: AT.topic} if self.exists else {}
        return ClusterImage(
            brokers={**ALL_ALIVE, ONE: ours},
            topics=topics,
            topic_names=names,
            broker_configs={"": self.broker_configs},
        )


@asynccontextmanager
async def broker(
    disk: SimDisk,
    metadata: Metadata,
    *,
    names: str = "abc",
    rules: PartitionRules = KAFKA_RULES,
    settings: BrokerSettings | None = None,
    log_settings: LogSettings | None = None,
    stops: bool = True,
    first_sees: str | None = None,
    lost_power: bool = False,
) -> AsyncIterator[Replicas]:
    """Run a process of the broker; `stops`: it is stopped in the end, else it just ends.

    `first_sees`: in which directory the first, older metadata that it sees has the replica.
    """
    directories = [LogDirectory(disk, PATHS[one], log_settings or LogSettings()) for one in names]
    for name, directory in zip(names, directories, strict=True):
        directory.directory_id = name
        directory.registrations.may_have_lost_power = lost_power
    older = metadata.image()
    metadata.epoch += 1
    metadata.leader_epoch += 1
    replicas = Replicas(
        broker_id=ONE,
        settings=settings or BrokerSettings(log_segment_delete_delay_ms=0),
        logs=LogDirectories(directories, [PATHS[one] for one in PATHS if one not in names]),
        controller=cast(Any, metadata),
        security=PLAINTEXT,
        partition_rules=rules,
        disk_queue=HeldQueue(),
    )

    def publish() -> None:
        delta = ClusterDelta(
            partitions=frozenset([AT]) if metadata.exists else frozenset(),
            brokers=frozenset(BROKERS),
            deleted_topics={} if metadata.exists else {AT.topic: TOPIC_ID},
            topic_configs=frozenset([AT.topic]),
        )
        replicas.publish(delta, metadata.image())

    metadata.publish = publish
    await replicas.start()
    if first_sees is not None:
        partition = replace(older.topics[AT.topic].partitions[0], directories=((ONE, first_sees),))
        topic = replace(older.topics[AT.topic], partitions=(partition,))
        delta = ClusterDelta(partitions=frozenset([AT]), brokers=frozenset(BROKERS))
        replicas.publish(delta, replace(older, topics={AT.topic: topic}))
    replicas.registered(metadata.epoch)
    publish()
    try:
        yield replicas
    finally:
        metadata.publish = lambda: None
        if stops:
            await replicas.stop()
        else:
            await replicas._tasks.stop()
            await replicas._fetchers.stop()


def batch(value: int, *, producer: tuple[int, int, int] | None = None, size: int = 0) -> bytes:
    record = Record(0, 1, None, b"%d" % value + b"." * size)
    if producer is None:
        return encode_batch([record])
    producer_id, epoch, sequence = producer
    return encode_batch(
        [record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def append(replicas: Replicas, value: int, **options: Any) -> asyncio.Future[ProduceResult]:
    return append_to(replicas, AT, batch(value, **options), acks=1, timeout_ms=1000)


def values_of(log: Log) -> list[int]:
    """All values in a log."""
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        records, offset = log.read(offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
        for header, in_batch in decode_batches(bytes(records)):
            if header.base_offset >= log.log_start_offset:  # one record each
                found += [int(bytes(one.value or b"").rstrip(b".")) for one in in_batch]
    return found


def driver_of(replicas: Replicas) -> PartitionDriver:
    return replicas.drivers[AT]


async def until_in(replicas: Replicas, name: str) -> None:
    """Wait until the log is in this directory, and used."""
    await until(
        lambda: (
            (driver := replicas.drivers.get(AT)) is not None
            and not driver.is_truncating
            and driver.log.directory == f"/{name}/{AT}"
        )
    )


def names_in(disk: SimDisk, name: str) -> list[str]:
    """Return the directories of this partition in a log directory."""
    return [one for one in disk.listdir(f"/{name}") if one.startswith(AT.topic)]
