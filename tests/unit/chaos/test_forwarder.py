"""A forwarder between two sockets: what arrives, when, where streams are cut, what is lost."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from itertools import accumulate, pairwise
from pkgutil import iter_modules
from random import Random
from struct import pack
from typing import cast

import pytest

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.chaos.faults.apis import APIS, CONTROL, kafka_api_name
from quorumlog.chaos.faults.links import (
    Answer,
    Cut,
    Delay,
    DelayRequest,
    DropReply,
    DropRequest,
    Effect,
    Link,
    LinkRule,
    Rate,
    Refuse,
    Reset,
)
from quorumlog.chaos.network.direction import QUEUE_MAX_BYTES
from quorumlog.chaos.network.forwarder import PortInUse
from quorumlog.chaos.network.links import Route
from quorumlog.chaos.network.network import Network
from quorumlog.chaos.network.splitters import HttpSplitter, KafkaSplitter, Message, Splitter
from quorumlog.cluster.ports import free_ports
from quorumlog.metadata_quorum.io.rpc import RPCS
from quorumlog.tasks import Tasks
from quorumlog.wire.codec import messages
from tests.support.chaos.kafka_frames import (
    FETCH,
    PRODUCE,
    produce_errors,
    produce_request,
    reply,
    request,
)
from tests.support.waiting import until

FORTH, BACK = Link("1", "2"), Link("2", "1")


class Target:
    """A server that keeps what it gets and answers each Kafka request, if it `answers`."""

    def __init__(self) -> None:
        self.port = 0
        self.received = bytearray()
        self.transports: list[asyncio.Transport] = []
        self.answers = True
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: TargetEnd(self), "127.0.0.1", self.port)

    async def stop(self) -> None:
        """End as a process does: nothing listens, and its connections close."""
        if self._server is not None:
            self._server.close()
            for transport in self.transports:
                transport.abort()
            await asyncio.sleep(0)


class TargetEnd(asyncio.Protocol):
    def __init__(self, target: Target) -> None:
        self._target = target
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._target.transports.append(self._transport)

    def data_received(self, data: bytes) -> None:
        self._target.received += data
        self._held += data
        while self._target.answers and len(self._held) >= 12:
            size = 4 + int.from_bytes(self._held[:4], "big")
            if len(self._held) < size:
                break
            self._transport.write(pack(">i", 4) + self._held[8:12])
            self._held = self._held[size:]


class Pair:
    """A target, and a network with the one route to it."""

    def __init__(self, network: Network, target: Target, port: int) -> None:
        self.network, self.target, self.port = network, target, port
        self.opened: list[asyncio.StreamWriter] = []  # they are closed in the end

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(writer)
        return reader, writer

    async def ask(self, key: int, correlation_id: int) -> asyncio.StreamReader:
        """Send a request on a new connection, and wait for its reply."""
        reader, writer = await self.dial()
        writer.write(request(key, correlation_id))
        assert await reader.readexactly(8) == reply(correlation_id)
        return reader

    def impose(self, effect: Effect, *links: Link, name: str = "r") -> None:
        self.network.impose(LinkRule(name, links or (FORTH, BACK), effect))

    def has(self, content: bytes) -> bool:
        return bytes(self.target.received) == content


@asynccontextmanager
async def pair(*, answers: bool = True, starts: bool = True) -> AsyncIterator[Pair]:
    target = Target()
    target.answers = answers
    port, target.port = free_ports("127.0.0.1", 2)
    if starts:
        await target.start()
    failures: list[BaseException] = []
    tasks = Tasks(failures.append)
    route = Route(
        link=Link("1", "2", "kafka"), listen=f"127.0.0.1:{port}", target=f"127.0.0.1:{target.port}"
    )
    network = Network([route], seed=1, tasks=tasks)
    await network.start()
    yielded = Pair(network, target, port)
    try:
        yield yielded
    finally:
        for writer in yielded.opened:
            writer.close()
        await tasks.stop()
        network.close()
        await target.stop()
        assert not failures


async def test_what_is_sent_arrives_whole_however_it_is_split() -> None:
    frames = [request(FETCH, 1, b"a" * 10), request(PRODUCE, 2), request(FETCH, 3, b"b" * 5)]
    stream = b"".join(frames)
    async with pair() as one:
        for size in (1, 3, 11, len(stream)):
            one.target.received.clear()
            reader, writer = await one.dial()
            for place in range(0, len(stream), size):
                writer.write(stream[place : place + size])
                await asyncio.sleep(0)
            assert await reader.readexactly(24) == reply(1) + reply(2) + reply(3)
            assert one.has(stream)


async def test_much_is_forwarded_with_little_memory() -> None:
    async with pair(answers=False) as one:
        reader, writer = await one.dial()
        content = request(PRODUCE, 1, bytes(64)) + pack(">i", 3 * QUEUE_MAX_BYTES)
        content += bytes(3 * QUEUE_MAX_BYTES)
        one.impose(Cut(), FORTH)
        writer.write(content)
        await until(lambda: one.network.queued_bytes >= QUEUE_MAX_BYTES)
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert one.network.queued_bytes < QUEUE_MAX_BYTES + (1 << 20)
        assert one.has(b"")
        one.network.lift("r")
        await until(lambda: len(one.target.received) == len(content))
        assert one.has(content)
        writer.write_eof()
        assert await reader.read() == b""


@pytest.mark.parametrize("way", [FORTH, BACK])
async def test_a_cut_of_one_way_leaves_the_other(way: Link) -> None:
    async with pair() as one:
        reader, writer = await one.dial()
        writer.write(request(FETCH, 1))
        assert await reader.readexactly(8) == reply(1)
        one.impose(Cut(), way)
        writer.write(request(FETCH, 2))
        if way == BACK:
            await until(lambda: len(one.target.received) == 24)
        waiting = asyncio.ensure_future(reader.readexactly(8))
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done()
        assert len(one.target.received) == (12 if way == FORTH else 24)
        one.network.lift("r")
        assert await waiting == reply(2)


async def test_a_connection_that_begins_behind_a_cut_goes_on_after_it() -> None:
    async with pair() as one:
        one.impose(Cut())
        reader, writer = await one.dial()
        writer.write(request(FETCH, 5))
        await asyncio.sleep(0.005)
        assert not one.target.received
        one.network.lift("r")
        assert await reader.readexactly(8) == reply(5)


async def test_rules_add_up_and_each_is_lifted_alone() -> None:
    async with pair() as one:
        one.impose(Cut(), name="a")
        one.impose(Cut(), FORTH, name="b")
        reader, writer = await one.dial()
        writer.write(request(FETCH, 5))
        one.network.lift("a")
        await asyncio.sleep(0.005)
        assert not one.target.received
        one.network.lift("b")
        assert await reader.readexactly(8) == reply(5)


@pytest.mark.parametrize(
    "effect", [Delay(20_000, 5_000), DelayRequest("Fetch", 20_000), Rate(8 * 100)]
)
async def test_what_is_late_arrives_in_order(effect: Effect) -> None:
    loop = asyncio.get_running_loop()
    async with pair() as one:
        one.impose(effect, FORTH)
        reader, writer = await one.dial()
        began_s = loop.time()
        writer.write(request(PRODUCE, 1) + request(FETCH, 2))
        assert await reader.readexactly(16) == reply(1) + reply(2)
        assert loop.time() - began_s >= 0.02


async def test_a_request_of_one_kind_is_lost_with_what_follows_it() -> None:
    async with pair() as one:
        one.impose(DropRequest("Fetch"), FORTH)
        reader, writer = await one.dial()
        writer.write(request(PRODUCE, 1) + request(FETCH, 2) + request(PRODUCE, 3))
        assert await reader.readexactly(8) == reply(1)
        await asyncio.sleep(0.005)
        assert one.has(request(PRODUCE, 1))
        await one.ask(PRODUCE, 4)
        writer.write_eof()
        assert await reader.read() == b""


async def test_a_reply_is_lost_after_its_request_was_carried_out() -> None:
    async with pair() as one:
        one.impose(DropReply("Produce"), FORTH)
        reader, writer = await one.dial()
        writer.write(request(FETCH, 1))
        assert await reader.readexactly(8) == reply(1)
        writer.write(request(PRODUCE, 2))
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(8)
        assert one.has(request(FETCH, 1) + request(PRODUCE, 2))


async def test_a_rule_answers_before_the_target_and_counts() -> None:
    async with pair() as one:
        reader, writer = await one.dial()
        writer.write(request(FETCH, 1))
        assert await reader.readexactly(8) == reply(1)
        one.impose(Answer("Produce", "REQUEST_TIMED_OUT", times=1), FORTH)
        writer.write(produce_request(2) + request(FETCH, 3))
        head = await reader.readexactly(4)
        answer = head + await reader.readexactly(int.from_bytes(head, "big"))
        assert (answer[7], produce_errors(answer)) == (2, [7])
        assert await reader.readexactly(8) == reply(3)
        writer.write(produce_request(4))  # the rule is spent
        assert await reader.readexactly(8) == reply(4)
        assert one.has(request(FETCH, 1) + request(FETCH, 3) + produce_request(4))
        tally = one.network.book.tallies()["r"]
        assert (tally["matched"], tally["answered"]) == (1, 1)
        assert tally["seen"] == [["Fetch", "c", 1], ["Produce", "c", 2]]


async def test_all_connections_are_reset_again_and_again() -> None:
    async with pair() as one:
        first = await one.ask(FETCH, 1)
        one.impose(Reset(every_us=5_000))
        with pytest.raises(ConnectionResetError):
            await first.readexactly(8)
        second, _ = await one.dial()
        assert await ends(second)
        one.network.lift("r")
        await one.ask(FETCH, 9)


async def test_connections_are_refused_until_the_rule_is_lifted() -> None:
    async with pair() as one:
        one.impose(Refuse())
        with pytest.raises(ConnectionRefusedError):
            await one.dial()
        one.network.lift("r")
        await one.dial()


async def test_a_dead_process_refuses_connections_through_its_forwarder() -> None:
    async with pair(starts=False) as one:
        with pytest.raises(ConnectionRefusedError):
            await one.dial()
        for _ in range(2):
            assert not can_be_bound(one.port)
            await one.target.start()
            while not await can_dial(one):
                await asyncio.sleep(0.005)
            assert not can_be_bound(one.port)
            reader = await one.ask(FETCH, 1)
            await one.target.stop()
            assert await ends(reader)
            # Known before the connection ended: nodes take a refused connection for a dead process.
            with pytest.raises(ConnectionRefusedError):
                await one.dial()


async def can_dial(one: Pair) -> bool:
    try:
        await one.dial()
    except ConnectionRefusedError:
        return False
    return True


def can_be_bound(port: int) -> bool:
    """Tell whether another process could have the port: it would bind as a node does."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_a_link_that_is_not_there_and_a_port_in_use_are_errors() -> None:
    async with pair() as one:
        with pytest.raises(ValueError, match="there is no link 1->9"):
            one.impose(Cut(), Link("1", "9"))
        routes: Sequence[Route] = [
            Route(link=Link("3", "2", "kafka"), listen=f"127.0.0.1:{one.port}", target="x:1")
        ]
        with pytest.raises(PortInUse, match=f"127.0.0.1:{one.port} .the forwarder 3->2.: Address"):
            Network(routes, seed=1, tasks=Tasks(lambda _: None))


async def test_a_rule_on_a_link_that_two_parties_do_not_have_breaks_nothing() -> None:
    """Clients have no link to a node that is only a controller."""
    async with pair() as one:
        one.impose(Cut(), Link("1", "2", "control"))
        await one.ask(FETCH, 1)


def rpc(name: str, body: bytes) -> bytes:
    head = f"POST /rpc/{name} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


KAFKA_REQUESTS = [request(1, 7, b"x" * 40), request(0, 8), request(999, -1, b"yy")]
CASES: dict[str, tuple[Callable[[], Splitter], list[bytes], list[Message]]] = {
    "requests of Kafka": (
        lambda: KafkaSplitter(kafka_api_name),
        KAFKA_REQUESTS,
        [Message("Fetch", 7), Message("Produce", 8), Message("999", -1)],
    ),
    "replies of Kafka": (
        lambda: KafkaSplitter(None),
        [reply(7, b"x" * 30), reply(8), reply(9, b"z")],
        [Message("", 7), Message("", 8), Message("", 9)],
    ),
    "requests of the control plane": (
        lambda: HttpSplitter(is_request=True),
        [rpc("Vote", b"\r\n\r\n!"), b"GET /readyz HTTP/1.1\r\n\r\n", rpc("Fetch", b"")],
        [Message("Vote", 1), Message("readyz", 2), Message("Fetch", 3)],
    ),
    "replies of the control plane": (
        lambda: HttpSplitter(is_request=False),
        [answer(b"abc"), b"HTTP/1.1 204 No Content\r\n\r\n", answer(b"")],
        [Message("", 1), Message("", 2), Message("", 3)],
    ),
}


def fed(splitter: Splitter, parts: list[bytes]) -> tuple[bytes, dict[int, Message]]:
    """Feed the parts; return what passed, and which message begins where."""
    passed, begins = b"", {}
    for part in parts:
        for piece in splitter.feed(part):
            if piece.message is not None:
                begins[len(passed)] = piece.message
            passed += bytes(piece.content)
    return passed, begins


@pytest.mark.parametrize("case", CASES)
def test_every_split_of_the_bytes_gives_the_same_messages(case: str) -> None:
    new, frames, expected_messages = CASES[case]
    stream = b"".join(frames)
    starts = [0, *accumulate(len(frame) for frame in frames)][:-1]
    expected = (stream, dict(zip(starts, expected_messages, strict=True)))
    for cut in range(len(stream) + 1):
        assert fed(new(), [stream[:cut], stream[cut:]]) == expected, cut
    assert fed(new(), [stream[place : place + 1] for place in range(len(stream))]) == expected
    rng = Random(1)
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(stream)), 4))
        parts = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]
        assert fed(new(), parts) == expected, cuts


@pytest.mark.parametrize(
    ("new", "stream"),
    [
        (lambda: KafkaSplitter(kafka_api_name), pack(">i", -5) + b"not Kafka at all"),
        (lambda: KafkaSplitter(None), b"HTTP/1.1 400 Bad Request\r\n\r\n" + pack(">i", 2) * 9),
        (lambda: HttpSplitter(is_request=True), b"x" * 70_000),
        (lambda: HttpSplitter(is_request=False), b"HTTP/1.1 200 OK\r\n\r\nuntil the end"),
        (
            lambda: HttpSplitter(is_request=True),
            b"GET /presence?node_id=1 HTTP/1.1\r\nUpgrade: websocket\r\n\r\n\x81\x05hello",
        ),
    ],
)
def test_what_is_no_message_passes_as_it_is(new: Callable[[], Splitter], stream: bytes) -> None:
    for size in (1, 7, len(stream)):
        splitter = new()
        parts = [stream[place : place + size] for place in range(0, len(stream), size)]
        passed, _ = fed(splitter, parts)
        assert passed + splitter.rest() == stream


def test_the_names_are_those_of_the_protocols() -> None:
    assert set(CONTROL) == set(RPCS)
    modules = [
        import_module(f"{messages.__name__}.{one.name}") for one in iter_modules(messages.__path__)
    ]
    of_kafka = {
        one.API_KEY: name.removesuffix("Request")
        for module in modules
        for name, one in vars(module).items()
        if name.endswith("Request") and hasattr(one, "API_KEY")
    }
    named = {key: kafka_api_name(key) for key in range(100) if not kafka_api_name(key).isdigit()}
    assert named.items() <= of_kafka.items()
    assert all(APIS[name].plane == "kafka" for name in named.values())
    assert {*HANDLERS} <= named.keys()
