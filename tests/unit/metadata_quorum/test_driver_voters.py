"""Voters that change in whole drivers, and the voters that a node starts with (KIP-853)."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.core.messages import (
    EPOCH_STEP_MAX,
    AddVoterRequest,
    RemoveVoterRequest,
    SnapshotId,
    UpgradeKRaftVersionRequest,
    VoterChangeRequest,
)
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.io.bootstrap import VotersChanged, found
from quorumlog.metadata_quorum.io.metadata_quorum import MetadataQuorum
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.log.restored_image import FetchedSnapshot, fetched_snapshot
from quorumlog.metadata_quorum.log.snapshot_files import CorruptSnapshot
from quorumlog.metadata_quorum.settings import ControllerSettings, MetadataQuorumSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import Network, Voter, call, until, work
from tests.support.metadata_quorum.voters import directory_id, voter, voter_set

OFTEN = ControllerSettings(
    metadata_log_max_record_bytes_between_snapshots=300, broker_session_timeout_ms=10**9
)


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
        await change(network, UPGRADE)
        added = network.boot(4)
        await until(lambda: added.quorum.state.voter_set == voter_set(1, 2, 3))
        assert added.heard == [voter_set(1, 2, 3)]
        await change(network, AddVoterRequest(voter=voter(4)))
        await until(lambda: added.quorum.state.is_voter)
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
        await until(lambda: follower.quorum.state.voter_set == left)
        await until(lambda: follower.log.snapshots.ids() != [])
        snapshot_id = follower.log.snapshots.ids()[0]
        assert follower.log.snapshots.voters(snapshot_id) == left
        disk = await network.kill(follower.node_id)
        again = network.boot(follower.node_id, disk)
        assert again.heard == [left]
        assert again.quorum.state.voter_set == left


async def until_all_know_the_voters(network: Network) -> None:
    nodes = network.voters.values()
    await until(lambda: all(one.quorum.state.voter_set == voter_set(1, 2, 3) for one in nodes))


async def restart_leader(network: Network) -> None:
    number = (await network.leader()).node_id
    network.boot(number, await network.kill(number))
    await network.leader()


@pytest.mark.jumping_time
async def test_a_new_cluster_writes_its_voters_by_itself() -> None:
    async with Network(3, has_directories=True) as network:
        assert (await network.leader()).quorum.state.kraft_version == 0
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
        assert (await network.leader()).quorum.state.kraft_version == 0
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
        directory = directory_id(str(leader_id))
        assert again.elections.load().voted_directory_id == directory
        assert again.quorum.state.voted_directory_id == directory


@pytest.mark.jumping_time
async def test_a_new_disk_gets_the_voters_from_a_snapshot() -> None:
    async with Network(1, has_directories=True, controller_settings=OFTEN) as network:
        await change(network, UPGRADE)
        await work(network)
        leader = network.voters[1]
        await until(lambda: leader.log.start_offset > 0 or leader.log.snapshots.ids() != [])
        observer = network.boot(7)
        await until(lambda: observer.quorum.state.kraft_version == 1)
        assert observer.heard == [voter_set(1)]
        assert observer.quorum.state.voter_set == voter_set(1)


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
    voted: dict[str, Any] = {"voted_id": BrokerId(2), "voted_directory_id": directory_id("2")}
    for saved in (
        Election(leader_epoch=Epoch(3), was_voter=True, **voted),
        Election(leader_epoch=Epoch(4)),
    ):
        store.save(saved)
        assert store.load() == saved


# --- `controller.quorum.voters` that was changed while the upgrade may be truncated ---


ALL = (BrokerId(1), BrokerId(2), BrokerId(3))


UPGRADE = UpgradeKRaftVersionRequest(kraft_version=1)


def restarted_alone(disk: SimDisk, node_id: int, *, knows_of_vote: bool = True) -> Election:
    """What the node starts with when it is configured as the only voter.

    Without `knows_of_vote`, it has not noted that it was a voter of a committed set.
    """
    settings = MetadataQuorumSettings(
        cluster_id="c",
        node_id=BrokerId(node_id),
        voters={BrokerId(node_id): "a:1"},
        log_dir="/data",
        directory_id=directory_id(str(node_id)),
    )
    elections = ElectionStore(disk, f"/data/{DIRECTORY}", settings.voters)
    log = MetadataLog.open(disk, "/data")
    committed = CommittedImage(log)
    election = replace(elections.load(), voters=ALL)
    if not knows_of_vote:
        election = replace(election, was_voter=False)
    try:
        return found(
            settings,
            elections,
            election,
            committed.voters,
            is_upgrade_committed=committed.is_upgrade_committed,
        )
    finally:
        log.close()


async def upgraded(network: Network, others: list[int], leader: Voter) -> dict[int, SimDisk]:
    """Kill the other voters; let the leader append the upgrade, which none of them has."""
    disks = {node_id: await network.kill(node_id) for node_id in others}
    asked = asyncio.create_task(call(leader.driver, UPGRADE))  # never answered
    await until(lambda: leader.quorum.state.kraft_version == 1)
    asked.cancel()
    return disks


@pytest.mark.jumping_time
async def test_an_upgrade_that_may_be_truncated_keeps_the_voters_that_have_voted() -> None:
    """Else the truncation makes the node the only voter of its own quorum: two leaders."""
    async with Network(3, has_directories=True) as network:
        leader = await network.leader()
        number = leader.node_id
        await asyncio.sleep(2)  # the directories of the others are known
        others = [node_id for node_id in network.ids if node_id != number]
        disks = await upgraded(network, others, leader)
        disk = await network.kill(number)
        for node_id in others:
            network.boot(node_id, disks[node_id])
        await network.leader()  # without the upgrade
        with pytest.raises(VotersChanged, match=r"kraft\.version 1, which may be uncommitted"):
            restarted_alone(disk, number)

        again = network.boot(number, disk)
        await until(lambda: again.quorum.state.kraft_version == 0)  # it is truncated
        disk = await network.kill(number)
        with pytest.raises(VotersChanged, match=r"kraft\.version 0 cannot change"):
            restarted_alone(disk, number)


@pytest.mark.jumping_time
async def test_the_configured_voters_do_not_count_any_more_once_the_upgrade_is_committed() -> None:
    async with Network(3, has_directories=True) as network:
        leader = await network.leader()
        await asyncio.sleep(2)
        await call(leader.driver, UPGRADE)
        voter = await network.leader()
        await until(lambda: voter.elections.load().was_voter)
        disk = await network.kill(voter.node_id)
        assert restarted_alone(disk, voter.node_id).was_voter
        with pytest.raises(VotersChanged):
            restarted_alone(disk, voter.node_id, knows_of_vote=False)  # as one that is added later
        again = network.boot(voter.node_id, disk)
        await until(lambda: again.log.known_committed == again.log.end_offset)
        restarted_alone(await network.kill(voter.node_id), voter.node_id, knows_of_vote=False)


# --- the votes that a node believes at its start ---


Founded = Callable[..., Election]


TWO_VOTERS = MetadataQuorumSettings(
    cluster_id="c",
    node_id=BrokerId(1),
    voters={BrokerId(1): "a:1", BrokerId(2): "b:2"},
    log_dir="unused",
    directory_id=directory_id("1"),
)
NEW = Election(is_new=True)
VOTED = Election(leader_epoch=Epoch(3), voters=(BrokerId(1), BrokerId(7)))


@pytest.fixture
def founded(tmp_path: Path) -> Founded:
    def founded(
        election: Election,
        voters: VoterSet | None,
        settings: MetadataQuorumSettings = TWO_VOTERS,
        *,
        is_upgrade_committed: bool | None = None,
    ) -> Election:
        if is_upgrade_committed is None:
            is_upgrade_committed = voters is not None
        store = ElectionStore(RealDisk(), str(tmp_path))
        return found(settings, store, election, voters, is_upgrade_committed=is_upgrade_committed)

    return founded


def test_the_configured_voters_may_differ_from_those_of_the_vote_once_the_log_says_them(
    founded: Founded,
) -> None:
    with pytest.raises(VotersChanged, match="voted in a quorum of 1, 7"):
        founded(VOTED, None)
    assert founded(VOTED, voter_set(1, 5)) == replace(VOTED, is_new=False)


def test_voters_in_the_log_count_for_the_configured_ones_only_once_they_are_committed(
    founded: Founded,
) -> None:
    in_log = voter_set(1, 5)
    with pytest.raises(VotersChanged, match=r"kraft\.version 1, which may be uncommitted"):
        founded(VOTED, in_log, is_upgrade_committed=False)
    same = replace(VOTED, voters=(BrokerId(1), BrokerId(2)))  # as configured
    assert founded(same, in_log, is_upgrade_committed=False) == same
    was_voter = replace(VOTED, was_voter=True)  # noted when a set with it was committed
    assert founded(was_voter, in_log, is_upgrade_committed=False) == was_voter


def test_a_voter_of_the_log_that_lost_its_votes_is_new(founded: Founded) -> None:
    assert founded(NEW, voter_set(1, 2)).is_new
    wiped = replace(TWO_VOTERS, directory_id=directory_id("another"))
    assert founded(NEW, voter_set(1, 2), wiped).is_new  # its log may end too early
    # The mark of a new cluster does not count once the log has the voters.
    marked = replace(TWO_VOTERS, is_new_cluster=True)
    assert founded(NEW, voter_set(1, 2), marked).is_new
    assert not founded(NEW, None, marked).is_new


def test_a_node_that_can_become_a_voter_is_new_although_nothing_names_it(founded: Founded) -> None:
    joiner = replace(TWO_VOTERS, voters={}, bootstrap=("b:2",))
    assert founded(NEW, None, joiner).is_new
    assert founded(NEW, None, replace(joiner, is_new_cluster=True)).is_new
    assert founded(NEW, voter_set(2, 3)).is_new
    assert not founded(NEW, None, replace(joiner, directory_id=None)).is_new  # a broker
    # A single voter with others to ask may have lost its cluster.
    alone = replace(TWO_VOTERS, voters={BrokerId(1): "a:1"})
    assert not founded(NEW, None, alone).is_new
    assert founded(NEW, None, replace(alone, bootstrap=("b:2",))).is_new


# --- the log lines and refusals of a node that reads its disk ---


def settings(directory: Path, *voters: int) -> MetadataQuorumSettings:
    return MetadataQuorumSettings(
        cluster_id="c",
        node_id=BrokerId(1),
        voters={BrokerId(voter): f"127.0.0.1:{voter}" for voter in voters or (1, 2, 3)},
        log_dir=str(directory),
    )


def open_and_close(given: MetadataQuorumSettings) -> Election:
    """Start a node and stop it; return the election state that it leaves."""

    async def scenario() -> None:
        await MetadataQuorum(given, RealDisk()).stop(resign=False)

    asyncio.run(scenario())
    return ElectionStore(RealDisk(), f"{given.log_dir}/{DIRECTORY}").load()


def save(directory: Path, leader_epoch: int) -> None:
    (directory / DIRECTORY).mkdir(exist_ok=True)
    store = ElectionStore(RealDisk(), str(directory / DIRECTORY))
    store.save(Election(leader_epoch=Epoch(leader_epoch)))


@pytest.mark.parametrize(("epoch", "warns"), [(EPOCH_STEP_MAX, False), (EPOCH_STEP_MAX + 1, True)])
def test_an_absurd_epoch_on_the_disk_is_named_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, epoch: int, warns: bool
) -> None:
    save(tmp_path, leader_epoch=epoch)
    with caplog.at_level(logging.WARNING):
        open_and_close(settings(tmp_path))
    assert (f"quorum-state of node 1 names epoch {epoch}" in caplog.text) is warns


# --- the first start ---


def test_a_voter_of_a_new_cluster_has_its_election_state_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = open_and_close(replace(settings(tmp_path / "new"), is_new_cluster=True))
    assert first == Election(voters=(BrokerId(1), BrokerId(2), BrokerId(3)))
    assert not open_and_close(settings(tmp_path / "alone", 1)).is_new  # it has nobody to mislead
    assert caplog.text == ""


def test_a_voter_without_its_election_state_is_new_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert open_and_close(settings(tmp_path)) == Election(is_new=True)
    assert "node 1 has lost its last vote" in caplog.text
    assert "new-cluster" in caplog.text


def test_the_voters_of_a_cluster_are_those_of_its_last_run(tmp_path: Path) -> None:
    open_and_close(replace(settings(tmp_path, 1, 2, 3), is_new_cluster=True))
    message = (
        r"names 1, 2, but node 1 has voted in a quorum of 1, 2, 3: the voters .* cannot change"
    )
    with pytest.raises(VotersChanged, match=message):
        open_and_close(settings(tmp_path, 1, 2))
    with pytest.raises(VotersChanged):
        open_and_close(settings(tmp_path, 2, 3))  # it was one of them
    open_and_close(settings(tmp_path, 3, 2, 1))
    # An election state of an earlier version names no voters, and is taken.
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    save(earlier, leader_epoch=3)
    assert ElectionStore(RealDisk(), str(earlier / DIRECTORY)).load().voters is None
    assert open_and_close(settings(earlier, 1, 2)).leader_epoch == 3
