"""The status of a node, requested with the wait for newer metadata."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession, web

from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.model import difference
from quorumlog.node.status import MetadataArrivals, add_routes
from quorumlog.wire.codec.identifiers import Offset


def arrive(arrivals: MetadataArrivals, end_offset: int) -> None:
    image = replace(ClusterImage(), end_offset=Offset(end_offset))
    delta: ClusterDelta = difference(ClusterImage(), image)
    arrivals.publish(delta, image)


@pytest.mark.jumping_time
async def test_a_wait_ends_with_the_record_or_with_its_time() -> None:
    arrivals, loop = MetadataArrivals(), asyncio.get_running_loop()
    arrive(arrivals, 7)
    begun_s = loop.time()
    await arrivals.wait_above(6, 1000)
    assert loop.time() == begun_s
    loop.call_later(0.2, arrive, arrivals, 8)
    loop.call_later(0.5, arrive, arrivals, 9)
    await arrivals.wait_above(8, 1000)
    assert loop.time() - begun_s == pytest.approx(0.5)
    await arrivals.wait_above(9, 1000)
    assert loop.time() - begun_s == pytest.approx(1.5)
    loop.call_later(0.5, arrivals.close)
    await arrivals.wait_above(9, 1000)
    assert loop.time() - begun_s == pytest.approx(2.0)
    await arrivals.wait_above(9, 1000)  # the node has stopped
    assert loop.time() - begun_s == pytest.approx(2.0)


@asynccontextmanager
async def serving(arrivals: MetadataArrivals, status: dict[str, Any]) -> AsyncIterator[str]:
    app = web.Application()

    async def scrape(_: web.Request) -> web.Response:
        return web.Response()

    add_routes(
        app, is_ready=lambda: True, describe=lambda: status, arrivals=arrivals, scrape=scrape
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/status"
    finally:
        await runner.cleanup()


async def test_the_route_answers_after_the_record_it_waits_for() -> None:
    arrivals, status = MetadataArrivals(), {"metadata_offset": 7}
    arrive(arrivals, 7)
    async with serving(arrivals, status) as url, ClientSession() as session:

        async def get(query: str) -> tuple[int, str]:
            async with session.get(url + query) as response:
                return response.status, await response.text()

        assert await get("") == (200, '{"metadata_offset": 7}')
        waiting = asyncio.create_task(get("?after=7&wait_ms=30000"))
        assert await get("?after=6&wait_ms=30000") == (200, '{"metadata_offset": 7}')
        assert not waiting.done()
        status["metadata_offset"] = 8
        arrive(arrivals, 8)
        assert await waiting == (200, '{"metadata_offset": 8}')
        assert await get("?after=x") == (400, "after=x: a whole number is expected\n")
        assert await get("?wait_ms=30001") == (400, "wait_ms=30001: at most 30000\n")
