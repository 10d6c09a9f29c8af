"""Two clusters as one back end: operations and rules reach the clusters that they concern."""

import asyncio
from typing import Any

import pytest

from quorumlog.chaos.back_ends.back_end import BackEndFailed, NodeUnavailable
from quorumlog.chaos.back_ends.two_clusters import TwoClusters
from quorumlog.chaos.faults.links import CLIENTS, Cut, LinkRule, between
from tests.support.chaos.nemesis_runs import action, carry_out
from tests.support.chaos.nodes_in_memory import NodesInMemory

COPY = "source.t"


class Target(NodesInMemory):
    """The second cluster; `asked`: the topics whose holders were requested."""

    node_ids: Any = (101, 102, 103)

    def __init__(self) -> None:
        super().__init__()
        self.is_running = {*self.node_ids}
        self.roles = {"partition-leader": [102]}
        self.asked: list[str] = []

    async def holders(self, role: str, topic: str) -> list[int]:
        self.asked.append(topic)
        return [*await super().holders(role, topic)]


def both() -> tuple[NodesInMemory, Target, TwoClusters]:
    source, target = NodesInMemory(), Target()
    return source, target, TwoClusters(source, target, copy=COPY)


def test_each_node_is_broken_in_its_own_cluster() -> None:
    source, target, clusters = both()
    asyncio.run(clusters.perform("kill", [2, 101, 3]))
    assert (source.performed, target.performed) == ([("kill", (2, 3))], [("kill", (101,))])
    assert asyncio.run(clusters.running()) == (1, 102, 103)
    assert clusters.node_ids == (1, 2, 3, 101, 102, 103)
    asyncio.run(clusters.perform("start", [101]))
    assert source.performed == [("kill", (2, 3))]


def test_an_operation_that_fails_in_one_cluster_is_done_in_the_other() -> None:
    source, target, clusters = both()
    source.is_running.discard(1)
    with pytest.raises(NodeUnavailable) as failed:
        asyncio.run(clusters.perform("pause", [1, 102]))
    assert failed.value.node_ids == (1,)
    assert target.paused == {102}

    async def broken(*_: object) -> None:
        raise BackEndFailed("it does not work")

    target.perform = broken  # type: ignore[assignment, method-assign]  # a back end that fails
    with pytest.raises(BackEndFailed):
        asyncio.run(clusters.perform("pause", [1, 102]))


def test_a_role_has_its_holders_in_both_and_the_topic_of_the_target_is_the_copy() -> None:
    _, target, clusters = both()
    assert asyncio.run(clusters.holders("partition-leader", "t")) == [1, 102]
    assert target.asked == [COPY]


def test_a_rule_holds_in_each_cluster_for_its_own_links() -> None:
    source, target, clusters = both()
    cut = LinkRule("r", between(["1"], ["2", "101", CLIENTS]), Cut())
    assert clusters.has_links(cut.links)
    asyncio.run(clusters.impose(cut))
    assert source.rules["r"].links == between(["1"], ["2", CLIENTS])
    assert not target.rules
    asyncio.run(clusters.impose(LinkRule("q", between(["101"], ["102"]), Cut())))
    assert [*target.rules] == ["q"]
    for rule_id in ("r", "q"):
        asyncio.run(clusters.lift(rule_id))
    assert not source.rules
    assert not target.rules
    assert not clusters.has_links(between(["1"], ["101"]))


def test_a_nemesis_breaks_and_mends_both() -> None:
    source, target, clusters = both()
    kill, pause = action(0, "kill", (1,)), action(0, "pause", (102,))
    asyncio.run(carry_out(clusters, kill, pause))
    assert source.performed == [("kill", (1,)), ("start", (1,))]
    assert target.performed == [("pause", (102,)), ("resume", (102,))]
