"""Records as columns: `send_many` writes those of `send`, `poll_batches` reads those of `poll`."""

import asyncio
import sys
from typing import Any

import pyarrow as pa
import pytest

from quorumlog import extras
from quorumlog.client import Consumer, ConsumerRecord, KafkaError, Producer
from quorumlog.client.settings import ProducerOptions
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import Record, decode_batch
from tests.property.test_client_columns import rows
from tests.support.client.fake_cluster import PRODUCE, SILENCE, FakeCluster, T, fake_cluster
from tests.support.client.fake_group import GroupCluster
from tests.support.client.fake_transactions import coordinating
from tests.support.client.opened import producing
from tests.unit.client.test_client_sync import OPTIONS

VALUES = [b"%d" % number for number in range(40)]
KEYS = [None if number % 3 else b"k%d" % number for number in range(40)]
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [("h", b"1"), ("n", None)][: n % 3] for n in range(40)
]
TIMES = [1_000 + number for number in range(40)]


def written(cluster: FakeCluster, partitions: int = 1) -> list[list[Record]]:
    return [
        [
            record
            for batch in cluster.logs.get(T._replace(partition=index), [])
            for record in decode_batch(batch)
        ]
        for index in range(partitions)
    ]


def expected() -> list[tuple[Any, ...]]:
    return [*zip(TIMES, KEYS, VALUES, map(tuple, HEADERS), strict=True)]


@pytest.mark.parametrize("is_arrow", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 1}, {"batch_size": 90, "buffer_memory": 200}]
)
async def test_columns_are_written_in_order(is_arrow: bool, options: ProducerOptions) -> None:
    columns: list[Any] = [VALUES, KEYS, HEADERS, TIMES]
    if is_arrow:
        pairs = [[{"key": key, "value": value} for key, value in row] for row in HEADERS]
        columns = [
            pa.array(VALUES, pa.binary()),
            pa.chunked_array([KEYS[:7], KEYS[7:]], pa.binary()),
            pa.array(pairs),
            pa.array(TIMES, pa.int64()),
        ]
    values, keys, headers, times = columns
    async with producing(**options) as (cluster, producer):
        deliveries = await producer.send_many(
            "t", values, keys, headers=headers, timestamps_ms=times
        )
        await deliveries
        assert deliveries.done()
        offsets = [one.result().offset for one in deliveries]
        assert offsets == list(range(40))
        stretches = deliveries.stretches()
        assert [n for first, size in stretches for n in range(first, first + size)] == offsets
        assert [one.result().timestamp_ms for one in deliveries[3:5]] == TIMES[3:5]
    assert [record[1:] for record in written(cluster)[0]] == expected()


async def test_many_records_go_to_the_partitions_of_single_ones() -> None:
    async with producing(batch_size=200) as (cluster, producer):
        cluster.topics["t"] = 3
        await producer.send_many("t", VALUES, [b"%d" % (n % 7) for n in range(40)])
        for number in range(40):
            await producer.send("t", b"%d" % number, b"%d" % (number % 7))
        await producer.send_many("t", [b"last"], partition=2)
        await producer.flush()
        logs = written(cluster, 3)
    assert logs[2].pop().value == b"last"
    for log in logs:
        half = len(log) // 2
        assert [one.value for one in log[:half]] == [one.value for one in log[half:]]
    assert sum(map(len, logs)) == 80


@pytest.mark.parametrize(
    ("columns", "options", "error"),
    [
        ((["text"],), {}, "a record's value is bytes or None, not str"),
        ((b"abc",), {}, "values is a column, not bytes"),
        (([b"a"], "k"), {}, "keys is a column, not str"),
        (([b"a"], [b"k", b"l"]), {}, "keys has 2 rows, values has 1"),
        (([b"a"],), {"timestamps_ms": []}, "timestamps_ms has 0 rows, values has 1"),
        (([b"a"],), {"timestamps_ms": [-1]}, "not milliseconds since 1970"),
        (([b"a"],), {"headers": [[("h", 7)]]}, "a record's headers are pairs"),
        (([b"a", bytes(2_000_000)],), {}, "does not fit max_request_size"),
        (([b"a"],), {"partition": 1}, "t has 1 partitions; there is no 1"),
    ],
)
async def test_illegal_columns_are_refused_before_a_record_is_buffered(
    columns: Any, options: Any, error: str
) -> None:
    async with producing() as (cluster, producer):
        with pytest.raises((TypeError, ValueError, KafkaError), match=error):
            await producer.send_many("t", *columns, **options)
        await producer.flush()
        assert len(await producer.send_many("t", [])) == 0
    assert cluster.values() == []


async def test_records_that_find_no_room_fail_and_those_before_them_are_sent() -> None:
    async with producing(batch_size=100, buffer_memory=300, max_block_ms=500) as (
        cluster,
        producer,
    ):
        await producer.partitions_for("t")
        cluster.fault = lambda _, api: SILENCE if api == PRODUCE else None
        deliveries = await producer.send_many("t", [b"%070d" % n for n in range(9)])
        cluster.fault = lambda _broker, _api: None
        cluster.hang_up()
        with pytest.raises(KafkaError, match="the buffer was full for 500 ms") as raised:
            await deliveries
        assert (raised.value.code, raised.value.definite) == (ErrorCode.REQUEST_TIMED_OUT, True)
        sent = [one for one in deliveries if one.exception() is None]
        assert sent == deliveries[:0] or len(sent) == len(cluster.values())
        assert 0 < len(sent) < 9


async def test_the_stretches_of_two_calls_begin_behind_each_other_also_in_one_batch() -> None:
    async with producing(linger_ms=1_000) as (_, producer):
        first = await producer.send_many("t", VALUES[:3])
        second = await producer.send_many("t", VALUES[3:])
        with pytest.raises(asyncio.InvalidStateError):
            second.stretches()
        await producer.flush()
        assert (first.stretches(), second.stretches()) == ([(0, 3)], [(3, 37)])


async def test_a_refused_batch_of_a_transaction_is_told_from_those_that_fail_with_it() -> None:
    async with coordinating() as cluster:
        cluster.topics["t"] = 3
        options: ProducerOptions = {"transactional_id": "tx", "transaction_timeout_ms": 7_000}
        async with Producer(cluster.bootstrap, **options) as producer:
            await producer.init_transactions()
            async with producer.transaction():
                sent = await producer.send_many("t", VALUES, partition=2)
            assert sent.refusal() is ErrorCode.NONE
            producer.begin_transaction()
            cluster.fault = lambda _, api: ErrorCode.MESSAGE_TOO_LARGE if api == PRODUCE else None
            refused = await producer.send_many("t", VALUES, partition=0)
            while not refused.done():
                await asyncio.sleep(0)
            cluster.fault = lambda _broker, _api: None
            assert refused.refusal() is ErrorCode.MESSAGE_TOO_LARGE
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                refused.stretches()
            with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
                await producer.send_many("t", VALUES, partition=1)
            await producer.abort_transaction()


async def test_many_records_need_a_transaction_as_one_does() -> None:
    async with coordinating() as cluster:
        options: ProducerOptions = {"transactional_id": "tx", "transaction_timeout_ms": 7_000}
        async with Producer(cluster.bootstrap, **options) as producer:
            await producer.init_transactions()
            with pytest.raises(RuntimeError, match="no transaction is open"):
                await producer.send_many("t", VALUES)
            async with producer.transaction():
                deliveries = await producer.send_many("t", VALUES)
            assert [one.result().offset for one in deliveries] == list(range(40))


async def test_a_table_is_what_poll_returns_and_may_be_sent_again() -> None:
    async with asyncio.timeout(30), fake_cluster() as cluster:
        async with Producer(cluster.bootstrap, batch_size=200) as producer:
            await producer.send_many("t", VALUES, KEYS, headers=HEADERS, timestamps_ms=TIMES)
        records = await _polled(cluster, limit=500)
        assert len(records) == 40
        tables = await _batches(cluster, limit=7)
        assert [row for table in tables for row in _rows(table)] == records
        assert max(table.num_rows for table in tables) <= 7
        whole = pa.concat_tables(tables)
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_many(
                "t",
                whole["value"],
                whole["key"],
                headers=whole["headers"],
                timestamps_ms=whole["timestamp_ms"],
            )
        assert [one[1:] for one in written(cluster)[0]] == expected() * 2


def _rows(table: pa.Table) -> list[ConsumerRecord]:
    return [row._replace(topic="t", partition=0) for row in rows(table)]


async def _polled(cluster: FakeCluster, limit: int) -> list[ConsumerRecord]:
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T])
        records: list[ConsumerRecord] = []
        while len(records) < 40:
            records += (await consumer.poll(1_000, limit)).get(T, [])
        return records


async def _batches(cluster: FakeCluster, limit: int) -> list[pa.Table]:
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T])
        tables: list[pa.Table] = []
        while sum(table.num_rows for table in tables) < 40:
            tables += (await consumer.poll_batches(1_000, limit)).values()
        assert await consumer.position(T) == 40
        assert await consumer.poll_batches() == {}
        return tables


def test_blocking_clients_have_columns_too(brokers: FakeCluster) -> None:
    with SyncProducer(brokers.bootstrap, linger_ms=60_000) as producer:
        before = producer.send("t", b"before")
        deliveries = producer.send_many("t", VALUES, KEYS)
        after = producer.send("t", b"after")
        assert not deliveries.done()
        with pytest.raises(TimeoutError):
            deliveries.result(0)
        producer.flush()
        deliveries.result(30)
        assert [one.result(0).offset for one in deliveries] == list(range(1, 41))
        assert [one.result(0).offset for one in (before, *deliveries[:1], after)] == [0, 1, 41]
    with SyncConsumer(brokers.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([T])
        values: list[bytes] = []
        while len(values) < 42:
            for table in consumer.poll_batches(1_000, 30).values():
                values += table["value"].to_pylist()
    assert values == [b"before", *VALUES, b"after"]


def test_a_table_that_an_interrupted_poll_took_is_returned_by_the_next(
    group: GroupCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncConsumer(group.bootstrap, **OPTIONS) as consumer:
        consumer.subscribe(["t"])
        while not consumer.assignment():
            consumer.poll(10, 0)
        run = consumer._loop.run

        def interrupted(*arguments: Any, **options: Any) -> None:
            run(*arguments, **options)
            raise KeyboardInterrupt

        monkeypatch.setattr(consumer._loop, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll_batches(1_000)
        monkeypatch.undo()
        assert consumer.poll_batches(1_000)[T]["offset"].to_pylist() == [0, 1, 2]


async def test_without_arrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quorumlog.client.core.columns", None)
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    async with (
        asyncio.timeout(30),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap) as consumer,
    ):
        with pytest.raises(
            ImportError, match=r"poll_batches needs numpy: pip install '.*\[chaos\]'"
        ):
            await consumer.poll_batches()
