"""Voters that change in whole drivers: log, snapshots, restarts (KIP-853)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    SnapshotId,
    UpgradeKRaftVersionRequest,
    VoterChangeRequest,
)
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.log.restoring import FetchedSnapshot, fetched_snapshot
from quorumlog.metadata_quorum.log.snapshot_files import CorruptSnapshot
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import Network, call, until
from tests.support.metadata_quorum.voters import directory_id, voter, voter_set
from tests.unit.metadata_quorum.test_driver_snapshots import OFTEN, work

SNAPSHOT_ID = SnapshotId(Offset(7), Epoch(2))


async def change(network: Network, request: VoterChangeRequest) -> None:
    """Ask the leader until the change is made."""
    code: ErrorCode | None = None
    async with asyncio.timeout(600):
        while code is not ErrorCode.NONE:
            leader = await network.leader()
            response, _ = await call(leader.driver, request)
            code = response.error_code
            assert code in {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}, response.error_message
            await asyncio.sleep(0.5)


@pytest.mark.jumping_time
async def test_a_voter_is_added_and_the_leader_removed_and_a_restart_knows_it() -> None:
    async with Network(3, has_directories=True, controller_settings=OFTEN) as network:
        await change(network, UpgradeKRaftVersionRequest(kraft_version=1))
        added = network.boot(4)
        await until(lambda: added.quorum.voter_set == voter_set(1, 2, 3))
        assert added.heard == [voter_set(1, 2, 3)]
        await change(network, AddVoterRequest(voter=voter(4)))
        await until(lambda: added.quorum.is_voter)
        former = await network.leader()
        number = former.node_id
        await change(
            network,
            RemoveVoterRequest(voter_id=BrokerId(number), directory_id=directory_id(str(number))),
        )
        await until(lambda: not former.quorum.is_leader)
        left = voter_set(*({1, 2, 3, 4} - {number}))
        await work(network)
        follower = next(one for one in network.voters.values() if not one.quorum.is_leader)
        await until(lambda: follower.quorum.voter_set == left)
        await until(lambda: follower.log.snapshots.ids() != [])
        snapshot_id = follower.log.snapshots.ids()[0]
        assert follower.log.snapshots.voters(snapshot_id) == left
        disk = await network.kill(follower.node_id)
        again = network.boot(follower.node_id, disk)
        assert again.heard == [left]
        assert again.quorum.voter_set == left


async def until_all_know_the_voters(network: Network) -> None:
    nodes = network.voters.values()
    await until(lambda: all(one.quorum.voter_set == voter_set(1, 2, 3) for one in nodes))


async def restart_leader(network: Network) -> None:
    number = (await network.leader()).node_id
    network.boot(number, await network.kill(number))
    await network.leader()


@pytest.mark.jumping_time
async def test_a_new_cluster_writes_its_voters_by_itself() -> None:
    async with Network(3, has_directories=True) as network:
        assert (await network.leader()).quorum.kraft_version == 0
        await work(network, rounds=1)
        await until_all_know_the_voters(network)
        assert [one.heard for one in network.voters.values()] == [[voter_set(1, 2, 3)]] * 3


@pytest.mark.jumping_time
async def test_a_voter_that_comes_later_lets_the_next_leader_write_the_voters() -> None:
    async with Network(3, has_directories=True) as network:
        number = next(one.node_id for one in network.voters.values() if not one.quorum.is_leader)
        disk = await network.kill(number)
        await restart_leader(network)  # so that this leader has no fetch of the dead voter
        await work(network, rounds=1)
        assert (await network.leader()).quorum.kraft_version == 0
        network.boot(number, disk)
        await restart_leader(network)
        await until_all_know_the_voters(network)


@pytest.mark.jumping_time
async def test_the_directory_that_got_the_vote_is_known_after_a_restart() -> None:
    async with Network(3, has_directories=True) as network:
        leader_id = (await network.leader()).node_id
        voted = {number: one.elections.load().voted_id for number, one in network.voters.items()}
        number = next(one for one in voted if one != leader_id and voted[one] == leader_id)
        again = network.boot(number, await network.kill(number))
        assert again.elections.load().voted_directory_id == directory_id(str(leader_id))
        assert again.quorum._state.voted_directory_id == directory_id(str(leader_id))


@pytest.mark.jumping_time
async def test_a_new_disk_gets_the_voters_from_a_snapshot() -> None:
    async with Network(1, has_directories=True, controller_settings=OFTEN) as network:
        await change(network, UpgradeKRaftVersionRequest(kraft_version=1))
        await work(network)
        leader = network.voters[1]
        await until(lambda: leader.log.start_offset > 0 or leader.log.snapshots.ids() != [])
        observer = network.boot(7)
        await until(lambda: observer.quorum.kraft_version == 1)
        assert observer.heard == [voter_set(1)]
        assert observer.quorum.voter_set == voter_set(1)


def snapshot(tmp_path: Path, **more: Any) -> MetadataLog:
    log = MetadataLog.open(RealDisk(), str(tmp_path))
    log.snapshots.write(SNAPSHOT_ID, records_of(ClusterImage()), last_time_ms=5, **more)
    return log


@pytest.mark.parametrize("voters", [voter_set(1, 2, 3), None])
def test_a_snapshot_holds_the_voters(tmp_path: Path, voters: Any) -> None:
    log = snapshot(tmp_path, voters=voters)
    assert log.snapshots.is_whole(SNAPSHOT_ID)
    assert log.snapshots.voters(SNAPSHOT_ID) == voters
    found = log.snapshots.read_bytes(SNAPSHOT_ID, 0, 1 << 20)
    assert found is not None
    log.snapshots.append_fetched(SNAPSHOT_ID, 0, found[1])
    fetched = fetched_snapshot(log.snapshots, SNAPSHOT_ID)
    assert isinstance(fetched, FetchedSnapshot)
    assert fetched.voters == voters
    assert [*log.voter_sets(SNAPSHOT_ID)] == ([] if voters is None else [(6, voters)])
    log.close()


def test_a_snapshot_with_damaged_voters_is_not_whole(tmp_path: Path) -> None:
    log = snapshot(tmp_path, voters=voter_set(1, 2, 3))
    path = Path(log.snapshots.path(SNAPSHOT_ID))
    content = path.read_bytes()
    at = content.index(b"host2")
    path.write_bytes(content[:at] + b"HOST2" + content[at + 5 :])
    assert not log.snapshots.is_whole(SNAPSHOT_ID)
    with pytest.raises(CorruptSnapshot):
        [*log.snapshots.read(SNAPSHOT_ID)]
    log.close()


def test_the_election_state_keeps_the_directory_that_was_voted_for(tmp_path: Path) -> None:
    store = ElectionStore(RealDisk(), str(tmp_path))
    saved = Election(
        leader_epoch=Epoch(3),
        voted_id=BrokerId(2),
        voted_directory_id=directory_id("2"),
        was_voter=True,
    )
    store.save(saved)
    assert store.load() == saved
    store.save(Election(leader_epoch=Epoch(4)))
    assert store.load() == Election(leader_epoch=Epoch(4))
