"""Our client against brokers that are not ours: the mock cluster inside librdkafka.

It speaks old versions, creates topics on first use, and does not replicate. It announces group
requests in flexible versions (JoinGroup 6, SyncGroup 4) that it cannot parse, and it refuses
ApiVersions 3 with an answer of no version; so neither is sent here.
"""

import asyncio
import threading
from collections.abc import Iterator
from itertools import islice

import confluent_kafka
import pytest

from quorumlog.client import (
    Admin,
    Consumer,
    ConsumerRecord,
    KafkaError,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest
from quorumlog.wire.codec.messages.join_group import JoinGroupRequest
from quorumlog.wire.codec.messages.leave_group import LeaveGroupRequest
from quorumlog.wire.codec.messages.sync_group import SyncGroupRequest

PARTITIONS = [TopicPartition("t", index) for index in range(4)]  # the mock's default count


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(ApiVersionsRequest, "VERSIONS", range(3))
    monkeypatch.setattr(JoinGroupRequest, "VERSIONS", range(6))
    monkeypatch.setattr(SyncGroupRequest, "VERSIONS", range(4))
    monkeypatch.setattr(HeartbeatRequest, "VERSIONS", range(4))
    monkeypatch.setattr(LeaveGroupRequest, "VERSIONS", range(2))
    mock = confluent_kafka.Producer(
        {"bootstrap.servers": "x", "test.mock.num.brokers": 3, "log_level": 0}
    )
    brokers = mock.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del mock


async def fill(bootstrap: str, count: int, **options: str) -> None:
    async with Producer(bootstrap, **options) as producer:  # type: ignore[arg-type]  # literals
        deliveries = [await producer.send("t", b"%d" % number) for number in range(count)]
        for delivery in deliveries:
            await delivery


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(20):
        while len(records) < count:
            for batch in (await consumer.poll(500)).values():
                records += batch
    return records


def numbers(records: list[ConsumerRecord]) -> list[int]:
    return [int(record.value or b"") for record in records]


@pytest.mark.parametrize("compression_type", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_what_is_sent_is_read_once(bootstrap: str, compression_type: str) -> None:
    await fill(bootstrap, 1_000, compression_type=compression_type)
    async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(PARTITIONS)
        records = await read(consumer, 1_000)
        ends = await consumer.end_offsets(PARTITIONS)
    assert sorted(numbers(records)) == list(range(1_000))
    assert sum(ends.values()) == 1_000
    for partition in PARTITIONS:
        own = [record for record in records if record.partition == partition.partition]
        assert [record.offset for record in own] == list(range(ends[partition]))
        assert numbers(own) == sorted(numbers(own))


async def test_confluents_consumer_reads_what_we_send(bootstrap: str) -> None:
    headers = (("h", b"\x00"), ("none", None))

    async def scenario() -> int:
        async with Producer(bootstrap, linger_ms=0) as producer:
            sent = await producer.send_and_wait(
                "t", b"value", key=b"key", headers=headers, partition=2, timestamp_ms=1_700_000
            )
            await producer.send_and_wait("t", None, key=None, partition=2)
        return sent.offset

    assert await scenario() == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition("t", 2, 0)])
    first, second = consumer.consume(2, timeout=20)
    consumer.close()
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", list(headers))
    assert first.timestamp()[1] == 1_700_000
    assert (second.key(), second.value()) == (None, None)


async def test_keys_go_where_librdkafkas_murmur2_puts_them(bootstrap: str) -> None:
    keys = [b"key-%d" % number for number in range(40)]
    theirs: dict[bytes | None, int | None] = {}
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"}
    )
    for key in keys:
        producer.produce(
            "t", b"", key, on_delivery=lambda _, m: theirs.update({m.key(): m.partition()})
        )
    assert producer.flush(20) == 0

    async def scenario() -> dict[bytes | None, int | None]:
        async with Producer(bootstrap) as ours:
            sent = {key: await ours.send_and_wait("t", b"", key=key) for key in keys}
        return {key: metadata.partition for key, metadata in sent.items()}

    assert await scenario() == theirs


async def test_seek_and_position(bootstrap: str) -> None:
    async with Producer(bootstrap) as producer:
        for number in range(10):
            await producer.send("t", b"%d" % number, partition=0)
    first = PARTITIONS[0]
    async with Consumer(bootstrap) as consumer:  # latest by default
        consumer.assign([first])
        assert await consumer.position(first) == 10
        consumer.seek(first, 4)
        assert numbers(await read(consumer, 6)) == list(range(4, 10))
        consumer.seek_to_beginning(first)
        assert await consumer.position(first) == 0
        assert numbers(await read(consumer, 10)) == list(range(10))
        assert await consumer.poll(0) == {}
        assert await consumer.beginning_offsets([first]) == {first: 0}


async def test_a_group_shares_the_partitions_and_commits(bootstrap: str) -> None:
    class Log(RebalanceListener):
        def __init__(self) -> None:
            self.assigned: list[frozenset[TopicPartition]] = []

        async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            self.assigned.append(partitions)

    await fill(bootstrap, 500)
    logs = Log(), Log()
    # The mock now and then hangs up on a member that waits for its leader's assignment, and
    # then holds the next join back for a session: so the session is short, and the wait long.
    options = {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 200,
        "session_timeout_ms": 3_000,
    }
    async with Consumer(bootstrap, **options) as one, Consumer(bootstrap, **options) as two:  # type: ignore[arg-type]  # a dict of options
        one.subscribe(["t"], logs[0])
        two.subscribe(["t"], logs[1])
        seen: list[ConsumerRecord] = []
        ends = await two.end_offsets(PARTITIONS)

        async def positions() -> dict[TopicPartition, int]:
            return {
                name: await consumer.position(name)
                for consumer in (one, two)
                for name in consumer.assignment()
            }

        # The mock refuses a commit in a rebalance, and the next owner of that partition reads it
        # again: what counts is the places the members came to, not how much they have read.
        async with asyncio.timeout(90):
            while (
                len(one.assignment()) != 2
                or len(two.assignment()) != 2
                or await positions() != ends
            ):
                for consumer in (one, two):
                    for batch in (await consumer.poll(50)).values():
                        seen += batch
        assert one.assignment() | two.assignment() == {*PARTITIONS}
        assert not one.assignment() & two.assignment()
        assert sorted({*numbers(seen)}) == list(range(500))
        await one.commit()
        await two.commit()
        committed = await one.committed(PARTITIONS)
        assert {name: place.offset for name, place in committed.items()} == ends
        assert logs[0].assigned
        assert logs[1].assigned
    async with Consumer(bootstrap, group_id="g") as late:
        late.assign(PARTITIONS)
        assert await late.poll(200) == {}  # it goes on where the group was
        assert await late.position(PARTITIONS[0]) == ends[PARTITIONS[0]]


async def test_an_unknown_group_position_without_reset_is_an_error(bootstrap: str) -> None:
    await fill(bootstrap, 1)
    async with Consumer(bootstrap, group_id="g", auto_offset_reset="none") as consumer:
        consumer.assign(PARTITIONS[:1])
        with pytest.raises(KafkaError, match="the group has no committed offset") as caught:
            await consumer.position(PARTITIONS[0])
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_describe_and_list(bootstrap: str) -> None:
    await fill(bootstrap, 1)
    async with Admin(bootstrap) as admin:
        cluster = await admin.describe_cluster()
        assert sorted(cluster.nodes) == [1, 2, 3]
        assert await admin.list_topics() == ["t"]
        topic = (await admin.describe_topics(["t"]))["t"]
        assert len(topic.partitions) == 4
        with pytest.raises(KafkaError) as caught:  # the mock has no CreateTopics
            await admin.delete_topics(["t"])
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert caught.value.definite


async def test_nobody_listens() -> None:
    producer = Producer("127.0.0.1:1", socket_connection_setup_timeout_ms=200)
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1") as caught:
        await producer.start()
    assert caught.value.definite
    assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE


def test_the_same_without_an_event_loop(bootstrap: str) -> None:
    first = TopicPartition("t", 0)
    with SyncProducer(bootstrap) as producer, SyncAdmin(bootstrap) as admin:
        sent = [producer.send("t", b"%d" % number, partition=0) for number in range(50)]
        assert [delivery.result().offset for delivery in sent] == list(range(50))
        assert admin.list_topics() == ["t"]
        with SyncConsumer(bootstrap) as consumer:
            consumer.assign([first])
            consumer.seek_to_beginning()
            values = [int(record.value or b"") for record in islice(consumer, 50)]
            assert values == list(range(50))
            assert consumer.end_offsets([first]) == {first: 50}
    assert [thread for thread in threading.enumerate() if thread.name == "quorumlog-client"] == []
    with pytest.raises(RuntimeError, match="closed"):
        producer.flush()
    with pytest.raises(KafkaError, match="no broker of bootstrap_servers answered"):
        SyncProducer("127.0.0.1:1", socket_connection_setup_timeout_ms=100)
    assert [thread for thread in threading.enumerate() if thread.name == "quorumlog-client"] == []
