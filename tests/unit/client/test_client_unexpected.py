"""An error that no rule foresees: each background task of a client logs it and has one answer."""

import asyncio
import logging

import pytest

from quorumlog.client import Consumer, KafkaError, Producer, TopicPartition
from quorumlog.client.core.accumulator import Accumulator
from quorumlog.client.core.metadata_cache import MetadataCache
from quorumlog.client.core.positions import Positions
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.io.sender import Sender
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.client.fake_cluster import T, fake_cluster
from tests.support.client.fake_group import group_cluster


class Failing:
    """Raises in place of a method: in the first `times` calls, or in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, times: int) -> None:
        self.left, original = times, getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            if self.left:
                self.left -= 1
                raise ZeroDivisionError("planted")
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, call)


def planted(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the modules that logged the planted error."""
    return [
        record.name.rpartition(".")[2]
        for record in caplog.records
        if record.levelno >= logging.ERROR and record.exc_info and "planted" in caplog.text
    ]


async def test_a_fetch_is_reported_by_poll_and_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"v")
        Failing(monkeypatch, Positions, "handle_fetched", 1)
        async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([T])
            with pytest.raises(KafkaError, match="planted"):
                await consumer.poll(10_000)
            (records,) = (await consumer.poll(10_000)).values()
            assert records[0].value == b"v"
    assert planted(caplog) == ["fetcher"]


async def test_a_produce_request_counts_as_lost_and_its_batch_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        Failing(monkeypatch, Sender, "_handle", 1)
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            assert (await producer.send_and_wait("t", b"v")).offset == 0
        assert cluster.values() == [b"v"]
    assert planted(caplog) == ["sender"]


async def test_without_a_producer_id_all_batches_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        Failing(monkeypatch, Accumulator, "identify", 1)
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            with pytest.raises(KafkaError) as failed:
                await producer.send_and_wait("t", b"v")
            assert failed.value.definite
            assert (await producer.send_and_wait("t", b"w")).offset == 0
    assert planted(caplog) == ["sender"]


async def test_metadata_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        Failing(monkeypatch, MetadataCache, "update", 2)
        async with Producer(cluster.bootstrap, linger_ms=0) as producer:
            assert (await producer.send_and_wait("t", b"v")).offset == 0
    assert planted(caplog) == ["cluster", "cluster"]


async def test_a_broker_is_connected_to_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Producer(cluster.bootstrap, linger_ms=0) as producer,
    ):
        Failing(monkeypatch, KafkaConnection, "__init__", 1)
        assert (await producer.send_and_wait("t", b"v")).offset == 0
    assert planted(caplog) == ["broker_connections"]


async def test_a_group_is_reported_by_poll(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), group_cluster() as cluster:
        Failing(monkeypatch, Coordinator, "find", 1)
        async with Consumer(cluster.bootstrap, group_id="g") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaError) as failed:
                await consumer.poll(10_000)
            assert failed.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert planted(caplog) == ["group_session"]


async def test_an_automatic_commit_is_logged_and_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), group_cluster() as cluster:
        cluster.fill(3)
        async with Consumer(
            cluster.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1,
        ) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            failing = Failing(monkeypatch, Coordinator, "commit", 1)
            while failing.left or not cluster.commits:
                await consumer.poll(1)
    assert planted(caplog) == ["committer"]


async def test_a_dropped_client_closes_its_other_holder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        producer = Producer(cluster.bootstrap)
        await producer.start()
        Failing(monkeypatch, Sender, "close", 1)
        holder = [producer]
        del producer
        with pytest.warns(ResourceWarning, match="unclosed Producer"):
            holder.clear()
        while any(cluster.connections.values()) or not planted(caplog):
            await asyncio.sleep(0)
    assert planted(caplog) == ["closing"]
