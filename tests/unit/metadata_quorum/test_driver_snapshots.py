"""Voters that write snapshots while they work, start from them, and send them to others."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from quorumlog.chaos.simulation.kernel import sim_disk
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.driver import committed_image
from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage, difference
from quorumlog.metadata_quorum.image.records import NoOp, ProducerIds, encode_record
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.log import snapshot_files
from quorumlog.metadata_quorum.log.log_end import FILE_NAME
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.log.restored_image import restored_image
from quorumlog.metadata_quorum.log.snapshot_files import SnapshotFiles
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.errors import DamagedLog, StorageError
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import (
    Network,
    Seen,
    Voter,
    caught_up,
    content,
    create,
    register,
    until,
    work,
)
from tests.support.storage.crashes import fail_on, lose_power_at

OFTEN = ControllerSettings(
    metadata_log_max_record_bytes_between_snapshots=300, broker_session_timeout_ms=10**9
)
WITH_AGE = ControllerSettings(
    metadata_log_max_snapshot_interval_ms=2_000, broker_session_timeout_ms=10**9
)


@pytest.mark.jumping_time
async def test_voters_start_from_their_snapshots_and_see_what_the_others_see() -> None:
    async with Network(3, controller_settings=OFTEN) as network:
        await work(network)
        victim = (await network.follower()).node_id
        disk = await network.kill(victim)
        await work(network, rounds=2)
        voter = network.boot(victim, disk)
        assert restored_image(voter.log) is not None
        await caught_up(network)
        for one in network.voters.values():
            for snapshot_id in one.log.snapshots.ids():
                assert snapshot_id.end_offset <= one.log.flushed_offset
                assert snapshot_id.end_offset <= one.quorum.state.log.high_watermark
        read = voter.log.replayed_bytes
        assert read < (await network.leader()).log.replayed_bytes  # it has not read what is old


@pytest.mark.jumping_time
async def test_a_snapshot_comes_with_time_too() -> None:
    async with Network(1, controller_settings=WITH_AGE) as network:
        voter = network.voters[1]
        assert voter.log.snapshots.ids() == []
        await register(network)
        for number in range(5):  # commits do not put it off
            await network.ask(create(f"t{number}"))
            await asyncio.sleep(0.5)
        [snapshot_id] = voter.log.snapshots.ids()
        assert snapshot_id.end_offset < voter.quorum.state.log.high_watermark


async def deposed(network: Network, follower: Voter) -> None:
    """Kill the leader; the outcome of the follower's next election write waits."""
    follower.threads.hold("save")
    before = follower.threads.held
    await network.kill((await network.leader()).node_id)
    await until(lambda: follower.threads.held > before)


@pytest.mark.jumping_time
async def test_a_snapshot_that_is_due_by_its_age_waits_for_the_write_under_way() -> None:
    settings = replace(WITH_AGE, metadata_log_max_snapshot_interval_ms=60_000)
    async with Network(3, controller_settings=settings) as network:
        await work(network)
        follower = await network.follower()
        await deposed(network, follower)
        await asyncio.sleep(100)  # the age comes
        assert follower.log.snapshots.ids() == []
        follower.threads.release("save")
        await until(lambda: follower.log.snapshots.ids() != [])
        assert not follower.failure.done()


@pytest.mark.jumping_time
async def test_a_snapshot_after_another_waits_for_the_write_under_way() -> None:
    async with Network(3, controller_settings=OFTEN) as network:
        follower = await network.follower()
        follower.threads.hold("_tried")
        await work(network)
        await until(lambda: follower.threads.held > 0)
        [first] = follower.log.snapshots.ids()
        await deposed(network, follower)
        follower.threads.release("_tried")  # another one is due since long
        assert follower.log.snapshots.ids() == [first]
        follower.threads.release("save")
        await until(lambda: follower.log.snapshots.ids()[0] != first)
        assert not follower.failure.done()


@pytest.mark.jumping_time
async def test_an_observer_flushes_for_its_snapshots_and_cuts_its_log() -> None:
    settings = replace(OFTEN, metadata_log_segment_bytes=400, metadata_max_retention_bytes=500)
    async with Network(1, controller_settings=settings) as network:
        observer = network.boot(7)
        await work(network)
        await until(lambda: observer.log.start_offset > 0)
        [newest, *_] = observer.log.snapshots.ids()
        assert newest.end_offset <= observer.log.flushed_offset
        assert newest.end_offset <= observer.quorum.state.log.high_watermark
        disk = await network.kill(7)
        disk.crash(random.Random(1))
        again = network.boot(7, disk)
        assert again.log.end_offset >= newest.end_offset
        await caught_up(network)


@pytest.mark.jumping_time
async def test_an_observer_whose_flush_has_failed_ends_with_its_next_append(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Network(1, controller_settings=OFTEN) as network:
        disk = SimDisk()
        observer = network.boot(7, disk)
        disk.on_operation = fail_on("fsync", ".log")
        await work(network)
        await until(observer.failure.done)
        assert isinstance(observer.failure.result(), StorageError)
        assert "no snapshot of the metadata" in caplog.text  # that was the flush
        assert observer.log.end_offset < network.voters[1].log.end_offset


@pytest.mark.jumping_time
async def test_a_voter_waits_for_the_flush_before_its_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Network(3, controller_settings=OFTEN) as network:
        leader = await network.leader()
        await until(lambda: leader.log.flushed_offset == leader.log.end_offset)
        flushed_offset = leader.log.flushed_offset

        def flush() -> Offset:
            return flushed_offset

        leader.threads.hold("flush")
        monkeypatch.setattr(leader.log, "flush", flush)
        await work(network)  # the other two are a majority
        assert leader.committed.image.end_offset > flushed_offset
        await asyncio.sleep(10)
        assert all(one.end_offset <= flushed_offset for one in leader.log.snapshots.ids())
        assert not leader.failure.done()


@pytest.mark.jumping_time
async def test_a_full_disk_costs_a_snapshot_and_not_the_node(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = snapshot_files._fill

    def full(draft: snapshot_files._Draft, *rest: Any) -> bool:
        draft.append([(None, b"the first batch")], is_control=False)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot_files, "_fill", full)
    async with Network(1, controller_settings=OFTEN) as network:
        voter = network.voters[1]
        await work(network)
        assert "No space left" in caplog.text
        assert voter.log.snapshots.ids() == []
        assert not drafts(voter.disk)
        monkeypatch.setattr(snapshot_files, "_fill", fill)
        await work(network)
        assert voter.log.snapshots.ids() != []
        assert not voter.failure.done()


def log_of(next_ids: Sequence[int], *, disk: SimDisk) -> MetadataLog:
    """Open a log with a durable record of epoch 1 for each of these producer ids."""
    log = MetadataLog.open(disk, "/data")
    for number in next_ids:
        record = ProducerIds(broker_id=BrokerId(1), broker_epoch=0, next_producer_id=number)
        log.append([encode_record(record)], Epoch(1), wall_ms=0)
    log.flush()
    return log


def drafts(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir(f"/data/{DIRECTORY}") if name.endswith(".part")]


def after_power_loss(write: int) -> tuple[bool, ClusterImage | None]:
    """Lose power at the n-th write of a snapshot; return whether it came to that, and the start."""
    disk = SimDisk()
    log = log_of(range(1, 6), disk=disk)

    def snapshot(number: int) -> None:
        image = ClusterImage(next_producer_id=number)
        snapshot_id = SnapshotId(Offset(number), Epoch(1))
        log.snapshots.write(snapshot_id, records_of(image), last_time_ms=0)

    snapshot(1)
    snapshot(2)
    has_failed = lose_power_at(disk, write, partial(snapshot, 4))
    disk.crash(random.Random(write))
    restored = restored_image(MetadataLog.open(disk, "/data"))
    assert not drafts(disk)
    return has_failed, restored


def survives_power_loss() -> bool:
    """Tell whether there is the old snapshot or the new one after power loss at any write."""
    for write in range(100):
        has_failed, restored = after_power_loss(write)
        if restored is None or restored.next_producer_id != restored.end_offset:
            return False
        if restored.end_offset not in ({2, 4} if has_failed else {4}):
            return False
        if not has_failed:
            return write > 6
    return False


def test_power_loss_leaves_the_old_snapshot_or_the_new_one() -> None:
    assert survives_power_loss()


@pytest.mark.parametrize("lazy", ["SimFile.fsync", "SimDisk.fsync_dir"])
def test_a_snapshot_without_an_fsync_is_found(lazy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write = SnapshotFiles.write

    def in_a_hurry(*arguments: Any, **options: Any) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(f"{sim_disk.__name__}.{lazy}", lambda *_: None)
            return write(*arguments, **options)

    monkeypatch.setattr(SnapshotFiles, "write", in_a_hurry)
    assert not survives_power_loss()


# --- voters that are far behind get the leader's snapshot; the log start moves on ---


SMALL = ControllerSettings(
    metadata_log_max_record_bytes_between_snapshots=300,
    metadata_log_segment_bytes=400,
    metadata_max_retention_bytes=500,
    broker_session_timeout_ms=10**9,
)


class Applied(Seen):
    """A publisher that keeps topics by deltas alone, as brokers do."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        self.topics -= delta.deleted_topics.keys()
        self.topics |= {p.topic for p in delta.partitions if p.topic in image.topics}


async def fallen_behind(network: Network) -> tuple[int, SimDisk]:
    """Let a voter miss so much that the others have deleted it; return it, and its disk."""
    await work(network, rounds=2)
    victim = (await network.follower()).node_id
    disk = await network.kill(victim)
    end_offset = max(voter.log.end_offset for voter in network.voters.values())
    await work(network, rounds=8)
    await until(lambda: all(v.log.start_offset > end_offset for v in network.voters.values()))
    return victim, disk


@pytest.mark.jumping_time
@pytest.mark.parametrize("keeps_disk", [True, False])
async def test_a_voter_far_behind_gets_a_snapshot(
    keeps_disk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MetadataLog, "chunk_bytes_max", 100)
    async with Network(3, controller_settings=SMALL) as network:
        victim, disk = await fallen_behind(network)
        voter = network.boot(victim, disk if keeps_disk else None)
        applied = Applied()
        voter.committed.add_publisher(applied)
        await caught_up(network)
        await until(lambda: not voter.elections.load().is_new)  # it votes, even on a new disk
        assert voter.log.start_offset > 0
        assert applied.topics == {*voter.committed.image.topics}
        disk = await network.kill(victim)  # a log that starts with a snapshot starts again
        await work(network, rounds=1)
        voter = network.boot(victim, disk)
        assert voter.log.start is not None
        await caught_up(network)


@pytest.mark.jumping_time
async def test_a_chunk_that_is_damaged_on_its_way_is_fetched_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Network(3, controller_settings=SMALL) as network:
        victim, disk = await fallen_behind(network)
        damaged = 2
        read = SnapshotFiles.read_bytes

        def damage(*args: Any) -> Any:
            nonlocal damaged
            found = read(*args)
            if found is not None and found[1] and args[3] > 10_000 and damaged:
                damaged -= 1
                return found[0], bytes([*found[1][:-9], found[1][-9] ^ 1, *found[1][-8:]])
            return found

        monkeypatch.setattr(SnapshotFiles, "read_bytes", damage)
        network.boot(victim, disk)
        await caught_up(network)
        assert damaged == 0
        assert "is fetched anew" in caplog.text


@pytest.mark.jumping_time
@pytest.mark.parametrize("forgets", [False, True])
async def test_a_running_node_that_was_cut_off_learns_of_deletions(
    forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(before: ClusterImage, after: ClusterImage) -> ClusterDelta:
        return replace(difference(before, after), deleted_topics={})

    def unsent(*_: Any, done: Callable[[None], None], **__: Any) -> None:
        asyncio.get_running_loop().call_soon(done, None)

    if forgets:
        monkeypatch.setattr(committed_image, "difference", forgetful)
    async with Network(3, controller_settings=SMALL) as network:
        await work(network, rounds=2)
        voter = await network.follower()
        applied = Applied()
        voter.committed.add_publisher(applied)
        await until(lambda: applied.topics == {"t1"})
        with monkeypatch.context() as cut:
            cut.setattr(voter.peers, "send", unsent)
            end_offset = voter.log.end_offset
            await work(network, rounds=8)
            others = [one for one in network.voters.values() if one is not voter]
            await until(lambda: all(one.log.start_offset > end_offset for one in others))
        await caught_up(network)
        assert voter.log.start_offset > end_offset
        assert {*voter.committed.image.topics} == {"t7"}
        assert applied.topics == ({"t1", "t7"} if forgets else {"t7"})


@pytest.mark.jumping_time
async def test_a_log_that_may_be_large_or_has_one_snapshot_stays_whole() -> None:
    settings = replace(SMALL, metadata_max_retention_bytes=-1)
    async with Network(1, controller_settings=settings) as network:
        await work(network, rounds=8)
        assert len(network.voters[1].log.snapshots.ids()) > 1
        assert network.voters[1].log.start_offset == 0


def behind_a_snapshot(disk: SimDisk) -> MetadataLog:
    """Open a log of three records of epoch 1, durable, one of them committed."""
    log = log_of((1, 2, 3), disk=disk)
    log.checkpoint(Offset(1))
    return log


@pytest.mark.parametrize("end_offset", [2, 7])  # the log has another record there, or none
def test_power_loss_in_an_installation_leaves_the_log_or_the_snapshot(end_offset: int) -> None:
    snapshot_id = SnapshotId(Offset(end_offset), Epoch(2))
    source = MetadataLog.open(SimDisk(), "/data")
    image = ClusterImage(next_producer_id=77)
    source.snapshots.write(snapshot_id, records_of(image), last_time_ms=5)
    found = source.snapshots.read_bytes(snapshot_id, 0, 10_000)
    assert found is not None
    ends = set()
    for write in range(100):
        disk = SimDisk()
        log = behind_a_snapshot(disk)
        log.snapshots.append_fetched(snapshot_id, 0, found[1])
        has_failed = lose_power_at(disk, write, partial(log.install_fetched, snapshot_id))
        disk.crash(random.Random(write))
        again = MetadataLog.open(disk, "/data")
        restored = restored_image(again)
        if again.start is None:
            assert (again.start_offset, again.end_offset, restored) == (0, 3, None)
        else:
            assert again.start == snapshot_id
            assert again.start_offset == again.end_offset == again.flushed_offset == end_offset
            assert restored is not None
            assert restored.next_producer_id == 77
        ends.add(again.start)
        again.close()
        assert MetadataLog.open(disk, "/data").end_offset == again.end_offset
        if not has_failed:
            break
    assert write > 6
    assert ends == {None, snapshot_id}


def test_a_log_is_not_replaced_by_a_snapshot_where_its_checkpoint_says_it_was_longer() -> None:
    disk = SimDisk()
    log = behind_a_snapshot(disk)
    for end_offset in (1, 3):
        snapshot_id = SnapshotId(Offset(end_offset), Epoch(1))
        log.checkpoint(Offset(end_offset))
        log.snapshots.write(snapshot_id, records_of(ClusterImage()), last_time_ms=0)
    [segment] = [n for n in disk.listdir(f"/data/{DIRECTORY}") if n.endswith(".log")]
    file = disk.open(f"/data/{DIRECTORY}/{segment}")
    file.truncate(10)
    file.fsync()
    with pytest.raises(DamagedLog, match="damaged"):
        MetadataLog.open(disk, "/data")
    disk.unlink(f"/data/{DIRECTORY}/{FILE_NAME}")  # the operator gives up what was behind
    assert MetadataLog.open(disk, "/data").start == SnapshotId(Offset(3), Epoch(1))


def test_a_log_start_within_a_segment_is_forgotten_with_the_process_and_nothing_else() -> None:
    disk = SimDisk()
    log = MetadataLog.open(disk, "/data")
    for epoch in (1, 2, 3, 4):
        log.append([encode_record(NoOp())], Epoch(epoch), wall_ms=0)
    log.flush()
    whole = log.epoch_starts()
    start = SnapshotId(Offset(2), Epoch(2))
    log.snapshots.write(start, records_of(ClusterImage(next_producer_id=2)), last_time_ms=0)
    log.move_start(start)
    assert log.epoch_starts() == whole[2:]
    assert [log.epoch_before(Offset(end)) for end in (2, 3, 4)] == [2, 3, 4]
    log.flush()
    log.close()
    again = MetadataLog.open(disk, "/data")
    assert (again.start, again.start_offset, again.epoch_starts()) == (None, 0, whole)


@pytest.mark.jumping_time
async def test_a_voter_starts_although_its_newest_snapshot_is_damaged() -> None:
    async with Network(1, controller_settings=SMALL) as network:
        await work(network, rounds=8)
        before = network.voters[1].committed.image
        assert network.voters[1].log.start_offset > 0
        disk = await network.kill(1)
        newest, older = MetadataLog.open(disk, "/data").snapshots.ids()
        file = disk.open(f"/data/{DIRECTORY}/{newest.file_name}")
        file.truncate(50)
        file.fsync()
        voter = network.boot(1, disk)
        assert voter.log.start == older
        await until(lambda: voter.committed.image.end_offset > before.end_offset)
        assert content(voter.committed.image)[1:] == content(before)[1:]


def test_a_snapshot_stays_while_a_follower_fetches_it() -> None:
    files = MetadataLog.open(SimDisk(), "/data").snapshots

    def write(end_offset: int) -> list[int]:
        snapshot_id = SnapshotId(Offset(end_offset), Epoch(1))
        files.write(snapshot_id, records_of(ClusterImage()), last_time_ms=0)
        return [one.end_offset for one in files.ids()]

    first = SnapshotId(Offset(1), Epoch(1))
    assert [write(1), write(2)] == [[1], [2, 1]]
    assert files.read_bytes(first, 0, 10) is not None
    assert write(3) == [3, 2, 1]
    assert files.read_bytes(first, 10, 10) is not None
    assert write(4) == [4, 3, 1]
    assert write(5) == [5, 4]
    assert files.read_bytes(first, 20, 10) is None
