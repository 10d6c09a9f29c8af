"""An error that no rule foresees: each background task of a client logs it and has one answer."""

import asyncio
import logging

import pytest

from quorumlog.client import Consumer, Producer
from quorumlog.client.core.accumulator import Accumulator
from quorumlog.client.core.metadata_cache import MetadataCache
from quorumlog.client.core.positions import Positions
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.io.sender import Sender
from quorumlog.client.settings import ConsumerOptions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.client.fake_cluster import T, fake_cluster
from tests.support.client.opened import in_group, producing
from tests.support.client.refusals import refused


class Plant:
    """Raises in place of methods."""

    def __init__(self, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self._patch, self._caplog = patch, caplog
        self.left = 0

    def __call__(self, owner: type, name: str, times: int = 1) -> None:
        """Raise in the first `times` calls."""
        self.left, original = times, getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            if self.left:
                self.left -= 1
                raise ZeroDivisionError("planted")
            return original(*arguments, **named)

        self._patch.setattr(owner, name, call)

    @property
    def logged(self) -> list[str]:
        """The modules that logged the planted error."""
        return [
            record.name.rpartition(".")[2]
            for record in self._caplog.records
            if record.levelno >= logging.ERROR
            and record.exc_info
            and "planted" in self._caplog.text
        ]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Plant:
    return Plant(monkeypatch, caplog)


async def test_a_fetch_is_reported_by_poll_and_made_again(plant: Plant) -> None:
    async with (
        producing() as (cluster, producer),
        Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        await producer.send_and_wait("t", b"v")
        plant(Positions, "handle_fetched")
        consumer.assign([T])
        with refused("planted"):
            await consumer.poll(10_000)
        (records,) = (await consumer.poll(10_000)).values()
        assert records[0].value == b"v"
    assert plant.logged == ["fetcher"]


async def test_a_produce_request_counts_as_lost_and_its_batch_is_sent_again(plant: Plant) -> None:
    plant(Sender, "_handle")
    async with producing() as (cluster, producer):
        assert (await producer.send_and_wait("t", b"v")).offset == 0
    assert cluster.values() == [b"v"]
    assert plant.logged == ["sender"]


async def test_without_a_producer_id_all_batches_fail(plant: Plant) -> None:
    plant(Accumulator, "identify")
    async with producing() as (_, producer):
        with refused(definite=True):
            await producer.send_and_wait("t", b"v")
        assert (await producer.send_and_wait("t", b"w")).offset == 0
    assert plant.logged == ["sender"]


async def test_metadata_is_asked_for_again(plant: Plant) -> None:
    plant(MetadataCache, "update", 2)
    async with producing() as (_, producer):
        assert (await producer.send_and_wait("t", b"v")).offset == 0
    assert plant.logged == ["cluster", "cluster"]


async def test_a_broker_is_connected_to_again(plant: Plant) -> None:
    async with producing() as (_, producer):
        plant(KafkaConnection, "__init__")
        assert (await producer.send_and_wait("t", b"v")).offset == 0
    assert plant.logged == ["broker_connections"]


async def test_a_group_is_reported_by_poll(plant: Plant) -> None:
    plant(Coordinator, "find")
    async with in_group() as (_, consumer):
        consumer.subscribe(["t"])
        with refused(code=ErrorCode.UNKNOWN_SERVER_ERROR):
            await consumer.poll(10_000)
    assert plant.logged == ["group_session"]


async def test_an_automatic_commit_is_logged_and_the_next_one_is_made(plant: Plant) -> None:
    early: ConsumerOptions = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 1}
    async with in_group(3, **early) as (cluster, consumer):
        consumer.assign([T])
        plant(Coordinator, "commit")
        while plant.left or not cluster.commits:
            await consumer.poll(1)
    assert plant.logged == ["committer"]


async def test_a_dropped_client_closes_its_other_holder(plant: Plant) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        producer = Producer(cluster.bootstrap)
        await producer.start()
        plant(Sender, "close")
        holder = [producer]
        del producer
        with pytest.warns(ResourceWarning, match="unclosed Producer"):
            holder.clear()
        while any(cluster.connections.values()) or not plant.logged:
            await asyncio.sleep(0)
    assert plant.logged == ["closing"]
