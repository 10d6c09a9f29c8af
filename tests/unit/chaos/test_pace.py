"""When the faults of a drawn schedule begin: while a majority is there, and its nodes are back."""

import pytest

from quorumlog.chaos.faults.copies import Wipe
from quorumlog.chaos.faults.fault import MILLION
from quorumlog.chaos.faults.partitions import PartitionOne
from quorumlog.chaos.faults.processes import Kill, KillAll, PauseKill
from quorumlog.chaos.faults.quorum import ChangeVoters
from quorumlog.chaos.faults.requests import ReplyLost
from quorumlog.chaos.nemesis import SKIPPED, Nemesis
from quorumlog.chaos.pace import QUIET_US, Claim, Extension, Pace, at_once, claim_of
from quorumlog.chaos.schedule import Action, Schedule
from tests.support.chaos.nemesis_runs import Rows, action
from tests.support.chaos.nodes_in_memory import NodesInMemory


def taking(*nodes: int, means_to: bool = False, destroys: bool = False) -> Claim:
    return Claim(nodes=frozenset(nodes), takes=True, means_to=means_to, destroys=destroys)


def test_at_most_a_minority_may_be_away() -> None:
    assert [at_once(nodes) for nodes in range(1, 8)] == [1, 1, 1, 1, 2, 2, 3]
    pace = Pace(limit=at_once(5))
    pace.begin(1, taking(1), 0, 0)
    assert pace.why_not(taking(1), 5, 5) == "an earlier fault on its node is not over"
    assert pace.why_not(taking(2), 5, 5) == ""
    pace.begin(2, taking(2), 5, 5)
    assert pace.why_not(taking(3), 9, 9) == "too many nodes would be away"
    assert pace.taken == {1, 2}
    pace.end(1, 10)
    assert pace.why_not(taking(3), 10, 10) == ""


def test_a_fault_that_means_to_hit_most_nodes_does_so_when_none_is_away() -> None:
    pace = Pace(limit=1)
    assert pace.why_not(taking(1, 2, 3, means_to=True), 0, 0) == ""
    pace.begin(1, taking(2), 0, 0)
    assert pace.why_not(taking(1, 3, means_to=True), 0, 0) == "too many nodes would be away"
    five = Pace(limit=2)
    five.begin(1, taking(5), 0, 0)
    assert five.why_not(taking(1, means_to=True), 0, 0) == "too many nodes would be away"


def test_a_fault_that_leaves_its_nodes_at_work_waits_for_a_node_to_hit_alone() -> None:
    pace = Pace(limit=1)
    pace.begin(1, taking(1), 0, 0)
    mild = Claim(nodes=frozenset({2}))
    assert pace.why_not(mild, 0, 0) == ""
    assert pace.why_not(Claim(nodes=frozenset({1})), 0, 0) == "its nodes are away"
    assert pace.why_not(Claim(nodes=frozenset({1, 2, 3})), 0, 0) == ""
    assert pace.why_not(Claim(nodes=frozenset()), 0, 0) == ""  # the clients
    pace.begin(2, mild, 0, 0)
    assert pace.taken == {1}


def test_one_copy_is_destroyed_at_a_time() -> None:
    pace = Pace(limit=2)
    pace.begin(1, taking(1, destroys=True), 0, 0)
    assert pace.why_not(taking(2, destroys=True), 0, 0) == "a copy of the data is being replaced"
    assert pace.why_not(taking(2), 0, 0) == ""


def test_later_actions_are_moved_by_the_delay_and_a_late_one_lets_the_cluster_serve() -> None:
    pace = Pace(limit=1, latest_us=60 * MILLION)
    pace.begin(1, taking(1), 0, 0)
    pace.end(1, 9 * MILLION)
    assert pace.why_not(taking(2), 8_900_000, 9 * MILLION) != ""
    assert pace.why_not(taking(2), 9 * MILLION, 9 * MILLION) == ""  # as planned
    at_us = 9 * MILLION + QUIET_US
    assert pace.why_not(taking(2), 5 * MILLION, at_us) == ""
    pace.begin(2, taking(2), 5 * MILLION, at_us)
    assert pace.due_us(10 * MILLION) == 10 * MILLION + 4 * MILLION + QUIET_US
    assert not pace.is_over(60 * MILLION)
    assert pace.is_over(60 * MILLION + 1)


def test_the_claim_of_a_fault() -> None:
    assert claim_of(Kill(), (2,), "any") == taking(2)
    assert claim_of(PartitionOne(), (2,), "any") == taking(2)
    assert claim_of(ChangeVoters(), (2,), "any") == taking(2)
    assert claim_of(Wipe(), (2,), "any") == taking(2, destroys=True)
    assert claim_of(KillAll(), (1, 2), "all") == taking(1, 2, means_to=True)
    assert claim_of(Kill(), (1, 2), "majority") == taking(1, 2, means_to=True)
    assert claim_of(PauseKill(), (1,), "partition-leader") == taking(1, means_to=True)
    assert claim_of(ReplyLost(), (1, 2, 3), "all") == Claim(nodes=frozenset({1, 2, 3}))


def paced(
    nodes: NodesInMemory, rows: Rows, *actions: Action, extension: Extension | None = None
) -> Nemesis:
    schedule = Schedule(seed=1, duration_us=20 * MILLION, actions=actions, paced=True)
    return Nemesis(
        nodes, schedule, topic="t", record=lambda *row: rows.append(row), extension=extension
    )


@pytest.mark.jumping_time
async def test_the_next_fault_waits_until_the_node_of_the_last_has_caught_up() -> None:
    nodes, rows = NodesInMemory(), Rows()
    nodes.start_takes_s = 7.0
    await paced(
        nodes, rows, action(1, "kill", "partition-leader", 1), action(3, "kill", (2,), 1)
    ).run()
    assert [(f, node) for f, node, _ in rows] == [
        ("kill", "1"), ("start", "1"), ("kill", "2"), ("start", "2"),
    ]  # fmt: skip


@pytest.mark.jumping_time
async def test_a_hand_written_schedule_keeps_its_times() -> None:
    nodes, rows = NodesInMemory(), Rows()
    nodes.start_takes_s = 7.0
    actions = (action(1, "kill", "partition-leader", 1), action(3, "kill", (2,), 1))
    schedule = Schedule(seed=1, duration_us=9 * MILLION, actions=actions)
    await Nemesis(nodes, schedule, topic="t", record=lambda *row: rows.append(row)).run()
    assert [(f, node) for f, node, _ in rows[:2]] == [("kill", "1"), ("kill", "2")]


@pytest.mark.jumping_time
async def test_a_leader_that_is_paused_is_not_the_next_leader_to_hit() -> None:
    nodes, rows = NodesInMemory(), Rows()
    nodes.roles = {"partition-leader": [1, 3]}
    extension = Extension(at_once=2)
    first, second = (action(t_s, "pause", "partition-leader", 4) for t_s in (1, 2))
    await paced(nodes, rows, first, second, extension=extension).run()
    assert [f for f, _, _ in rows] == ["pause", "pause", "resume", "resume"]
    assert {node for _, node, _ in rows} == {"1", "3"}


@pytest.mark.jumping_time
async def test_a_fault_whose_node_never_comes_back_into_sync_is_waited_for_so_long() -> None:
    nodes, rows = NodesInMemory(), Rows()
    nodes.lagging = {1}
    await paced(nodes, rows, action(1, "pause", (1,), 1), action(3, "pause", (2,), 1)).run()
    assert [(f, node) for f, node, _ in rows] == [
        ("pause", "1"), ("resume", "1"), ("pause", "2"), ("resume", "2"),
    ]  # fmt: skip


@pytest.mark.jumping_time
async def test_nodes_that_are_all_away_are_waited_for_and_not_skipped() -> None:
    nodes, rows = NodesInMemory(), Rows()
    await paced(
        nodes, rows, action(1, "kill_all", "all", 5), action(2, "kill", "partition-leader", 1)
    ).run()
    assert [f for f, _, _ in rows] == ["kill", "start", "kill", "start"]


@pytest.mark.jumping_time
async def test_no_fault_begins_after_the_last_moment() -> None:
    nodes, rows = NodesInMemory(), Rows()
    nodes.start_takes_s = 20.0
    extension = Extension(latest_us=15 * MILLION)
    actions = action(1, "kill", (1,), 1), action(3, "kill", (2,), 1)
    nemesis = paced(nodes, rows, *actions, extension=extension)
    await nemesis.run()
    assert [f for f, _, _ in rows] == ["kill", SKIPPED, "start"]
    assert nemesis.done == ["kill"]


@pytest.mark.jumping_time
async def test_a_run_is_extended_by_actions_while_it_goes_on() -> None:
    nodes, rows = NodesInMemory(), Rows()
    more = [action(t_s, "pause", (2,), 1) for t_s in (5, 10, 15)]
    extension = Extension(actions=more, goes_on=lambda: len(nemesis.done) < 3)
    nemesis = paced(nodes, rows, action(1, "pause", (1,), 1), extension=extension)
    await nemesis.run()
    assert nemesis.done == ["pause"] * 3
    assert nemesis.extended == more[:2]
    assert not nemesis.is_breaking
