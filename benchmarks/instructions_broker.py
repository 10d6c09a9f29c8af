"""Counted cases of one whole broker: requests of clients, without a socket."""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.counted import STEPS_MAX, WARM_UP, Case, Client, feed, frame_of, repeat, stop_timers
from quorumlog.cluster.ports import free_ports
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.metadata_quorum.controller_requests import CreateTopics
from quorumlog.node import config
from quorumlog.node.dependencies import NodeDependencies
from quorumlog.node.node import Node
from quorumlog.node.room import Room
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support.groups.single_broker import SingleBroker

TOPIC: Final = "bench"
_NOW_MS: Final = 1_700_000_000_000
_PRODUCE_VERSION, _FETCH_VERSION, _COMMIT_VERSION = 9, 12, 8
# Transactions of the second kind (KIP-890): a Produce adds its partitions, EndTxn bumps the epoch.
_PRODUCE_IN_TRANSACTION, _END_VERSION, _INIT_VERSION = 12, 5, 4
_FETCH_BYTES: Final = 1 << 20
_RETENTION: Final = "retention.ms"

Shape = Callable[[random.Random, int], Record]


def alike(draw: random.Random, index: int) -> Record:
    """Return a record of 1 KiB without a key."""
    return Record(index, _NOW_MS, None, draw.randbytes(1024))


def small(draw: random.Random, index: int) -> Record:
    """Return a record of about 100 B with a key."""
    key = b"key-%06d" % draw.randrange(10**6)
    return Record(index, _NOW_MS + index // 3, key, draw.randbytes(80))


def _varied(draw: random.Random, index: int) -> Record:
    headers = (("trace-id", draw.randbytes(16)), ("content-type", b"application/json"))
    key = b"user-%d" % draw.randrange(10**5)
    return Record(
        index, _NOW_MS + index // 2, key, draw.randbytes(draw.randint(500, 1500)), headers
    )


def batch_of(count: int, shape: Shape = alike, **producer: Any) -> bytes:
    """Return a batch, the same in each process."""
    draw = random.Random(1)
    return encode_batch([shape(draw, index) for index in range(count)], **producer)


def _produce_request(batches: Sequence[bytes], **more: Any) -> ProduceRequest:
    """Return a request with acks=1: a batch for each of the first partitions."""
    data = [PartitionProduceData(index=at, records=batch) for at, batch in enumerate(batches)]
    topics = [TopicProduceData(name=TOPIC, partition_data=data)]
    return ProduceRequest(**{"acks": 1, "timeout_ms": 60_000, "topic_data": topics, **more})


async def _started(directory: Path, partitions: int = 1, *internal: str) -> SingleBroker:
    """Start a broker that leads all partitions of the topic, and of these internal ones.

    It needs no timer, so none rings while it starts, either: both runs start alike.
    """
    stop_timers()
    broker = SingleBroker(directory, has_real_verifier=True)
    await broker.start()
    counts = {TOPIC: partitions, **dict.fromkeys(internal, 3)}
    topics = tuple(
        NewTopic(name=n, partitions=count, replication_factor=1) for n, count in counts.items()
    )
    await broker.controller.ask(CreateTopics(topics=topics))
    every = {TopicPartition(name, at) for name, count in counts.items() for at in range(count)}
    while not every <= broker.replicas.drivers.keys():  # noqa: ASYNC110 - a few turns
        await asyncio.sleep(0)
    return broker


async def _produce(shape: Shape, count: int, frames: int, directory: Path, steps: int) -> bool:
    """Produce with acks=1; a read has `frames` requests of one batch."""
    client = Client((await _started(directory)).server)
    request = _produce_request([batch_of(count, shape)])
    data = memoryview(bytes(frame_of(request, _PRODUCE_VERSION)) * frames)
    await repeat(lambda _: feed(client.connection, data), steps)
    answer_bytes = client.transport.sent_bytes / ((WARM_UP + steps) * frames)
    expected = await client.call(request, _PRODUCE_VERSION)
    error = expected.responses[0].partition_responses[0].error_code
    return error == 0 and answer_bytes == len(client.transport.last)


async def _fetch(directory: Path, steps: int) -> bool:
    """Fetch the same bytes again and again, as a consumer without a session."""
    client = Client((await _started(directory)).server)
    produced = frame_of(_produce_request([batch_of(16)]), _PRODUCE_VERSION)
    for _ in range(_FETCH_BYTES // len(produced) + 2):
        await client.ask(produced)
    partition = FetchPartition(partition=0, partition_max_bytes=_FETCH_BYTES)
    request = frame_of(
        FetchRequest(
            max_bytes=_FETCH_BYTES, topics=[FetchTopic(topic=TOPIC, partitions=[partition])]
        ),
        _FETCH_VERSION,
    )
    await repeat(lambda _: client.ask(request), steps)
    return client.transport.sent_bytes > (WARM_UP + steps) * (_FETCH_BYTES - len(produced))


async def _commit_offset(directory: Path, steps: int) -> bool:
    """Commit one offset of a group without members."""
    client = Client((await _started(directory, 1, OFFSETS_TOPIC)).server)
    place = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[place])
    request = OffsetCommitRequest(group_id="bench", topics=[topic])
    await client.loaded(request, _COMMIT_VERSION, _error_of_commit)
    frame = frame_of(request, _COMMIT_VERSION)
    await repeat(lambda _: client.ask(frame), steps)
    return _error_of_commit(await client.call(request, _COMMIT_VERSION)) == 0


def _error_of_commit(response: Any) -> int:
    return int(response.topics[0].partitions[0].error_code)


async def _transact(partitions: int, directory: Path, steps: int) -> bool:
    """Produce one record to each partition in one request, and commit; an answer at a time."""
    client = Client((await _started(directory, partitions, TRANSACTIONS_TOPIC)).server)
    begin = InitProducerIdRequest(transactional_id="bench", transaction_timeout_ms=60_000)
    own = await client.loaded(begin, _INIT_VERSION, lambda response: response.error_code)
    first, frames = int(own.producer_epoch), []
    for epoch in range(first, first + STEPS_MAX):
        producer = {"producer_id": own.producer_id, "producer_epoch": epoch, "base_sequence": 0}
        batch = batch_of(1, small, is_transactional=True, **producer)
        data = _produce_request([batch] * partitions, acks=-1, transactional_id="bench")
        end = EndTxnRequest(
            transactional_id="bench",
            producer_id=own.producer_id,
            producer_epoch=epoch,
            committed=True,
        )
        frames.append((frame_of(data, _PRODUCE_IN_TRANSACTION), frame_of(end, _END_VERSION)))

    async def transact(at: int) -> None:
        for frame in frames[at]:
            await client.ask(frame)

    await repeat(transact, steps)
    after = await client.call(begin, _INIT_VERSION)
    return int(after.producer_epoch) == first + WARM_UP + steps + 1


async def _commit_metadata(directory: Path, steps: int) -> bool:
    """Change a setting of a topic on a node that is the only voter: one record, fsynced."""
    kafka, control = (f"127.0.0.1:{port}" for port in free_ports("127.0.0.1", 2))
    values = {
        "node.id": "1",
        "cluster.id": "bench",
        "process.roles": "broker,controller",
        "listeners": kafka,
        "control.listener": control,
        "controller.quorum.voters": f"1@{control}",
        "log.dirs": str(directory),
    }
    node = await Node.made(config.build(values), NodeDependencies(), Room())
    await node.start()
    await node.ready.wait()
    if node.broker is None:
        raise TypeError("a broker is a role of the node")
    client = Client(node.broker.server)
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
    await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)
    requests = []
    for value in ("3600000", "7200000"):
        change = AlterableConfig(name=_RETENTION, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[change])
        requests.append(frame_of(IncrementalAlterConfigsRequest(resources=[resource]), 1))
    before = node.quorum.image.end_offset
    await repeat(lambda at: client.ask(requests[at % 2]), steps)
    return node.quorum.image.end_offset == before + WARM_UP + steps


def _produce_case(name: str, count: int, shape: Shape, frames: int) -> Case:
    reads = f"{frames} request{'s' if frames > 1 else ''} per read"
    return Case(
        name=f"produce, acks=1, {name}, {reads}",
        run=partial(_produce, shape, count, frames),
        unit="batch",
        per_step=frames,
    )


CASES: Final = (
    _produce_case("1 record of 1 KiB", 1, alike, 1),
    _produce_case("1 record of 1 KiB", 1, alike, 3),
    _produce_case("16 records of 1 KiB", 16, alike, 1),
    _produce_case("16 records of 1 KiB", 16, alike, 3),
    _produce_case("160 records of 100 B with keys", 160, small, 3),
    _produce_case("16 records of many sizes, with keys and two headers", 16, _varied, 3),
    Case(name="fetch of 1 MiB in batches of 16 KiB", run=_fetch, unit="fetch"),
    Case(name="commit of an offset", run=_commit_offset, unit="commit"),
    Case(name="transaction of 1 partition", run=partial(_transact, 1), unit="transaction"),
    Case(name="transaction of 10 partitions", run=partial(_transact, 10), unit="transaction"),
    Case(name="commit of metadata, one voter", run=_commit_metadata, unit="commit"),
)
