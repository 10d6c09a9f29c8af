"""`controller.quorum.voters` that was changed while the upgrade may be truncated."""

import asyncio
from dataclasses import replace

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.core.messages import UpgradeKRaftVersionRequest
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.io.founding import VotersChanged, found
from quorumlog.metadata_quorum.log.election_store import Election, ElectionStore
from quorumlog.metadata_quorum.log.metadata_log import DIRECTORY, MetadataLog
from quorumlog.metadata_quorum.settings import MetadataQuorumSettings
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.metadata_quorum.drivers import Network, Voter, call, until
from tests.support.metadata_quorum.voters import directory_id

ALL = (BrokerId(1), BrokerId(2), BrokerId(3))


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
    asked = asyncio.create_task(
        call(leader.driver, UpgradeKRaftVersionRequest(kraft_version=1))  # never answered
    )
    await until(lambda: leader.quorum.kraft_version == 1)
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
        await until(lambda: again.quorum.kraft_version == 0)  # it is truncated
        disk = await network.kill(number)
        with pytest.raises(VotersChanged, match=r"kraft\.version 0 cannot change"):
            restarted_alone(disk, number)


@pytest.mark.jumping_time
async def test_the_configured_voters_do_not_count_any_more_once_the_upgrade_is_committed() -> None:
    async with Network(3, has_directories=True) as network:
        leader = await network.leader()
        await asyncio.sleep(2)
        await call(leader.driver, UpgradeKRaftVersionRequest(kraft_version=1))
        voter = await network.leader()
        await until(lambda: voter.elections.load().was_voter)
        disk = await network.kill(voter.node_id)
        assert restarted_alone(disk, voter.node_id).was_voter
        with pytest.raises(VotersChanged):
            restarted_alone(disk, voter.node_id, knows_of_vote=False)  # as one that is added later
        again = network.boot(voter.node_id, disk)
        await until(lambda: again.log.known_committed == again.log.end_offset)
        restarted_alone(await network.kill(voter.node_id), voter.node_id, knows_of_vote=False)
