"""What a nemesis writes down of itself, and what it leaves behind."""

import asyncio
from collections.abc import Sequence
from dataclasses import MISSING, fields

import pytest

from quorumlog.chaos.back_ends.back_end import BackEnd, NodeUnavailable
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.faults.machines import PowerLoss
from quorumlog.chaos.faults.registry import STEP_FAULTS, FaultUnsupported, step_fault
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.schedule import Action, Schedule, Target
from tests.support.chaos.fake_cluster import FakeCluster
from tests.support.chaos.nodes_in_memory import NodesInMemory
from tests.support.waiting import until


def nodes_of(cluster: FakeCluster) -> LocalProcesses:
    return LocalProcesses(cluster)  # type: ignore[arg-type]  # what a back end needs of one


def schedule_of(fault: str, target: Target) -> Schedule:
    action = Action(t_us=0, fault=step_fault(fault)(), target=target, duration_us=1)
    return Schedule(seed=1, duration_us=1, actions=(action,))


def inflict(
    cluster: FakeCluster, fault: str, target: Target
) -> tuple[Nemesis, list[tuple[str, str, str]], bool]:
    rows: list[tuple[str, str, str]] = []
    nemesis = Nemesis(
        nodes_of(cluster),
        schedule_of(fault, target),
        topic="t",
        record=lambda *row: rows.append(row),
    )

    async def both() -> bool:
        await nemesis.run()
        return await nemesis.heal()

    return nemesis, rows, asyncio.run(both())


def test_a_fault_is_written_down_before_it_is_inflicted() -> None:
    cluster = FakeCluster()
    seen: list[set[int]] = []
    rows: list[str] = []

    def record(f: str, *_: str) -> None:
        rows.append(f)
        seen.append(set(cluster.running))

    schedule = schedule_of("kill", "partition-leader")
    nemesis = Nemesis(nodes_of(cluster), schedule, topic="t", record=record)
    asyncio.run(nemesis.run())
    assert (rows, seen, nemesis.done) == (["kill", "start"], [{1, 2, 3}, {1, 2, 3}], ["kill"])


@pytest.mark.parametrize("fault", ["kill", "pause", "pause_kill", "kill_all"])
def test_every_fault_is_taken_back(fault: str) -> None:
    cluster = FakeCluster()
    target = "all" if fault == "kill_all" else "partition-leader"
    nemesis, rows, is_whole = inflict(cluster, fault, target)
    assert is_whole
    assert (cluster.running, cluster.paused) == ({1, 2, 3}, set())
    assert nemesis.done == [fault]
    assert rows[-1] == ("heal", "", "every node is back")
    assert "node-ended" not in [f for f, _, _ in rows]


def test_a_role_that_nobody_holds_is_not_claimed() -> None:
    cluster = FakeCluster()
    cluster.leader = None
    _, rows, _ = inflict(cluster, "kill", "partition-leader")
    assert rows[0][0] == "kill"
    assert rows[0][2] == "#1 kill: any, as no node was partition-leader"


@pytest.mark.parametrize("fault", ["kill", "kill_all"])
def test_a_node_that_is_slow_to_start_has_not_ended(fault: str) -> None:
    cluster = FakeCluster()
    cluster.refuses = {1, 2}
    target = "all" if fault == "kill_all" else "partition-leader"
    _, rows, _ = inflict(cluster, fault, target)
    names = [f for f, _, _ in rows]
    assert "not-ready" in names
    assert "node-ended" not in names
    assert cluster.running == {1, 2, 3}


@pytest.mark.parametrize("fault", ["kill", "pause_kill"])
def test_a_node_that_ended_just_before_its_fault_is_a_finding(fault: str) -> None:
    cluster = FakeCluster()
    cluster.deaf = {1}
    nemesis, rows, is_whole = inflict(cluster, fault, "partition-leader")
    assert ("node-ended", "1", "node 1 ended") in rows
    assert not is_whole
    assert not nemesis.done
    assert (cluster.running, cluster.paused) == ({1, 2, 3}, set())


def test_nodes_that_were_killed_beside_one_that_had_ended_have_not_ended_by_themselves() -> None:
    cluster = FakeCluster()
    cluster.deaf = {2}
    _, rows, is_whole = inflict(cluster, "kill", (1, 2, 3))
    assert [node for f, node, _ in rows if f == "node-ended"] == ["2"]
    assert ("start", "1,3", "#1 kill") in rows
    assert not is_whole


def test_nodes_may_be_named() -> None:
    cluster = FakeCluster()
    _, rows, is_whole = inflict(cluster, "kill", (2, 3))
    assert is_whole
    assert rows[:2] == [("kill", "2,3", "#1 kill: named"), ("start", "2,3", "#1 kill")]


def test_what_the_back_end_does_not_have_is_refused_before_the_run() -> None:
    nodes = nodes_of(FakeCluster())
    cut = Action(t_us=0, fault=PowerLoss(), target=(1,), duration_us=1)
    with pytest.raises(FaultUnsupported, match="fault power_loss: local processes cannot do it"):
        Nemesis(nodes, Schedule(seed=1, duration_us=1, actions=(cut,)), topic="t", record=print)
    with pytest.raises(ValueError, match="names node 9; the nodes are 1,2,3"):
        Nemesis(nodes, schedule_of("kill", (9,)), topic="t", record=print)


def action(t_us: int, fault: str, target: Target, duration_us: int) -> Action:
    return Action(t_us=t_us, fault=step_fault(fault)(), target=target, duration_us=duration_us)


async def carry_out(nodes: BackEnd, *actions: Action) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    schedule = Schedule(seed=1, duration_us=1_000_000, actions=actions)
    nemesis = Nemesis(nodes, schedule, topic="t", record=lambda *row: rows.append(row))
    await nemesis.run()
    return rows


@pytest.mark.jumping_time
async def test_faults_overlap() -> None:
    rows = await carry_out(
        NodesInMemory(),
        action(0, "kill", (1,), 2_000_000),
        action(1_000_000, "pause", (2,), 2_000_000),
    )
    assert rows == [
        ("kill", "1", "#1 kill: named"),
        ("pause", "2", "#2 pause: named"),
        ("start", "1", "#1 kill"),
        ("resume", "2", "#2 pause"),
    ]


@pytest.mark.jumping_time
async def test_a_node_that_is_down_is_not_killed_again() -> None:
    nodes = NodesInMemory()
    rows = await carry_out(
        nodes,
        action(0, "kill", (1, 2), 1_000_000),
        action(500_000, "kill_all", "all", 2_000_000),
    )
    assert rows == [
        ("kill", "1,2", "#1 kill: named"),
        ("kill", "3", "#2 kill_all: all"),
        ("start", "1,2", "#1 kill"),
        ("start", "3", "#2 kill_all"),
    ]


@pytest.mark.jumping_time
async def test_a_node_that_is_killed_while_it_starts_has_not_ended_by_itself() -> None:
    nodes = NodesInMemory()
    nodes.start_takes_s = 2.0
    rows = await carry_out(
        nodes,
        action(0, "kill", (1, 2), 1_000_000),
        action(2_000_000, "kill", (2,), 3_000_000),
    )
    assert rows == [
        ("kill", "1,2", "#1 kill: named"),
        ("kill", "2", "#2 kill: named"),
        ("start", "1,2", "#1 kill"),
        ("start", "2", "#2 kill"),
    ]
    assert nodes.is_running == {1, 2, 3}


@pytest.mark.jumping_time
async def test_the_last_of_two_actions_starts_a_node_while_the_first_waits_for_another() -> None:
    nodes = NodesInMemory()
    nodes.start_takes_s = 2.0
    await carry_out(
        nodes,
        action(0, "pause_kill", (3,), 2_500_000),  # kills 3 when it is down already
        action(500_000, "kill", (2, 3), 1_000_000),  # starts 2 until 3.5 s, and leaves 3 to #1
    )
    started = [node_ids for operation, node_ids in nodes.performed if operation == "start"]
    assert started == [(2,), (3,)]
    assert nodes.is_running == {1, 2, 3}


@pytest.mark.jumping_time
async def test_what_is_paused_and_then_killed_is_not_resumed() -> None:
    nodes = NodesInMemory()
    rows = await carry_out(
        nodes,
        action(0, "pause", (1,), 3_000_000),
        action(1_000_000, "kill", (1,), 1_000_000),
    )
    assert rows == [
        ("pause", "1", "#1 pause: named"),
        ("kill", "1", "#2 kill: named"),
        ("resume", "1", "#1 pause: ended by #2 kill"),
        ("start", "1", "#2 kill"),
    ]
    assert [operation for operation, _ in nodes.performed] == ["pause", "kill", "start"]


class NobodyDies(NodesInMemory):
    """Nodes that have to stay as they are."""

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        if operation == "kill":
            raise NodeUnavailable("they are needed")
        await super().perform(operation, node_ids, amount)


@pytest.mark.jumping_time
async def test_what_is_paused_goes_on_if_a_kill_was_refused() -> None:
    nodes = NobodyDies()
    rows = await carry_out(
        nodes,
        action(0, "pause", (1,), 3_000_000),
        action(1_000_000, "kill", (1,), 1_000_000),
    )
    assert [f for f, _, _ in rows] == ["pause", "kill", "skipped", "resume"]
    assert [operation for operation, _ in nodes.performed] == ["pause", "resume"]


@pytest.mark.jumping_time
async def test_two_pauses_of_a_node_end_with_the_last() -> None:
    nodes = NodesInMemory()
    rows = await carry_out(
        nodes,
        action(0, "pause", (1,), 2_000_000),
        action(1_000_000, "pause", (1,), 2_000_000),
    )
    assert [f for f, _, _ in rows] == ["pause", "pause", "resume", "resume"]
    assert [operation for operation, _ in nodes.performed] == ["pause", "resume"]


@pytest.mark.jumping_time
async def test_an_action_that_finds_no_running_node_is_recorded() -> None:
    rows = await carry_out(
        NodesInMemory(),
        action(0, "kill_all", "all", 2_000_000),
        action(1_000_000, "kill", "any", 1),
        action(1_500_000, "pause", (2,), 1),
    )
    assert rows[1:3] == [
        ("skipped", "", "#2 kill: any: no node runs"),
        ("skipped", "", "#3 pause: named: no node runs"),
    ]
    assert "node-ended" not in [f for f, _, _ in rows]


@pytest.mark.jumping_time
async def test_a_row_says_what_an_administrator_asked_for() -> None:
    nodes = NodesInMemory()
    nodes.asked_for["reassign"] = "t-0 to (3, 1)"
    rows = await carry_out(nodes, action(0, "reassign", (2,), 1), action(9, "grow", "all", 1))
    assert rows == [
        ("reassign", "2", "#1 reassign: named"),
        ("asked", "2", "#1 reassign: t-0 to (3, 1)"),
        ("grow", "1,2,3", "#2 grow: all"),
    ]


@pytest.mark.jumping_time
async def test_a_role_of_no_node_falls_on_one_that_no_fault_holds() -> None:
    nodes = NodesInMemory()
    rows = await carry_out(
        nodes,
        action(0, "pause", (1, 2), 2_000_000),
        action(1_000_000, "kill", "isr-follower", 1),
    )
    assert rows[1] == ("kill", "3", "#2 kill: any, as no node was isr-follower")


@pytest.mark.parametrize(("role", "size"), [("minority", 1), ("majority", 2)])
def test_a_group_of_nodes_is_hit_together(role: str, size: int) -> None:
    _, rows, is_whole = inflict(FakeCluster(), "kill", role)
    assert is_whole
    assert len(rows[0][1].split(",")) == size


async def test_what_was_paused_goes_on_if_the_run_is_cancelled() -> None:
    cluster = FakeCluster()
    cluster.all_paused = asyncio.Event()
    schedule = schedule_of("pause_kill", "partition-leader")
    nemesis = Nemesis(nodes_of(cluster), schedule, topic="t", record=lambda *_: None)
    run = asyncio.create_task(nemesis.run())
    await cluster.all_paused.wait()
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    assert (cluster.running, cluster.paused) == ({1, 2, 3}, set())


@pytest.mark.jumping_time
@pytest.mark.parametrize("fault", sorted(STEP_FAULTS))
async def test_every_fault_is_taken_back_and_its_rows_say_so(fault: str) -> None:
    kind = STEP_FAULTS[fault]
    parameters = {"direction": "in", "min_us": 1, "spread_us": 1, "rate_ppm": 1_000_000}
    needed = {one.name for one in fields(kind) if one.default is MISSING}
    made = kind(**{name: parameters[name] for name in needed})
    nodes = NodesInMemory()
    nodes.roles["isr-follower"] = [3]
    rows = await carry_out(
        nodes, Action(t_us=0, fault=made, target=kind.targets[-1], duration_us=2_000_000)
    )
    assert (nodes.is_running, nodes.paused, nodes.rules) == ({1, 2, 3}, set(), {})
    assert rows
    assert all(details.startswith(f"#1 {fault}") for _, _, details in rows)
    assert "node-ended" not in [f for f, _, _ in rows]
    if kind.imposes:
        assert [f for f, _, _ in rows] == [fault, f"stop-{fault}"]


@pytest.mark.jumping_time
async def test_each_fault_lifts_only_its_own_rules() -> None:
    nodes = NodesInMemory()
    held: list[list[str]] = []
    nodes.changed = lambda: held.append(sorted(nodes.rules))
    await carry_out(
        nodes,
        action(0, "partition_one", (1,), 2_000_000),
        action(1_000_000, "refuse", "client", 2_000_000),
    )
    assert held == [
        ["1"],
        ["1", "2-refuse"],
        ["1", "2-refuse", "2-reset"],
        ["2-refuse", "2-reset"],
        ["2-reset"],
        [],
    ]


@pytest.mark.jumping_time
async def test_two_wipes_never_overlap() -> None:
    nodes = NodesInMemory()
    await carry_out(
        nodes,
        action(0, "wipe", (1,), 2_000_000),
        action(1_000_000, "wipe", (2,), 2_000_000),
    )
    assert nodes.performed == [
        ("kill", (1,)),
        ("wipe", (1,)),
        ("start", (1,)),
        ("kill", (2,)),
        ("wipe", (2,)),
        ("start", (2,)),
    ]


async def test_a_node_that_does_not_stop_in_order_is_killed() -> None:
    cluster = FakeCluster()
    cluster.does_not_stop = True
    nodes = nodes_of(cluster)
    await nodes.perform("starve", (1, 2), 50)
    await nodes.perform("stop", (1,))
    assert cluster.running == {2, 3}
    with pytest.raises(NodeUnavailable, match="node 1 does not run") as raised:
        await nodes.perform("stop", (1, 2))
    assert raised.value.node_ids == (1,)
    assert cluster.running == {3}
    await nodes.perform("start", (1, 2))
    assert cluster.paused == set()


async def test_a_node_that_starves_is_fed_again_and_a_paused_one_is_left_alone() -> None:
    cluster = FakeCluster()
    nodes = nodes_of(cluster)
    await nodes.perform("starve", (1, 2), 50)
    await until(lambda: 1 in cluster.paused)
    await until(lambda: 1 not in cluster.paused)
    await nodes.perform("pause", (1,))
    await nodes.perform("feed", (1, 2))
    assert cluster.paused == {1}
    await nodes.perform("resume", (1,))
    await nodes.restore()
    assert cluster.paused == set()
