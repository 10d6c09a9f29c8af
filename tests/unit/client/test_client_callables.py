"""The user's callables: serializers, a partitioner and interceptors. No record is lost to them."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, cast

import pytest

from quorumlog.client import (
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    DeserializationError,
    KafkaError,
    OffsetAndMetadata,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)
from quorumlog.client.errors import CallableError
from quorumlog.client.settings import ConsumerOptions, ProducerOptions
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import Record, decode_batch, encode_batch
from tests.support.client.fake_cluster import PRODUCE, SILENCE, FakeCluster, T, fake_cluster
from tests.support.client.opened import consuming, in_group, producing

T1 = T._replace(partition=1)


def to_json(value: object) -> bytes:
    return json.dumps(value).encode()


def records_of(cluster: FakeCluster, name: TopicPartition = T) -> list[Record]:
    return [record for batch in cluster.logs.get(name, []) for record in decode_batch(batch)]


def fill(cluster: FakeCluster, *values: bytes | None, name: TopicPartition = T) -> None:
    """Put a batch of these values into the log of a partition."""
    log = [Record(offset, 0, b"k", value) for offset, value in enumerate(values)]
    cluster.logs[name] = [encode_batch(log, base_offset=0)]


async def values_of(consumer: Consumer[Any, Any], total: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < total:
        for records in (await consumer.poll(5_000)).values():
            found += [record.value for record in records]
    return found


# --- serializers ---


async def test_keys_and_values_are_serialized_and_none_stays_none() -> None:
    options: ProducerOptions = {"key_serializer": str.encode, "value_serializer": to_json}
    async with fake_cluster() as cluster:
        typed: Producer[str, dict[str, int] | int] = Producer(cluster.bootstrap, **options)
        async with typed as producer:
            await producer.send_and_wait("t", {"a": 1}, "k")
            await producer.send_and_wait("t", None)
            await (
                await producer.send_many("t", [1, None], ["x", "y"], headers=[[("h", b"1")], None])
            )
    fields = [(one.key, one.value, one.headers) for one in records_of(cluster)]
    assert fields == [
        (b"k", b'{"a": 1}', ()),
        (None, None, ()),
        (b"x", b"1", (("h", b"1"),)),
        (b"y", None, ()),
    ]


FAILING: list[tuple[Any, str]] = [
    ({"value_serializer": lambda _: 1 / 0}, "value_serializer raised ZeroDivisionError"),
    ({"value_serializer": str}, "value_serializer returned str, not bytes or None"),
    ({"key_serializer": int}, "key_serializer raised ValueError"),
    ({"partitioner": lambda *_: None}, "partitioner returned None, not a partition of t, 0 to"),
    ({"partitioner": lambda *_: -1}, "partitioner returned -1"),
    ({"partitioner": lambda *_: 2}, "partitioner returned 2, not a partition of t, 0 to 1"),
    ({"partitioner": lambda *_: "0"}, "partitioner returned '0'"),
    ({"partitioner": lambda *_: True}, "partitioner returned True"),
    ({"partitioner": lambda *_: 1 / 0}, "partitioner raised ZeroDivisionError"),
    ({"partitioner": lambda: 0}, "partitioner raised TypeError"),
]


@pytest.mark.parametrize(("options", "error"), FAILING)
async def test_a_callable_that_fails_is_named_and_no_record_is_lost(
    options: Any, error: str
) -> None:
    async with producing() as (cluster, plain):
        cluster.topics["t"] = 2
        async with Producer(cluster.bootstrap, linger_ms=60_000, **options) as producer:
            before = await producer.send("t", None, None, partition=0)
            for call in (
                partial(producer.send, "t", b"v", b"k"),
                partial(producer.send_many, "t", [b"v"], [b"k"]),
            ):
                with pytest.raises(CallableError, match=error) as raised:
                    await call()
                assert raised.value.setting in options
                assert raised.value.definite
                assert not raised.value.retriable
            await producer.flush()
            assert (await before).offset == 0
        assert [len(records_of(cluster, name)) for name in (T, T1)] == [1, 0]
        with pytest.raises(TypeError, match="not str: set value_serializer"):
            await plain.send("t", cast("Any", "text"))


@pytest.mark.parametrize(("options", "error"), [FAILING[0], FAILING[5]])
def test_a_callable_of_a_blocking_producer_that_fails_is_named(
    brokers: FakeCluster, options: Any, error: str
) -> None:
    brokers.topics["t"] = 2
    with SyncProducer(brokers.bootstrap, **options) as producer:
        for _ in range(2):  # the topic is unknown at first, and known later
            with pytest.raises(CallableError, match=error):
                producer.send("t", b"v", b"k")
            assert producer.send("t", None, None, partition=0).result(30).partition == 0
    assert [len(records_of(brokers, name)) for name in (T, T1)] == [2, 0]


async def test_records_before_an_illegal_one_of_many_are_not_sent() -> None:
    acknowledged = Noting()
    async with producing(value_serializer=to_json, interceptors=[acknowledged]) as (
        cluster,
        producer,
    ):
        with pytest.raises(CallableError, match="value_serializer raised TypeError"):
            await producer.send_many("t", cast("Any", [1, 2, {3}]))
        await producer.flush()
    assert records_of(cluster) == []
    assert [(value, metadata) for value, metadata, _ in acknowledged.outcomes] == [
        ({3}, None),
        (1, None),
        (2, None),
    ]


# --- the partitioner ---


async def test_the_partitioner_gets_the_key_and_the_partitions() -> None:
    calls: list[tuple[bytes | None, list[int], list[int]]] = []

    def choose(key: bytes | None, every: Sequence[int], available: Sequence[int]) -> int:
        calls.append((key, list(every), list(available)))
        return available[-1] if key is None else every[int(key) % len(every)]

    async with fake_cluster() as cluster:
        cluster.topics["t"] = 3
        cluster.leaders[T._replace(partition=2)] = cluster.leader(T)._replace(broker_id=-1)
        options: ProducerOptions = {"partitioner": choose, "linger_ms": 0}
        async with Producer(cluster.bootstrap, **options) as producer:
            for key in (b"0", b"1", b"3", None):
                await producer.send_and_wait("t", b"v", key)
            await producer.send_and_wait("t", b"v", b"1", partition=0)
        assert calls == [(key, [0, 1, 2], [0, 1]) for key in (b"0", b"1", b"3", None)]
        assert [[one.key for one in records_of(cluster, name)] for name in (T, T1)] == [
            [b"0", b"3", b"1"],
            [b"1", None],
        ]


def test_a_partitioner_of_a_blocking_producer_keeps_the_order(brokers: FakeCluster) -> None:
    brokers.topics["t"] = 2
    with SyncProducer(brokers.bootstrap, partitioner=lambda *_: 1) as producer:
        for number in range(50):
            producer.send("t", b"%d" % number)
    assert brokers.values(T1) == [b"%d" % number for number in range(50)]


def test_a_partitioner_is_called_once_for_a_record(brokers: FakeCluster) -> None:
    brokers.topics["t"] = 2
    calls = count()
    options: ProducerOptions = {
        "partitioner": lambda *_: next(calls) % 2,
        "batch_size": 200,
        "buffer_memory": 400,
    }
    with SyncProducer(brokers.bootstrap, **options) as producer:
        for number in range(40):  # most wait for room, on the loop
            producer.send("t", b"%d" % number)
    assert [brokers.values(name) for name in (T, T1)] == [
        [b"%d" % number for number in range(begin, 40, 2)] for begin in range(2)
    ]


def test_a_closed_blocking_producer_reports_each_record_once(brokers: FakeCluster) -> None:
    noting = Noting()
    brokers.fault = lambda _, api: SILENCE if api == PRODUCE else None
    options: ProducerOptions = {
        "delivery_timeout_ms": 600,
        "request_timeout_ms": 500,
        "interceptors": [noting],
    }
    with SyncProducer(brokers.bootstrap, **options) as producer:
        for number in range(20):
            producer.send("t", b"%d" % number)
    assert [value for value, _, _ in noting.outcomes] == [b"%d" % n for n in range(20)]
    assert all(isinstance(error, KafkaError) for _, _, error in noting.outcomes)


# --- deserializers ---


async def test_records_are_deserialized_and_tombstones_are_none() -> None:
    options: ConsumerOptions = {
        "key_deserializer": bytes.decode,
        "value_deserializer": json.loads,
        "max_poll_records": 2,
    }
    async with consuming(**options) as (cluster, consumer):
        fill(cluster, b"1", b'{"a": [2]}', None, b"4", b"5")
        consumer.assign([T])
        consumer.seek(T, 1)
        (first,) = (await consumer.poll(5_000, max_records=1))[T]
        assert cast("Any", first) == ("t", 0, 1, 0, "k", {"a": [2]}, (), -1, 0)
        assert isinstance(first, ConsumerRecord)
        assert await values_of(consumer, 3) == [None, 4, 5]
        with pytest.raises(ValueError, match="poll_batches returns bytes, without key_deserialize"):
            await consumer.poll_batches()
        for wrong in (-1, "5", True):
            with pytest.raises((TypeError, ValueError), match="max_records"):
                await consumer.poll(0, cast("Any", wrong))


async def test_a_record_that_cannot_be_deserialized_keeps_the_position() -> None:
    async with consuming(value_deserializer=int) as (cluster, consumer):
        cluster.topics["t"] = 2
        fill(cluster, b"0", b"1", b"no", b"3")
        fill(cluster, *[b"%d" % number for number in range(10, 40)], name=T1)
        consumer.assign([T, T1])
        consumer.seek(T, 0)
        consumer.seek(T1, 0)
        found: dict[TopicPartition, list[Any]] = {T: [], T1: []}
        errors: list[DeserializationError] = []
        while len(found[T1]) < 30:  # the other partition is read on
            try:
                for name, records in (await consumer.poll(5_000, max_records=10)).items():
                    found[name] += [record.value for record in records]
            except DeserializationError as error:
                errors.append(error)
        for one in errors:
            assert (one.topic_partition, one.offset) == (T, 2)
            assert (one.setting, one.data) == ("value_deserializer", b"no")
            assert isinstance(one.__cause__, ValueError)
        assert errors
        assert found == {T: [0, 1], T1: [*range(10, 40)]}
        for _ in range(2):
            with pytest.raises(DeserializationError, match=r"t-0 at offset 2: .*seek to the next"):
                await consumer.poll(5_000)
            assert await consumer.position(T) == 2
        consumer.seek(T, 3)
        assert await values_of(consumer, 1) == [3]


async def test_iteration_stops_before_a_record_that_cannot_be_deserialized() -> None:
    async with in_group(value_deserializer=int, auto_offset_reset="earliest") as (group, consumer):
        group.logs[T] = [
            encode_batch([Record(at, 0, None, value) for at, value in enumerate([b"0", b"x"])])
        ]
        consumer.subscribe(["t"])
        found: list[Any] = []

        async def read() -> None:
            async for record in consumer:
                found.append(record.value)  # noqa: PERF401 - the loop does not end

        with pytest.raises(DeserializationError):
            await read()
        assert found == [0]
        await consumer.commit()
        assert group.committed == 1


def test_a_blocking_consumer_deserializes(brokers: FakeCluster) -> None:
    fill(brokers, b"1", b"no")
    typed: SyncConsumer[bytes, int] = SyncConsumer(brokers.bootstrap, value_deserializer=int)
    with typed as consumer:
        consumer.assign([T])
        consumer.seek_to_time(0)
        assert [one.value for one in consumer.poll(5_000)[T]] == [1]
        with pytest.raises(DeserializationError):
            consumer.poll(5_000)


# --- interceptors ---


class Noting(ProducerInterceptor):
    def __init__(self) -> None:
        self.outcomes: list[tuple[Any, RecordMetadata | None, BaseException | None]] = []

    def on_acknowledgement(
        self,
        record: ProducerRecord[Any, Any],
        metadata: RecordMetadata | None,
        error: BaseException | None,
    ) -> None:
        self.outcomes.append((record.value, metadata, error))


class Adding(ProducerInterceptor):
    """Appends a letter to each value."""

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        return record._replace(value=f"{record.value}{self.letter}")


class Failing(ProducerInterceptor, ConsumerInterceptor):
    """Raises, or returns nonsense, in every method."""

    def __init__(self, result: Callable[[], Any]) -> None:
        self.result = result

    def on_send(self, record: Any) -> Any:
        return self.result()

    def on_acknowledgement(self, record: Any, metadata: Any, error: Any) -> None:
        self.result()

    def on_consume(self, records: Any) -> Any:
        return self.result()

    def on_commit(self, offsets: Any) -> None:
        self.result()


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("result", [fail, lambda: None, lambda: "nonsense"])
@pytest.mark.parametrize("is_blocking", [False, True])
async def test_interceptors_are_called_in_order_and_a_failing_one_is_skipped(
    result: Callable[[], Any], is_blocking: bool, caplog: pytest.LogCaptureFixture
) -> None:
    noting = Noting()
    options: ProducerOptions = {
        "interceptors": [Adding("a"), Failing(result), Adding("b"), noting],
        "value_serializer": str.encode,
        "linger_ms": 0,
    }
    async with fake_cluster() as cluster:
        if is_blocking:

            def send() -> None:
                with SyncProducer(cluster.bootstrap, **options) as producer:
                    for value in "xy":
                        producer.send("t", cast("Any", value)).result(30)

            await asyncio.to_thread(send)
        else:
            async with Producer(cluster.bootstrap, **options) as producer:
                for value in "xy":
                    await producer.send_and_wait("t", cast("Any", value))
        assert cluster.values() == [b"xab", b"yab"]
    outcomes = [(value, metadata and metadata.offset) for value, metadata, _ in noting.outcomes]
    assert outcomes == [("xab", 0), ("yab", 1)]
    logged = [one.getMessage() for one in caplog.records if "Failing.on_send" in one.getMessage()]
    assert len(logged) == 1  # of two: the second comes within a minute


async def test_interceptors_receive_each_outcome_once() -> None:
    noting = Noting()
    options: ProducerOptions = {"interceptors": [noting], "max_request_size": 1_000}
    async with producing(**options) as (cluster, producer):
        await producer.send_and_wait("t", b"1")
        with pytest.raises(KafkaError, match="does not fit max_request_size"):
            await producer.send("t", bytes(2_000))
        with pytest.raises(TypeError):
            await producer.send("t", cast("Any", 3))
        cluster.fault = lambda _, api: ErrorCode.INVALID_RECORD if api == PRODUCE else None
        deliveries = await producer.send_many("t", [b"4", b"5"])
        with pytest.raises(KafkaError):
            await deliveries
    assert [(metadata is None, type(error)) for _, metadata, error in noting.outcomes] == [
        (False, type(None)),
        (True, KafkaError),
        (True, TypeError),
        (True, KafkaError),
        (True, KafkaError),
    ]


class Filtering(ConsumerInterceptor):
    """Drops the records of odd numbers, copies the others, and notes commits."""

    def __init__(self) -> None:
        self.copies = 1
        self.commits: list[Mapping[TopicPartition, OffsetAndMetadata]] = []

    def on_consume(self, records: Any) -> Any:
        return {
            name: [one for one in of_name if int(one.value) % 2 == 0] * self.copies
            for name, of_name in records.items()
        }

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append(offsets)


@pytest.mark.parametrize("result", [fail, lambda: None, lambda: {T: 7}])
async def test_a_consumers_interceptors_see_records_and_commits(result: Callable[[], Any]) -> None:
    filtering = Filtering()
    options: ConsumerOptions = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "interceptors": [Failing(result), filtering],
    }
    async with in_group(9, **options) as (group, consumer):
        consumer.subscribe(["t"])
        assert await values_of(consumer, 5) == [b"0", b"2", b"4", b"6", b"8"]
        await consumer.commit()
        assert group.committed == 9
        assert [offsets[T].offset for offsets in filtering.commits] == [9]
        consumer.seek(T, 3)
        found = []
        async for record in consumer:
            found.append(record.value)
            if len(found) == 3:
                break
        assert found == [b"4", b"6", b"8"]
        filtering.copies = 2
        consumer.seek(T, 3)
        async for record in consumer:
            found.append(record.value)
            if len(found) == 7:
                break
        assert found[3:] == [b"4", b"4", b"6", b"6"]
        with pytest.raises(ValueError, match="poll_batches returns bytes, without interceptors"):
            await consumer.poll_batches()


def test_callables_of_a_blocking_producer_run_in_its_thread(brokers: FakeCluster) -> None:
    threads = []

    def serialize(value: str) -> bytes:
        threads.append(threading.current_thread())
        return value.encode()

    with SyncProducer(brokers.bootstrap, value_serializer=serialize) as producer:
        for number in range(20):
            producer.send("t", cast("Any", str(number)))
        producer.flush()
    assert set(threads) == {threading.current_thread()}
    assert brokers.values() == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            Producer,
            {"value_serializer": b"x"},
            "value_serializer must be a synchronous function or None",
        ),
        (
            Producer,
            {"interceptors": [Filtering()]},
            "interceptors must be a list, each of type Pro",
        ),
        (
            Consumer,
            {"interceptors": [Noting()]},
            "interceptors must be a list, each of type Consum",
        ),
        (
            Consumer,
            {"key_deserializer": 7},
            "key_deserializer must be a synchronous function or None",
        ),
    ],
)
def test_a_setting_that_is_no_callable_is_refused(kind: Any, options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        kind("x:1", **options)
