"""What a producer's caller sees at the edges: full buffers, dead clusters, closing, nonsense."""

import asyncio
from typing import Any

import pytest

from quorumlog.client import KafkaError, Producer
from quorumlog.client.core.batch import BatchState
from quorumlog.client.settings import ProducerOptions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.support.client.fake_cluster import (
    METADATA,
    PRODUCE,
    SILENCE,
    fake_cluster,
    until_noticed,
)
from tests.support.client.opened import producing
from tests.support.client.refusals import refused
from tests.support.waiting import loop_turns

OPTIONS: ProducerOptions = {"linger_ms": 0, "request_timeout_ms": 100, "delivery_timeout_ms": 300}
SMALL: ProducerOptions = {**OPTIONS, "buffer_memory": 200, "batch_size": 100}


def silent(_broker: int, api: int) -> str | None:
    return SILENCE if api == PRODUCE else None


async def test_whoever_waits_in_send_hears_that_the_producer_is_closed() -> None:
    async with producing(**SMALL) as (cluster, producer):
        cluster.fault = silent
        await producer.send("t", bytes(60))
        cluster.fault = lambda _, api: SILENCE if api in {METADATA, PRODUCE} else None
        full = asyncio.create_task(producer.send("t", bytes(60)))
        unknown = asyncio.create_task(producer.send("nope", b"v"))
        await loop_turns()
        await producer.stop(timeout_ms=0)
        for waiting in (full, unknown):
            with refused("was closed", definite=True):
                await waiting


async def test_a_cancelled_send_puts_nothing_in_line() -> None:
    async with producing(batch_size=1, linger_ms=0) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        for number in range(1, 6):
            sending = asyncio.create_task(producer.send("t", b"%d" % number))
            await asyncio.sleep(0)
            was_sent = sending.done()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await producer.flush()
            assert (b"%d" % number in cluster.values()) == was_sent


async def test_without_answers_a_broker_that_does_not_read_fills_no_more_than_the_buffer() -> None:
    async with asyncio.timeout(30), fake_cluster() as cluster:

        def stop_reading(broker: int, api: int) -> None:
            if api == PRODUCE:
                for connection in cluster.connections[broker]:
                    connection.transport.pause_reading()

        cluster.fault = stop_reading
        options: ProducerOptions = {"buffer_memory": 1 << 20, "max_block_ms": 200, "acks": 0}
        options["enable_idempotence"] = False
        async with Producer(cluster.bootstrap, **options) as producer:

            async def fill() -> None:
                for _ in range(1000):  # the system's socket buffers take some of it
                    await producer.send("t", bytes(1 << 17))

            with pytest.raises(KafkaError, match="the buffer was full"):
                await fill()
            cluster.fault = lambda _broker, _api: None
            for connections in cluster.connections.values():
                for connection in connections:
                    connection.transport.resume_reading()


async def test_nothing_lingers_while_somebody_waits_for_room() -> None:
    async with asyncio.timeout(30), fake_cluster() as cluster:
        options: ProducerOptions = {"linger_ms": 60_000, "buffer_memory": 300, "batch_size": 200}
        async with Producer(cluster.bootstrap, **options) as producer:
            deliveries = [await producer.send("t", bytes(80)) for _ in range(5)]
            assert deliveries[0].done()
            assert not deliveries[-1].done()


async def test_a_producer_without_an_id_waits_for_the_brokers_to_come_back() -> None:
    async with producing() as (cluster, producer):
        assert await producer.partitions_for("t") == [0]
        for broker in (1, 2):
            await cluster.kill(broker)
        delivery = await producer.send("t", b"0")
        await loop_turns()
        assert not delivery.done()
        for broker in (1, 2):
            await cluster.start(broker)
        assert (await delivery).offset == 0


async def test_a_dead_cluster_holds_nobody_beyond_the_delivery_timeout() -> None:
    async with producing(**OPTIONS) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.fault = silent
        sent = await producer.send("t", b"1")
        while len(cluster.values()) < 2:  # it is on its way
            await asyncio.sleep(0.001)
        for broker in (1, 2):
            await cluster.kill(broker)
        await until_noticed(producer)
        unsent = await producer.send("t", b"2")
        await producer.flush()
        with refused("attempts ended with NETWORK_EXCEPTION", definite=False):
            sent.result()
        with refused("never sent", definite=True, code=ErrorCode.REQUEST_TIMED_OUT):
            unsent.result()


@pytest.mark.parametrize("name", ["x" * 40_000, "\ud800", "", "a b", ".."])
async def test_a_name_that_no_topic_has_is_refused_and_harms_nobody(name: str) -> None:
    async with producing(**OPTIONS) as (_, producer):
        with refused("a topic's name is 1 to 249", definite=True):
            await producer.send(name, b"v")
        assert (await producer.send_and_wait("t", b"v")).offset == 0


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topic": b"t"}, TypeError, "a topic is named by a str, not bytes"),
    ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms is an int, not float"),
    ({"timestamp_ms": -1}, ValueError, "timestamp_ms is -1"),
    ({"timestamp_ms": 2**63}, ValueError, "not milliseconds since 1970"),
    ({"partition": "0"}, TypeError, "partition is an int or None, not str"),
    ({"headers": {"name": b"v"}}, TypeError, "headers are pairs"),
    ({"headers": [("name", "v")]}, TypeError, "headers are pairs"),
    ({"key": "k"}, TypeError, "key is bytes or None, not str"),
    ({"value": bytes(4_000)}, KafkaError, "does not fit buffer_memory=3000"),
]


@pytest.mark.parametrize(("arguments", "kind", "complaint"), WRONG)
async def test_what_is_no_record_is_refused_at_once(
    arguments: dict[str, Any], kind: type[Exception], complaint: str
) -> None:
    async with asyncio.timeout(30), fake_cluster() as cluster:
        options: ProducerOptions = {"buffer_memory": 3_000, "batch_size": 100}
        async with Producer(cluster.bootstrap, **options) as producer:
            with pytest.raises(kind, match=complaint):
                await producer.send(**{"topic": "t", "value": b"v", **arguments})
            assert (await producer.send_and_wait("t", b"v")).offset == 0


async def test_a_stop_that_is_cancelled_leaves_nothing_behind() -> None:
    async with asyncio.timeout(30), fake_cluster() as cluster:
        mine = asyncio.all_tasks()
        for turns in range(1, 12):
            producer = Producer(cluster.bootstrap, **OPTIONS)
            await producer.start()
            with pytest.raises(RuntimeError, match="running already"):
                await producer.start()
            delivery = await producer.send("t", b"v")
            stopping = asyncio.create_task(producer.stop())
            for _ in range(turns):
                await asyncio.sleep(0)
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            async with asyncio.timeout(5):
                while asyncio.all_tasks() != mine:
                    await asyncio.sleep(0.001)
            assert delivery.done()


async def test_the_answer_for_a_topic_that_was_made_anew_meanwhile_is_understood() -> None:
    """From version 13 on, an answer names the topic by the id that the request had."""

    async with producing(**OPTIONS) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.fault = silent
        delivery = await producer.send("t", b"1")
        sender, (batch,) = producer._running().sender, producer._accumulator.incomplete()
        assert sender is not None
        while not batch.attempts:
            await asyncio.sleep(0)
        old_id, code = bytes(range(16)), ErrorCode.UNKNOWN_TOPIC_ID
        one = PartitionProduceResponse(index=0, error_code=code)
        topic = TopicProduceResponse(topic_id=old_id, partition_responses=[one])
        sender._handle([batch], ProduceResponse(responses=[topic]), {old_id: "t"})
        assert batch.state is BatchState.RETRYING
        cluster.fault = lambda _broker, _api: None
        assert not delivery.done()
