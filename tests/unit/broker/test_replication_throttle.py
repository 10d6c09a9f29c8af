"""The throttles of both sides: the rate holds, and a replica in the ISR is not held up."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from quorumlog.broker.fetching.io import fetches
from quorumlog.broker.partitions.core.replication_throttle import (
    OF_FOLLOWERS,
    OF_LEADERS,
    ReplicationThrottle,
)
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import ClusterImage, PartitionImage, TopicImage
from quorumlog.settings.kinds import LONG_MAX
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicId, TopicPartition
from tests.support.broker.one_broker import BATCH, append, fetch_of, one_broker, publish, size
from tests.support.broker.replica_calls import fetch_from
from tests.support.broker.replicas import image

AT = TopicPartition("t", 0)
MB = 1_000_000


LEADER, FOLLOWER = BrokerId(1), BrokerId(2)
SIDES = ("leader", "follower")


def image_of(
    named: str, *, isr: tuple[int, ...] = (1,), rates: Any = None, side: str = "follower"
) -> ClusterImage:
    partition = PartitionImage(
        leader_id=LEADER,
        leader_epoch=Epoch(0),
        partition_epoch=Epoch(0),
        replicas=(LEADER, FOLLOWER),
        isr=tuple(map(BrokerId, isr)),
    )
    topic = TopicImage(
        name="t",
        topic_id=TopicId(b"t" * 16),
        partitions=(partition,) * 2,
        configs={f"{side}.replication.throttled.replicas": named},
    )
    rate = f"{side}.replication.throttled.rate"
    configs = {name: {rate: str(given)} for name, given in (rates or {}).items()}
    return replace(ClusterImage(), topics={"t": topic}, broker_configs=configs)


class Throttled:
    """The throttle of broker 1, which leads, or of broker 2, which fetches from it."""

    def __init__(
        self, *images: ClusterImage, side: str = "follower", static_rate: int = LONG_MAX
    ) -> None:
        self.images = [*images]
        name = f"{side}_replication_throttled_rate"
        settings = BrokerSettings(**cast(Any, {name: static_rate}))
        broker_id, of = (LEADER, OF_LEADERS) if side == "leader" else (FOLLOWER, OF_FOLLOWERS)
        self.rule = ReplicationThrottle(of, broker_id, settings, lambda: self.images[-1])

    def next_fetch_ms(self, at: TopicPartition, size: int, now_ms: int) -> int:
        return self.rule.next_fetch_ms(at, FOLLOWER, size, now_ms)


def fetched_in(seconds: int, throttled: Throttled, wait_ms: int, partitions: int) -> int:
    """Fetch as soon as it may be, but no sooner than a poll ends that takes up to `wait_ms`."""
    rng = Random(1)
    due = [0] * partitions
    fetched = 0
    now_ms = 0
    while now_ms < seconds * 1000:
        for index in range(partitions):
            if due[index] <= now_ms:
                size = rng.randrange(1, 1 << 20)
                at = TopicPartition("t", index)
                due[index] = throttled.next_fetch_ms(at, size, now_ms)
                fetched += size
        now_ms = max(min(due), now_ms + rng.randint(1, wait_ms))
    return fetched


@pytest.mark.parametrize(("wait_ms", "partitions"), [(1, 1), (500, 1), (50, 2)])
@pytest.mark.parametrize(("side", "named"), [("leader", "0:1,1:1"), ("follower", "0:2,1:2")])
def test_the_rate_holds_to_a_tenth(side: str, named: str, wait_ms: int, partitions: int) -> None:
    throttled = Throttled(image_of(named, rates={"": MB}, side=side), side=side)
    assert fetched_in(120, throttled, wait_ms, partitions) == pytest.approx(120 * MB, rel=0.1)


@pytest.mark.parametrize(
    ("named", "isr", "is_held_up"),
    [("0:{own}", (1,), True), ("*", (1,), True), ("1:{own}", (1,), False),
     ("0:{other}", (1,), False), ("", (1,), False), ("0:{own}", (1, 2), False)],
)  # fmt: skip
@pytest.mark.parametrize("side", SIDES)
def test_only_what_is_named_and_not_in_sync_is_held_up(
    side: str, named: str, isr: tuple[int, ...], is_held_up: bool
) -> None:
    own, other = (LEADER, FOLLOWER) if side == "leader" else (FOLLOWER, LEADER)
    image = image_of(named.format(own=own, other=other), isr=isr, rates={"": MB}, side=side)
    throttled = Throttled(image, side=side)
    assert throttled.next_fetch_ms(AT, 5 * MB, 10_000) == (14_000 if is_held_up else 10_000)
    due_ms = throttled.next_fetch_ms(AT, 0, 10_000)
    assert due_ms == (14_000 if is_held_up else 10_000), "to ask costs nothing"


@pytest.mark.parametrize("side", SIDES)
def test_each_side_goes_by_its_own_settings(side: str) -> None:
    (other,) = {*SIDES} - {side}
    throttled = Throttled(image_of("*", rates={"": MB}, side=other), side=side)
    assert not throttled.rule.is_on
    assert throttled.next_fetch_ms(AT, 5 * MB, 10_000) == 10_000
    throttled.images.append(image_of("*", rates={"": MB}, side=side))
    assert throttled.rule.is_on


def test_the_rate_of_the_broker_goes_before_that_of_all_and_of_its_start() -> None:
    def wait_ms(rates: dict[str, int], **options: Any) -> int:
        throttled = Throttled(image_of("*", rates=rates), **options)
        return throttled.next_fetch_ms(AT, 10 * MB, 10_000) - 10_000

    assert wait_ms({}) == 0
    assert wait_ms({}, static_rate=MB) == 9_000
    assert wait_ms({"": 2 * MB}, static_rate=MB) == 4_000
    assert wait_ms({"": 2 * MB, "2": 5 * MB, "1": MB}) == 1_000


def test_what_was_fetched_is_paid_at_the_rate_of_now() -> None:
    rates = {MB: 11_000, 5 * MB: 3_000, 10 * MB: 2_000, LONG_MAX: 2_000}
    for rate, due_ms in rates.items():
        throttled = Throttled(image_of("*", rates={"": MB}))
        assert throttled.next_fetch_ms(AT, 11 * MB, 1_000) == 11_000
        throttled.images.append(image_of("*", rates={"": rate}))
        assert throttled.next_fetch_ms(AT, 0, 2_000) == due_ms


def test_a_rate_of_nothing_is_no_debt_for_ever() -> None:
    throttled = Throttled(image_of("*", rates={"": 0}))
    assert throttled.next_fetch_ms(AT, MB, 0) == MB * 1000
    throttled.images.append(image_of("*", rates={"": MB}))
    assert throttled.next_fetch_ms(AT, MB, 10_000) == 10_000


def test_each_fetch_counts_for_all_throttled_replicas_of_the_broker() -> None:
    throttled = Throttled(image_of("*", rates={"": MB}))
    assert throttled.next_fetch_ms(AT, 5 * MB, 1_000) == 5_000
    assert throttled.next_fetch_ms(TopicPartition("t", 1), MB, 2_000) == 6_000


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


async def test_a_follower_not_in_sync_pays_for_its_bytes(tmp_path: Path, clock: Clock) -> None:
    async with one_broker(tmp_path, settings=SETTINGS) as replicas:
        lead(replicas, 1)
        assert [got(replicas, 2, offset) for offset in range(3)] == [1, 1, 0]
        clock.now_ms += 999
        assert got(replicas, 2, 2) == 0
        clock.now_ms += 1
        assert [got(replicas, 2, 2), got(replicas, 2, 3)] == [1, 0]
        clock.now_ms += 1_000  # followers share the rate of their leader
        assert [got(replicas, 3, 1), got(replicas, 2, 1)] == [1, 0]


async def test_a_follower_in_sync_and_consumers_are_served(tmp_path: Path, clock: Clock) -> None:
    del clock  # it stands still
    async with one_broker(tmp_path, settings=SETTINGS) as replicas:
        lead(replicas, 1, 2)
        assert [got(replicas, 3, offset) for offset in range(3)] == [1, 1, 0]
        assert [got(replicas, 2, offset) for offset in range(9)] == [1] * 9
        assert size(fetch_from(replicas, fetch_of(0))) > len(BATCH)
        lead(replicas, 1, throttled="0:2,1:1")
        assert [got(replicas, 3, offset) for offset in range(5)] == [1] * 5  # it is not named


async def test_a_fetch_waits_until_it_may_have_the_records(tmp_path: Path, clock: Clock) -> None:
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
