"""A leader under a throttle: what a follower that is not in sync gets, and what others get."""

import asyncio
import time
from pathlib import Path

import pytest

from quorumlog.broker.fetching.io import fetches
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from tests.support.broker.one_broker import BATCH, append, fetch_of, one_broker, publish, size
from tests.support.broker.replica_calls import fetch_from
from tests.support.broker.replicas import image

SETTINGS = BrokerSettings(leader_replication_throttled_rate=len(BATCH))  # a batch a second


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = int(time.monotonic() * 1000)  # the timer of fetches that wait has that
        monkeypatch.setattr(fetches, "monotonic_ms", lambda: self.now_ms)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def lead(replicas: Replicas, *isr: int, throttled: str = "0:1") -> None:
    """Lead with this ISR, of replicas 1 to 3, and hold a batch that all may fetch."""
    led = image(1, 0, 1, isr, replicas=(1, 2, 3))
    publish(replicas, led, leader_replication_throttled_replicas=throttled)
    for _ in range(9):
        append(replicas)


def got(replicas: Replicas, follower_id: int, offset: int) -> int:
    """Fetch one batch; return how many came at once."""
    one_batch = {"leader_epoch": 0, "partition_max_bytes": len(BATCH)}
    answer = fetch_from(replicas, fetch_of(offset, replica_id=follower_id, **one_batch))
    if isinstance(answer, asyncio.Future):
        answer.cancel()
        return 0
    return size(answer) // len(BATCH)


async def test_a_follower_that_is_not_in_sync_waits_until_its_bytes_are_paid(
    tmp_path: Path, clock: Clock
) -> None:
    async with one_broker(tmp_path, settings=SETTINGS) as replicas:
        lead(replicas, 1)
        assert [got(replicas, 2, offset) for offset in range(3)] == [1, 1, 0]
        clock.now_ms += 999
        assert got(replicas, 2, 2) == 0
        clock.now_ms += 1
        assert [got(replicas, 2, 2), got(replicas, 2, 3)] == [1, 0]
        clock.now_ms += 1_000  # followers share the rate of their leader
        assert [got(replicas, 3, 1), got(replicas, 2, 1)] == [1, 0]


async def test_a_follower_in_sync_and_consumers_are_served_meanwhile(
    tmp_path: Path, clock: Clock
) -> None:
    del clock  # it stands still
    async with one_broker(tmp_path, settings=SETTINGS) as replicas:
        lead(replicas, 1, 2)
        assert [got(replicas, 3, offset) for offset in range(3)] == [1, 1, 0]
        assert [got(replicas, 2, offset) for offset in range(9)] == [1] * 9
        assert size(fetch_from(replicas, fetch_of(0))) > len(BATCH)
        lead(replicas, 1, throttled="0:2,1:1")
        assert [got(replicas, 3, offset) for offset in range(5)] == [1] * 5  # it is not named


async def test_a_fetch_that_waits_is_not_completed_by_what_it_may_not_have(
    tmp_path: Path, clock: Clock
) -> None:
    async with one_broker(tmp_path, settings=SETTINGS) as replicas:
        lead(replicas, 1)
        assert [got(replicas, 2, offset) for offset in range(2)] == [1, 1]
        waiting = fetch_from(replicas, fetch_of(2, replica_id=2, leader_epoch=0, max_wait_ms=2**30))
        assert isinstance(waiting, asyncio.Future)
        append(replicas)
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.now_ms += 1_000
        append(replicas)
        assert size(await waiting) > 0
