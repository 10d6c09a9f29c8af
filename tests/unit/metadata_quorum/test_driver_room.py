"""Voters whose disk is full: they refuse and live, and go on by themselves when there is room."""

import asyncio
import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import SnapshotId, VoteResponse
from quorumlog.metadata_quorum.driver.patience import PatientExecutor
from quorumlog.metadata_quorum.driver.seams import NotController, Stopped
from quorumlog.metadata_quorum.io.metadata_quorum import EventLoopClock
from quorumlog.metadata_quorum.log import metadata_log
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.log.snapshot_files import SnapshotFiles
from quorumlog.storage.errors import DiskExhausted, StorageError
from quorumlog.storage.io.reserve import keep_reserve
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import Network, NoThreads, ask, call, until
from tests.support.metadata_quorum.quorums import fetch_request
from tests.unit.metadata_quorum.test_driver_commits import codes, create, register
from tests.unit.metadata_quorum.test_driver_end import IDS, LEAD, SAVE, IdleQuorum, driver_of

GRANT = effects.SendResponse(
    request_id=1,
    response=VoteResponse(
        error_code=ErrorCode.NONE, leader_id=BrokerId(-1), leader_epoch=Epoch(1), vote_granted=True
    ),
)


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
    driver = driver_of(quorum, executor=executor(), elections=store)
    driver.start(Election())
    quorum.orders = [SAVE, GRANT]
    vote = asyncio.create_task(call(driver, fetch_request(epoch=1, offset=0, last_epoch=0)))
    await until(vote.done)
    with pytest.raises(Stopped):  # the sender asks again
        await vote
    assert store.saved == []
    await until(lambda: not driver.has_no_room)
    assert len(store.saved) == 1
    driver.stop()


@pytest.mark.jumping_time
async def test_while_it_waits_all_is_refused_and_nothing_is_decided() -> None:
    store, quorum = FullStore(refusals=5), IdleQuorum(LEAD, SAVE)
    driver = driver_of(quorum, executor=executor(), elections=store)
    driver.start(Election())
    early = asyncio.create_task(ask(driver, IDS))  # came before the disk had answered
    await until(lambda: driver.has_no_room)
    with pytest.raises(NotController, match="no room"):
        await early
    with pytest.raises(NotController, match="no room"):
        await ask(driver, IDS)
    with pytest.raises(Stopped):
        await call(driver, fetch_request(epoch=1, offset=0, last_epoch=0))
    known = asyncio.get_running_loop().create_future()
    driver.resign(known)
    with pytest.raises(Stopped):
        await known
    driver.feed(events.Ticked())
    assert [type(event) for event in quorum.events] == [events.Started]
    assert store.saved == []
    driver.stop()


@pytest.mark.jumping_time
async def test_a_driver_that_stops_repeats_nothing() -> None:
    store = FullStore(refusals=1)
    driver = driver_of(IdleQuorum(SAVE), executor=executor(), elections=store)
    driver.start(Election())
    await until(lambda: driver.has_no_room)
    driver.stop()
    await asyncio.sleep(60)
    assert store.saved == []


@pytest.mark.jumping_time
async def test_any_other_error_of_the_disk_ends_the_node() -> None:
    failures: list[BaseException] = []

    def save(_: Election) -> None:
        raise StorageError("input/output error")

    store = SimpleNamespace(save=save)
    driver = driver_of(IdleQuorum(SAVE), executor=executor(failures), elections=store)
    driver.start(Election())
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
        await asyncio.sleep(300)  # many elections: none can be won
        for voter in network.voters.values():
            assert not voter.failure.done()
            voter.disk.capacity_bytes = None
        reply = await network.ask(create("after"))
        assert codes(reply) == [ErrorCode.NONE]
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
            assert codes(await network.ask(create(f"t{number}"))) == [ErrorCode.NONE]
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
        assert codes(await network.ask(create("a"))) == [ErrorCode.NONE]
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

    def fail(operation: str, path: str) -> None:
        if operation == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    disk.on_operation = fail
    with pytest.raises(DiskExhausted):
        snapshots.install_fetched(snapshot_id)
    disk.on_operation = None
    snapshots.install_fetched(snapshot_id)
    assert snapshots.ids() == [snapshot_id]


def saves(save: Callable[[], Any]) -> bool:
    try:
        save()
    except DiskExhausted:
        return False
    return True


def test_votes_are_written_on_a_full_disk() -> None:
    """The first one needs the reserve, the later ones take its place."""
    disk = SimDisk()
    disk.mkdir("/data/__cluster_metadata-0")
    store = ElectionStore(disk, "/data/__cluster_metadata-0")
    fill(disk)
    assert not saves(lambda: store.save(Election(leader_epoch=Epoch(1))))
    disk.capacity_bytes = None
    keep_reserve(disk, "/data")
    fill(disk)
    for epoch in range(100):
        store.save(Election(leader_epoch=Epoch(epoch)))
    disk.unlink("/data/.reserve")
    fill(disk)
    store.save(Election(leader_epoch=Epoch(100)))
    assert store.load().leader_epoch == 100
