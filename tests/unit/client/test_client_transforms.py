"""`transform`: each record is in one committed transaction, whatever fails in between."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorumlog.client import (
    Consumer,
    ConsumerRecord,
    KafkaError,
    Producer,
    ProducerRecord,
    transform,
)
from quorumlog.client.settings import ConsumerOptions
from quorumlog.client.sync import SyncConsumer, SyncProducer
from quorumlog.client.sync import transform as blocking_transform
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.client import fake_cluster as fake
from tests.support.client.fake_transactions import END, producer_of
from tests.support.client.fake_transforms import Transforming, transforming
from tests.support.client.opened import in_a_thread

OPTIONS: ConsumerOptions = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    "heartbeat_interval_ms": 10,
    "max_poll_records": 4,
}
RECORDS = 9
ALL = [b"%d" % number for number in range(RECORDS)]


def copied(record: ConsumerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
    return ProducerRecord("out", record.value)


@asynccontextmanager
async def opened(
    records: int = RECORDS, max_block_ms: int = 60_000
) -> AsyncIterator[tuple[Transforming, Consumer, Producer]]:
    async with (
        asyncio.timeout(30),
        transforming(records) as cluster,
        Consumer(cluster.bootstrap, **OPTIONS) as consumer,
        producer_of(cluster, max_block_ms) as producer,
    ):
        consumer.subscribe(["t"])
        yield cluster, consumer, producer


def until_moved(cluster: Transforming) -> Callable[[], bool]:
    return lambda: cluster.committed == RECORDS


async def test_each_record_is_moved_with_its_offset() -> None:
    async with opened() as (cluster, consumer, producer):
        count = await transform(consumer, producer, copied, stop=until_moved(cluster))
        assert count == RECORDS
        assert cluster.moved == ALL
        assert cluster.tries == [ALL[:4], ALL[4:8], ALL[8:]]
        assert await transform(consumer, producer, copied, stop=lambda: True) == 0


async def test_a_function_returns_any_number_of_records_and_may_be_awaited() -> None:
    async def repeated(record: ConsumerRecord[Any, Any]) -> list[ProducerRecord[Any, Any]] | None:
        await asyncio.sleep(0)
        times = int(record.value or b"0") % 3
        return [ProducerRecord("out", record.value)] * times if times else None

    async with opened() as (cluster, consumer, producer):
        await transform(consumer, producer, repeated, max_records=5, stop=until_moved(cluster))
        assert b"".join(cluster.moved) == b"122455788"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
@pytest.mark.parametrize("is_at_end", [False, True])
async def test_records_of_an_aborted_transaction_are_moved_again(
    code: ErrorCode, is_at_end: bool
) -> None:
    async with opened() as (cluster, consumer, producer):
        if is_at_end:
            cluster.end_errors = [ErrorCode.TRANSACTION_ABORTABLE]
        else:
            cluster.offset_errors = [ErrorCode.NONE, code]
        await transform(consumer, producer, copied, stop=until_moved(cluster))
        assert cluster.moved == ALL
        assert len(cluster.tries) == 4


async def test_a_member_that_was_fenced_moves_no_record_twice() -> None:
    async with opened() as (cluster, consumer, producer):

        def fenced_once(record: ConsumerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
            if record.offset == 5 and cluster.generation == 1:
                cluster.beat = ErrorCode.UNKNOWN_MEMBER_ID
                cluster.generation = 7  # of another member's join
            return copied(record)

        await transform(consumer, producer, fenced_once, stop=until_moved(cluster))
        assert cluster.moved == ALL


async def test_a_commit_without_an_answer_is_requested_until_it_is_certain() -> None:
    async with opened(max_block_ms=300) as (cluster, consumer, producer):
        silent = [fake.SILENCE, fake.HANG_UP]
        cluster.fault = lambda _, api: silent.pop() if api == END and silent else None

        async def hang_up() -> None:
            while silent:
                await asyncio.sleep(0.01)
            cluster.hang_up()

        waiting = asyncio.create_task(hang_up())
        await transform(consumer, producer, copied, stop=until_moved(cluster))
        await waiting
        assert cluster.committed == RECORDS
        assert consumer.assignment() == {fake.T}


async def test_an_error_of_the_function_loses_nothing() -> None:
    failures = [ZeroDivisionError(), None, TypeError()]

    async with opened() as (cluster, consumer, producer):

        def fails(record: ConsumerRecord[Any, Any]) -> Any:
            if record.offset == 6 and failures:
                failure = failures.pop()
                if failure is None:
                    return "no record"
                raise failure
            return copied(record)

        for error in (TypeError, TypeError, ZeroDivisionError):
            with pytest.raises(error):
                await transform(consumer, producer, fails, stop=until_moved(cluster))
            assert cluster.moved == ALL[:4]
        await transform(consumer, producer, fails, stop=until_moved(cluster))
        assert cluster.moved == ALL


async def test_a_record_that_the_producer_refuses_aborts_and_is_read_again() -> None:
    async with opened() as (cluster, consumer, producer):
        sizes = [2_000_000, 1]

        def grown(record: ConsumerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
            if record.offset == 2 and sizes:
                return ProducerRecord("out", bytes(sizes.pop(0)))
            return copied(record)

        with pytest.raises(KafkaError, match="max_request_size"):
            await transform(consumer, producer, grown, stop=until_moved(cluster))
        assert cluster.moved == []
        await transform(consumer, producer, grown, stop=until_moved(cluster))
        assert cluster.moved == [*ALL[:2], b"\0", *ALL[3:]]


async def test_a_fenced_producer_raises_and_the_group_has_the_offsets() -> None:
    async with opened() as (cluster, consumer, producer):
        cluster.end_errors = [ErrorCode.PRODUCER_FENCED]
        with pytest.raises(KafkaError) as raised:
            await transform(consumer, producer, copied, stop=until_moved(cluster))
        assert raised.value.fatal
        with pytest.raises(KafkaError):
            await transform(consumer, producer, copied, stop=until_moved(cluster))
        async with producer_of(cluster) as successor:
            await transform(consumer, successor, copied, stop=until_moved(cluster))
        assert cluster.moved == ALL
        assert cluster.tries[0] == ALL[:4]  # of the fenced producer


async def test_a_cancelled_call_loses_nothing() -> None:
    async with opened() as (cluster, consumer, producer):
        reached = asyncio.Event()

        async def waits(record: ConsumerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
            if record.offset == 5 and not reached.is_set():
                reached.set()
                await asyncio.Event().wait()
            return copied(record)

        task = asyncio.create_task(transform(consumer, producer, waits))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await transform(consumer, producer, waits, stop=until_moved(cluster))
        assert cluster.moved == ALL


async def test_transactions_that_always_fail_end_with_their_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorumlog.client.transforms.FAILURES_MAX", 3)
    async with opened() as (cluster, consumer, producer):
        cluster.offset_errors = [ErrorCode.TRANSACTION_ABORTABLE] * 3
        with pytest.raises(KafkaError, match="TRANSACTION_ABORTABLE"):
            await transform(consumer, producer, copied, stop=until_moved(cluster))
        await transform(consumer, producer, copied, stop=until_moved(cluster))
        assert cluster.moved == ALL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enable_auto_commit": True}, "set enable_auto_commit=False"),
        ({"isolation_level": "read_uncommitted"}, "set isolation_level='read_committed'"),
        ({"group_id": None}, "needs a consumer with group_id"),
    ],
)
async def test_settings_that_are_not_exactly_once_are_refused(changes: Any, message: str) -> None:
    options: Any = {**OPTIONS, **changes}
    consumer: Any = Consumer("x:1", **options)
    with pytest.raises(ValueError, match=message):
        await transform(consumer, Producer("x:1", transactional_id="tx"), copied)
    with pytest.raises(ValueError, match="needs a producer with transactional_id"):
        await transform(consumer, Producer("x:1"), copied)


def test_a_blocking_transform_loses_nothing() -> None:
    failures = [KeyboardInterrupt(), ZeroDivisionError()]

    def fails(record: ConsumerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        if record.offset == 6 and failures:
            raise failures.pop()
        return copied(record)

    with in_a_thread(transforming(RECORDS)) as cluster:
        cluster.offset_errors = [ErrorCode.ILLEGAL_GENERATION]
        with (
            SyncConsumer(cluster.bootstrap, **OPTIONS) as consumer,
            SyncProducer(
                cluster.bootstrap, transactional_id="tx", transaction_timeout_ms=7_000, linger_ms=0
            ) as producer,
        ):
            consumer.subscribe(["t"])
            for error in (ZeroDivisionError, KeyboardInterrupt):
                with pytest.raises(error):
                    blocking_transform(consumer, producer, fails, stop=until_moved(cluster))
            blocking_transform(consumer, producer, fails, stop=until_moved(cluster))
        assert cluster.moved == ALL
