"""Calls of `send` write their records in the order in which they began; deliveries are futures."""

import asyncio
import gc
import logging
import subprocess
import sys
import warnings
from itertools import count
from typing import Any

import pytest

from quorumlog.client import Consumer, Delivery, KafkaError, Producer
from quorumlog.client.settings import ProducerOptions
from tests.support.client.fake_cluster import (
    METADATA,
    PRODUCE,
    SILENCE,
    FakeCluster,
    T,
    fake_cluster,
)
from tests.support.client.opened import producing
from tests.support.waiting import loop_turns, until

ROOMY: ProducerOptions = {"linger_ms": 0}
A_BATCH_EACH: ProducerOptions = {"linger_ms": 0, "batch_size": 1}
FULL: ProducerOptions = {"linger_ms": 0, "batch_size": 100, "buffer_memory": 300}


def numbers(cluster: FakeCluster) -> list[int]:
    return [int(value) for value in cluster.values()]


@pytest.mark.parametrize("options", [ROOMY, A_BATCH_EACH, FULL])
async def test_records_stand_in_the_order_of_their_calls(options: ProducerOptions) -> None:
    """Nine tasks send again and again; the first calls also wait for the topic's partitions."""
    async with asyncio.timeout(30), fake_cluster() as cluster:
        next_number = count()
        async with Producer(cluster.bootstrap, **options) as producer:

            async def send_many(times: int) -> None:
                for turn in range(times):
                    await producer.send("t", b"%040d" % next(next_number))
                    if turn % 5 == times % 5:  # so that the tasks change places
                        await asyncio.sleep(0)

            await asyncio.gather(*(send_many(times) for times in range(11, 20)))
        assert numbers(cluster) == list(range(sum(range(11, 20))))


async def test_a_call_waits_behind_one_that_pays_for_a_turn_of_the_loop() -> None:
    async with producing() as (cluster, producer):
        await producer.send("t", b"0")  # begins a batch: the next call gives up one turn
        async with asyncio.TaskGroup() as sending:
            for number in range(1, 6):
                sending.create_task(producer.send("t", b"%d" % number))
        await producer.flush()
        assert numbers(cluster) == list(range(6))


async def test_a_call_after_the_metadata_came_waits_behind_those_that_asked_for_it() -> None:
    async with producing() as (cluster, producer):
        sending = [asyncio.create_task(producer.send("t", b"%d" % n)) for n in range(3)]
        metadata = producer._running().cluster.metadata
        while "t" not in metadata.topics:
            await asyncio.sleep(0)
        assert not any(call.done() for call in sending)
        await producer.send("t", b"3")
    assert numbers(cluster) == list(range(4))


async def test_a_small_record_waits_behind_a_large_one_that_has_no_room_yet() -> None:
    async with producing(**FULL) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.fault = lambda _broker, api: SILENCE if api == PRODUCE else None
        await producer.send("t", b"%060d" % 0)
        sending = [asyncio.create_task(producer.send("t", b"%0150d" % 1))]
        await loop_turns()
        sending.append(asyncio.create_task(producer.send("t", b"2")))
        await loop_turns()
        assert not any(call.done() for call in sending)
        cluster.fault = lambda _broker, _api: None
        cluster.hang_up()  # the producer sends the first record again
        await asyncio.gather(*sending)
    assert numbers(cluster) == list(range(3))


async def test_a_cancelled_call_lets_the_next_in_line_go_on() -> None:
    async with producing() as (cluster, producer):
        await producer.partitions_for("t")
        await producer.send("t", b"0")
        first, second, third = (
            asyncio.create_task(producer.send("t", b"%d" % number)) for number in (1, 2, 3)
        )
        await asyncio.sleep(0)
        first.cancel()
        second.cancel()
        await third
        await asyncio.gather(first, second, return_exceptions=True)
    assert (first.cancelled(), second.cancelled()) == (True, True)
    assert numbers(cluster) == [0, 3]


async def test_a_topic_that_does_not_come_holds_up_no_other_topic_and_leaves_no_line() -> None:
    async with producing(max_block_ms=400) as (cluster, producer):
        await producer.partitions_for("t")
        cluster.fault = lambda _broker, api: SILENCE if api == METADATA else None
        missing = [asyncio.create_task(producer.send("nope", b"v")) for _ in range(3)]
        await loop_turns()
        await producer.send("t", b"0")
        assert not any(call.done() for call in missing)
        for outcome in await asyncio.gather(*missing, return_exceptions=True):
            assert isinstance(outcome, KafkaError)
            assert "no metadata of topic 'nope'" in str(outcome)
        assert producer._lines == {}
    await until(lambda: numbers(cluster) == [0])


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
