"""Racks as the targets of faults: their nodes, the choice of a rack, and unknown racks."""

import random

import pytest

from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.faults.node_groups import hit_group, racks_of
from tests.support.chaos.fake_cluster import FakeCluster
from tests.support.chaos.nemesis_runs import action, carry_out, nemesis_of
from tests.support.chaos.nodes_in_memory import NodesInMemory


@pytest.mark.jumping_time
async def test_a_rack_is_hit_as_a_whole() -> None:
    drawn = set[tuple[str, str]]()
    for seed in range(20):
        [paused, _] = await carry_out(NodesInMemory(), action(0, "pause", "rack", 1), seed=seed)
        drawn.add(paused[1:])
    assert drawn == {("1,3", "#1 pause: rack:a"), ("2", "#1 pause: rack:b")}
    [cut, _] = await carry_out(NodesInMemory(), action(0, "isolate_role", "rack:a", 1))
    assert cut[:2] == ("isolate_role", "1,3")
    assert "1->3" not in cut[2]  # its nodes still reach each other


@pytest.mark.jumping_time
async def test_a_rack_without_a_running_node_is_skipped() -> None:
    nodes = NodesInMemory()
    rows = await carry_out(nodes, action(0, "kill", (2,), 3), action(1, "kill", "rack:b", 1))
    assert rows[1] == ("skipped", "", "#2 kill: rack:b: no target node runs")
    rows = await carry_out(nodes, action(0, "kill", (1,), 3), action(1, "kill", "rack", 1), seed=1)
    assert rows[1][2] in {"#2 kill: rack:a", "#2 kill: rack:b"}


def test_a_rack_that_the_cluster_lacks_is_refused_before_the_run() -> None:
    with pytest.raises(ValueError, match="target rack:c: the racks are a, b"):
        nemesis_of(NodesInMemory(), action(0, "kill", "rack:c"))
    without = LocalProcesses(FakeCluster())  # type: ignore[arg-type]  # its needed members
    with pytest.raises(ValueError, match="the cluster has no racks; --racks a,b,c"):
        nemesis_of(without, action(0, "kill", "rack"))
    with pytest.raises(ValueError, match="the target of wipe is partition-leader"):
        action(0, "wipe", "rack:a")


@pytest.mark.parametrize("seed", range(5))
def test_a_rack_is_drawn_beside_the_nodes_to_avoid(seed: int) -> None:
    racks = racks_of({1: "a", 2: "b", 3: None, 4: "a", 5: "c"})
    assert racks == {"a": (1, 4), "b": (2,), "c": (5,)}
    rng = random.Random(seed)
    assert hit_group("rack", 5, racks, (1, 2, 3, 4), avoid={2}, rng=rng) == ((1, 4), "rack:a")
    assert hit_group("rack", 5, racks, (2, 4), avoid={1, 2}, rng=rng)[0] in {(2,), (4,)}
    assert hit_group("rack", 5, racks, (3,), avoid=(), rng=rng) == ((), "rack")
