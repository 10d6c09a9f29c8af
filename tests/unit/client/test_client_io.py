"""Clients against brokers that fail on command, and what a caller sees at the edges."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from quorumlog import clock
from quorumlog.client import Consumer, KafkaError, Producer, RecordMetadata, TopicPartition
from quorumlog.client.core.batch import BatchState
from quorumlog.client.io import stalled_requests
from quorumlog.client.settings import ConsumerOptions, ProducerOptions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.support.client.fake_cluster import (
    FETCH,
    HANG_UP,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SILENCE,
    FakeCluster,
    Fault,
    fake_cluster,
    until_noticed,
)
from tests.support.client.opened import consuming, producing
from tests.support.client.refusals import refused
from tests.support.waiting import loop_turns

QUICK: ProducerOptions = {
    "linger_ms": 0,
    "request_timeout_ms": 2_000,
    "delivery_timeout_ms": 10_000,
}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def times_asked(cluster: FakeCluster, api: int) -> int:
    return [asked for _, asked in cluster.asked].count(api)


def once(api: int, fault: ErrorCode | str) -> Fault:
    """The first request of this kind goes wrong."""
    left = [fault]

    def strike(_broker: int, api_key: int) -> ErrorCode | str | None:
        return left.pop() if api_key == api and left else None

    return strike


@pytest.mark.parametrize(
    "fault", [HANG_UP, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]
)
async def test_a_retry_is_written_once(fault: ErrorCode | str) -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        cluster.fault = once(PRODUCE, fault)
        async with Producer(cluster.bootstrap, **QUICK) as producer:
            sent = await producer.send_and_wait("t", b"v", timestamp_ms=5)
        assert sent == RecordMetadata("t", 0, 0, 5)
        assert cluster.values() == [b"v"]


async def test_failed_attempts_are_counted_by_code_though_they_are_retried() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        producer = Producer(cluster.bootstrap, **QUICK)
        assert producer.failed_attempts == {}
        async with producer:
            for fault in (HANG_UP, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS):
                cluster.fault = once(PRODUCE, fault)
                await producer.send_and_wait("t", b"v")
            assert producer.failed_attempts == {
                ErrorCode.NETWORK_EXCEPTION: 1,
                ErrorCode.NOT_ENOUGH_REPLICAS: 2,
            }


async def test_a_dead_leaders_records_go_to_the_next() -> None:
    async with producing(**QUICK) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await cluster.kill(1)
        deliveries = [await producer.send("t", b"%d" % number) for number in range(1, 9)]
        before = times_asked(cluster, METADATA)
        await until(lambda: times_asked(cluster, METADATA) > before + 2)  # again and again
        assert not deliveries[0].done()
        cluster.elect(2)
        offsets = [(await delivery).offset for delivery in deliveries]
    assert offsets == list(range(1, 9))
    assert cluster.values() == [b"%d" % number for number in range(9)]


async def test_a_leader_that_comes_back_at_the_same_address_is_found() -> None:
    async with producing(**QUICK) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await cluster.kill(1)
        delivery = await producer.send("t", b"1")
        before = times_asked(cluster, METADATA)
        await until(lambda: times_asked(cluster, METADATA) > before)
        await cluster.start(1)
        assert (await delivery).offset == 1


async def test_a_silent_leader_is_given_up_if_another_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stalled_requests, "OVERDUE_AFTER_MS", 20)
    monkeypatch.setattr(stalled_requests, "OVERDUE_CHECK_MS", 20)

    async with asyncio.timeout(20), fake_cluster() as cluster:
        async with (
            Producer(cluster.bootstrap, linger_ms=0) as producer,
            Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            await producer.send_and_wait("t", b"0")
            cluster.fault = lambda broker, api: (
                SILENCE if broker == 1 and api in {PRODUCE, FETCH} else None
            )
            consumer.assign([TopicPartition("t", 0)])
            delivery = await producer.send("t", b"1")
            await until(lambda: cluster.values() == [b"0", b"1"])
            cluster.elect(2)
            assert (await delivery).offset == 1  # in less than the request timeout of 30 s
            assert await consumer.poll(5_000)
        assert cluster.values() == [b"0", b"1"]


async def test_an_answer_that_never_comes_is_indefinite() -> None:
    async with producing(request_timeout_ms=100, delivery_timeout_ms=300) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        cluster.fault = lambda _, api: SILENCE if api == PRODUCE else None
        sent = await producer.send("t", b"1")
        with refused(definite=False):
            await sent
        assert cluster.values() == [b"0", b"1"]


async def test_a_refused_record_is_definite_and_the_next_ones_are_written() -> None:
    async with producing(**QUICK) as (cluster, producer):
        cluster.fault = once(PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
        delivery = await producer.send("t", b"0")
        with refused("MESSAGE_TOO_LARGE: t-0", definite=True):
            await delivery
        with pytest.raises(KafkaError):  # as often as one likes
            delivery.result()
        assert (await producer.send_and_wait("t", b"1")).offset == 0


async def test_an_unknown_topic_and_a_huge_record_and_a_wrong_partition_are_never_sent() -> None:
    async with producing(max_block_ms=500) as (cluster, producer):
        with pytest.raises(KafkaError, match="no metadata of topic 'nope'") as unknown:
            await producer.send("nope", b"v")
        with pytest.raises(KafkaError, match="does not fit max_request_size") as huge:
            await producer.send("t", bytes(2_000_000))
        with pytest.raises(KafkaError, match="there is no 7") as wrong:
            await producer.send("t", b"v", partition=7)
        assert unknown.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.value.definite
        assert huge.value.definite
        assert wrong.value.definite
        with pytest.raises(TypeError, match="value is bytes or None, not str"):
            await producer.send("t", "text")  # type: ignore[arg-type]  # the point of it
    assert cluster.values() == []


async def test_a_granted_right_holds_for_the_next_send_after_a_refused_one() -> None:
    async with producing(**QUICK) as (cluster, producer):
        cluster.denied = {"t"}
        for _ in range(2):
            with refused(
                "TOPIC_AUTHORIZATION_FAILED: the user may lack WRITE on topic 't'", definite=True
            ):
                await producer.send("t", b"refused")
        cluster.denied = set()
        assert (await producer.send_and_wait("t", b"v")).offset == 0
    assert cluster.values() == [b"v"]


async def test_an_error_of_a_former_assignment_is_not_raised() -> None:
    async with consuming() as (cluster, consumer):
        cluster.topics["u"] = 1
        consumer.assign([TopicPartition("t", 0)])
        assert await consumer.end_offsets([TopicPartition("t", 0)]) != {}
        cluster.denied = {"t"}
        consumer.seek_to_beginning(TopicPartition("t", 0))
        with refused("TOPIC_AUTHORIZATION_FAILED: t"):
            await consumer.poll(10_000)
        before = times_asked(cluster, LIST_OFFSETS)
        await until(lambda: times_asked(cluster, LIST_OFFSETS) > before + 2)  # refused again
        consumer.assign([TopicPartition("u", 0)])
        assert await consumer.poll(100) == {}


async def test_send_waits_while_the_buffer_is_full() -> None:
    async with producing(buffer_memory=200, batch_size=100, linger_ms=0, max_block_ms=100) as (
        cluster,
        producer,
    ):
        await producer.send_and_wait("t", b"0")
        cluster.fault = lambda _, api: SILENCE if api == PRODUCE else None
        await producer.send("t", bytes(60))
        with refused("the buffer was full for 100 ms", definite=True):
            await producer.send("t", bytes(60))
        waiting = asyncio.create_task(producer.send("t", b"later"))
        await asyncio.sleep(0)
        cluster.fault = lambda _broker, _api: None
        cluster.hang_up()
        assert (await (await waiting)).offset == 2


async def test_closing_fails_what_is_not_acknowledged_and_a_cancelled_waiter_harms_nobody() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster:
        producer = Producer(cluster.bootstrap, **QUICK)
        await producer.start()
        await producer.send_and_wait("t", b"0")
        cluster.fault = lambda _, api: SILENCE if api == PRODUCE else None
        sent = await producer.send("t", b"1")
        impatient = asyncio.create_task(asyncio.wait_for(sent, 0.02))
        with pytest.raises(TimeoutError):
            await impatient
        other = asyncio.ensure_future(sent)
        await asyncio.sleep(0)
        await producer.stop(timeout_ms=20)
        with refused("the producer was closed", definite=False):
            await other
        await producer.stop()
        with pytest.raises(RuntimeError, match="not running"):
            await producer.send("t", b"2")


async def test_acks_0_is_done_when_it_is_written() -> None:
    async with producing(acks=0, linger_ms=0) as (cluster, producer):
        assert (await producer.send_and_wait("t", b"v")).offset == -1
        async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            async for record in consumer:
                assert (record.value, record.offset) == (b"v", 0)
                break


async def test_a_consumer_begins_at_a_duration_ago() -> None:
    """It asks for the end, and then for the time (KIP-1106)."""
    async with asyncio.timeout(20), fake_cluster() as cluster:
        asked: list[int] = []
        list_offsets = cluster.list_offsets

        def noted(request: Any) -> Any:
            asked.append(request.topics[0].partitions[0].timestamp)
            return list_offsets(request)

        cluster.list_offsets = noted  # type: ignore[method-assign]
        async with Producer(cluster.bootstrap, **QUICK) as producer:
            await producer.send_and_wait("t", b"v")
        began_ms = clock.wall_clock_ms()
        partition = TopicPartition("t", 0)
        async with Consumer(cluster.bootstrap, auto_offset_reset="by_duration:PT1H") as consumer:
            consumer.assign([partition])
            assert await consumer.position(partition) == 0
        assert asked[0] == -1
        assert 0 <= asked[1] + 3_600_000 - began_ms <= clock.wall_clock_ms() - began_ms


async def test_a_consumer_follows_the_leader() -> None:
    async with (
        asyncio.timeout(20),
        fake_cluster() as cluster,
        Producer(cluster.bootstrap, **QUICK) as producer,
        Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition("t", 0)])
        seen = []
        for number in range(3):
            await producer.send_and_wait("t", b"%d" % number)
            records = (await consumer.poll(5_000))[TopicPartition("t", 0)]
            seen += [record.value for record in records]
            if number == 0:
                await cluster.kill(1)
                cluster.elect(2)
        assert seen == [b"0", b"1", b"2"]
        assert consumer.highwater(TopicPartition("t", 0)) == 0  # the fake does not tell


async def test_a_fetch_has_the_limits_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: ConsumerOptions = {
        "auto_offset_reset": "earliest", "fetch_max_wait_ms": 7, "fetch_min_bytes": 2,
        "fetch_max_bytes": 3000, "max_partition_fetch_bytes": 400,
        "isolation_level": "read_committed", "client_rack": "r",
    }  # fmt: skip
    async with consuming(**limits) as (cluster, consumer):
        requests, fetch = list[Any](), cluster.fetch

        def noted(request: Any, fault: object) -> Any:
            requests.append(request)
            return fetch(request, fault)

        monkeypatch.setattr(cluster, "fetch", noted)
        consumer.assign([TopicPartition("t", 0)])
        await until(lambda: requests != [])
    sent = requests[0]
    partition = sent.topics[0].partitions[0]
    assert (sent.max_wait_ms, sent.min_bytes, sent.max_bytes) == (7, 2, 3000)
    assert (partition.partition_max_bytes, sent.isolation_level, sent.rack_id) == (400, 1, "r")


async def test_metadata_is_asked_elsewhere_if_one_broker_keeps_silent() -> None:
    async with producing(**QUICK) as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        silent = [broker for broker, api in cluster.asked if api == METADATA][-1]
        cluster.fault = lambda broker, api: (
            SILENCE if broker == silent and api == METADATA else None
        )
        cluster.topics["new"] = 1
        await producer.send_and_wait("new", b"0")
    assert {broker for broker, api in cluster.asked if api == METADATA} == {1, 2}


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
        await cluster.kill(1, 2)
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
        await cluster.kill(1, 2)
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
    ({"partition": False}, TypeError, "partition is an int or None, not bool"),
    ({"partition": 0.0}, TypeError, "partition is an int or None, not float"),
    ({"timestamp_ms": True}, TypeError, "timestamp_ms is an int, not bool"),
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
