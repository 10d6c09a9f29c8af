"""Memory of connections without requests under way: 10,000 of them fit into 300 MB."""

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any, cast

from quorumlog.broker.server.connection import Connection
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.schemas import encode_request
from tests.support.broker.produce_twins import Wire
from tests.support.groups.single_broker import single_broker

CONNECTIONS = 200
BYTES_MAX = 12_000  # of each, without its socket and its transport


async def test_an_idle_connection_holds_no_buffer(tmp_path: Path) -> None:
    request = b"".join(
        encode_request(ApiVersionsRequest(), api_version=0, correlation_id=1, client_id="client")
    )
    async with single_broker(tmp_path) as broker:

        async def connected() -> Connection:
            connection, wire = Connection(broker.server), Wire()
            connection.connection_made(cast(asyncio.BaseTransport, wire))
            connection.get_buffer(-1)[: len(request)] = request
            connection.buffer_updated(len(request))
            await asyncio.sleep(0)
            assert wire.sent
            wire.sent.clear()
            return connection

        kept: list[Any] = [await connected()]  # the first pays for what all share
        tracemalloc.start()
        try:
            kept += [await connected() for _ in range(CONNECTIONS)]
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held / CONNECTIONS < BYTES_MAX
        assert all(len(connection._received[0]) == 0 for connection in kept)
        for connection in kept:
            connection.connection_lost(None)
