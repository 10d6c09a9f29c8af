"""What a nemesis writes down of itself, whom it hits, what it leaves behind, and broken disks."""

import asyncio
from collections.abc import Sequence
from dataclasses import MISSING, fields

import pytest

from quorumlog.chaos.back_ends.back_end import NodeUnavailable
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.faults.machines import PowerLoss
from quorumlog.chaos.faults.registry import STEP_FAULTS, FaultUnsupported, step_fault
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.schedule import Action, Target
from tests.support.chaos.fake_cluster import FakeCluster
from tests.support.chaos.nemesis_runs import Rows, action, carry_out, nemesis_of
from tests.support.chaos.nodes_in_memory import NodesInMemory
from tests.support.waiting import until


def nodes_of(cluster: FakeCluster) -> LocalProcesses:
    return LocalProcesses(cluster)  # type: ignore[arg-type]  # what a back end needs of one


def inflict(cluster: FakeCluster, fault: str, target: Target) -> tuple[Nemesis, Rows, bool]:
    rows: Rows = []
    one = action(0, fault, target)
    nemesis = nemesis_of(nodes_of(cluster), one, record=lambda *row: rows.append(row))

    async def both() -> bool:
        await nemesis.run()
        return await nemesis.heal()

    return nemesis, rows, asyncio.run(both())


def test_a_fault_is_written_down_before_it_is_inflicted() -> None:
    cluster = FakeCluster()
    seen: list[tuple[str, set[int]]] = []

    def record(f: str, *_: str) -> None:
        seen.append((f, set(cluster.running)))

    one = action(0, "kill", "partition-leader")
    nemesis = nemesis_of(nodes_of(cluster), one, record=record)
    asyncio.run(nemesis.run())
    assert seen == [("kill", {1, 2, 3}), ("start", {1, 2, 3})]
    assert nemesis.done == ["kill"]


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


def test_nodes_may_be_named_and_a_role_that_nobody_holds_is_not_claimed() -> None:
    cluster = FakeCluster()
    cluster.leader = None
    _, rows, _ = inflict(cluster, "kill", "partition-leader")
    assert rows[0][0] == "kill"
    assert rows[0][2] == "#1 kill: any, as no node was partition-leader"
    _, rows, is_whole = inflict(FakeCluster(), "kill", (2, 3))
    assert is_whole
    assert rows[:2] == [("kill", "2,3", "#1 kill: named"), ("start", "2,3", "#1 kill")]


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


def test_what_the_back_end_does_not_have_is_refused_before_the_run() -> None:
    nodes = nodes_of(FakeCluster())
    with pytest.raises(FaultUnsupported, match="fault power_loss: local processes cannot do it"):
        nemesis_of(nodes, Action(t_us=0, fault=PowerLoss(), target=(1,), duration_us=1))
    with pytest.raises(ValueError, match="names node 9; the nodes are 1,2,3"):
        nemesis_of(nodes, action(0, "kill", (9,)))


@pytest.mark.jumping_time
async def test_faults_overlap_and_no_node_is_killed_twice() -> None:
    rows = await carry_out(NodesInMemory(), action(0, "kill", (1,), 2), action(1, "pause", (2,), 2))
    assert rows == [
        ("kill", "1", "#1 kill: named"),
        ("pause", "2", "#2 pause: named"),
        ("start", "1", "#1 kill"),
        ("resume", "2", "#2 pause"),
    ]
    nodes = NodesInMemory()
    rows = await carry_out(nodes, action(0, "kill", (1, 2), 1), action(0.5, "kill_all", "all", 2))
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
    rows = await carry_out(nodes, action(0, "kill", (1, 2), 1), action(2, "kill", (2,), 3))
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
        action(0, "pause_kill", (3,), 2.5),  # kills 3 when it is down already
        action(0.5, "kill", (2, 3), 1),  # starts 2 until 3.5 s, and leaves 3 to #1
    )
    started = [node_ids for operation, node_ids in nodes.performed if operation == "start"]
    assert started == [(2,), (3,)]
    assert nodes.is_running == {1, 2, 3}


@pytest.mark.jumping_time
async def test_what_is_paused_and_then_killed_is_not_resumed() -> None:
    nodes = NodesInMemory()
    rows = await carry_out(nodes, action(0, "pause", (1,), 3), action(1, "kill", (1,), 1))
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
async def test_a_pause_ends_with_the_last_also_if_a_kill_was_refused() -> None:
    nodes = NodesInMemory()
    rows = await carry_out(nodes, action(0, "pause", (1,), 2), action(1, "pause", (1,), 2))
    assert [f for f, _, _ in rows] == ["pause", "pause", "resume", "resume"]
    assert [operation for operation, _ in nodes.performed] == ["pause", "resume"]
    nodes = NobodyDies()
    rows = await carry_out(nodes, action(0, "pause", (1,), 3), action(1, "kill", (1,), 1))
    assert [f for f, _, _ in rows] == ["pause", "kill", "skipped", "resume"]
    assert [operation for operation, _ in nodes.performed] == ["pause", "resume"]


@pytest.mark.jumping_time
async def test_an_action_without_a_running_node_or_its_role_is_recorded() -> None:
    rows = await carry_out(
        NodesInMemory(),
        action(0, "kill_all", "all", 2),
        action(1, "kill", "any"),
        action(1.5, "pause", (2,)),
    )
    assert rows[1:3] == [
        ("skipped", "", "#2 kill: any: no node runs"),
        ("skipped", "", "#3 pause: named: no node runs"),
    ]
    assert "node-ended" not in [f for f, _, _ in rows]
    nodes = NodesInMemory()
    rows = await carry_out(nodes, action(0, "pause", (1, 2), 2), action(1, "kill", "isr-follower"))
    assert rows[1] == ("kill", "3", "#2 kill: any, as no node was isr-follower")


@pytest.mark.jumping_time
async def test_a_row_says_what_an_administrator_asked_for() -> None:
    nodes = NodesInMemory()
    nodes.asked_for["reassign"] = "t-0 to (3, 1)"
    rows = await carry_out(nodes, action(0, "reassign", (2,)), action(9e-06, "grow", "all"))
    assert rows == [
        ("reassign", "2", "#1 reassign: named"),
        ("asked", "2", "#1 reassign: t-0 to (3, 1)"),
        ("grow", "1,2,3", "#2 grow: all"),
    ]


@pytest.mark.parametrize(("role", "size"), [("minority", 1), ("majority", 2)])
def test_a_group_of_nodes_is_hit_together(role: str, size: int) -> None:
    _, rows, is_whole = inflict(FakeCluster(), "kill", role)
    assert is_whole
    assert len(rows[0][1].split(",")) == size


async def test_what_was_paused_goes_on_if_the_run_is_cancelled() -> None:
    cluster = FakeCluster()
    cluster.all_paused = asyncio.Event()
    nemesis = nemesis_of(nodes_of(cluster), action(0, "pause_kill", "partition-leader"))
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
    if kind.imposes and not kind.breaks:
        assert [f for f, _, _ in rows] == [fault, f"stop-{fault}"]


@pytest.mark.jumping_time
async def test_a_leader_is_killed_while_no_answer_passes_and_that_counts_as_done() -> None:
    nodes = NodesInMemory()
    in_force: list[bool] = []
    nodes.changed = lambda: in_force.append(1 in nodes.is_running)
    rows: Rows = []
    one = action(0, "ack_kill", "partition-leader", 2)
    nemesis = nemesis_of(nodes, one, record=lambda *row: rows.append(row))
    await nemesis.run()
    assert [(f, node) for f, node, _ in rows] == [
        ("ack_kill", "1"), ("kill", "1"), ("stop-ack_kill", "1"), ("start", "1"),
    ]  # fmt: skip
    assert in_force == [True, False]  # the answers are lost until the process is gone
    assert nemesis.done == ["ack_kill"]
    links = rows[0][2]
    assert links == "#1 ack_kill: partition-leader; clients->1"


@pytest.mark.jumping_time
async def test_each_fault_lifts_only_its_own_rules() -> None:
    nodes = NodesInMemory()
    held: list[list[str]] = []
    nodes.changed = lambda: held.append(sorted(nodes.rules))
    await carry_out(nodes, action(0, "partition_one", (1,), 2), action(1, "refuse", "client", 2))
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
    await carry_out(nodes, action(0, "wipe", (1,), 2), action(1, "wipe", (2,), 2))
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
    rows = await carry_out(nodes, action(0, fault, role, 1), seed=seed)
    assert (nodes.is_running, nodes.paused, nodes.rules) == ({1, 2, 3}, set(), {})
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
        if role != "rack":
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


class NodesWithDisks(NodesInMemory):
    """Each node whose disk breaks ends after 1 s, with these last words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        await super().perform(operation, node_ids, amount)
        if operation in {"fill_disk", "fail_disk", "fail_fsync"}:
            for node_id in node_ids:
                asyncio.get_running_loop().call_later(1, self.is_running.discard, node_id)

    def last_words(self, node_id: int) -> str:
        return f"node {node_id} ended with {self.words}"


IO_ERROR = "status 1: [Errno 5] Input/output error"


@pytest.mark.jumping_time
@pytest.mark.parametrize("lasts_s", [0.9, 3])
@pytest.mark.parametrize("fault", ["disk_full", "disk_error"])
async def test_a_node_that_gives_up_is_started_again(fault: str, lasts_s: float) -> None:
    nodes = NodesWithDisks(IO_ERROR)
    rows = await carry_out(nodes, action(0, fault, (2,), lasts_s))
    names = [f for f, _, _ in rows]
    assert "node-ended" not in names
    assert names[-1] == "start"
    assert nodes.is_running == {1, 2, 3}
    if "gave-up" in names:
        assert ("gave-up", "2", f"#1 {fault}: node 2 ended with {IO_ERROR}") in rows
    else:
        assert (fault, lasts_s) == ("disk_error", 0.9), "it was killed before it gave up"


@pytest.mark.jumping_time
async def test_a_node_that_is_slow_to_give_up_after_an_fsync_failed_is_started_again() -> None:
    """Its action has started it meanwhile, and it was still there."""
    nodes = NodesWithDisks(IO_ERROR)
    fsync_error, later = action(0, "fsync_error", (2,), 0.5), action(2, "kill", (3,))
    rows = await carry_out(nodes, fsync_error, later)
    assert ("gave-up", "2", f"#1 fsync_error: node 2 ended with {IO_ERROR}") in rows
    assert "node-ended" not in [f for f, _, _ in rows]
    assert nodes.is_running == {1, 2, 3}


@pytest.mark.jumping_time
async def test_a_node_that_breaks_a_rule_or_fails_by_itself_is_a_finding() -> None:
    nodes = NodesWithDisks("status 70: invariant violated: ... Input/output error")
    rows = await carry_out(nodes, action(0, "disk_error", (2,), 3))
    assert "node-ended" in [f for f, _, _ in rows]
    nodes = NodesWithDisks(IO_ERROR)
    asyncio.get_running_loop().call_later(0.5, nodes.is_running.discard, 3)
    rows = await carry_out(nodes, action(0, "disk_error", (2,), 3))
    ends = {(f, node) for f, node, _ in rows if f in {"node-ended", "gave-up"}}
    assert ends == {("gave-up", "2"), ("node-ended", "3")}


@pytest.mark.jumping_time
async def test_a_node_that_gives_up_after_its_fault_is_started_at_once() -> None:
    nodes = NodesWithDisks(IO_ERROR)
    loop = asyncio.get_running_loop()
    running = list[set[int]]()
    loop.call_later(3.5, lambda: running.append({*nodes.is_running}))
    rows = await carry_out(
        nodes,
        action(0, "disk_full", (2,), 0.1),  # over after 0.4 s, and the node ends after 1 s
        action(2, "pause", (1,), 1),
        action(4, "kill", (2,), 1),
    )
    assert [(f, node) for f, node, _ in rows] == [
        ("fill_disk", "2"),
        ("free_disk", "2"),
        ("gave-up", "2"),
        ("start", "2"),
        ("pause", "1"),
        ("resume", "1"),
        ("kill", "2"),
        ("start", "2"),
    ]
    assert rows[3][2] == "#1 disk_full"
    assert running == [{1, 2, 3}]
    assert nodes.is_running == {1, 2, 3}


@pytest.mark.jumping_time
async def test_a_disk_that_works_again_excuses_no_later_process() -> None:
    nodes = NodesWithDisks(IO_ERROR)
    asyncio.get_running_loop().call_later(5, nodes.is_running.discard, 2)
    rows = await carry_out(nodes, action(0, "disk_full", (2,), 3), action(6, "pause", (1,)))
    ends = [(f, node) for f, node, _ in rows if f in {"node-ended", "gave-up"}]
    assert ends == [("gave-up", "2"), ("node-ended", "2")]


@pytest.mark.jumping_time
@pytest.mark.parametrize(("met", "done"), [(None, ["disk_error"]), (0, []), (1, ["disk_error"])])
async def test_a_fault_that_was_not_met_does_not_count(met: int | None, done: list[str]) -> None:
    """No call failed, because none was made."""
    nodes = NodesInMemory()
    if met is not None:
        nodes.met["fail_disk"] = 7
        asyncio.get_running_loop().call_later(0.5, nodes.met.update, {"fail_disk": 7 + met})
    rows: Rows = []
    fault = action(0, "disk_error", (2,), 1)
    nemesis = nemesis_of(nodes, fault, record=lambda *row: rows.append(row))
    await nemesis.run()
    assert nemesis.done == done
    remark = "#1 disk_error: it had no effect: it was not met"
    assert (("skipped", "2", remark) in rows) is not bool(done)
