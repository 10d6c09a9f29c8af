"""A wall clock that is advanced by days: everything that ages by it ages; no session ends."""

import asyncio
from pathlib import Path

import pytest

from quorumlog import clock
from quorumlog.advances import AHEAD_MS_MAX, Advance, Advances
from quorumlog.broker.coordination.core import events
from quorumlog.broker.partitions.core.admission import topic_limits
from quorumlog.broker.partitions.io.requested_passes import Refused
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.settings.kinds import LONG_MAX
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.retention import aged_ms
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.one_broker import AT, append, one_broker, publish
from tests.support.broker.replicas import image
from tests.support.coordination.groups_begun import consumers, leading
from tests.support.coordination.transactions_begun import begun, opened
from tests.support.groups.consumer.coordination import heartbeat
from tests.support.groups.coordination import Coordination, beat, commit, join
from tests.support.transactions.coordination import T0

DAY_MS = 86_400_000
ALONE = image(1, 0, 0, (1,), replicas=(1,))


@pytest.fixture
def advances(monkeypatch: pytest.MonkeyPatch) -> Advances:
    """The advances of a process of this test's own."""
    made = Advances()
    monkeypatch.setattr(clock, "advances", lambda: made)
    return made


# --- the clock ---


def test_a_list_of_advances_is_continued_and_never_taken_back(advances: Advances) -> None:
    first, second = Advance(1000, 5), Advance(2000, 7)
    before_ms = clock.wall_clock_ms()
    assert advances.extend((first,)) == 5
    assert advances.extend((first, second)) == 7
    assert advances.extend((first, second)) == 0  # sent again
    assert advances.ahead_ms == 12
    assert 12 <= clock.wall_clock_ms() - before_ms < 12 + 60_000
    assert clock.machine_clock_ms() - before_ms < 60_000
    for shorter in ((), (first,), (second,)):
        with pytest.raises(ValueError, match="cannot go back"):
            advances.extend(shorter)
    assert advances.made == (first, second)


@pytest.mark.parametrize("by_ms", [0, -1, AHEAD_MS_MAX + 1, 1 << 63])
def test_no_advance_goes_back_or_beyond_a_hundred_years(advances: Advances, by_ms: int) -> None:
    with pytest.raises(ValueError, match=r"forwards|100 years"):
        advances.extend((Advance(1000, by_ms),))
    assert (advances.made, advances.ahead_ms) == ((), 0)


@pytest.mark.parametrize(
    ("newest_ms", "written_ms", "expected"),
    [
        (900, 999, 900),  # before both advances: it ages by both
        (5000, 999, 5000),  # from the future
        (1500, 1500, 1510),  # between them: it ages by the second alone
        (2500, 2500, 2610),  # after both: it does not age
        (1000, 2500, 1110),  # a record that was old at its write
        (2610, 2500, 2610),  # the time of a broker or a client that was advanced, too
    ],
)
def test_a_segment_ages_by_the_advances_after_its_write(
    newest_ms: int, written_ms: int, expected: int
) -> None:
    made = (Advance(1000, 10), Advance(2000, 100))
    assert aged_ms(newest_ms, written_ms, made) == expected
    assert aged_ms(newest_ms, written_ms, ()) == newest_ms


def test_records_of_clients_that_were_not_advanced_are_within_the_limits() -> None:
    config = TopicConfig({"message.timestamp.before.max.ms": "1000"}, {})
    limits = topic_limits(config, is_internal=False)
    assert limits.behind(0) == limits
    assert limits.behind(500).timestamp_before_max_ms == 1500
    unlimited = topic_limits(TopicConfig({}, {}), is_internal=False)
    assert unlimited.behind(AHEAD_MS_MAX).timestamp_before_max_ms == LONG_MAX


# --- groups and transactions ---


def test_offsets_of_an_empty_group_expire_and_younger_ones_stay() -> None:
    groups = Coordination()
    groups.answer(commit(1))
    groups.advance(59_999)  # offsets.retention.minutes is 1
    assert not groups.writes
    groups.advance(1)
    groups.commit_writes()
    assert groups.coordinator.known_groups() == []
    groups.answer(commit(2))
    groups.advance(30_000)
    assert groups.coordinator.known_groups() == ["g"]


def test_no_member_leaves_and_all_deadlines_last_as_long_as_before() -> None:
    groups = Coordination()
    generation_id = groups.stable("a", "b")
    groups.tick(600)
    groups.advance(365 * DAY_MS)
    assert groups.answer(beat("a", generation_id)) is ErrorCode.NONE
    groups.tick(399)
    assert [*groups.coordinator.groups["g"].members] == ["a", "b"]
    groups.tick(1)  # `b` has been silent for its session timeout of 1 s
    assert [*groups.coordinator.groups["g"].members] == ["a"]


def test_a_rebalance_lasts_as_long_as_before() -> None:
    groups = Coordination()
    waiting = groups.ask(join("", new_member_id="a"))
    groups.tick(99)  # group.initial.rebalance.delay.ms is 100
    groups.advance(DAY_MS)
    assert waiting not in groups.replies
    groups.tick(1)
    assert groups.replies[waiting].generation_id == 1


def test_no_member_of_a_consumer_group_leaves() -> None:
    groups = consumers("a")
    groups.tick(600)
    groups.advance(365 * DAY_MS)
    groups.tick(399)
    assert not groups.writes
    assert [*groups.group.members] == ["a"]
    groups.beat(heartbeat("a", 1))
    groups.tick(1000)
    assert groups.writes


def test_sessions_begin_once_a_coordinator_has_loaded() -> None:
    groups = Coordination()
    groups.stable("a")
    loading = Coordination(batches=groups.batches, now_ms=groups.now_ms)
    loading.shard._begin_to_load(loading.now_ms)
    loading.advance(DAY_MS)
    assert loading.reading is not None  # the advance is no reason to wait for a tick
    offset, loading.reading = loading.reading, None
    loading.step(events.LogRead(read=loading.read(offset)))
    loading.load()
    loading.tick(999)
    assert [*loading.coordinator.groups["g"].members] == ["a"]
    loading.tick(1)
    assert not loading.coordinator.groups["g"].members


def test_a_transaction_passes_its_timeout_and_ends() -> None:
    transactions, _ = opened(T0)
    transactions.advance(9_999)
    assert not transactions.writes
    transactions.advance(1)  # transaction.timeout.ms is 10 s
    transactions.commit_writes()
    assert transactions.state is TransactionState.PREPARE_ABORT


def test_an_idle_transactional_id_expires() -> None:
    transactions, _ = begun()
    transactions.advance(1_000_000)  # transactional.id.expiration.ms
    transactions.commit_writes()
    assert transactions.coordinator.transactions == {}


@pytest.mark.jumping_time
async def test_the_timers_of_a_broker_follow_an_advance() -> None:
    async with leading() as world:
        await world.commit(1)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        world.service.advance(8 * DAY_MS)  # offsets.retention.minutes: 7 days
        assert await world.service.expire() in ({}, {"g": 1})  # the advance has deleted it, perhaps
        assert world.offset() is None
        assert loop.time() - began_s < 1
        await world.commit(2)
        assert await world.service.expire() == {}
        assert world.offset() == 2


# --- logs ---


def now_ms() -> int:
    return clock.machine_clock_ms()


def keyed(key: str, timestamp_ms: int) -> bytes:
    return encode_batch([Record(0, timestamp_ms, key.encode(), b"value")])


async def test_retention_deletes_the_records_before_an_advance(
    tmp_path: Path, advances: Advances
) -> None:
    async with one_broker(tmp_path) as replicas:
        publish(replicas, ALONE, retention_ms=str(DAY_MS))
        append(replicas, records=keyed("k", now_ms()))
        await replicas.passes.roll_all()
        advances.extend((Advance(now_ms() + 1, 2 * DAY_MS),))
        assert await replicas.passes.age() == {
            "orders-0": {"records": 1, "segments": 1, "bytes": len(keyed("k", 1))}
        }
        log = replicas.drivers[AT].log
        assert (log.log_start_offset, log.log_end_offset) == (1, 1)
        await asyncio.sleep(0.01)  # files have the time of the system's last tick
        append(replicas, records=keyed("k", now_ms()))
        assert await replicas.passes.apply_retention("orders") == {}
        assert (log.log_start_offset, log.log_end_offset) == (1, 2)


async def test_compaction_on_request_reaches_the_newest_records(
    tmp_path: Path, advances: Advances
) -> None:
    async with one_broker(tmp_path, log_settings=LogSettings(cleanup_policy="compact")) as replicas:
        publish(replicas, ALONE, cleanup_policy="compact", min_compaction_lag_ms=str(DAY_MS))
        for _ in range(3):
            append(replicas, records=keyed("k", now_ms()))
        assert await replicas.passes.compact("orders") == {}  # too young
        advances.extend((Advance(now_ms() + 1, 2 * DAY_MS),))
        report = await replicas.passes.compact("orders")
        assert report["orders-0"]["records"] == 2
        assert await replicas.passes.compact("orders") == {}


async def test_a_producer_id_expires(tmp_path: Path, advances: Advances) -> None:
    async with one_broker(tmp_path) as replicas:
        publish(replicas, ALONE)
        batch = encode_batch(
            [Record(0, now_ms(), b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0
        )
        append(replicas, records=batch)
        await replicas.passes.age()
        assert replicas.drivers[AT].producers.describe(7) is not None
        advances.extend((Advance(now_ms(), 2 * DAY_MS),))
        await replicas.passes.age()
        assert replicas.drivers[AT].producers.describe(7) is None


async def test_a_producer_id_is_not_older_after_a_crash(tmp_path: Path, advances: Advances) -> None:
    """Its batches have the times of its client's clock, which no advance moves."""
    advances.extend((Advance(now_ms(), 8 * DAY_MS),))
    batch = encode_batch(
        [Record(0, now_ms(), b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0
    )
    async with one_broker(tmp_path) as replicas:
        publish(replicas, ALONE)
        append(replicas, records=batch)
    for snapshot in tmp_path.rglob("*.snapshot"):
        snapshot.unlink()  # as after a crash: the log is read
    async with one_broker(tmp_path) as replicas:
        publish(replicas, ALONE)
        await replicas.passes.age()
        assert append(replicas, records=batch).base_offset == 0, "a repeated batch is a duplicate"
        assert replicas.drivers[AT].log.log_end_offset == 1
        advances.extend((*advances.made, Advance(now_ms(), 2 * DAY_MS)))
        await replicas.passes.age()
        assert replicas.drivers[AT].producers.describe(7) is None


async def test_a_pass_over_the_wrong_topic_is_refused(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        publish(replicas, ALONE)
        passes = replicas.passes
        with pytest.raises(Refused, match="no topic order; did you mean orders"):
            await passes.compact("order")
        with pytest.raises(Refused, match=r"topic orders has cleanup\.policy=delete"):
            await passes.compact("orders")
        publish(replicas, ALONE, cleanup_policy="compact")
        with pytest.raises(Refused, match=r"topic orders has cleanup\.policy=compact"):
            await passes.apply_retention("orders")
