"""Batches that the leader compresses anew: their place in the log, and their limits."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.partitions.core.admission import admit, topic_limits
from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.broker.partitions.log import recompressions
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.inspection import recompressed, unfold
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch, read_header, restamp
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import AT, TOPIC_ID, follow, one_broker, publish
from tests.support.broker.replica_calls import append_to
from tests.support.broker.replicas import ALL_ALIVE, image
from tests.support.broker.requests import produce, topic_creation
from tests.support.broker.scripted_verifier import ScriptedVerifier
from tests.support.broker.transactional import ONE_SEGMENT, begin_append, driver_of, transactional
from tests.support.groups.asking import asking

LARGE = 5_000  # bytes of a value: such a batch is compressed in the disk queue


def batch(
    value: bytes, compression: Compression = Compression.NONE, producer_id: int = -1
) -> bytes:
    number = 0 if producer_id >= 0 else -1
    return encode_batch(
        [Record(0, 1, None, value)],
        compression=compression,
        producer_id=producer_id,
        producer_epoch=number,
        base_sequence=number,
    )


def begin(replicas: Replicas, records: bytes) -> asyncio.Future[ProduceResult]:
    return append_to(replicas, AT, records, acks=1, timeout_ms=1000)


def stored(replicas: Replicas) -> list[tuple[int, bytes | None]]:
    """Return the compression bits and the value of each record in the log."""
    log = driver_of(replicas).log
    records = log.read(0, max_bytes=10**7, end_offset=log.log_end_offset).records
    return [
        (header.attributes & 7, record.value)
        for header, batch in decode_batches(bytes(records))
        for record in batch
    ]


async def test_later_batches_wait_behind_one_that_is_compressed(tmp_path: Path) -> None:
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue) as replicas:
        publish(replicas, image(1, 0, 1, (1,)), compression_type="zstd")
        queue.is_held = True
        large, small = bytes(LARGE), b"s"
        first = begin(replicas, batch(large))
        second = begin(replicas, batch(small))
        publish(replicas, image(1, 0, 2, (1,)), compression_type="producer")
        third = begin(replicas, batch(b"p"))  # the new configuration, and still in order
        assert not any(one.done() for one in (first, second, third))
        assert stored(replicas) == []
        queue.release()
        assert [one.result().base_offset for one in (first, second, third)] == [0, 1, 2]
        assert stored(replicas) == [(4, large), (4, small), (0, b"p")]
        fourth = begin(replicas, batch(large))
        assert fourth.done()  # nothing waits any more


async def test_a_small_batch_is_compressed_within_the_call(tmp_path: Path) -> None:
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue) as replicas:
        publish(replicas, image(1, 0, 1, (1,)), compression_type="gzip")
        queue.is_held = True
        assert begin(replicas, batch(b"a")).done()
        same = begin(replicas, batch(bytes(LARGE), Compression.GZIP))
        assert same.done()  # it stays as it is
        other = begin(replicas, batch(b"b", Compression.LZ4))
        assert not other.done()  # it may decompress to any size
        queue.release()
        assert other.result().error_code is ErrorCode.NONE
        assert [bits for bits, _ in stored(replicas)] == [1, 1, 1]


async def test_a_batch_that_waits_meets_the_partition_as_it_is_then(tmp_path: Path) -> None:
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue) as replicas:
        publish(replicas, image(1, 0, 1, (1,)), compression_type="zstd")
        driver = driver_of(replicas)
        queue.is_held = True
        moving = begin(replicas, batch(b"1" * LARGE))
        driver.begin_exchange()
        behind = begin(replicas, batch(b"2" * LARGE))
        queue.release()
        assert not moving.done()
        assert not behind.done()
        driver.end_exchange(None)
        assert [one.result().base_offset for one in (moving, behind)] == [0, 1]
        queue.is_held = True
        late = begin(replicas, batch(b"3" * LARGE))
        publish(replicas, image(2, 1, 2, (1, 2), replicas=(1, 2)), compression_type="zstd")
        queue.release()
        assert late.result().error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_bytes_that_wait_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recompressions, "WAITING_BYTES_MAX", 2 * LARGE)
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue) as replicas:
        publish(replicas, image(1, 0, 1, (1,)), compression_type="zstd")
        queue.is_held = True
        first, second = begin(replicas, batch(bytes(LARGE))), begin(replicas, batch(bytes(LARGE)))
        refused = second.result()
        assert refused.error_code is ErrorCode.REQUEST_TIMED_OUT
        assert "wait for their compression" in (refused.error_message or "")
        queue.release()
        assert first.result().error_code is ErrorCode.NONE
        assert begin(replicas, batch(bytes(LARGE))).result().base_offset == 1


async def test_markers_are_not_compressed_and_repeats_are_recognized(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=ONE_SEGMENT) as replicas:
        publish(replicas, image(1, 0, 1, (1,)), compression_type="zstd")
        sent = batch(b"x" * LARGE, producer_id=7)
        assert begin(replicas, sent).result().base_offset == 0
        assert begin(replicas, sent).result().base_offset == 0  # a duplicate, not appended
        marker = TransactionMarker(7, 0, 0, commits=True)
        results: list[ProduceResult] = []
        replicas.append_marker(AT, marker, done=results.append, transaction_version=1)
        assert [one.error_code for one in results] == [ErrorCode.NONE]
        assert [bits for bits, _ in stored(replicas)] == [4, 0]


@pytest.mark.parametrize("compression", Compression)
async def test_every_pair_of_compressions_is_stored_as_in_kafka(
    tmp_path: Path, compression: Compression
) -> None:
    """Over a connection: the offset, and the compression of the stored batch."""
    targets = ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
    value = b"v" * LARGE
    async with asking(tmp_path) as (broker, connection):
        for name in targets:
            creation = topic_creation(name, configs={"compression.type": name})
            [created] = (await connection.send(creation)).topics
            assert created.error_code == ErrorCode.NONE
            for offset in range(2):
                answer = await produce(connection, batch(value, compression), topic=name)
                assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, offset)
            log = broker.replicas.drivers[TopicPartition(name, 0)].log
            records = log.read(0, max_bytes=10**6, end_offset=2).records
            found = list(decode_batches(bytes(records)))
            bits = compression if name == "producer" else max(0, targets.index(name) - 1)
            assert [header.attributes for header, _ in found] == [bits, bits]
            assert [record.value for _, batch in found for record in batch] == [value, value]


# Incompressible, as `random.randbytes`: gzip makes them larger.
NOISE = b"".join(sha256(bytes([index])).digest() for index in range(60))
# Apache Kafka 4.3.1 with max.message.bytes=2000: each is RECORD_TOO_LARGE but the last.
SIZES = (
    ("uncompressed", batch(b"a" * 5000, Compression.GZIP), ErrorCode.MESSAGE_TOO_LARGE),
    ("gzip", batch(b"a" * 5000), ErrorCode.MESSAGE_TOO_LARGE),
    ("gzip", batch(NOISE), ErrorCode.MESSAGE_TOO_LARGE),
    ("gzip", batch(b"a" * 1800), ErrorCode.NONE),
)


@pytest.mark.parametrize(("compression_type", "records", "outcome"), SIZES)
def test_a_batch_must_fit_as_sent_and_as_stored(
    compression_type: str, records: bytes, outcome: ErrorCode
) -> None:
    configs = {"compression.type": compression_type, "max.message.bytes": "2000"}
    limits = topic_limits(TopicConfig(configs, {}), is_internal=False)
    assert admit(records, limits, 1, AT).error_code is outcome


async def test_a_batch_that_is_too_large_has_no_log_start_in_its_answer(tmp_path: Path) -> None:
    """As in Kafka, where other refused batches have it."""
    configs = {"compression.type": "uncompressed", "max.message.bytes": "2000"}
    async with asking(tmp_path) as (_, connection):
        assert (await connection.send(topic_creation("t", configs=configs))).topics
        grown = await produce(connection, batch(b"a" * 5000, Compression.GZIP))
        assert grown.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "after its compression by the broker" in (grown.error_message or "")
        damaged = await produce(connection, batch(b"a")[:-1] + b"?")
        assert damaged.error_code == ErrorCode.CORRUPT_MESSAGE
        assert (grown.log_start_offset, damaged.log_start_offset) == (-1, -1)
        nonsense = bytearray(batch(b"a"))
        nonsense[16] = 1  # the old message format
        refused = await produce(connection, bytes(nonsense))
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert refused.log_start_offset == 0


def test_a_level_changes_the_bytes() -> None:
    value = b"".join(b"%d:%d," % (index % 97, index) for index in range(3000))
    sizes = []
    for level in ("1", "9"):
        configs = {"compression.type": "gzip", "compression.gzip.level": level}
        limits = topic_limits(TopicConfig(configs, {}), is_internal=False)
        sizes.append(len(admit(batch(value), limits, 1, AT).records))
    assert sizes[0] != sizes[1]


def create_anew(replicas: Replicas) -> None:
    """Delete the topic, and create another one of its name."""
    deleted = ClusterDelta(partitions=frozenset({AT}), deleted_topics={AT.topic: TOPIC_ID})
    replicas.publish(deleted, ClusterImage(brokers=ALL_ALIVE))
    partitions = (image(1, 0, 0, (1,)),)
    topic = TopicImage(name=AT.topic, topic_id=TopicId(b"o" * 16), partitions=partitions)
    names = {topic.topic_id: AT.topic}
    created = ClusterImage(brokers=ALL_ALIVE, topics={AT.topic: topic}, topic_names=names)
    replicas.publish(ClusterDelta(partitions=frozenset({AT})), created)


async def test_no_batch_that_waits_is_appended_to_another_topic_of_that_name(
    tmp_path: Path,
) -> None:
    """Whether the batch waits for its compression or for a coordinator."""
    queue, verifier = HeldQueue(), ScriptedVerifier(says=None)
    async with one_broker(tmp_path, disk_queue=queue) as replicas:
        publish(replicas, image(1, 0, 1, (1,)), compression_type="zstd")
        unverified = begin_append(replicas, transactional(0), verifier)
        queue.is_held = True
        slow = begin(replicas, batch(bytes(LARGE)))
        create_anew(replicas)
        queue.held.rotate(-1)  # the compression is slower than the disk
        queue.release()
        verifier.asked[0].reply()
        for late in (slow, unverified):
            assert (await late).error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert driver_of(replicas).log.log_end_offset == 0


async def test_a_batch_held_by_a_swap_is_not_appended_to_another_topic(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        driver = driver_of(replicas)
        driver.begin_exchange()
        late = begin(replicas, batch(b"v"))
        create_anew(replicas)
        driver.end_exchange(None)
        assert late.done()
        assert late.result().error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert driver_of(replicas).log.log_end_offset == 0


async def recompress_nothing_that_is_followed(directory: Path) -> None:
    """Follow a leader, whose batch of another compression must be stored as it is."""
    async with one_broker(directory) as replicas:
        take = follow(replicas)
        publish(replicas, image(2, 1, 2, (1, 2), replicas=(1, 2)), compression_type="uncompressed")
        records = bytearray(batch(bytes(LARGE), Compression.GZIP, producer_id=7))
        restamp(records, 0, base_offset=0, leader_epoch=1)
        take(records)
        log = driver_of(replicas).log
        assert bytes(log.read(0, max_bytes=10**6, end_offset=1).records) == bytes(records)


async def test_a_follower_stores_the_bytes_of_its_leader(tmp_path: Path) -> None:
    await recompress_nothing_that_is_followed(tmp_path)


async def test_a_follower_that_compresses_anew_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_as_follower = Log.append_as_follower

    def compress_anew(log: Log, records: Buffer, *args: Any, **options: Any) -> Any:
        header = read_header(records)
        data = unfold(records, header, decompressed_bytes_max=10**6)
        changed, _ = recompressed(header, data, Compression.NONE, None)
        return append_as_follower(log, changed, *args, **options)

    monkeypatch.setattr(Log, "append_as_follower", compress_anew)
    with pytest.raises(AssertionError):
        await recompress_nothing_that_is_followed(tmp_path)
