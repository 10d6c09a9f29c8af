"""A transactional producer on sockets: versions, flags, time limits, and the unexpected."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorumlog.client import KafkaError, Producer
from quorumlog.client.io.transaction_messages import TransactionMessages
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnResponse
from quorumlog.wire.codec.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdResponse
from quorumlog.wire.codec.records import read_header
from quorumlog.wire.codec.schemas import decode_request
from tests.support.client import fake_cluster as fake

FIND_COORDINATOR, ADD_PARTITIONS, END, COMMIT_OFFSETS = 10, 24, 26, 28
OURS = {FIND_COORDINATOR: 4, ADD_PARTITIONS: 5, END: 5, COMMIT_OFFSETS: 5}


class _Connection(fake._Connection):
    def frame_received(self, frame: memoryview) -> None:
        header, _ = decode_request(frame)
        assert isinstance(self.cluster, Coordinating)
        self.cluster.versions.append((header.api_key, header.api_version))
        super().frame_received(frame)


class Coordinating(fake.FakeCluster):
    """Broker 1 coordinates all transactions."""

    connection_class = _Connection

    def __init__(self) -> None:
        super().__init__()
        self.level = 2  # of transaction.version
        self.versions: list[tuple[int, int]] = []
        self.ends: list[tuple[bool, int]] = []  # (committed, epoch)
        self.epoch = 0

    def version_of(self, api: int) -> int:
        return next(version for key, version in reversed(self.versions) if key == api)

    def handle(self, broker: int, api: int, request: Any, fault: object) -> Response | None:
        answers = {
            fake.API_VERSIONS: self.api_versions,
            FIND_COORDINATOR: self.find_coordinator,
            fake.INIT_PRODUCER_ID: self.init_producer_id,
            ADD_PARTITIONS: self.add_partitions,
            END: self.end,
        }
        if api in answers:
            return answers[api](request)
        if api == fake.PRODUCE:
            assert request.transactional_id == "tx"
            self.numbers.clear()  # of the epoch before
        return super().handle(broker, api, request, fault)

    def api_versions(self, _: Any) -> Response:
        spoken = {**fake.SPOKEN, fake.PRODUCE: 12, **OURS}
        level = FinalizedFeatureKey(name="transaction.version", max_version_level=self.level)
        return ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=key, max_version=last) for key, last in spoken.items()],
            finalized_features=[level],
            finalized_features_epoch=1,
        )

    def find_coordinator(self, request: Any) -> Response:
        assert (request.key_type, request.coordinator_keys) == (1, ["tx"])
        host, port = self.addresses[1]
        found = Coordinator(key="tx", node_id=1, host=host, port=port)
        return FindCoordinatorResponse(coordinators=[found])

    def init_producer_id(self, request: Any) -> Response:
        assert (request.transactional_id, request.transaction_timeout_ms) == ("tx", 7_000)
        return InitProducerIdResponse(producer_id=9, producer_epoch=self.epoch)

    def add_partitions(self, request: Any) -> Response:
        results = []
        for topic in request.v3_and_below_topics:
            added = [
                AddPartitionsToTxnPartitionResult(partition_index=index)
                for index in topic.partitions
            ]
            one = AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=added)
            results.append(one)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def end(self, request: Any) -> Response:
        self.ends.append((request.committed, request.producer_epoch))
        self.epoch += 1
        return EndTxnResponse(producer_id=9, producer_epoch=self.epoch)


@asynccontextmanager
async def coordinating(level: int = 2) -> AsyncIterator[Coordinating]:
    cluster = Coordinating()
    cluster.level = level
    await cluster.start(1)
    try:
        yield cluster
    finally:
        for broker_id in list(cluster.servers):
            await cluster.kill(broker_id)


def producer_of(cluster: Coordinating, max_block_ms: int = 60_000) -> Producer:
    return Producer(
        cluster.bootstrap,
        transactional_id="tx",
        transaction_timeout_ms=7_000,
        max_block_ms=max_block_ms,
        linger_ms=0,
    )


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
        for connection in list(cluster.connections[1]):
            connection.abort()  # the silent request is lost
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
