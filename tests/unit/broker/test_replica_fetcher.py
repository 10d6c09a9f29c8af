"""How a broker asks its leaders for records: order, epochs, back-off, sessions, lanes."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.broker.following.io import replica_fetcher, replica_fetchers
from quorumlog.broker.following.io.replica_fetcher import LOOPS_MAX, TAKEN_AT_ONCE, ReplicaFetcher
from quorumlog.broker.following.io.replica_fetchers import ReplicaFetchers
from quorumlog.broker.following.log.followed_partition import FollowedPartition
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import monotonic_ms
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicId, TopicPartition
from quorumlog.wire.codec.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from quorumlog.wire.io.connection import Done, KafkaConnection

TOPIC_ID = TopicId(b"t" * 16)


class FakeDriver:
    """What a fetcher reads of a replica."""

    def __init__(self, index: int) -> None:
        self.topic_partition, self.topic_id = TopicPartition("t", index), TOPIC_ID
        self.partition = SimpleNamespace(
            state=SimpleNamespace(log_end_offset=0, kept_log_start_offset=0, is_contradicted=False),
            accepts_answer=lambda *asked: False,
            may_fetch=lambda: True,
        )
        self.is_truncating = False
        self.log = SimpleNamespace(epochs=SimpleNamespace(latest_epoch=0))


def fetcher(broker_epoch: int = 0, **options: Any) -> ReplicaFetcher:
    return ReplicaFetcher(
        ("localhost", 0),
        broker_id=BrokerId(1),
        settings=BrokerSettings(),
        broker_epoch=lambda: broker_epoch,
        wall_ms=lambda: 0,
        connect=cast(Any, KafkaConnection.open),
        **{"failed": lambda error: None, **options},
    )


def asked_in(request: FetchRequest | None) -> list[int]:
    assert request is not None
    return [one.partition for topic in request.topics for one in topic.partitions]


def follow(count: int, epoch: int = 0) -> list[FollowedPartition]:
    return [FollowedPartition(cast(Any, FakeDriver(one)), Epoch(epoch)) for one in range(count)]


async def take(fetches: ReplicaFetcher, *answers: PartitionData) -> None:
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[*answers])
    await fetches._take(fetches._session, FetchResponse(responses=[topic]))


def records_of(index: int) -> PartitionData:
    return PartitionData(partition_index=index, records=b"some")


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetchers do nothing by themselves."""
    monkeypatch.setattr(ReplicaFetcher, "wake", lambda self: None)


@pytest.mark.usefixtures("idle")
async def test_who_brought_records_is_asked_for_last() -> None:
    """An answer that is full leaves out the last ones: not the same ones each time."""
    fetches = fetcher()
    fetches.set_followed(follow(4))
    assert asked_in(fetches._request(fetches._session, monotonic_ms())) == [0, 1, 2, 3]
    without = [PartitionData(partition_index=index) for index in (1, 3)]
    await take(fetches, records_of(0), without[0], records_of(2), without[1])
    assert asked_in(fetches._request(fetches._session, monotonic_ms())) == [1, 3, 0, 2]


@pytest.mark.usefixtures("idle")
async def test_a_throttled_partition_waits_until_it_paid(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_000
    monkeypatch.setattr(replica_fetcher, "monotonic_ms", lambda: now_ms)
    fetches = fetcher(next_fetch_ms=lambda at, _id, _size, now: now + 2_000 * at.partition)
    fetches.set_followed(follow(2))
    assert asked_in(fetches._request(fetches._session, monotonic_ms())) == [0, 1]
    await take(fetches, records_of(0), records_of(1))
    assert [one.may_ask(now_ms) for one in fetches._followed.values()] == [True, False]
    now_ms = 3_000
    assert [one.may_ask(now_ms) for one in fetches._followed.values()] == [True, True]


@pytest.mark.usefixtures("idle")
async def test_what_waits_for_the_throttle_goes_on_when_the_rate_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms, wait_ms = 1_000, 1_000_000
    monkeypatch.setattr(replica_fetcher, "monotonic_ms", lambda: now_ms)
    fetches = fetcher(next_fetch_ms=lambda _at, _id, _size, now: now + wait_ms)
    [followed] = follow(1)
    fetches.set_followed([followed])
    assert asked_in(fetches._request(fetches._session, now_ms)) == [0]
    await take(fetches, records_of(0))
    now_ms = 2_000
    assert not fetches._is_due(now_ms)
    assert followed.due_ms == 1_001_000  # asking again makes it no later
    waits: list[int] = []

    async def note(_self: ReplicaFetcher, duration_ms: int) -> None:
        waits.append(duration_ms)

    monkeypatch.setattr(ReplicaFetcher, "_wait", note)
    await fetches._wait_for_work()
    assert waits == [replica_fetcher.THROTTLE_CHECK_MS]
    wait_ms = 0
    assert fetches._is_due(now_ms)


class ParkingLeader:
    """A leader that answers nothing: every fetch is parked. `asked`: partitions, by fetch."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.news = asyncio.Event()
        self.open_connections = 0
        self.waits_since_s: float | None = None

    async def open(self, *_address: object, **_options: object) -> "ParkingLeader":
        self.open_connections += 1
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    def request(self, request: FetchRequest, _done: Done) -> None:
        self.asked.append(asked_in(request))
        self.news.set()

    async def close(self) -> None:
        self.open_connections -= 1

    async def fetches(self, count: int) -> None:
        while len(self.asked) < count:
            self.news.clear()
            await self.news.wait()


async def test_a_leader_that_parks_a_fetch_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = ParkingLeader()
    monkeypatch.setattr(KafkaConnection, "open", leader.open)
    fetches, loop = fetcher(), asyncio.get_running_loop()
    assert not fetches.is_unanswered()
    fetches.set_followed(follow(1))
    await leader.fetches(1)
    parked_s = BrokerSettings().replica_fetch_wait_max_ms / 1000
    for share, is_late in ((1, False), (1.51, True)):
        leader.waits_since_s = loop.time() - share * parked_s
        assert fetches.is_unanswered() is is_late
    leader.waits_since_s = None
    assert not fetches.is_unanswered()
    await fetches.stop()


async def test_a_fetch_says_who_asks_in_which_epoch_from_where() -> None:
    """Without the two epochs a leader could tell neither a deposed one nor a parted log."""
    driver = FakeDriver(3)
    driver.partition.state.log_end_offset = 70
    driver.partition.state.kept_log_start_offset = 20
    driver.log.epochs.latest_epoch = 4

    fetches = fetcher(broker_epoch=77)
    fetches._followed[TOPIC_ID, 3] = FollowedPartition(cast(Any, driver), Epoch(5))
    request = fetches._request(fetches._session, monotonic_ms())
    assert request is not None
    assert request.replica_state == ReplicaState(replica_id=1, replica_epoch=77)
    [topic] = request.topics
    assert topic.topic_id == driver.topic_id
    assert topic.partitions == [
        FetchPartition(
            partition=3,
            current_leader_epoch=5,
            fetch_offset=70,
            last_fetched_epoch=4,
            log_start_offset=20,
            partition_max_bytes=BrokerSettings().replica_fetch_max_bytes,
        )
    ]


@pytest.mark.usefixtures("idle")
async def test_a_fetch_in_a_session_names_it_and_the_partitions_that_it_drops() -> None:
    fetches, settings = fetcher(), BrokerSettings()
    followed = follow(2)
    fetches.set_followed(followed)
    first = fetches._request(fetches._session, monotonic_ms())
    assert first is not None
    assert (first.session_id, first.session_epoch) == (0, 0)
    fetches._session.answered(0, 7)
    fetches.set_followed(followed[:1])
    second = fetches._request(fetches._session, monotonic_ms())
    assert second is not None
    assert (second.session_id, second.session_epoch) == (7, 1)
    assert [(one.topic_id, one.partitions) for one in second.forgotten_topics_data] == [
        (TOPIC_ID, [1])
    ]
    for request in (first, second):
        assert request.max_wait_ms == settings.replica_fetch_wait_max_ms
        assert request.min_bytes == settings.replica_fetch_min_bytes
        assert request.max_bytes == settings.replica_fetch_response_max_bytes


async def test_a_change_is_asked_for_at_once_however_many_fetches_are_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = ParkingLeader()
    monkeypatch.setattr(KafkaConnection, "open", leader.open)
    fetches, followed = fetcher(), follow(10)
    async with asyncio.timeout(5):
        for count in range(1, 11):
            fetches.set_followed(followed[:count])
            await leader.fetches(count)
    assert leader.asked == [list(range(count)) for count in range(1, 11)]
    assert leader.open_connections == LOOPS_MAX
    await fetches.stop()
    assert leader.open_connections == 0


async def test_one_that_was_stopped_starts_no_fetch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata may name other partitions while it is being stopped."""
    runs: list[int] = []

    async def note_run(_fetcher: ReplicaFetcher, serial: int) -> None:
        runs.append(serial)

    monkeypatch.setattr(ReplicaFetcher, "_run", note_run)
    stopped = fetcher()
    stopped.wake()
    await asyncio.sleep(0)
    await stopped.stop()
    stopped.set_followed([])
    await asyncio.sleep(0)
    assert len(runs) == 1


@pytest.mark.usefixtures("idle")
async def test_a_fetch_waits_until_what_was_brought_is_on_the_disk() -> None:
    """An answer to an older fetch may bring more while the first flush is under way."""
    fetches, driver = fetcher(), FakeDriver(0)
    fetches.set_followed([FollowedPartition(cast(Any, driver), Epoch(0))])
    assert asked_in(fetches._request(fetches._session, monotonic_ms())) == [0]
    driver.partition.may_fetch = lambda: False
    await take(fetches, records_of(0))
    for is_durable in (False, True):
        assert not fetches._is_due(monotonic_ms())
        fetches._changed.clear()
        driver.partition.may_fetch = lambda is_durable=is_durable: is_durable
        fetches.note_flush_ended(cast(Any, driver))
        assert fetches._changed.is_set()
    assert fetches._is_due(monotonic_ms())


async def test_many_changes_share_one_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new session names all partitions: the next one waits the longer, the more there are."""
    monkeypatch.setattr(replica_fetcher, "RENEWAL_S_PER_PARTITION", 1_000.0)
    loops: list[int] = []

    async def run(self: ReplicaFetcher, serial: int) -> None:
        loops.append(serial)
        await asyncio.Event().wait()

    monkeypatch.setattr(ReplicaFetcher, "_run", run)
    fetches, followed = fetcher(), follow(4)
    fetches.set_followed(followed[:1])
    await asyncio.sleep(0)
    assert loops == [1]  # the first is not held up
    for count in (2, 3, 4):
        fetches._is_at_leader = True
        fetches.set_followed(followed[:count])
        await asyncio.sleep(0)
    assert loops == [1]
    assert fetches._renewal is not None
    fetches._maybe_renew()  # it is due
    await asyncio.sleep(0)
    assert loops == [1, 2]
    fetches._is_at_leader = True
    fetches._request(fetches._session, monotonic_ms())  # it tells all that has changed
    fetches._maybe_renew()
    await asyncio.sleep(0)
    assert loops == [1, 2]
    fetches.wake()
    assert fetches._renewal is not None
    await fetches.stop()
    assert fetches._renewal.cancelled()


class EndingLeader:
    """A leader whose parked fetches end after 500 ms. It keeps a session as KIP-227 says."""

    def __init__(self) -> None:
        self.full: list[int] = []  # how many partitions each of the full fetches names
        self.named = 0  # in all others

    async def open(self, *_address: object, **_options: object) -> "EndingLeader":
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self

    def request(self, request: FetchRequest, done: Done) -> None:
        if request.session_epoch == 0:
            self.full.append(len(asked_in(request)))
        else:
            self.named += len(asked_in(request))
        response = FetchResponse(session_id=request.session_id or len(self.full))
        asyncio.get_running_loop().call_later(0.5, done, response)

    async def close(self) -> None:
        pass


@pytest.mark.jumping_time
@pytest.mark.parametrize("count", [100, 1_000])
async def test_partitions_that_come_one_by_one_do_not_begin_a_session_each(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """All sessions that begin anew name a hundred partitions a second, however many there are."""
    leader = EndingLeader()
    monkeypatch.setattr(KafkaConnection, "open", leader.open)
    fetches, followed = fetcher(), follow(count)
    for there_are in range(1, count + 1):
        fetches.set_followed(followed[:there_are])
        await asyncio.sleep(0.02)
    await asyncio.sleep(1)
    assert len(fetches._session.asked) == count
    assert sum(leader.full) < 3 * count
    assert leader.named < 2 * count
    await fetches.stop()


@pytest.mark.usefixtures("idle")
async def test_only_what_has_changed_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches, followed = fetcher(), follow(9)
    fetches.set_followed(followed)
    fetches._request(fetches._session, monotonic_ms())
    fetches._session.answered(0, 7)
    touched: list[int] = []
    monkeypatch.setattr(fetches._session, "touch", lambda key: touched.append(key[1]))
    newer = FollowedPartition(followed[3].driver, Epoch(1))
    fetches.set_followed([*followed[:3], newer, *followed[4:8]])
    assert touched == [3, 8]  # one of another epoch, and one that is gone


@pytest.mark.usefixtures("idle")
async def test_an_answer_of_many_partitions_is_taken_in_several_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is followed in a newer epoch meanwhile is left out, and asked for again."""
    taken: list[int] = []

    def note(one: FollowedPartition, *_asked: object, **_options: object) -> None:
        taken.append(one.driver.topic_partition.partition)

    monkeypatch.setattr(replica_fetcher, "take_answer", note)
    fetches, count = fetcher(), 2 * TAKEN_AT_ONCE + 5
    followed = follow(count)
    fetches.set_followed(followed)
    assert asked_in(fetches._request(fetches._session, monotonic_ms())) == [*range(count)]
    fetches._session.answered(0, 7)
    topics = [
        FetchableTopicResponse(
            topic_id=TOPIC_ID,
            partitions=[PartitionData(partition_index=index) for index in indexes],
        )
        for indexes in (range(5), range(5, count))
    ]
    turns = [0]
    taking = asyncio.ensure_future(fetches._take(fetches._session, FetchResponse(responses=topics)))
    while not taking.done():
        await asyncio.sleep(0)
        turns.append(len(taken))
        if len(taken) == TAKEN_AT_ONCE:
            newer = FollowedPartition(followed[-1].driver, Epoch(1))
            fetches.set_followed([*followed[:-1], newer])
    assert max(after - before for before, after in pairwise(turns)) == TAKEN_AT_ONCE
    assert taken == [*range(count - 1)]
    assert asked_in(fetches._request(fetches._session, monotonic_ms())) == [count - 1]


LANE = 3


class FakeFetcher:
    """Notes what it is to follow_new."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.followed: list[PartitionDriver] = []
        self.sets = self.wakes = 0
        self.touched: list[PartitionDriver] = []
        self.is_stopped = False

    def set_followed(self, followed: Any) -> None:
        self.sets += 1
        self.followed = [one.driver for one in cast("list[FollowedPartition]", list(followed))]

    def wake(self) -> None:
        self.wakes += 1

    def touch(self, driver: PartitionDriver) -> None:
        self.touched.append(driver)

    async def stop(self) -> None:
        self.is_stopped = True


class Fetchers:
    """The fetchers of a broker, in lanes of three; leaders 2 and 3 are at known addresses."""

    def __init__(self) -> None:
        self.made: list[FakeFetcher] = []
        self.fetchers = ReplicaFetchers(cast(Any, self.make), {})
        brokers = {
            BrokerId(leader): SimpleNamespace(broker_id=leader, host="localhost", port=leader)
            for leader in (2, 3)
        }
        self.image = cast(ClusterImage, SimpleNamespace(brokers=brokers))

    def make(self, address: tuple[str, int]) -> FakeFetcher:
        self.made.append(FakeFetcher(address))
        return self.made[-1]


class Driver:
    """As much of a replica as is looked at: itself."""


def follow_new(fetchers: ReplicaFetchers, leader: int, count: int) -> list[PartitionDriver]:
    drivers = [cast(PartitionDriver, Driver()) for _ in range(count)]
    for driver in drivers:
        fetchers.follow(driver, BrokerId(leader), Epoch(0))
    return drivers


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Fetchers:
    monkeypatch.setattr(replica_fetchers, "LANE_PARTITIONS", LANE)
    return Fetchers()


async def test_a_new_partition_disturbs_only_the_lane_that_gets_it(given: Fetchers) -> None:
    old = follow_new(given.fetchers, 2, 2 * LANE)
    given.fetchers.publish(given.image)
    assert [fetcher.followed for fetcher in given.made] == [old[:LANE], old[LANE:]]
    [new] = follow_new(given.fetchers, 2, 1)
    [other] = follow_new(given.fetchers, 3, 1)
    given.fetchers.publish(given.image)
    assert [fetcher.followed for fetcher in given.made[2:]] == [[new], [other]]
    assert [fetcher.sets for fetcher in given.made] == [1, 1, 1, 1]
    given.fetchers.follow(old[0], BrokerId(2), Epoch(1))  # it keeps its lane
    given.fetchers.publish(given.image)
    assert [fetcher.sets for fetcher in given.made] == [2, 1, 1, 1]


async def test_a_partition_that_goes_makes_room_in_its_lane_or_ends_it(given: Fetchers) -> None:
    old = follow_new(given.fetchers, 2, 2 * LANE)
    given.fetchers.publish(given.image)
    given.fetchers.unfollow(old[0])
    [new] = follow_new(given.fetchers, 2, 1)
    given.fetchers.publish(given.image)
    assert [fetcher.followed for fetcher in given.made] == [[*old[1:LANE], new], old[LANE:]]
    given.fetchers.touch(new)
    assert [fetcher.touched for fetcher in given.made] == [[new], []]
    given.fetchers.unfollow(new)
    for driver in old[1:LANE]:
        given.fetchers.unfollow(driver)
    given.fetchers.publish(given.image)
    assert len(given.fetchers._fetchers) == 1  # a lane that is empty fetches no more
    await given.fetchers.stop()
    assert [fetcher.is_stopped for fetcher in given.made] == [True, True]
    assert len(given.fetchers._fetchers) == 0
    follow_new(given.fetchers, 3, 1)
    given.fetchers.resume()  # by the end of disk work, while the broker stops
    assert len(given.fetchers._fetchers) == 0


async def test_a_change_between_two_images_is_applied_by_the_last_one(given: Fetchers) -> None:
    given.fetchers.publish(given.image)
    [driver] = follow_new(given.fetchers, 3, 1)
    given.fetchers.resume()
    assert [(fetcher.followed, fetcher.wakes) for fetcher in given.made] == [([driver], 1)]
