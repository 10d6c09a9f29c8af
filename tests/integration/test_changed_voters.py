"""The faults that change voters, on real processes: each is done, and taken back in the end."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from quorumlog import Admin, LocalCluster
from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.faults.registry import step_fault
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.schedule import Action, Schedule, Target
from quorumlog.client.descriptions import QuorumDescription
from quorumlog.cluster import layout

pytestmark = pytest.mark.integration
PASSING_S: Final = 60


class Voters:
    """A cluster of three nodes that vote, and the nemesis that breaks it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.back_end = LocalProcesses(cluster)
        self.rows: list[tuple[str, str]] = []

    async def inflict(self, fault: str, target: Target) -> None:
        action = Action(t_us=0, fault=step_fault(fault)(), target=target, duration_us=1_000_000)
        schedule = Schedule(seed=1, duration_us=1_000_000, actions=(action,))
        nemesis = Nemesis(
            self.back_end,
            schedule,
            topic="t",
            record=lambda f, node, details: self.rows.append((f, node or details)),
        )
        await nemesis.run()
        assert nemesis.done == [fault], self.rows

    async def quorum(self) -> QuorumDescription:
        async with Admin(self.cluster.bootstrap) as admin:
            return await admin.describe_quorum()

    async def until(self, holds: Callable[[QuorumDescription], object]) -> None:
        async with asyncio.timeout(PASSING_S):
            while not holds(await self.quorum()):
                await asyncio.sleep(0.05)

    def directories(self) -> dict[int, bytes | None]:
        directory = self.cluster.directory
        return {one: layout.directory_id(directory, one) for one in (1, 2, 3)}

    async def are_expected(self) -> bool:
        found = (await self.quorum()).voters
        return {one.replica_id: one.directory_id for one in found} == self.directories()


def test_the_active_controller_is_removed_and_added_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=3) as cluster:

        async def story() -> None:
            voters = Voters(cluster)
            leader = (await voters.quorum()).leader_id
            await voters.inflict("change_voters", "metadata-leader")
            node = str(leader)
            assert voters.rows == [("remove_voter", node), ("add_voter", node)]
            assert (await voters.quorum()).leader_id != leader
            assert await voters.are_expected()

        asyncio.run(story())


def test_a_voter_is_replaced_and_no_other_disk_is_emptied_before(tmp_path: Path) -> None:
    by_hand = {"controller.quorum.auto.join.enable": "false"}
    with LocalCluster(tmp_path, nodes=3, config=by_hand) as cluster:

        async def story() -> None:
            voters = Voters(cluster)
            await voters.back_end.perform("raise_kraft_version", (1,))
            leader = (await voters.quorum()).leader_id
            wiped, other = (one for one in (1, 2, 3) if one != leader)
            before = voters.directories()
            await voters.back_end.perform("kill", (wiped,))
            await voters.back_end.perform("wipe", (wiped,))
            await voters.back_end.perform("start", (wiped,))
            await voters.back_end.perform("kill", (other,))
            await voters.back_end.perform("start", (other,))
            await voters.until(lambda quorum: wiped in {one.replica_id for one in quorum.observers})
            assert not await voters.are_expected()
            why = await voters.back_end._voters.why_not_wipe(other)
            assert why == "of the voters 1, 2, 3, no majority would have its disks"
            with pytest.raises(NodeUnavailable, match="no majority would have its disks"):
                await voters.back_end.perform("remove_voter", (other,))
            await voters.back_end.perform("add_voter", (1, 2, 3))  # as the end of a run does
            assert await voters.are_expected()
            after = voters.directories()
            assert {one for one in (1, 2, 3) if before[one] != after[one]} == {wiped}

        asyncio.run(story())


def test_replace_voter_makes_a_node_another_voter(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=3) as cluster:

        async def story() -> None:
            voters = Voters(cluster)
            before = voters.directories()
            leader = (await voters.quorum()).leader_id
            victim = next(one for one in (1, 2, 3) if one != leader)
            await voters.inflict("replace_voter", (victim,))
            operations = [f for f, _ in voters.rows]
            assert operations == [
                "raise_kraft_version", "kill", "wipe", "remove_voter", "start", "add_voter",
            ]  # fmt: skip
            assert voters.directories()[victim] != before[victim]
            assert await voters.are_expected()

        asyncio.run(story())
