"""Concurrent calls of `send` write their records in the order in which the calls began."""

import asyncio
from itertools import count

import pytest

from quorumlog.client import KafkaError, Producer
from quorumlog.client.settings import ProducerOptions
from tests.support.client.fake_cluster import (
    METADATA,
    PRODUCE,
    SILENCE,
    FakeCluster,
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
async def test_records_stand_in_the_order_in_which_the_calls_began(
    options: ProducerOptions,
) -> None:
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
        for connections in cluster.connections.values():
            for connection in connections:
                connection.abort()  # the producer sends the first record again
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
    async with producing(max_block_ms=50) as (cluster, producer):
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
