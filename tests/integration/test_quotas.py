"""Quotas on a cluster of real processes, as clients of two libraries meet them."""

import asyncio
import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from quorumlog import LocalCluster
from quorumlog.client import Admin, NewTopic, Producer

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("quotas")]
MB = 1_000_000
SHORT = {"quota.window.num": "3", "controller.quota.window.num": "2"}  # seconds
PRODUCED_S = 6.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=1, config=SHORT) as running:
        yield running


async def test_a_client_at_its_quota_is_slowed_and_others_are_not(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("t", 1)])
        await admin.alter_client_quotas({"client-id": "x"}, {"producer_byte_rate": MB})
    moved, delays = await asyncio.to_thread(produce_for, cluster.bootstrap, "x", PRODUCED_S)
    assert PRODUCED_S - 1 < moved / MB < PRODUCED_S + 4
    assert max(delays) > 0.1
    moved, delays = await asyncio.to_thread(produce_for, cluster.bootstrap, "other", 3)
    assert moved > 10 * MB
    assert not any(delays)


def produce_for(bootstrap: str, client_id: str, seconds: float) -> tuple[int, list[float]]:
    """Return the acknowledged bytes, and the delays (s) that librdkafka reports."""
    delays: list[float] = []
    moved = 0

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        nonlocal moved
        if error is None:
            moved += len(message.value() or b"")

    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": client_id,
        "throttle_cb": lambda event: delays.append(event.throttle_time),
        "on_delivery": delivered,
        "batch.size": 100_000,
        "queue.buffering.max.kbytes": 1024,
    }
    producer = confluent_kafka.Producer(settings)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            producer.produce("t", bytes(10_000))
        except BufferError:
            producer.poll(0.02)
        producer.poll(0)
    producer.purge()
    producer.flush(10)
    return moved, delays


async def test_our_producer_waits_and_loses_nothing(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("ours", 1)])
        await admin.alter_client_quotas({"client-id": "slow"}, {"producer_byte_rate": MB})
    began_s = time.monotonic()
    async with Producer(cluster.bootstrap, client_id="slow") as producer:
        sends = [await producer.send("ours", bytes(100_000)) for _ in range(50)]
        offsets = [(await sent).offset for sent in sends]
    assert offsets == list(range(50))
    assert time.monotonic() - began_s > 1.5  # 5 MB, of which 3 MB at once


async def test_our_admin_retries_what_its_quota_refuses(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap, client_id="maker") as admin:
        quota = {"controller_mutation_rate": 4.0}
        await admin.alter_client_quotas({"client-id": "maker"}, quota)
        began_s = time.monotonic()
        for number in range(3):
            await admin.create_topics([NewTopic(f"made-{number}", 8)])
        assert time.monotonic() - began_s > 1.5  # 24 partitions, of which 8 at once
