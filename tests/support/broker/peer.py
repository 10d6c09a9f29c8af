"""A server on a real port, and a client that sees frames, for the tests of the connections."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from quorumlog.broker.handlers.registry import HANDLERS
from quorumlog.broker.server.api import BrokerContext, Reply
from quorumlog.broker.server.server import Server
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.heartbeat import HeartbeatResponse
from quorumlog.wire.codec.schemas import RequestHeader, decode_response, encode_request
from tests.support.groups.single_broker import SETTINGS, SingleBroker, single_broker

Handle = Callable[[BrokerContext, RequestHeader, Any], Reply]
FETCH, METADATA, HEARTBEAT, SYNC, API_VERSIONS = 1, 3, 12, 14, 18


class Peer:
    """A client at the level of frames: it records the order of requests and of responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, request: Any, correlation_id: int, version: int) -> None:
        buffers = encode_request(
            request, api_version=version, correlation_id=correlation_id, client_id="test"
        )
        self.writer.write(b"".join(buffers))

    async def frame(self) -> bytes:
        async with asyncio.timeout(5):
            [size] = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def answer(self, api_key: int, version: int) -> tuple[int, Response]:
        return decode_response(api_key, version, await self.frame())

    async def is_closed(self) -> bool:
        async with asyncio.timeout(5):
            return await self.reader.read() == b""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def serving(
    directory: Path,
    handle: Handle | None = None,
    settings: BrokerSettings = SETTINGS,
    *,
    api_key: int = HEARTBEAT,
) -> AsyncIterator[tuple[SingleBroker, Server, int]]:
    """Serve with `handle` in place of one API's handler."""
    async with single_broker(directory, settings=settings) as broker:
        handlers = dict(HANDLERS)
        if handle is not None:
            handlers[api_key] = replace(handlers[api_key], handle=handle, handle_run=None)
        context = replace(broker.context, handlers=handlers, settings=settings)
        server = Server(context, on_fatal=broker.violations.append)
        port = await server.start("127.0.0.1", 0)
        try:
            yield broker, server, port
        finally:
            await server.stop(grace_ms=50)
            assert len(server._connections) == 0


def beat(throttle_time_ms: int) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time_ms=throttle_time_ms)
