"""Clients and groups over sockets: no broker found, `poll` while members change, commits."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from quorumlog.client import (
    Admin,
    Consumer,
    KafkaError,
    OffsetAndMetadata,
    RebalanceListener,
    TopicPartition,
)
from quorumlog.client.io.broker_connections import why_unreachable
from quorumlog.client.io.metadata_source import MetadataSource
from quorumlog.client.settings import AdminSettings, ConsumerOptions, IsolationLevel
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.metadata import MetadataRequest
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from quorumlog.wire.io.connection import ConnectionLost
from quorumlog.wire.io.security import PLAINTEXT
from tests.support.client.fake_cluster import SILENCE, T, fake_cluster
from tests.support.client.fake_group import COMMIT, HEARTBEAT, GroupCluster, group_cluster
from tests.support.client.opened import in_group
from tests.support.client.refusals import refused
from tests.support.waiting import loop_turns, until

TLS_ALERT = bytes.fromhex("15030300020246")
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(data: bytes | None, ended: asyncio.Event) -> Answer:
    """Send `data` and close; None: keep silent until the client hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        if data is None:
            await reader.read()
        else:
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        ended.set()

    return answer


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer speaks HTTP"),
        (TLS_ALERT, "this side plain Kafka; set security_protocol to 'SSL' or"),
        (b"\x7f\xff\xff\xffnonsense", "not Kafka's protocol: a frame of 2147483647 bytes"),
        (b"", "without a response (no Kafka broker, requires TLS or SASL, or is stopping"),
        (None, "no answer in time"),
    ],
)
async def test_what_is_no_broker_is_told_by_its_answer(data: bytes | None, cause: str) -> None:
    ended = asyncio.Event()
    server = await asyncio.start_server(answering(data, ended), "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        settings = AdminSettings(bootstrap_servers=f"{host}:{port}")
        source = MetadataSource(settings, PLAINTEXT, lambda: [])
        assert await source.ask(MetadataRequest(topics=[])) is None
        await ended.wait()
    assert source.why_silent().startswith(f"{host}:{port}: ")
    assert cause in source.why_silent()


async def test_a_start_that_fails_names_the_setting_the_address_and_the_cause() -> None:
    async def scenario(address: str) -> str:
        admin = Admin(address, socket_connection_setup_timeout_ms=2_000)
        with pytest.raises(KafkaError) as caught:
            await admin.start()
        assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE
        assert caught.value.definite
        return caught.value.message

    with socket.socket() as taken:  # bound, and not listening: refused
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = await scenario(address)
    assert message == (
        "no broker of bootstrap_servers answered within socket_connection_setup_timeout_ms=2000:"
        f" {address}: connection refused: no process listens there"
    )


def test_addresses_that_refuse_and_an_unknown_host_are_told() -> None:
    lost = ConnectionLost("h:1")
    text = "[Errno 111] Connect call failed ('::1'), [Errno 111] Connect call failed ('127.0.0.1')"
    lost.__cause__ = OSError(f"Multiple exceptions: {text}")
    assert why_unreachable(lost).startswith("connection refused")
    lost.__cause__ = OSError(f"Multiple exceptions: {text}, [Errno 101] Network is unreachable")
    assert "Network is unreachable" in why_unreachable(lost)
    lost = ConnectionLost("nowhere.invalid:9092")
    lost.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert why_unreachable(lost) == "unknown host name"


async def test_a_broker_that_died_since_is_named_with_its_cause() -> None:
    async with asyncio.timeout(20), fake_cluster() as cluster, Admin(cluster.bootstrap) as admin:
        await cluster.kill(1, 2)
        said = ""
        while "connection refused: no process listens there" not in said:
            with pytest.raises(KafkaError) as caught:
                await admin.request(MetadataRequest(topics=[]))
            said = caught.value.message
        assert said.startswith("no broker can be reached: 127.0.0.1:")


OPTIONS: ConsumerOptions = {
    "group_id": "g",
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": 10,
    "fetch_max_wait_ms": 10,
    "auto_commit_interval_ms": 60_000,
}
ONE_BY_ONE: ConsumerOptions = {**OPTIONS, "max_poll_records": 1}

Partitions = frozenset[TopicPartition]


class Gate(RebalanceListener):
    """A listener that lets the test see and hold up what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.entered, self.open = asyncio.Event(), asyncio.Event()
        self.open.set()

    async def pass_through(self, what: str) -> None:
        self.told.append(what)
        self.entered.set()
        await self.open.wait()

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        await self.pass_through("assigned")

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        await self.pass_through("revoked")

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        await self.pass_through("lost")


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    """Poll until there are `count` records, one poll after the other."""
    found: list[bytes | None] = []
    while len(found) < count:
        for records in (await consumer.poll(1_000)).values():
            found += [record.value for record in records]
    return found


async def in_poll(consumer: Consumer, event: asyncio.Event) -> None:
    """Poll, without records, until `event`."""
    while not event.is_set():
        assert await consumer.poll(10) == {}


async def heartbeats(cluster: GroupCluster, count: int) -> None:
    before = cluster.asked.count((1, HEARTBEAT))
    await until(lambda: cluster.asked.count((1, HEARTBEAT)) >= before + count)


async def test_poll_returns_nothing_of_partitions_that_are_being_revoked() -> None:
    gate = Gate()
    async with in_group(9, OPTIONS, max_poll_records=3) as (cluster, consumer):
        consumer.subscribe(["t"], gate)
        assert await values(consumer, 3) == [b"0", b"1", b"2"]
        gate.entered.clear()
        gate.open.clear()
        cluster.beat = ErrorCode.REBALANCE_IN_PROGRESS
        await heartbeats(cluster, 2)
        await in_poll(consumer, gate.entered)  # six records are at hand all the time
        for _ in range(5):
            assert await consumer.poll(5) == {}
        assert cluster.committed == 3
        gate.open.set()
        assert await values(consumer, 3) == [b"3", b"4", b"5"]
        assert gate.told == ["assigned", "revoked", "assigned"]


async def test_heartbeats_go_on_while_a_listener_takes_its_time() -> None:
    gate = Gate()
    async with in_group(2, **OPTIONS) as (cluster, consumer):
        gate.open.clear()
        consumer.subscribe(["t"], gate)
        await in_poll(consumer, gate.entered)  # in on_partitions_assigned
        before = cluster.asked.count((1, HEARTBEAT))
        while cluster.asked.count((1, HEARTBEAT)) < before + 3:
            assert await consumer.poll(5) == {}
        gate.entered.clear()
        gate.open.set()
        await values(consumer, 2)
        gate.open.clear()
        cluster.beat = ErrorCode.REBALANCE_IN_PROGRESS
        await in_poll(consumer, gate.entered)  # in on_partitions_revoked
        await heartbeats(cluster, 3)
        gate.open.set()


async def test_nothing_is_returned_before_the_listener_has_seen_its_partitions() -> None:
    class Seeks(RebalanceListener):
        async def on_partitions_assigned(self, partitions: Partitions) -> None:
            await loop_turns()
            consumer.seek(T, 5)

    async with in_group(9, **OPTIONS) as (_, consumer):
        consumer.subscribe(["t"], Seeks())
        assert await values(consumer, 4) == [b"5", b"6", b"7", b"8"]


async def test_a_fenced_member_gives_up_its_partitions_and_every_poll_says_so() -> None:
    gate = Gate()
    async with in_group(9, ONE_BY_ONE, group_instance_id="i") as (cluster, consumer):
        consumer.subscribe(["t"], gate)
        await values(consumer, 1)
        cluster.beat = ErrorCode.FENCED_INSTANCE_ID
        while "lost" not in gate.told:
            await asyncio.sleep(0.001)
        assert consumer.assignment() == frozenset()
        for _ in range(2):
            with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID: group g") as fenced:
                await consumer.poll(1_000)
            assert fenced.value.fatal
        with pytest.raises(KafkaError, match="not a member of group g now"):
            await consumer.commit({T: 1})
    assert cluster.commits == []


async def test_an_error_that_may_pass_is_told_and_the_next_poll_tries_again() -> None:
    async with in_group(9, **ONE_BY_ONE) as (cluster, consumer):
        consumer.subscribe(["t"])
        await values(consumer, 1)
        cluster.beat = ErrorCode.GROUP_AUTHORIZATION_FAILED
        with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
            await values(consumer, 9)
        assert await values(consumer, 1)


async def test_iteration_commits_what_was_yielded_and_goes_on_where_it_was() -> None:
    async with asyncio.timeout(30), group_cluster() as cluster:
        cluster.fill(9)
        async with Consumer(cluster.bootstrap, **OPTIONS) as consumer:
            consumer.subscribe(["t"])
            seen = []
            for stop in (3, 5):
                async for record in consumer:
                    seen.append(record.offset)
                    if record.offset == stop:
                        break
                await consumer.commit()
                assert cluster.committed == stop + 1
            assert seen == [0, 1, 2, 3, 4, 5]
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == 7:
                    break
        assert (seen[-2:], cluster.committed) == ([6, 7], 8)

        async def fail() -> None:
            async with Consumer(cluster.bootstrap, **OPTIONS) as consumer:
                consumer.subscribe(["t"])
                async for record in consumer:
                    raise ZeroDivisionError(record)

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert cluster.committed == 8


async def test_the_listener_hears_of_the_end() -> None:
    async with asyncio.timeout(30), group_cluster() as cluster:
        cluster.fill(1)
        for end in (Consumer.unsubscribe, Consumer.stop):
            gate = Gate()
            async with Consumer(cluster.bootstrap, **OPTIONS) as consumer:
                consumer.subscribe(["t"], gate)
                while not gate.told:
                    await consumer.poll(10)
                await end(consumer)
                assert gate.told == ["assigned", "revoked"]


async def test_an_older_commit_never_comes_after_a_newer_one() -> None:
    options: ConsumerOptions = {"auto_commit_interval_ms": 300, "retry_backoff_ms": 5}
    async with in_group(9, ONE_BY_ONE, **options) as (cluster, consumer):
        consumer.subscribe(["t"])
        await values(consumer, 1)
        cluster.refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        while cluster.refusals:  # one begins in the background, and would be tried again
            await consumer.poll(10)
        await consumer.commit({T: 7})
        await heartbeats(cluster, 6)  # every 10 ms
        assert cluster.commits == [7]


async def test_a_commit_of_an_older_epoch_is_tried_again_only_for_what_the_member_has() -> None:
    """Its answer was on its way when a heartbeat brought the next epoch (KIP-848)."""
    async with in_group(9, OPTIONS, retry_backoff_ms=5) as (cluster, consumer):
        consumer.subscribe(["t"])
        await values(consumer, 1)
        cluster.refusals = [ErrorCode.STALE_MEMBER_EPOCH] * 2
        await consumer.commit({T: 7})
        assert cluster.commits == [7]
        cluster.refusals = [ErrorCode.STALE_MEMBER_EPOCH] * 2
        with refused("STALE_MEMBER_EPOCH", definite=True):
            await consumer.commit({TopicPartition("t", 1): 7})
        assert cluster.commits == [7]
        cluster.refusals = []


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
async def test_no_consumer_begins_at_an_offset_that_a_transaction_may_still_change(
    isolation_level: IsolationLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of a transaction returns before its markers are written (KIP-447)."""
    async with in_group(9, OPTIONS, isolation_level=isolation_level, retry_backoff_ms=5) as (
        cluster,
        consumer,
    ):
        asked: list[bool] = []

        def pending_at_first(request: OffsetFetchRequest) -> OffsetFetchResponse:
            asked.append(request.require_stable)
            code = ErrorCode.UNSTABLE_OFFSET_COMMIT if len(asked) < 3 else ErrorCode.NONE
            offset = OffsetFetchResponsePartition(committed_offset=4, error_code=code)
            return OffsetFetchResponse(
                topics=[OffsetFetchResponseTopic(name="t", partitions=[offset])]
            )

        monkeypatch.setattr(cluster, "offsets", pending_at_first)
        assert (await consumer.committed([T]))[T].offset == 4
        consumer.subscribe(["t"])
        assert await values(consumer, 5) == [b"4", b"5", b"6", b"7", b"8"]
        assert asked == [True] * 4


async def test_commits_with_a_callback_are_made_in_order_with_retries() -> None:
    done: list[tuple[int, KafkaError | None]] = []

    def note(places: Mapping[TopicPartition, OffsetAndMetadata], error: KafkaError | None) -> None:
        done.append((places[T].offset, error))
        raise ZeroDivisionError  # logged

    options: ConsumerOptions = {"retry_backoff_ms": 5, "enable_auto_commit": False}
    async with in_group(9, OPTIONS, options) as (cluster, consumer):
        consumer.subscribe(["t"])
        await values(consumer, 9)
        cluster.refusals = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        for offset in (3, 4, 5):
            await consumer.commit({T: offset}, callback=note)
        assert done == []
        for wrong in (7, consumer.stop):  # nothing would await a coroutine
            with pytest.raises(TypeError, match="must be a synchronous function, not "):
                await consumer.commit({T: 8}, callback=cast("Any", wrong))
        await consumer.commit({T: 6})
        assert cluster.commits == [3, 4, 5, 6]
        assert done == [(3, None), (4, None), (5, None)]
        cluster.refusals = [ErrorCode.ILLEGAL_GENERATION]
        await consumer.commit({T: 7}, callback=note)
        await consumer.commit(callback=note)
    assert [(offset, error and error.code) for offset, error in done[3:]] == [
        (7, ErrorCode.ILLEGAL_GENERATION),
        (9, None),
    ]
    assert cluster.commits[4:] == [9]  # closing waits for it


async def test_a_commit_that_closing_ends_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.client.io.committer._FINISH_MS", 50)
    monkeypatch.setattr("quorumlog.client.io.committer.BEGUN_MAX", 2)
    done: list[KafkaError | None] = []
    async with in_group(9, OPTIONS, enable_auto_commit=False) as (cluster, consumer):
        consumer.subscribe(["t"])
        await values(consumer, 9)
        cluster.fault = lambda _, api: SILENCE if api == COMMIT else None
        for offset in (3, 4):
            await consumer.commit({T: offset}, callback=lambda _, error: done.append(error))
        waiting = asyncio.create_task(
            consumer.commit({T: 5}, callback=lambda _, error: done.append(error))
        )
        await asyncio.sleep(0.01)
        assert not waiting.done()  # two are in progress
        waiting.cancel()
        with refused("REQUEST_TIMED_OUT", definite=True):
            await consumer.commit({T: 6}, timeout_ms=20)
    assert [error and (error.code, error.definite) for error in done] == [
        (ErrorCode.NETWORK_EXCEPTION, False)
    ] * 2


async def test_a_consumer_of_a_dead_cluster_closes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.client.group_client.COMMIT_AT_REVOCATION_MS", 100)

    async with in_group(**OPTIONS) as (cluster, consumer):
        cluster.fill(9)
        consumer.subscribe(["t"])
        await values(consumer, 9)
        await cluster.kill(1)
    with pytest.raises(RuntimeError, match="not running"):
        await consumer.poll()


async def test_one_task_polls_at_a_time() -> None:
    async with in_group(**OPTIONS) as (_, consumer):
        consumer.assign([T])
        waiting = asyncio.create_task(consumer.poll(60_000))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task is in poll"):
            await consumer.poll(1)
        waiting.cancel()
