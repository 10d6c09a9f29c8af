"""Connections of strangers to the control listener: few, and not for long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web

from quorumlog.metadata_quorum.io import strangers as module
from quorumlog.metadata_quorum.io.strangers import STRANGERS_MAX, Strangers, WatchedSite

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
