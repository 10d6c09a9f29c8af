"""What a nemesis writes down of itself, and what it leaves behind."""

import asyncio
from typing import Any

import pytest

from quorumlog.chaos.faults import FaultAction, Schedule
from quorumlog.chaos.faults.nemesis import Nemesis
from quorumlog.cluster import ClusterError, NodeFailed


class FakeNode:
    def __init__(self, node_id: int) -> None:
        self.id = node_id


class FakeCluster:
    """Three nodes; `refuses` are those that do not get ready, `deaf` those that just ended."""

    def __init__(self) -> None:
        self.nodes = [FakeNode(node_id) for node_id in (1, 2, 3)]
        self.running, self.paused = {1, 2, 3}, set[int]()
        self.refuses: set[int] = set()
        self.deaf: set[int] = set()
        self.leader: int | None = 1

    def pid(self, node_id: int) -> int | None:
        return node_id if node_id in self.running else None

    def status(self) -> dict[str, Any]:
        partitions = [] if self.leader is None else [{"leader": self.leader, "isr": [1, 2, 3]}]
        return {"controller_id": 2, "topics": {"t": {"partitions": partitions}}}

    def kill(self, *node_ids: int) -> None:
        self.running -= self.deaf
        for node_id in node_ids:
            if node_id not in self.running:
                raise ClusterError(f"node {node_id} does not run")
            self.running.discard(node_id)

    def pause(self, node_id: int) -> None:
        self.paused.add(node_id)

    def resume(self, node_id: int) -> None:
        if node_id not in self.running:
            raise ClusterError(f"node {node_id} does not run")
        self.paused.discard(node_id)

    def start_node(self, node_id: int, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.running.add(node_id)
        if node_id in self.refuses:
            raise NodeFailed(f"node {node_id} is not ready in time")

    def last_words(self, node_id: int) -> str:
        return f"node {node_id} ended"


def inflict(
    cluster: FakeCluster, fault: str, target: str
) -> tuple[Nemesis, list[tuple[str, str, str]], bool]:
    rows: list[tuple[str, str, str]] = []
    action = FaultAction(t_us=0, fault=fault, target=target, duration_us=1)
    nemesis = Nemesis(
        cluster,  # type: ignore[arg-type]  # what a nemesis needs of one
        Schedule(seed=1, actions=(action,)),
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

    action = FaultAction(t_us=0, fault="kill", target="partition-leader", duration_us=1)
    schedule = Schedule(seed=1, actions=(action,))
    nemesis = Nemesis(cluster, schedule, topic="t", record=record)  # type: ignore[arg-type]  # as above
    asyncio.run(nemesis.run())
    assert (rows, seen, nemesis.done) == (["kill", "start"], [{1, 2, 3}, {1, 2, 3}], ["kill"])


@pytest.mark.parametrize("fault", ["kill", "pause", "pause-kill", "kill-all"])
def test_every_fault_is_taken_back(fault: str) -> None:
    cluster = FakeCluster()
    target = "all" if fault == "kill-all" else "partition-leader"
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
    assert rows[0][2] == "any, as nobody was partition-leader"


@pytest.mark.parametrize("fault", ["kill", "kill-all"])
def test_a_node_that_is_slow_to_start_has_not_ended(fault: str) -> None:
    cluster = FakeCluster()
    cluster.refuses = {1, 2}
    target = "all" if fault == "kill-all" else "partition-leader"
    _, rows, _ = inflict(cluster, fault, target)
    names = [f for f, _, _ in rows]
    assert "not-ready" in names
    assert "node-ended" not in names
    assert cluster.running == {1, 2, 3}


@pytest.mark.parametrize("fault", ["kill", "pause-kill"])
def test_a_node_that_ended_just_before_its_fault_is_a_finding(fault: str) -> None:
    cluster = FakeCluster()
    cluster.deaf = {1}
    nemesis, rows, is_whole = inflict(cluster, fault, "partition-leader")
    assert ("node-ended", "1", "node 1 ended") in rows
    assert not is_whole
    assert not nemesis.done
    assert (cluster.running, cluster.paused) == ({1, 2, 3}, set())
