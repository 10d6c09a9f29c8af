"""Fake brokers with one client of them: what most tests of a client begin with."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Unpack

from quorumlog.client import Consumer, Producer
from quorumlog.client.settings import ConsumerOptions, ProducerOptions
from tests.support.client.fake_cluster import FakeCluster, fake_cluster
from tests.support.client.fake_group import GroupCluster, group_cluster


@asynccontextmanager
async def producing(
    **options: Unpack[ProducerOptions],
) -> AsyncIterator[tuple[FakeCluster, Producer]]:
    """Yield two brokers and a producer, without linger unless it is asked for."""
    given: ProducerOptions = {"linger_ms": 0, **options}
    async with (
        asyncio.timeout(30),
        fake_cluster() as cluster,
        Producer(cluster.bootstrap, **given) as producer,
    ):
        yield cluster, producer


@asynccontextmanager
async def consuming(
    **options: Unpack[ConsumerOptions],
) -> AsyncIterator[tuple[FakeCluster, Consumer]]:
    """Yield two brokers and a consumer."""
    async with (
        asyncio.timeout(30),
        fake_cluster() as cluster,
        Consumer(cluster.bootstrap, **options) as consumer,
    ):
        yield cluster, consumer


@asynccontextmanager
async def in_group(
    records: int = 0, *common: ConsumerOptions, **options: Unpack[ConsumerOptions]
) -> AsyncIterator[tuple[GroupCluster, Consumer]]:
    """Yield a coordinator that has `records`, and a consumer of its group g."""
    given: ConsumerOptions = {"group_id": "g"}
    for some in (*common, options):
        given.update(some)
    async with asyncio.timeout(30), group_cluster() as cluster:
        if records:
            cluster.fill(records)
        async with Consumer(cluster.bootstrap, **given) as consumer:
            yield cluster, consumer


@contextmanager
def in_a_thread(opened: Any) -> Iterator[Any]:
    """Run a fake cluster on an event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        cluster = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(30)
        yield cluster
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
