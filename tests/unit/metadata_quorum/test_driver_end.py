"""A driver whose write fails, lasts or finds no room, and one that ends."""

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.controller_requests import AllocateProducerIds
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.driver.dependencies import DriverDependencies, NotController, Stopped
from quorumlog.metadata_quorum.driver.driver import INBOX_FACTS_MAX, Driver
from quorumlog.metadata_quorum.driver.patience import PatientExecutor
from quorumlog.metadata_quorum.io.metadata_quorum import DiskThreads, EventLoopClock
from quorumlog.metadata_quorum.log import metadata_log
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.log.snapshot_files import SnapshotFiles
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.disk import keep_reserve
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import (
    Claims,
    Network,
    NoThreads,
    ask,
    call,
    codes,
    create,
    register,
    until,
)
from tests.support.metadata_quorum.quorums import fetch_request, fetch_response, vote_response
from tests.support.storage.crashes import fail_on

SAVE = effects.PersistElection(
    leader_epoch=Epoch(1),
    leader_id=BrokerId(-1),
    voted_id=BrokerId(1),
    is_new=False,
    voted_directory_id=None,
    was_voter=False,
)
LEAD = effects.BecomeLeader(leader_epoch=Epoch(1), epoch_start_offset=Offset(0))
FLUSH = effects.FlushLog(log_end_offset=Offset(1))
IDS = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=0)
FETCH = fetch_request(epoch=1, offset=0, last_epoch=0)


class IdleQuorum:
    """Orders nothing, whatever happens, but what it is given; keeps what it was told."""

    node_id = BrokerId(1)
    flushes_log = True
    resignation_pending = False

    def __init__(self, *orders: effects.Effect) -> None:
        self.orders = list(orders)
        self.events: list[events.Event] = []

    def step(self, now_ms: int, event: events.Event) -> list[effects.Effect]:
        self.events.append(event)
        orders, self.orders = self.orders, []
        return orders

    def next_deadline_ms(self) -> None:
        return None

    def voters_at(self, end_offset: Offset) -> None:
        return None


class DoneLater:
    """An Executor that keeps what the end of each work is to call, and does no work."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[Any], None]] = []

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append(done)


def driver_of(quorum: IdleQuorum, *, failed: Any = None, **parts: Any) -> Driver:
    log = SimpleNamespace(
        end_offset=Offset(0),
        flushed_offset=Offset(0),
        start=None,
        epoch_starts=lambda: (),
        flush=parts.pop("flush", None),
    )
    committed = SimpleNamespace(
        restored_id=None, restored_voter_sets=(), lead_by=lambda *_: None, is_behind=False
    )
    elections = parts.pop("elections", SimpleNamespace(save=lambda election: None))
    return Driver(
        quorum=cast(Any, quorum),
        log=cast(Any, log),
        elections=cast(Any, elections),
        committed=cast(Any, committed),
        settings=ControllerSettings(),
        dependencies=DriverDependencies(
            clock=EventLoopClock(),
            executor=parts.pop("executor", DoneLater()),
            transport=parts.pop("transport", None),
            leader_listener=Claims(),
            random_bytes=bytes,
            failed=failed,
        ),
    )


def started(quorum: IdleQuorum, **parts: Any) -> Driver:
    driver = driver_of(quorum, **parts)
    driver.start(Election())
    return driver


async def test_a_failed_flush_ends_the_node() -> None:
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def fail() -> Offset:
        raise StorageError("cannot flush")

    threads = DiskThreads(failure.set_result)
    started(IdleQuorum(FLUSH), executor=threads, flush=fail)
    async with asyncio.timeout(30):
        assert isinstance(await failure, StorageError)
    await threads.close()


async def test_an_error_of_the_core_ends_the_driver_and_is_reported_once() -> None:
    class Broken(IdleQuorum):
        def step(self, now_ms: int, event: events.Event) -> list[effects.Effect]:
            raise ZeroDivisionError

    failures: list[BaseException] = []
    driver = started(Broken(), failed=failures.append)
    driver.feed(events.Ticked())
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    with pytest.raises(Stopped):
        await call(driver, FETCH)


async def test_a_write_that_is_under_way_ends_before_its_threads_do() -> None:
    """The log is closed when they have ended."""
    begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def save(election: Election) -> None:
        begun.set()
        assert may_end.wait(30)
        has_ended.set()

    threads = DiskThreads(lambda error: None)
    driver = started(IdleQuorum(SAVE), executor=threads, elections=SimpleNamespace(save=save))
    assert await asyncio.to_thread(begun.wait, 30)
    driver.stop()
    closing = asyncio.create_task(threads.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    may_end.set()
    await closing
    assert has_ended.is_set()


async def test_nothing_is_taken_in_while_a_write_is_under_way() -> None:
    quorum, threads = IdleQuorum(SAVE), DoneLater()
    driver = started(quorum, executor=threads)
    driver.feed(events.Ticked())
    assert len(quorum.events) == 1
    [done] = threads.waiting
    done(None)
    fed = [type(event) for event in quorum.events]
    assert fed == [events.Started, events.WriteEnded, events.Ticked]


async def test_a_request_that_comes_before_the_start_waits_for_it() -> None:
    quorum = IdleQuorum()
    driver = driver_of(quorum)
    waiting = asyncio.create_task(call(driver, FETCH))
    await asyncio.sleep(0)
    assert quorum.events == []
    driver.start(Election())
    assert [type(event) for event in quorum.events] == [events.Started, events.RequestReceived]
    driver.stop()
    with pytest.raises(Stopped):
        await waiting


async def check_no_resignation(driver: Driver) -> None:
    known = asyncio.get_running_loop().create_future()
    driver.resign(known)
    with pytest.raises(Stopped):
        await known


async def test_every_request_that_waits_when_it_ends_is_refused() -> None:
    driver = started(IdleQuorum(LEAD, SAVE))
    waiting = [asyncio.create_task(ask(driver, IDS)), asyncio.create_task(call(driver, FETCH))]
    resigned: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    driver.resign(resigned)
    await asyncio.sleep(0)
    driver.stop()
    results = await asyncio.gather(*waiting, resigned, return_exceptions=True)
    assert [type(result) for result in results] == [NotController, Stopped, Stopped]
    with pytest.raises(NotController):
        await ask(driver, IDS)
    await check_no_resignation(driver)


async def test_requests_that_find_no_room_are_refused_and_facts_are_not() -> None:
    quorum = IdleQuorum(LEAD, SAVE)
    driver = started(quorum)
    for _ in range(INBOX_FACTS_MAX):
        driver.feed(events.Ticked())
    with pytest.raises(NotController, match="too many"):
        await ask(driver, IDS)
    with pytest.raises(Stopped):
        await call(driver, FETCH)
    driver.feed(events.Ticked())
    assert len(driver._inbox) == INBOX_FACTS_MAX + 1


async def test_a_peer_that_sends_corrupt_records_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class CorruptPeer:
        def send(self, *_: object, done: Any, **__: object) -> None:
            done((fetch_response(1), bytes(100)))

    sends = [
        effects.SendRequest(
            request_id=request_id, destination=BrokerId(2), request=FETCH, timeout_ms=1000
        )
        for request_id in (1, 2, 3)
    ]
    quorum = IdleQuorum(*sends)
    with caplog.at_level(logging.WARNING):
        started(quorum, transport=CorruptPeer())
    assert quorum.events[1:] == [events.RequestFailed(request_id=n) for n in (1, 2, 3)]
    assert [record.message[:29] for record in caplog.records] == ["node 2 sends corrupt records:"]


# --- full disks: voters refuse and live, and go on by themselves when there is room ---


GRANT = effects.SendResponse(request_id=1, response=vote_response(1, granted=True))


def fill(disk: SimDisk, left_bytes: int = 0) -> None:
    disk.capacity_bytes = disk.bytes_used() + left_bytes


class FullStore:
    """An election store that finds no room at first; keeps what it has saved."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.saved: list[Election] = []

    def save(self, election: Election) -> None:
        if self.refusals:
            self.refusals -= 1
            raise DiskExhausted("no room")
        self.saved.append(election)


def executor(failures: list[BaseException] | None = None) -> NoThreads:
    return NoThreads((failures if failures is not None else []).append)


# --- a write that waits for room ---


@pytest.mark.jumping_time
async def test_a_vote_that_finds_no_room_is_not_answered_before_it_is_written() -> None:
    store, quorum = FullStore(refusals=3), IdleQuorum()
    driver = started(quorum, executor=executor(), elections=store)
    quorum.orders = [SAVE, GRANT]
    with pytest.raises(Stopped):  # the sender asks again
        await call(driver, FETCH)
    assert store.saved == []
    await until(lambda: not driver.has_no_room)
    assert len(store.saved) == 1
    driver.stop()


@pytest.mark.jumping_time
async def test_while_it_waits_all_is_refused_and_nothing_is_decided() -> None:
    store, quorum = FullStore(refusals=5), IdleQuorum(LEAD, SAVE)
    driver = started(quorum, executor=executor(), elections=store)
    early = asyncio.create_task(ask(driver, IDS))  # came before the disk had answered
    await until(lambda: driver.has_no_room)
    with pytest.raises(NotController, match="no room"):
        await early
    with pytest.raises(NotController, match="no room"):
        await ask(driver, IDS)
    with pytest.raises(Stopped):
        await call(driver, FETCH)
    await check_no_resignation(driver)
    driver.feed(events.Ticked())
    assert [type(event) for event in quorum.events] == [events.Started]
    driver.stop()
    await asyncio.sleep(60)
    assert store.saved == []  # it repeats nothing once it has stopped


@pytest.mark.jumping_time
async def test_any_other_error_of_the_disk_ends_the_node() -> None:
    failures: list[BaseException] = []

    def save(_: Election) -> None:
        raise StorageError("input/output error")

    store = SimpleNamespace(save=save)
    driver = started(IdleQuorum(SAVE), executor=executor(failures), elections=store)
    await until(lambda: bool(failures))
    assert isinstance(failures[0], StorageError)
    driver.stop()


@pytest.mark.jumping_time
async def test_what_waits_is_said_when_it_begins_once_a_minute_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    ends_s = asyncio.get_running_loop().time() + 150

    def work() -> str:
        if asyncio.get_running_loop().time() < ends_s:
            raise DiskExhausted("full")
        return "done"

    results: list[str] = []
    patient = PatientExecutor(executor(), EventLoopClock())
    patient.run(work, results.append)
    await until(lambda: bool(results), within_s=600)
    levels = [(record.levelname, "tried again" in record.message) for record in caplog.records]
    assert levels == [("WARNING", True)] * 3 + [("INFO", False)]


# --- whole quorums ---


@pytest.mark.jumping_time
@pytest.mark.parametrize("has_reserve", [True, False])
async def test_a_quorum_on_full_disks_lives_and_goes_on_when_there_is_room(
    has_reserve: bool,
) -> None:
    async with Network(3) as network:
        epoch = await register(network)
        await network.ask(create("before"))
        for voter in network.voters.values():
            if has_reserve:
                keep_reserve(voter.disk, "/data")
            fill(voter.disk)
        leader = await network.leader()
        with pytest.raises(NotController):
            await ask(leader.driver, create("refused"))
        await asyncio.sleep(60)  # many elections: none can be won
        for voter in network.voters.values():
            assert not voter.failure.done()
            voter.disk.capacity_bytes = None
        assert codes(await network.ask(create("after"))) == ["NONE"]
        leader = await network.leader()
        names = {topic.name for topic in leader.seen.image.topics.values()}
        assert names == {"before", "after"}
        assert epoch in {broker.broker_epoch for broker in leader.seen.image.brokers.values()}
        await until(lambda: len({voter.log.end_offset for voter in network.voters.values()}) == 1)


@pytest.mark.jumping_time
async def test_a_follower_without_room_follows_again_when_there_is_some() -> None:
    async with Network(3) as network:
        await register(network)
        leader = await network.leader()
        follower = next(voter for voter in network.voters.values() if voter is not leader)
        fill(follower.disk, 10)
        for number in range(5):
            assert codes(await network.ask(create(f"t{number}"))) == ["NONE"]
        assert not follower.failure.done()
        assert follower.log.end_offset < leader.log.end_offset
        follower.disk.capacity_bytes = None
        await until(lambda: follower.seen.image.end_offset >= leader.seen.image.end_offset)
        assert follower.records() == (await network.leader()).records()


@pytest.mark.jumping_time
async def test_a_leader_without_room_hands_over_to_a_voter_that_has_some() -> None:
    async with Network(3) as network:
        await register(network)
        leader = await network.leader()
        keep_reserve(leader.disk, "/data")
        fill(leader.disk)
        with pytest.raises(NotController, match="no room"):
            await ask(leader.driver, create("a"))
        await until(lambda: not leader.driver.is_active_controller)
        assert codes(await network.ask(create("a"))) == ["NONE"]
        assert (await network.leader()) is not leader
        assert not leader.failure.done()


# --- the log and its files ---


def test_a_decision_of_several_batches_is_in_the_log_as_a_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_log, "RECORDS_PER_BATCH_MAX", 1)
    disk = SimDisk()
    log = MetadataLog.open(disk, "/data")
    log.append([b"first"], Epoch(1), wall_ms=0)
    end_offset, size = log.end_offset, log.size
    fill(disk, 100)  # for one batch
    with pytest.raises(DiskExhausted):
        log.append([b"second", b"third"], Epoch(1), wall_ms=0)
    assert (log.end_offset, log.size) == (end_offset, size)
    disk.capacity_bytes = None
    log.append([b"second", b"third"], Epoch(1), wall_ms=0)
    assert log.end_offset == 3


@pytest.mark.parametrize("step", ["open", "fsync", "rename", "fsync_dir"])
def test_the_install_of_a_snapshot_may_be_repeated_after_each_of_its_steps(step: str) -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    snapshots = SnapshotFiles(disk, "/data")
    snapshot_id = SnapshotId(Offset(3), Epoch(1))
    snapshots.append_fetched(snapshot_id, 0, b"content")
    disk.on_operation = fail_on(step, code=errno.ENOSPC)
    with pytest.raises(DiskExhausted):
        snapshots.install_fetched(snapshot_id)
    disk.on_operation = None
    snapshots.install_fetched(snapshot_id)
    assert snapshots.ids() == [snapshot_id]


def test_votes_are_written_on_a_full_disk() -> None:
    """The first one needs the reserve, the later ones take its place."""
    disk = SimDisk()
    disk.mkdir("/data/__cluster_metadata-0")
    store = ElectionStore(disk, "/data/__cluster_metadata-0")
    fill(disk)
    with pytest.raises(DiskExhausted):
        store.save(Election(leader_epoch=Epoch(1)))
    disk.capacity_bytes = None
    keep_reserve(disk, "/data")
    fill(disk)
    for epoch in range(100):
        store.save(Election(leader_epoch=Epoch(epoch)))
    disk.unlink("/data/.reserve")
    fill(disk)
    store.save(Election(leader_epoch=Epoch(100)))
    assert store.load().leader_epoch == 100
