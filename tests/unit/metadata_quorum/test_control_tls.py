"""TLS between nodes: who may connect to a control listener, and as which node it may speak."""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectorError, ClientError, ClientSession, TCPConnector, web

from quorumlog.cluster.certificates import Authority, Issued, make_ca
from quorumlog.metadata_quorum.core.messages import BeginQuorumEpochRequest
from quorumlog.metadata_quorum.io.control_tls import ControlTls
from quorumlog.metadata_quorum.io.peer_liveness import (
    PATH,
    PresenceClient,
    PresenceServer,
    has_died,
)
from quorumlog.metadata_quorum.io.rpc import SECRET_HEADER, Reply, RpcServer
from quorumlog.metadata_quorum.io.rpc_client import RpcClient, RpcFailed
from quorumlog.node.config import ControlTlsFiles
from quorumlog.node.tls import control_tls, reload_control_tls
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.quorums import fetch_response
from tests.support.waiting import until

BEGIN = BeginQuorumEpochRequest(leader_id=BrokerId(2), leader_epoch=Epoch(3))
SECRET = "the secret of the cluster"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_ca(tmp_path_factory.mktemp("ca"))


def node_tls(authority: Authority, node_id: int, *, serves_strangers: bool = False) -> ControlTls:
    files = files_of(authority, authority.issue_node(node_id))
    return control_tls(files, node_id, serves_strangers=serves_strangers)


def files_of(authority: Authority, issued: Issued) -> ControlTlsFiles:
    return ControlTlsFiles(str(authority.certificate), str(issued.certificate), str(issued.key))


def contexts(authority: Authority, issued: Issued) -> ControlTls:
    """The contexts of somebody with this certificate, without the checks of a node."""
    made = ControlTls(
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    for context in (made.server, made.client):
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.load_verify_locations(authority.certificate)
        context.load_cert_chain(issued.certificate, issued.key)
    return made


class Served:
    """A control listener of node 1: `heard` has the requests that reached it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.disconnected: list[int] = []
        self.present: dict[Any, None] = {}
        self.port = 0

    async def handle(self, request: Any, _: str | None) -> Reply:
        self.heard.append(request)
        return Reply.of(fetch_response(epoch=3))

    async def lost(self, node_id: BrokerId) -> None:
        self.disconnected.append(node_id)


async def healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


@asynccontextmanager
async def serving(tls: ControlTls | None) -> AsyncIterator[Served]:
    served = Served()
    server = RpcServer(cluster_id="c", shared_secret=SECRET, handle=served.handle, tls=tls)
    app = web.Application()
    server.add_routes(app)
    server.open_to_strangers(["/open"])
    for path in ("/healthz", "/open"):
        app.router.add_get(path, healthz)
    presence = PresenceServer(check=server.check_secret, disconnected=served.lost)
    presence.add_routes(app)
    served.present = presence._connections
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await server.site(runner, host="127.0.0.1", port=0).start()
    served.port = runner.addresses[0][1]
    try:
        yield served
    finally:
        await presence.close()
        await runner.cleanup()


async def call(served: Served, tls: ControlTls | None, node_id: int = 2) -> None:
    client = RpcClient(cluster_id="c", node_id=BrokerId(node_id), shared_secret=SECRET, tls=tls)
    try:
        await client.call(f"127.0.0.1:{served.port}", BEGIN, timeout_ms=10_000)
    finally:
        await client.close()


async def get(served: Served, context: ssl.SSLContext | None, path: str = "/healthz") -> int:
    scheme = "http" if context is None else "https"
    connector = TCPConnector(ssl=context or True)
    async with (
        ClientSession(connector=connector) as session,
        session.get(f"{scheme}://127.0.0.1:{served.port}{path}") as response,
    ):
        return response.status


async def test_nodes_speak_for_themselves(authority: Authority) -> None:
    async with serving(node_tls(authority, 1)) as served:
        await call(served, node_tls(authority, 2))
        assert len(served.heard) == 1
        with pytest.raises(RpcFailed, match="the certificate is not of node 3"):
            await call(served, node_tls(authority, 2), node_id=3)
        assert len(served.heard) == 1


async def test_an_operator_sees_and_sends_nothing(authority: Authority) -> None:
    operator = contexts(authority, authority.issue_operator())
    async with serving(node_tls(authority, 1)) as served:
        assert await get(served, operator.client) == 200
        with pytest.raises(RpcFailed, match="the certificate is not of node 2"):
            await call(served, operator)
        assert served.heard == []


async def test_users_of_the_cluster_and_other_clusters_are_strangers(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alice = contexts(authority, authority.issue("alice"))
    other = make_ca(tmp_path)
    foreign = contexts(authority, other.issue_node(2))
    async with serving(node_tls(authority, 1)) as served:
        for stranger in (alice, foreign):
            with pytest.raises((RpcFailed, ClientError)):
                await call(served, stranger)
            with pytest.raises(ClientError):
                await get(served, stranger.client)
        for context in (None, ssl._create_unverified_context()):
            with pytest.raises(ClientError):
                await get(served, context)
        assert served.heard == []
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    found = " ".join(lines)
    for reason in (
        "its certificate is no node's or operator's",
        "the peer's certificate is refused",
        "has sent no certificate",
        "the peer speaks HTTP, this listener TLS",
    ):
        assert found.count(reason) == 1


async def test_strangers_reach_the_open_routes_alone(authority: Authority, tmp_path: Path) -> None:
    alice = contexts(authority, authority.issue("alice"))
    nobody = ssl.create_default_context(cafile=authority.certificate)  # it checks the address, too
    operator = contexts(authority, authority.issue_operator())
    foreign = contexts(authority, make_ca(tmp_path).issue_node(2))
    async with serving(node_tls(authority, 1, serves_strangers=True)) as served:
        for stranger in (alice.client, nobody):
            assert await get(served, stranger, "/open") == 200
            for path in ("/healthz", "/rpc/Fetch", "/presence", "/nowhere", "/%6fpen/../healthz"):
                assert await get(served, stranger, path) == 403
        with pytest.raises(RpcFailed, match="a node or an operator of the cluster is required"):
            await call(served, alice)  # even with the secret
        with pytest.raises(ClientError):
            await get(served, foreign.client, "/open")
        assert await get(served, operator.client) == 200
        assert served.heard == []
        await call(served, node_tls(authority, 2))
        assert len(served.heard) == 1


async def test_the_secret_goes_to_nodes_alone(authority: Authority) -> None:
    """Whoever takes a node's address with a user's certificate receives no request."""
    received = []

    async def steal(request: web.Request) -> web.Response:
        received.append(request.headers.get(SECRET_HEADER))
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", steal)
    runner = web.AppRunner(app)
    await runner.setup()
    thief = contexts(authority, authority.issue("mallory"))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=thief.server).start()
    served = Served()
    served.port = runner.addresses[0][1]
    try:
        with pytest.raises(RpcFailed, match="the server's certificate is not a node's"):
            await call(served, node_tls(authority, 2))
    finally:
        await runner.cleanup()
    assert received == []


async def test_a_secret_is_still_required(authority: Authority) -> None:
    node = node_tls(authority, 2)
    async with serving(node_tls(authority, 1)) as served:
        assert await get(served, node.client, f"{PATH}?node_id=2") == 403


async def test_the_death_of_a_process_is_seen_as_without_tls(authority: Authority) -> None:
    died: list[int] = []

    async def leader_died(leader_id: BrokerId) -> None:
        died.append(leader_id)

    node = node_tls(authority, 2)
    client = RpcClient(cluster_id="c", node_id=BrokerId(2), shared_secret=SECRET, tls=node)
    async with serving(node_tls(authority, 1)) as served:
        address = f"127.0.0.1:{served.port}"
        presence = PresenceClient(
            client.session,
            scheme=client.scheme,
            query={"node_id": "2"},
            addresses=lambda _: address,
            leader_died=leader_died,
        )
        presence.follow(BrokerId(1))
        await until(lambda: served.present)
        assert not await has_died(address)
    await until(lambda: died == [1])
    await presence.close()
    await client.close()


async def test_a_certificate_read_again_is_for_later_handshakes(authority: Authority) -> None:
    issued = authority.issue_node(1)
    live = control_tls(files_of(authority, issued), 1)
    async with serving(live) as served:

        async def serial() -> object:
            node = node_tls(authority, 2)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", served.port, ssl=node.client
            )
            certificate = writer.get_extra_info("peercert")
            writer.close()
            del reader
            return certificate["serialNumber"]

        before = await serial()
        reload_control_tls(live, files_of(authority, authority.issue_node(1)))
        assert await serial() != before


async def test_without_tls_nothing_is_checked_but_the_secret(authority: Authority) -> None:
    async with serving(None) as served:
        await call(served, None)
        assert len(served.heard) == 1
        with pytest.raises(RpcFailed):
            await call(served, node_tls(authority, 2))
        with socket.create_connection(("127.0.0.1", served.port)):
            pass
        with pytest.raises(ClientConnectorError):
            await get(served, ssl._create_unverified_context())
