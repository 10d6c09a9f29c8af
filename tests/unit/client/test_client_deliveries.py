"""Deliveries as futures; clients that are dropped, or used where they do not belong."""

import asyncio
import gc
import logging
import subprocess
import sys
import warnings
from typing import Any

import pytest

from quorumlog.client import Consumer, Delivery, KafkaError, Producer
from quorumlog.client.settings import ProducerOptions
from tests.support.client.fake_cluster import PRODUCE, SILENCE, T, fake_cluster
from tests.support.client.opened import producing

QUICK: ProducerOptions = {"linger_ms": 0, "request_timeout_ms": 2_000}
SLOW: ProducerOptions = {"linger_ms": 60_000, "client_id": "careless"}


async def test_deliveries_work_with_asyncio_wait_and_callbacks() -> None:
    async with producing(**QUICK) as (_, producer):
        deliveries = [await producer.send("t", b"%d" % number) for number in range(3)]
        told: list[Delivery] = []
        deliveries[0].add_done_callback(told.append)
        deliveries[1].add_done_callback(told.append)
        assert deliveries[1].remove_done_callback(told.append) == 1
        with pytest.raises(asyncio.InvalidStateError):
            deliveries[0].exception()
        futures: list[Any] = deliveries  # typeshed lets asyncio.wait take Future and Task only
        done, waiting = await asyncio.wait(futures)
        assert (done, waiting) == ({*deliveries}, set())
        assert [one.result().offset for one in deliveries] == [0, 1, 2]
        assert told == [deliveries[0]]
        deliveries[2].add_done_callback(told.append)  # done already: soon, not now
        assert told == [deliveries[0]]
        await asyncio.sleep(0)
        assert told == [deliveries[0], deliveries[2]]
        assert (deliveries[0].exception(), deliveries[0].cancelled()) == (None, False)
        async with asyncio.timeout(5):
            for first in asyncio.as_completed(deliveries):
                await first


async def test_a_callback_that_raises_ends_nothing_but_itself() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        blamed: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: blamed.append(context["exception"]))
        async with Producer(cluster.bootstrap, **QUICK) as producer:
            delivery = await producer.send("t", b"0")
            delivery.add_done_callback(lambda one: one.result().nothing)  # type: ignore[attr-defined]
            assert (await delivery).offset == 0
            assert (await producer.send_and_wait("t", b"1")).offset == 1
        assert [type(one) for one in blamed] == [AttributeError]


async def test_a_failure_is_an_exception_too() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        cluster.fault = lambda _, api: SILENCE if api == PRODUCE else None
        producer = Producer(cluster.bootstrap, **QUICK)
        await producer.start()
        delivery = await producer.send("t", b"0")
        await producer.stop(timeout_ms=0)
        assert isinstance(delivery.exception(), KafkaError)


async def test_a_dropped_producer_warns_and_still_sends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        async with asyncio.timeout(20), fake_cluster() as cluster:

            async def forget_to_stop() -> list[Delivery]:
                producer = Producer(cluster.bootstrap, **SLOW)
                await producer.start()
                return [await producer.send("t", b"%d" % number) for number in range(3)]

            text = r"unclosed Producer: .*; 3 records are not delivered"
            with pytest.warns(ResourceWarning, match=text):
                deliveries = await forget_to_stop()
            assert "unclosed Producer careless: 3 records are not delivered" in caplog.text
            assert [(await one).offset for one in deliveries] == [0, 1, 2]  # without the linger
            while any(cluster.connections.values()):
                await asyncio.sleep(0.001)


async def test_a_dropped_consumer_warns_and_is_closed() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:

        async def forget_to_stop() -> None:
            consumer = Consumer(cluster.bootstrap, group_id="g")
            await consumer.start()
            consumer.assign([T])
            await consumer.poll()

        with pytest.warns(ResourceWarning, match="unclosed Consumer: use `async with`, or stop"):
            await forget_to_stop()
        while any(cluster.connections.values()):
            await asyncio.sleep(0.001)


async def test_a_client_that_was_closed_or_never_started_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with asyncio.timeout(20), fake_cluster() as cluster:
            async with Producer(cluster.bootstrap, **QUICK) as producer:
                await producer.send_and_wait("t", b"0")
            async with Consumer(cluster.bootstrap) as consumer:
                await consumer.poll(1)
            Producer(cluster.bootstrap)
            del producer, consumer
            gc.collect()


async def test_another_event_loop_is_refused_by_name() -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Producer(cluster.bootstrap, **QUICK) as producer,
        Consumer(cluster.bootstrap) as consumer,
    ):

        async def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="this Producer was started on another"):
                await producer.send("t", b"0")
            with pytest.raises(RuntimeError, match="this Producer was started on another"):
                await producer.stop()
            with pytest.raises(RuntimeError, match="this Consumer was started on another"):
                await consumer.poll()

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert (await producer.send_and_wait("t", b"0")).offset == 0


FORGETFUL = """
import asyncio, logging
from quorumlog.client import Producer
from tests.support.client.fake_cluster import fake_cluster
async def main():
    async with fake_cluster() as cluster:
        producer = Producer(cluster.bootstrap, linger_ms=60_000)
        await producer.start()
        await producer.send("t", b"lost")
        await producer.send("t", b"lost, too")
asyncio.run(main())
"""


def test_records_that_a_program_loses_at_its_end_are_counted() -> None:
    program = [sys.executable, "-W", "default::ResourceWarning", "-c", FORGETFUL]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert "ResourceWarning: unclosed Producer" in ended.stderr
    assert "2 records are not delivered" in ended.stderr
