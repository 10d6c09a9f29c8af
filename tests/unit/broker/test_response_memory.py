"""Consumers that do not read: the memory that they hold has one limit, and the others go on."""

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.fetching.core.response_memory import ResponseMemory
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.server import server as server_module
from quorumlog.broker.server.server import Server
from quorumlog.storage.io import disk
from quorumlog.wire.codec.file_range import FileRange
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.one_broker import AT, BATCH, append, fetch_of, one_broker, size
from tests.support.broker.peer import Peer
from tests.support.broker.replica_calls import append_to, fetch_from
from tests.support.groups.asking import create
from tests.support.groups.single_broker import SETTINGS, SingleBroker, single_broker
from tests.support.waiting import until

BIG = encode_batch([Record(0, 1, None, bytes(100_000))])
BIG_BATCHES = 40
CAPACITY = 1_000_000
SLOW_READERS = 200  # three handles each
Served = tuple[Server, int, bytes]
WRITE_BUFFER = 64 * 1024  # what a transport holds before it says that the peer takes nothing


@pytest.fixture(autouse=True)
def nothing_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have fetches hold their records; ranges of files hold no memory."""
    monkeypatch.setattr(disk, "LEND_FROM_BYTES", 1 << 40)


def test_half_of_what_is_left_may_be_read_and_one_batch_when_little_is() -> None:
    memory, told = ResponseMemory(100), list[int]()
    memory.on_room = lambda: told.append(memory.held)
    first, second = memory.open_account(), memory.open_account()
    assert memory.share() == 50
    first.take(50)
    assert (memory.share(), memory.is_scarce) == (25, False)
    second.take(49)
    assert (memory.share(), memory.is_scarce, memory.is_short) == (1, True, False)
    second.take(30)  # the one batch
    assert (memory.share(), memory.is_short, told) == (0, True, [])
    first.sent()  # nothing was answered yet
    first.hand_over()
    first.sent()
    assert (memory.held, told, first.held, second.held) == (79, [79], 0, 79)


def test_a_closed_account_holds_nothing() -> None:
    memory = ResponseMemory(100)
    account = memory.open_account()
    account.take(30)
    account.hand_over()
    account.take(40)
    account.close()
    account.take(10)
    account.take(-10)
    account.hand_over()
    account.sent()
    assert (memory.held, account.held) == (0, 0)


def short(replicas: Replicas) -> Callable[[], None]:
    """Let a consumer that does not read hold all there is; return what ends it."""
    account = replicas.response_memory.open_account()
    account.take(replicas.response_memory.capacity)
    return account.close


async def test_a_fetch_that_finds_no_room_waits_for_it_and_followers_do_not(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        append(replicas)
        fetch_from(replicas, fetch_of(1, replica_id=2, leader_epoch=0, max_wait_ms=0))  # committed
        end = short(replicas)
        accounts = [replicas.response_memory.open_account() for _ in range(2)]
        waiting = [fetch_from(replicas, fetch_of(0, account=account)) for account in accounts]
        append(replicas)
        follower = fetch_from(replicas, fetch_of(1, replica_id=2, leader_epoch=0))
        assert size(follower) == len(BATCH)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(one.done() for one in waiting if isinstance(one, asyncio.Future))
        end()
        for one in waiting:
            assert isinstance(one, asyncio.Future)
            assert size(await one) == len(BATCH)
        assert replicas.response_memory.held == 2 * len(BATCH)
        for account in accounts:
            account.close()
        assert replicas.response_memory.held == 0


async def test_the_time_to_wait_ends_a_wait_for_room(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        append(replicas)
        end, account = short(replicas), replicas.response_memory.open_account()
        assert size(fetch_from(replicas, fetch_of(0, account=account, max_wait_ms=0))) == 0
        waits = fetch_from(replicas, fetch_of(0, account=account, max_wait_ms=1))
        assert isinstance(waits, asyncio.Future)
        assert size(await waits) == 0
        end()
        assert size(fetch_from(replicas, fetch_of(0, account=account))) == len(BATCH)
        account.close()


async def test_a_long_poll_gives_way_to_a_fetch_that_finds_no_room(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        append(replicas)
        patient, other = (replicas.response_memory.open_account() for _ in range(2))
        spec = fetch_of(0, account=patient, min_bytes=1000, max_wait_ms=2**31 - 1)
        gathers = fetch_from(replicas, spec)
        assert isinstance(gathers, asyncio.Future)
        assert not gathers.done()
        end = short(replicas)
        waits = fetch_from(replicas, fetch_of(0, account=other))
        assert size(await gathers) == len(BATCH)
        end()
        assert isinstance(waits, asyncio.Future)
        assert size(await waits) == len(BATCH)
        patient.close()
        other.close()
        assert replicas.response_memory.held == 0


async def test_a_consumer_that_leaves_gives_back_what_was_read_for_it(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        append(replicas)
        account = replicas.response_memory.open_account()
        gathers = fetch_from(replicas, fetch_of(0, account=account, min_bytes=1000))
        assert isinstance(gathers, asyncio.Future)
        gathers.cancel()
        account.close()
        append(replicas)
        await asyncio.sleep(0)
        assert replicas.response_memory.held == 0


def big_fetch(topic_id: bytes, offset: int, replica_id: int = -1) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=50_000_000)
    topic = FetchTopic(topic=AT.topic, topic_id=topic_id, partitions=[partition])
    return FetchRequest(
        replica_id=replica_id, max_wait_ms=500, min_bytes=1, max_bytes=50_000_000, topics=[topic]
    )


async def never_reading(port: int) -> Peer:
    """Connect with so little room in the kernel that what is not read stays in the broker."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=client, limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # a stream's is a Transport
    return Peer(reader, writer)


async def reads_all(port: int, topic_id: bytes) -> int:
    """Fetch as a consumer does until the end; return how many bytes came."""
    connection = await KafkaConnection.open("127.0.0.1", port, client_id="healthy")
    got = offset = 0
    while offset < BIG_BATCHES:
        response: FetchResponse = await connection.send(big_fetch(topic_id, offset), version=16)
        records = response.responses[0].partitions[0].records or b""
        got += len(records)
        offset += len(records) // len(BIG)
    await connection.close()
    return got


@asynccontextmanager
async def with_small_buffers(broker: SingleBroker, **settings: Any) -> AsyncIterator[Served]:
    """Serve a topic of big batches on a port whose sockets hold little: (server, port, its id)."""
    asking = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
    topic_id = await create(asking, AT.topic, partitions=1)
    await asking.close()
    for _ in range(BIG_BATCHES):
        append_to(broker.replicas, AT, BIG, acks=1, timeout_ms=0)
    context = replace(broker.context, settings=replace(broker.context.settings, **settings))
    server = Server(context, on_fatal=broker.violations.append)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    try:
        yield server, await server.serve(listener), topic_id
    finally:
        await server.stop(grace_ms=50)
    assert broker.replicas.response_memory.held == 0


async def test_many_consumers_that_never_read_stay_within_the_limit_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SILENCE_CHECK_S", 0.02)
    monkeypatch.setattr(server_module, "SILENT_S", 0.05)
    settings = replace(SETTINGS, queued_max_response_bytes=CAPACITY)
    async with (
        single_broker(tmp_path, settings) as broker,
        with_small_buffers(broker) as (server, port, topic_id),
    ):
        memory = broker.replicas.response_memory
        peers = [await never_reading(port) for _ in range(10)]
        for peer in peers:
            peer.send(big_fetch(topic_id, 0), 1, 16)
        async with asyncio.timeout(30):
            await until(lambda: memory.is_scarce)
            unsent = sum(peer.transport.get_write_buffer_size() for peer in server._connections)
            assert memory.held <= CAPACITY + len(BIG)
            assert unsent <= CAPACITY + len(BIG) + len(peers) * WRITE_BUFFER
            assert await reads_all(broker.port, topic_id) == BIG_BATCHES * len(BIG)
            assert server.stats.connections_silent > 0
        for peer in peers:
            peer.writer.transport.abort()


def handles_in_use() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_slow_readers_of_files_hold_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has 4 MB under way; its unsent records are in files, and in small buffers."""
    monkeypatch.setattr(disk, "LEND_FROM_BYTES", 64 * 1024)
    async with (
        single_broker(tmp_path) as broker,
        with_small_buffers(broker, max_connections=2 * SLOW_READERS) as (server, port, topic_id),
    ):
        before = handles_in_use()
        peers = [await never_reading(port) for _ in range(SLOW_READERS)]
        tracemalloc.start()
        for peer in peers:
            peer.send(big_fetch(topic_id, 0), 1, 16)
        await until(lambda: len(server._connections) == SLOW_READERS)
        await until(lambda: not any(one.is_writable for one in server._connections))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < SLOW_READERS * 40_000
        assert broker.replicas.response_memory.held == 0
        unsent = [one.unsent_bytes for one in server._connections]
        assert min(unsent) > 3_000_000
        assert await reads_all(port, topic_id) == BIG_BATCHES * len(BIG)
        for peer in peers:
            peer.writer.transport.abort()
        await until(lambda: not server._connections)
        await until(lambda: handles_in_use() <= before + 2)


@pytest.mark.parametrize("replica_id", [-1, 2])
async def test_only_committed_records_are_lent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replica_id: int
) -> None:
    """Others may be cut, by another leader; to followers, too, they are copied."""
    monkeypatch.setattr(disk, "LEND_FROM_BYTES", 1)

    def fetched(replica_id: int, offset: int) -> list[type]:
        spec = fetch_of(offset, replica_id=replica_id, leader_epoch=0, max_wait_ms=0)
        answers = fetch_from(replicas, spec)
        assert isinstance(answers, list)
        return [type(one) for one in answers[0].records]

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        for _ in range(3):
            append(replicas)
        fetched(2, 2)  # so that two are committed
        replicas.drivers[AT]._tail.clear()  # as if it held newer batches only
        assert fetched(replica_id, 0) == ([FileRange] if replica_id < 0 else [bytearray])
        fetched(2, 3)
        assert fetched(replica_id, 0) == [FileRange]


async def test_a_client_that_takes_nothing_for_the_idle_time_is_closed(tmp_path: Path) -> None:
    """As in Kafka; a client that waits for its answer is not idle."""
    async with (
        single_broker(tmp_path) as broker,
        with_small_buffers(broker, connections_max_idle_ms=200) as (server, port, topic_id),
    ):
        peer = await never_reading(port)
        peer.send(big_fetch(topic_id, 0), 1, 16)
        await until(lambda: server.stats.connections_idle)
        peer.writer.transport.abort()
