"""Voters that are far behind get the leader's snapshot; the log start moves on."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.driver import committed_image
from quorumlog.metadata_quorum.image.difference import difference
from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.records import ProducerIds, encode_record
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.log.log_end import FILE_NAME
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.log.restoring import restored_image
from quorumlog.metadata_quorum.log.snapshot_files import SnapshotFiles
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.errors import DamagedLog
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import Network, Seen, until
from tests.unit.metadata_quorum.test_driver_snapshots import content, lose_power_at, work

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


async def fallen_behind(network: Network) -> tuple[int, Any]:
    """Let a voter miss so much that the others have deleted it; return it, and its disk."""
    await work(network, rounds=2)
    leader = (await network.leader()).node_id
    victim = leader % 3 + 1
    disk = await network.kill(victim)
    end_offset = disk_end(network)
    await work(network, rounds=8)
    await until(lambda: all(v.log.start_offset > end_offset for v in network.voters.values()))
    return victim, disk


def disk_end(network: Network) -> int:
    return max(voter.log.end_offset for voter in network.voters.values())


async def caught_up(network: Network, node_id: int) -> None:
    voter = network.voters[node_id]
    end_offset = (await network.leader()).committed.image.end_offset
    await until(lambda: voter.committed.image.end_offset >= end_offset)
    await until(lambda: len({v.committed.image.end_offset for v in network.voters.values()}) == 1)
    images = [v.committed.image for v in network.voters.values()]
    assert content(images[0]) == content(images[1]) == content(images[2])
    assert not any(v.failure.done() for v in network.voters.values())


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
        await caught_up(network, victim)
        await until(lambda: not voter.elections.load().is_new)  # it votes, even on a new disk
        assert voter.log.start_offset > 0
        assert applied.topics == {*voter.committed.image.topics}
        disk = await network.kill(victim)  # a log that starts with a snapshot starts again
        await work(network, rounds=1)
        voter = network.boot(victim, disk)
        assert voter.log.start is not None
        await caught_up(network, victim)


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
        await caught_up(network, victim)
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
        leader = (await network.leader()).node_id
        voter = network.voters[leader % 3 + 1]
        applied = Applied()
        voter.committed.add_publisher(applied)
        await until(lambda: applied.topics == {"t1"})
        with monkeypatch.context() as cut:
            cut.setattr(voter.peers, "send", unsent)
            end_offset = voter.log.end_offset
            await work(network, rounds=8)
            others = [one for one in network.voters.values() if one is not voter]
            await until(lambda: all(one.log.start_offset > end_offset for one in others))
        await caught_up(network, voter.node_id)
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
    log = MetadataLog.open(disk, "/data")
    for number in (1, 2, 3):
        record = ProducerIds(broker_id=BrokerId(1), broker_epoch=0, next_producer_id=number)
        log.append([*map(encode_record, [record])], Epoch(1), wall_ms=0)
    log.flush()
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
    for number in (1, 2, 3, 4):
        record = ProducerIds(broker_id=BrokerId(1), broker_epoch=0, next_producer_id=number)
        log.append([*map(encode_record, [record])], Epoch(number), wall_ms=0)
    log.flush()
    whole = log.epoch_starts()
    start = SnapshotId(Offset(2), Epoch(2))
    log.snapshots.write(start, records_of(ClusterImage(next_producer_id=2)), last_time_ms=0)
    log.move_start(start)
    assert log.epoch_starts() == whole[2:]
    assert log.epoch_before(Offset(2)) == 2
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
