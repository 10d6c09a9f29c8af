"""Every role, with a fault of each kind: which nodes are hit."""

import pytest

from quorumlog.chaos.faults.registry import step_fault
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.schedule import Action, Schedule
from tests.support.chaos.nodes_in_memory import NodesInMemory

HOLDERS = {
    "partition-leader": [1],
    "metadata-leader": [2],
    "isr-follower": [3],
    "group-coordinator": [3],
}
COUNTS = {**dict.fromkeys(HOLDERS, 1), "any": 1, "minority": 1, "majority": 2, "all": 3}


async def hit(fault: str, role: str, seed: int) -> str:
    """Return the parties that the first row of the fault names."""
    nodes = NodesInMemory()
    nodes.roles = HOLDERS
    action = Action(t_us=0, fault=step_fault(fault)(), target=role, duration_us=1_000_000)
    rows: list[tuple[str, str, str]] = []
    schedule = Schedule(seed=seed, duration_us=1_000_000, actions=(action,))
    await Nemesis(nodes, schedule, topic="t", record=lambda *row: rows.append(row)).run()
    assert nodes.is_running == {1, 2, 3}
    assert not nodes.paused
    assert not nodes.rules
    return rows[0][1]


@pytest.mark.jumping_time
@pytest.mark.parametrize("fault", ["kill", "pause", "isolate_role", "restart", "disk_error"])
async def test_a_fault_hits_the_nodes_that_hold_its_role(fault: str) -> None:
    for role in step_fault(fault).targets:
        named = await hit(fault, role, seed=1)
        if role == "client":
            assert named == "clients"
            continue
        victims = [int(node) for node in named.split(",")]
        assert len({*victims}) == COUNTS[role], role
        assert victims == HOLDERS.get(role, victims)


@pytest.mark.jumping_time
async def test_what_is_chosen_at_random_is_chosen_by_the_seed() -> None:
    for role in ("any", "minority", "majority"):
        chosen = [await hit("pause", role, seed) for seed in range(20)]
        assert len({*chosen}) == 3, role
        assert await hit("pause", role, seed=7) == chosen[7]


@pytest.mark.jumping_time
@pytest.mark.parametrize("fault", ["kill_all", "pause_all"])
async def test_all_means_every_node(fault: str) -> None:
    assert await hit(fault, "all", seed=1) == "1,2,3"
