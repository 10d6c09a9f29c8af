"""The control plane among strangers: garbage, floods, redirects, half and idle requests."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import cbor2
import pytest
from aiohttp import ClientError, ClientSession, web

from quorumlog.metadata_quorum.cbor_values import to_plain
from quorumlog.metadata_quorum.core.messages import BeginQuorumEpochRequest
from quorumlog.metadata_quorum.io import rpc_client
from quorumlog.metadata_quorum.io import strangers as module
from quorumlog.metadata_quorum.io.outgoing_requests import Peers
from quorumlog.metadata_quorum.io.outgoing_requests import Reply as Answer
from quorumlog.metadata_quorum.io.peer_liveness import PATH, PresenceClient, PresenceServer
from quorumlog.metadata_quorum.io.rpc import Reply, RpcServer
from quorumlog.metadata_quorum.io.rpc_client import RpcClient, RpcFailed
from quorumlog.metadata_quorum.io.strangers import STRANGERS_MAX, Strangers, WatchedSite
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.quorums import fetch_response

BEGIN = BeginQuorumEpochRequest(leader_id=BrokerId(2), leader_epoch=Epoch(3))
HEAD = b"POST /rpc/Vote HTTP/1.1\r\nHost: x\r\n"
ENVELOPE = {"cluster_id": "c", "protocol_version": 1, "sender_id": 2, "body": {}}
Stranger = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[int]:
    """Serve on loopback; yield the port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def client(port: int = 1, **given: Any) -> AsyncIterator[tuple[RpcClient, str]]:
    """A client of ours, as node 2, and the address of a port on loopback."""
    made = RpcClient(**{"cluster_id": "c", "node_id": BrokerId(2), "shared_secret": None, **given})
    try:
        yield made, f"127.0.0.1:{port}"
    finally:
        await made.close()


def app_of(stranger: Stranger) -> web.Application:
    """Somebody who is not one of our nodes."""
    app = web.Application()
    app.router.add_post("/{path:.*}", stranger)
    return app


def node_of(handle: Any, **given: Any) -> web.Application:
    """One of our nodes."""
    app = web.Application(client_max_size=given.pop("size_max", 1 << 20))
    RpcServer(cluster_id="c", shared_secret=None, handle=handle, **given).add_routes(app)
    return app


@asynccontextmanager
async def asking(stranger: Stranger) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    async with serving(app_of(stranger)) as port, client(port, shared_secret="s3cret") as found:
        ours, address = found
        yield lambda: ours.call(address, BEGIN, timeout_ms=30_000)


@asynccontextmanager
async def node() -> AsyncIterator[int]:
    async def handle(request: object, request_id: str | None) -> Reply:
        raise AssertionError(request)

    async with serving(node_of(handle, size_max=10_000)) as port:
        yield port


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_client, "RESPONSE_BYTES_MAX", 200_000)

    async def flood(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(50_000))
        except ConnectionError:
            return response

    async with asking(flood) as ask:
        with pytest.raises(RpcFailed, match="more than 200000 bytes"):
            await ask()


async def test_a_node_that_is_gone_before_its_presence_begins_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def disconnected(broker_id: BrokerId) -> None:
        raise AssertionError(broker_id)

    def abort(request: web.Request) -> None:
        """Close the connection when a request has come and its answer has not begun."""
        assert request.transport is not None
        request.transport.abort()

    app = web.Application()
    PresenceServer(check=abort, disconnected=disconnected).add_routes(app)
    async with serving(app) as port, ClientSession() as session:
        with pytest.raises(ClientError):
            await session.ws_connect(f"http://127.0.0.1:{port}{PATH}?node_id=2")
    assert warnings(caplog) == []


async def test_a_redirect_is_not_followed_with_the_secret() -> None:
    paths: list[str] = []

    async def redirect(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with asking(redirect) as ask:
        with pytest.raises(RpcFailed, match="status 307"):
            await ask()
    assert paths == ["/rpc/BeginQuorumEpoch"]


@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b"\xff"), (200, cbor2.dumps({})), (200, cbor2.dumps([1])), (500, b"x" * 1_000_000)],
)
async def test_who_answers_nonsense_is_named_once_and_in_short(
    status: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body)

    async with asking(talk) as ask:
        for _ in range(3):
            with pytest.raises(RpcFailed):
                await ask()
    (said,) = warnings(caplog)
    assert len(said) < 500


@pytest.mark.parametrize(
    ("error_code", "definite"),
    [
        (ErrorCode.NOT_CONTROLLER, True),
        (ErrorCode.BROKER_NOT_AVAILABLE, True),
        (ErrorCode.REQUEST_TIMED_OUT, False),  # deposed before the commit
    ],
)
async def test_a_refusal_says_whether_the_request_was_carried_out(
    error_code: ErrorCode, definite: bool
) -> None:
    async def stranger(request: web.Request) -> web.StreamResponse:
        return web.Response(body=cbor2.dumps({"error_code": error_code.value}))

    async with asking(stranger) as ask:
        with pytest.raises(RpcFailed) as failed:
            await ask()
    assert (failed.value.error_code, failed.value.definite) == (error_code, definite)


async def test_only_what_never_had_a_connection_certainly_was_not_carried_out() -> None:
    async def cut_off(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with asking(cut_off) as ask:
        with pytest.raises(RpcFailed) as failed:
            await ask()
    assert not failed.value.definite
    with socket.socket() as bound:  # it does not listen
        bound.bind(("127.0.0.1", 0))
        async with client(bound.getsockname()[1]) as (ours, address):
            with pytest.raises(RpcFailed) as failed:
                await ours.call(address, BEGIN, timeout_ms=30_000)
    assert failed.value.definite


async def test_an_address_that_no_host_can_have_is_a_failed_request() -> None:
    async with client() as (ours, _):
        for address in ("a..b:1", f"{'x' * 300}:1", "127.0.0.1:99999"):
            with pytest.raises(RpcFailed):
                await ours.call(address, BEGIN, timeout_ms=30_000)


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"\xff", 400, "not CBOR"),
        (b"", 400, "not CBOR"),
        (b"\x81" * 5_000, 400, "not CBOR"),
        (b"\x9b" + b"\xff" * 8, 400, "malformed"),
        (cbor2.dumps([1]), 400, "expected a map"),
        (cbor2.dumps({**ENVELOPE, "sender_id": "x"}), 400, "sender_id: expected int"),
        (cbor2.dumps({**ENVELOPE, "body": []}), 400, "expected a map"),
        (cbor2.dumps({**ENVELOPE, "cluster_id": "d"}), 400, "VoteRequest.replica_id"),
        (bytes(20_000), 413, "Maximum request body size"),
    ],
)
async def test_what_is_no_request_is_refused_and_said_once(
    body: bytes, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with node() as port, ClientSession() as session:
        for _ in range(3):
            async with session.post(f"http://127.0.0.1:{port}/rpc/Vote", data=body) as answer:
                assert (answer.status, reason in await answer.text()) == (status, True)
        async with session.post(f"http://127.0.0.1:{port}/rpc/Nothing", data=body) as answer:
            assert answer.status == 404
    assert len(warnings(caplog)) == (status == 400)


async def test_a_node_of_another_cluster_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = {"leader_id": 2, "leader_epoch": 3}
    envelope = cbor2.dumps({**ENVELOPE, "cluster_id": "d", "sender_id": 7, "body": body})

    async with node() as port, ClientSession() as session:
        url = f"http://127.0.0.1:{port}/rpc/BeginQuorumEpoch"
        for _ in range(2):
            async with session.post(url, data=envelope) as answer:
                assert cbor2.loads(await answer.read())["error_code"] == 104
    (said,) = warnings(caplog)
    assert "this is cluster c, not d; requested by node 7" in said


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 1000\r\n\r\nabc",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"\x00\x00\x00\x10 a Kafka request?",
    ],
)
async def test_half_a_request_leaves_no_traceback(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with node() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        writer.write_eof()
        await writer.drain()
        async with asyncio.timeout(30):
            await reader.read()
        writer.close()
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(),
        Reply.of(BEGIN, b"records"),
        Reply(
            error_code=ErrorCode.NOT_CONTROLLER,
            error_message="elsewhere",
            leader_id=BrokerId(3),
            body={"known": [1, {"x": b"y"}]},
            records=b"",
        ),
    ],
)
def test_a_reply_is_made_plain_without_another_walk_through_its_body(reply: Reply) -> None:
    assert reply.plain() == to_plain(reply)
    assert reply.plain().get("body") is reply.body


# --- who asks gives its address; a node without an address is not asked ---


async def test_a_request_says_where_its_sender_is_before_it_is_handled() -> None:
    heard: list[tuple[object, ...]] = []

    async def handle(request: object, request_id: str | None) -> Reply:
        heard.append((request,))
        return Reply(error_code=ErrorCode.NOT_CONTROLLER)

    async with serving(node_of(handle, hear=lambda *said: heard.append(said))) as port:
        for cluster_id in ("c", "another"):
            given = {"cluster_id": cluster_id, "own_address": "two:2"}
            async with client(port, **given) as (ours, address):
                peers = Peers(ours, lambda _, address=address: address, lambda error: None)  # type: ignore[misc]
                done: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
                peers.send(BrokerId(1), BEGIN, timeout_ms=10_000, done=done.set_result)
                assert await done is None
                await peers.close()
    assert heard == [(2, "two:2", BEGIN), (BEGIN,)]


async def test_a_node_without_an_address_gets_no_request_and_every_answer_is_heard() -> None:
    answer = fetch_response(1, leader=1, leader_address="a:1")
    asked: list[str] = []

    class Caller:
        async def call(self, address: str, request: object, *, timeout_ms: int) -> Answer:
            asked.append(address)
            return answer, None

    heard: list[object] = []
    addresses = {BrokerId(1): "one:1"}
    peers = Peers(Caller(), addresses.get, lambda error: None, hear=heard.append)
    replies: list[asyncio.Future[Answer | None]] = []
    for number in (1, 2):
        replies.append(asyncio.get_running_loop().create_future())
        peers.send(BrokerId(number), BEGIN, timeout_ms=1, done=replies[-1].set_result)
    assert await asyncio.gather(*replies) == [(answer, None), None]
    assert (asked, heard) == (["one:1"], [answer])
    await peers.close()


async def test_a_leader_is_watched_once_its_address_is_heard_of() -> None:
    connected = asyncio.Event()

    async def presence(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        connected.set()
        async for _ in socket:
            pass
        return socket

    async def died(leader_id: BrokerId) -> None:
        raise AssertionError(leader_id)

    app = web.Application()
    app.router.add_get("/presence", presence)
    async with serving(app) as port:
        rpc = RpcClient(cluster_id="c", node_id=BrokerId(2), shared_secret=None)
        found = iter([None, f"127.0.0.1:{port}"])
        client = PresenceClient(
            rpc.session, query={"node_id": "2"}, addresses=lambda _: next(found), leader_died=died
        )
        client.follow(BrokerId(1))
        async with asyncio.timeout(10):
            await connected.wait()
        await client.close()
        await rpc.close()


# --- connections of strangers to the control listener: few, and not for long ---


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HALF_HEAD = b"POST /rpc/Vote HTTP/1.1\r\nHost: a\r\nX-"


@asynccontextmanager
async def listener() -> AsyncIterator[tuple[Strangers, int]]:
    """Serve /peer, to those who are admitted by that, and /healthz to all."""
    strangers = Strangers()

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/peer":
            strangers.admit(request)
        return web.Response(text="ok")

    app = web.Application(middlewares=[strangers.middleware])
    app.router.add_get("/{path}", answer)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=75)
    await runner.setup()
    await WatchedSite(runner, strangers, host="127.0.0.1", port=0).start()
    yield strangers, runner.addresses[0][1]
    await runner.cleanup()


async def half_heads(port: int, count: int) -> list[Streams]:
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]
    for _, writer in opened:
        writer.write(HALF_HEAD)
    return opened


async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


@pytest.mark.jumping_time
async def test_a_head_that_is_not_whole_in_time_closes_the_connection() -> None:
    async with listener() as (strangers, port):
        opened = await half_heads(port, 3)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert [await ends(*streams) for streams in opened] == [True] * 3
        assert loop.time() - began_s >= module.HEAD_S - 1
        assert len(strangers) == 0


@pytest.mark.jumping_time
async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with listener() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await ends(reader, writer)


@pytest.mark.jumping_time
async def test_hundreds_of_half_heads_leave_the_peers_alone() -> None:
    async with listener() as (strangers, port), ClientSession() as session:
        url = f"http://127.0.0.1:{port}"
        assert (await session.get(f"{url}/peer")).status == 200
        opened = await half_heads(port, 350)
        assert (await session.get(f"{url}/peer")).status == 200
        assert (await session.get(f"{url}/healthz")).status == 200
        while len(strangers) > STRANGERS_MAX:
            await asyncio.sleep(0)
        gone = [await ends(*streams) for streams in opened]
        assert gone == [True] * 350
        assert len(strangers) == 0
        assert (await session.get(f"{url}/peer")).status == 200


@pytest.mark.jumping_time
async def test_a_head_behind_the_first_request_must_not_take_long_either() -> None:
    async with listener() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await reader.readuntil(b"ok")
        await asyncio.sleep(30)  # it may rest between two requests
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        await reader.readuntil(b"ok")
        writer.write(HALF_HEAD)
        assert await ends(reader, writer)
