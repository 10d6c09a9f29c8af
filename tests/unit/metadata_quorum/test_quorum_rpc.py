"""The control plane among strangers: garbage, floods, redirects and half requests."""

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
from quorumlog.metadata_quorum.io.presence import PATH, PresenceServer
from quorumlog.metadata_quorum.io.rpc import Reply, RpcServer
from quorumlog.metadata_quorum.io.rpc_client import RpcClient, RpcFailed
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch

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
async def asking(stranger: Stranger) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """A client of ours, and somebody who is not one of our nodes."""
    app = web.Application()
    app.router.add_post("/{path:.*}", stranger)
    client = RpcClient(cluster_id="c", node_id=BrokerId(2), shared_secret="s3cret")
    async with serving(app) as port:
        try:
            yield lambda: client.call(f"127.0.0.1:{port}", BEGIN, timeout_ms=30_000)
        finally:
            await client.close()


@asynccontextmanager
async def node() -> AsyncIterator[int]:
    async def handle(request: object, request_id: str | None) -> Reply:
        raise AssertionError(request)

    app = web.Application(client_max_size=10_000)
    RpcServer(cluster_id="c", shared_secret=None, handle=handle).add_routes(app)
    async with serving(app) as port:
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
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        client = RpcClient(cluster_id="c", node_id=BrokerId(2), shared_secret=None)
        with pytest.raises(RpcFailed) as failed:
            await client.call(address, BEGIN, timeout_ms=30_000)
        await client.close()
    assert failed.value.definite


async def test_an_address_that_no_host_can_have_is_a_failed_request() -> None:
    client = RpcClient(cluster_id="c", node_id=BrokerId(2), shared_secret=None)
    try:
        for address in ("a..b:1", f"{'x' * 300}:1", "127.0.0.1:99999"):
            with pytest.raises(RpcFailed):
                await client.call(address, BEGIN, timeout_ms=30_000)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"\xff", 400, "not CBOR"),
        (b"\x81" * 5_000, 400, "not CBOR"),
        (cbor2.dumps([1]), 400, "expected a map"),
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
