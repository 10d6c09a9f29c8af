"""A transactional producer on sockets: versions, flags, time limits, and the unexpected."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quorumlog.client import KafkaError
from quorumlog.client.io.transactor import TransactionMessages
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import read_header
from tests.support.client import fake_cluster as fake
from tests.support.client.fake_transactions import ADD_PARTITIONS, END, coordinating, producer_of


async def until_told(call: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a call that gives up: the machine may be slow."""
    while True:
        try:
            await call()
        except KafkaError as error:
            if error.code != ErrorCode.REQUEST_TIMED_OUT:
                raise
        else:
            return


async def test_with_transaction_version_2_brokers_add_partitions() -> None:
    async with coordinating() as cluster, producer_of(cluster) as producer:
        await producer.init_transactions()
        for _ in range(2):
            async with producer.transaction():
                await producer.send("t", b"one")
        assert cluster.ends == [(True, 0), (True, 1)]
        assert ADD_PARTITIONS not in {api for api, _ in cluster.versions}
        assert cluster.version_of(fake.PRODUCE) == 12
        assert cluster.version_of(END) == 5
    headers = [read_header(batch) for batch in cluster.logs[fake.T]]
    assert [one.is_transactional for one in headers] == [True, True]
    assert [(one.producer_epoch, one.base_sequence) for one in headers] == [(0, 0), (1, 0)]


async def test_before_transaction_version_2_the_producer_adds_them() -> None:
    async with coordinating(level=1) as cluster, producer_of(cluster) as producer:
        await producer.init_transactions()
        for _ in range(2):
            async with producer.transaction():
                await producer.send("t", b"one")
        assert cluster.ends == [(True, 0), (True, 0)]
        assert cluster.version_of(ADD_PARTITIONS) == 3
        assert cluster.version_of(fake.PRODUCE) == 11
        assert cluster.version_of(END) == 4
    headers = [read_header(batch) for batch in cluster.logs[fake.T]]
    assert [(one.producer_epoch, one.base_sequence) for one in headers] == [(0, 0), (0, 1)]


async def test_a_commit_that_gives_up_is_told_by_the_next_call() -> None:
    async with coordinating() as cluster, producer_of(cluster, max_block_ms=50) as producer:
        await until_told(producer.init_transactions)
        await until_told(lambda: producer.partitions_for("t"))
        producer.begin_transaction()
        await producer.send("t", b"one")
        cluster.fault = lambda _broker, api: fake.SILENCE if api == END else None
        with pytest.raises(KafkaError, match="call it again") as caught:
            await producer.commit_transaction()
        assert (caught.value.definite, caught.value.retriable) == (False, True)
        with pytest.raises(RuntimeError, match="commit_transaction has not returned"):
            producer.begin_transaction()
        cluster.fault = lambda _broker, _api: None
        cluster.hang_up()  # the silent request is lost
        await until_told(producer.commit_transaction)
        producer.begin_transaction()
        await until_told(producer.abort_transaction)


async def test_a_call_that_is_cancelled_stops_no_request() -> None:
    async with coordinating() as cluster, producer_of(cluster) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send_and_wait("t", b"one")
        committing = asyncio.create_task(producer.commit_transaction())
        await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
        await producer.commit_transaction()
        assert cluster.ends == [(True, 0)]


async def test_stop_aborts_within_its_timeout() -> None:
    async with coordinating() as cluster:
        for is_silent in (False, True):
            producer = producer_of(cluster)
            await producer.start()
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send_and_wait("t", b"one")
            if is_silent:
                cluster.fault = lambda _broker, api: fake.SILENCE if api == END else None
            await producer.stop(timeout_ms=20 if is_silent else None)
        assert [committed for committed, _ in cluster.ends] == [False, False]


async def test_an_unexpected_failure_is_logged_and_the_request_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    end, failures = TransactionMessages.end, [ValueError("planted")]

    async def planted(self: TransactionMessages, *args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await end(self, *args)

    monkeypatch.setattr(TransactionMessages, "end", planted)
    async with coordinating() as cluster, producer_of(cluster) as producer:
        await producer.init_transactions()
        async with producer.transaction():
            await producer.send("t", b"one")
        assert cluster.ends == [(True, 0)]
    assert "a request of a transaction failed: planted" in caplog.text


async def test_a_refused_record_aborts_the_block() -> None:
    async with coordinating() as cluster, producer_of(cluster) as producer:
        await producer.init_transactions()
        deliveries = []

        async def send_one() -> None:
            async with producer.transaction():
                deliveries.append(await producer.send("t", b"one"))

        too_large = ErrorCode.MESSAGE_TOO_LARGE
        cluster.fault = lambda _broker, api: too_large if api == fake.PRODUCE else None
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE") as caught:
            await send_one()
        refused = deliveries[0].exception()
        assert refused is not None
        for error in (caught.value, refused):
            assert (error.abortable, error.fatal, error.definite) == (True, False, True)
        cluster.fault = lambda _broker, _api: None
        await send_one()
        assert cluster.ends == [(False, 0), (True, 1)]
        assert cluster.values() == [b"one"]
