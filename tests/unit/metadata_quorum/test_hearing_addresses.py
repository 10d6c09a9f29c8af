"""Addresses on their way: who asks says where it is; a node without an address is not asked."""

import asyncio

from aiohttp import web

from quorumlog.metadata_quorum.core.messages import BeginQuorumEpochRequest, FetchResponse
from quorumlog.metadata_quorum.io.peers import Peers, Reply
from quorumlog.metadata_quorum.io.presence import PresenceClient
from quorumlog.metadata_quorum.io.rpc import Reply as RpcReply
from quorumlog.metadata_quorum.io.rpc import RpcServer
from quorumlog.metadata_quorum.io.rpc_client import RpcClient
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.unit.metadata_quorum.test_quorum_rpc import serving

BEGIN = BeginQuorumEpochRequest(leader_id=BrokerId(2), leader_epoch=Epoch(3))


async def test_a_request_says_where_its_sender_is_before_it_is_handled() -> None:
    heard: list[tuple[object, ...]] = []

    async def handle(request: object, request_id: str | None) -> RpcReply:
        heard.append((request,))
        return RpcReply(error_code=ErrorCode.NOT_CONTROLLER)

    server = RpcServer(
        cluster_id="c", shared_secret=None, handle=handle, hear=lambda *said: heard.append(said)
    )
    app = web.Application()
    server.add_routes(app)
    async with serving(app) as port:
        for cluster_id in ("c", "another"):
            client = RpcClient(
                cluster_id=cluster_id, node_id=BrokerId(2), shared_secret=None, own_address="two:2"
            )
            peers = Peers(client, lambda _: f"127.0.0.1:{port}", lambda error: None)
            done: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
            peers.send(BrokerId(1), BEGIN, timeout_ms=10_000, done=done.set_result)
            assert await done is None
            await peers.close()
            await client.close()
    assert heard == [(2, "two:2", BEGIN), (BEGIN,)]


async def test_a_node_without_an_address_gets_no_request_and_every_answer_is_heard() -> None:
    answer = FetchResponse(
        error_code=ErrorCode.NONE,
        leader_id=BrokerId(1),
        leader_epoch=Epoch(1),
        leader_address="a:1",
    )
    asked: list[str] = []

    class Caller:
        async def call(self, address: str, request: object, *, timeout_ms: int) -> Reply:
            asked.append(address)
            return answer, None

    heard: list[object] = []
    addresses = {BrokerId(1): "one:1"}
    peers = Peers(Caller(), addresses.get, lambda error: None, hear=heard.append)
    replies: list[asyncio.Future[Reply | None]] = []
    for node in (1, 2):
        replies.append(asyncio.get_running_loop().create_future())
        peers.send(BrokerId(node), BEGIN, timeout_ms=1, done=replies[-1].set_result)
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
