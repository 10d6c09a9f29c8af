"""Which disks of simulated machines the metadata quorum needs."""

from types import SimpleNamespace
from typing import Any, Final

import pytest

from quorumlog.chaos.node_simulation.voters import SimulatedVoters
from quorumlog.chaos.simulation.worlds.quorum.voter_model import directory_id, voter_of
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.storage.io.checkpoints import uuid_from_text

VOTERS: Final = (1, 2, 3)


def machine(node_id: int, *, kraft_version: int, disk: int = 1) -> Any:
    its_id = directory_id(node_id, disk)
    voters = VoterSet(tuple(voter_of(one, directory_id(one, 1)) for one in VOTERS))
    quorum = SimpleNamespace(kraft_version=kraft_version, voter_set=voters)
    settings = SimpleNamespace(directory_id=its_id)
    node = SimpleNamespace(quorum=SimpleNamespace(settings=settings, _quorum=quorum))
    return SimpleNamespace(
        node_id=node_id,
        is_controller=True,
        disk_faults=SimpleNamespace(fails_below=""),
        node=node,
    )


class Machines:
    """Nodes 1 to 3; all of them vote, with their first disks."""

    def __init__(self, kraft_version: int = 1) -> None:
        self._kraft_version = kraft_version
        self.loop = SimpleNamespace(now_s=100.0)
        self.all = {one: machine(one, kraft_version=kraft_version) for one in VOTERS}
        self.voters = SimulatedVoters(
            self.all,
            "host:1",
            loop=self.loop,  # type: ignore[arg-type]  # what is needed of one
            told=lambda _, __: None,
        )
        assert self.voters.why_needed({1}) == ""

    def wipe(self, node_id: int) -> None:
        self.all[node_id].node = None
        self.voters.wiped([self.all[node_id]])

    def start(self, node_id: int) -> None:
        self.all[node_id] = machine(node_id, kraft_version=self._kraft_version, disk=2)


def test_no_second_disk_of_three_is_emptied_before_the_first_voter_is_replaced() -> None:
    machines = Machines()
    machines.wipe(1)
    assert machines.voters._directory_of(1) is None
    machines.start(1)
    assert machines.voters._directory_of(1) == uuid_from_text(directory_id(1, 2))
    for other in (2, 3):
        assert "would have their disks" in machines.voters.why_needed({other})
    assert machines.voters.why_needed({1}) == ""  # it has no vote to lose


def test_below_kraft_version_1_a_voter_learns_and_votes_again() -> None:
    machines = Machines(kraft_version=0)
    machines.wipe(1)
    machines.start(1)
    assert machines.voters.why_needed({2}) == ""


def test_the_disk_of_another_log_directory_is_not_that_of_the_quorum() -> None:
    machines = Machines()
    machines.all[1].disk_faults.fails_below = "/disk2"
    machines.wipe(1)
    assert machines.voters._directory_of(1) == uuid_from_text(directory_id(1, 1))
    assert machines.voters.why_needed({2}) == ""


def test_no_disk_is_emptied_while_a_change_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines()
    monkeypatch.setattr(machines.voters.changer, "_in_doubt_until_s", 101.0)
    assert machines.voters.why_needed({1}) == "the voters are changing"
    machines.loop.now_s = 101.5
    assert machines.voters.why_needed({1}) == ""
