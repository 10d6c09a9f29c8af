"""Which ends of nodes are findings while the nemesis breaks disks."""

import asyncio
from collections.abc import Sequence

import pytest

from quorumlog.chaos.faults.registry import step_fault
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.schedule import Action, Schedule
from tests.support.chaos.nodes_in_memory import NodesInMemory


def action(t_us: int, fault: str, node_ids: tuple[int, ...], duration_us: int) -> Action:
    return Action(t_us=t_us, fault=step_fault(fault)(), target=node_ids, duration_us=duration_us)


async def carry_out(nodes: NodesInMemory, *actions: Action) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    schedule = Schedule(seed=1, duration_us=1_000_000, actions=actions)
    nemesis = Nemesis(nodes, schedule, topic="t", record=lambda *row: rows.append(row))
    await nemesis.run()
    return rows


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
async def test_a_node_that_gives_up_with_its_disk_is_started_again(
    fault: str, lasts_s: float
) -> None:
    nodes = NodesWithDisks(IO_ERROR)
    rows = await carry_out(nodes, action(0, fault, (2,), int(lasts_s * 1_000_000)))
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
    fsync_error, later = action(0, "fsync_error", (2,), 500_000), action(2_000_000, "kill", (3,), 1)
    rows = await carry_out(nodes, fsync_error, later)
    assert ("gave-up", "2", f"#1 fsync_error: node 2 ended with {IO_ERROR}") in rows
    assert "node-ended" not in [f for f, _, _ in rows]
    assert nodes.is_running == {1, 2, 3}


@pytest.mark.jumping_time
async def test_a_node_that_breaks_a_rule_when_its_disk_fails_is_a_finding() -> None:
    nodes = NodesWithDisks("status 70: invariant violated: ... Input/output error")
    rows = await carry_out(nodes, action(0, "disk_error", (2,), 3_000_000))
    assert "node-ended" in [f for f, _, _ in rows]


@pytest.mark.jumping_time
async def test_a_disk_that_fails_by_itself_is_a_finding() -> None:
    nodes = NodesWithDisks(IO_ERROR)
    asyncio.get_running_loop().call_later(0.5, nodes.is_running.discard, 3)
    rows = await carry_out(nodes, action(0, "disk_error", (2,), 3_000_000))
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
        action(0, "disk_full", (2,), 100_000),  # over after 0.4 s, and the node ends after 1 s
        action(2_000_000, "pause", (1,), 1_000_000),
        action(4_000_000, "kill", (2,), 1_000_000),
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
    rows = await carry_out(
        nodes, action(0, "disk_full", (2,), 3_000_000), action(6_000_000, "pause", (1,), 1)
    )
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
    rows: list[tuple[str, str, str]] = []
    schedule = Schedule(
        seed=1, duration_us=1_000_000, actions=(action(0, "disk_error", (2,), 1_000_000),)
    )
    nemesis = Nemesis(nodes, schedule, topic="t", record=lambda *row: rows.append(row))
    await nemesis.run()
    assert nemesis.done == done
    remark = "#1 disk_error: it had no effect: it was not met"
    assert (("skipped", "2", remark) in rows) is not bool(done)
