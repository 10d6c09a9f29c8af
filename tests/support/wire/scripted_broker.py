"""A listener that answers on command of a test, and a connection to it."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader, decode_request, encode_response
from quorumlog.wire.io.connection import KafkaConnection

KNOWN = [
    ApiVersion(api_key=1, min_version=4, max_version=12),
    ApiVersion(api_key=18, min_version=0, max_version=4),
    ApiVersion(api_key=12, min_version=0, max_version=3),
    ApiVersion(api_key=3, min_version=0, max_version=12),
]


class Broker:
    """A listener that records requests and answers on command; ApiVersions at once."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[RequestHeader, Any]] = asyncio.Queue()
        self.versions_seen: list[int] = []
        self.writer: asyncio.StreamWriter
        self.answer_versions: Callable[[RequestHeader], list[Any]] = self.all_versions

    def all_versions(self, header: RequestHeader) -> list[Any]:
        return encode_response(header, ApiVersionsResponse(api_keys=KNOWN))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header, request = decode_request(await reader.readexactly(size))
                if isinstance(request, ApiVersionsRequest):
                    self.versions_seen.append(header.api_version)
                    writer.writelines(self.answer_versions(header))
                else:
                    self.requests.put_nowait((header, request))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, response: Response) -> None:
        header, _ = await self.requests.get()
        self.writer.writelines(encode_response(header, response))


@asynccontextmanager
async def connected(
    broker: Broker | None = None, **options: Any
) -> AsyncIterator[tuple[Broker, KafkaConnection]]:
    ours = broker or Broker()
    server = await asyncio.start_server(ours.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        connection = await KafkaConnection.open("127.0.0.1", port, client_id="me", **options)
        try:
            async with asyncio.timeout(20):
                yield ours, connection
        finally:
            await connection.close()
            assert connection.in_flight == 0
    except BaseException:
        ours.writer.transport.abort()  # it may not be reading, and we would wait for ever
        raise
    finally:
        server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


def run(
    scenario: Callable[[Broker, KafkaConnection], Awaitable[None]],
    *arguments: Broker,
    **options: Any,
) -> None:
    async def main() -> None:
        async with connected(*arguments, **options) as (broker, connection):
            await scenario(broker, connection)

    asyncio.run(main())
