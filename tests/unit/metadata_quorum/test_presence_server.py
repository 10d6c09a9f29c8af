"""The leader's end of the connections by which nodes notice that others died."""

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from quorumlog.metadata_quorum.io.presence import PATH, PresenceServer
from quorumlog.wire.codec.identifiers import BrokerId


async def test_a_node_that_is_gone_before_it_is_answered_is_neither_an_error_nor_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gone(_connection: web.WebSocketResponse, _request: web.Request) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(web.WebSocketResponse, "prepare", gone)
    reported: list[BrokerId] = []

    async def disconnected(node_id: BrokerId) -> None:
        reported.append(node_id)

    server, app = PresenceServer(check=lambda _: None, disconnected=disconnected), web.Application()
    server.add_routes(app)
    async with TestServer(app) as running, ClientSession() as session:
        await session.get(running.make_url(PATH), params={"node_id": "1"})
    assert [record for record in caplog.records if record.name == "aiohttp.server"] == []
    assert reported == []
