"""Which faults each network can do, which links faults cut, and which nodes actions hold down."""

import json
import os
import platform
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.back_ends.run_resources import equipment_for
from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.faults.fault import Scene
from quorumlog.chaos.faults.links import CLIENTS, EFFECTS, DropRequest, Effect, Link, LinkRule
from quorumlog.chaos.faults.partitions import (
    IsolateRole,
    PartitionHalves,
    PartitionOne,
    PartitionOneWay,
    PartitionRing,
)
from quorumlog.chaos.faults.registry import STEP_FAULTS, FaultUnsupported
from quorumlog.chaos.faults.requests import DropRequests, ReplyLost
from quorumlog.chaos.held_nodes import HeldNodes, Hold
from quorumlog.chaos.network import namespaces
from quorumlog.chaos.network.links import plain_rule, rule_of
from quorumlog.chaos.network.routes import are_used
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action
from quorumlog.cli.chaos_list import listing
from quorumlog.cluster import ClusterShape, LocalCluster
from quorumlog.cluster.layout import NodeSpec
from tests.support.chaos.fake_cluster import FakeCluster
from tests.support.chaos.nemesis_runs import Rows, nemesis_of

OF_REQUESTS = {"drop_request", "delay_request", "reply_lost", "ack_kill", "answer"}


def lacks(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    monkeypatch.setattr(namespaces, "why_not", lambda: reason)


def test_a_kernel_cuts_links_and_knows_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, "")
    on_links = {name: kind for name, kind in STEP_FAULTS.items() if kind.imposes}
    assert not [name for name, kind in on_links.items() if LocalProcesses.missing(kind)]
    refused = {name for name, kind in on_links.items() if LocalProcesses.missing(kind, "netns")}
    assert refused == {*OF_REQUESTS, "delay", "refuse"}
    told = {fault["name"].replace("-", "_"): fault["backends"] for fault in listing()["faults"]}
    assert {name for name in on_links if "netns" not in told[name]} == refused


def test_without_namespaces_a_machine_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lacks(monkeypatch, "it needs root")
    assert not [fault for fault in listing()["faults"] if "netns" in fault["backends"]]
    assert listing()["back_ends"]["netns"].endswith("(not here: it needs root)")
    with pytest.raises(ValueError, match=r"^--network netns: it needs root$"):
        run(RunSettings(out=tmp_path / "run", network="netns"), lambda *_: None)
    assert not (tmp_path / "run").exists()


def test_a_kernel_that_ends_no_connections_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CONFIG_INET_DIAG_DESTROY `ss -K` ends with status 0, and nothing happens."""
    done = list[tuple[str, ...]]()

    def accepted(*command: str) -> str:
        done.append(command)
        return "[]"

    monkeypatch.setattr(namespaces, "_do", accepted)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert "CONFIG_INET_DIAG_DESTROY" in namespaces.why_not.__wrapped__()
    assert [command for command in done if command[:2] == ("ss", "-K")], done


def test_an_impossible_fault_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lacks(monkeypatch, "")
    settings = RunSettings(out=tmp_path / "run", network="netns", faults=("drop-request",))
    with pytest.raises(FaultUnsupported, match="the kernel cannot match or refuse requests"):
        run(settings, lambda *_: None)
    elsewhere = RunSettings(
        out=tmp_path / "run", network="netns", faults=(), bootstrap="127.0.0.1:1"
    )
    with pytest.raises(ValueError, match="a cluster of --bootstrap has its own"):
        run(elsewhere, lambda *_: None)
    assert not (tmp_path / "run").exists()


def test_a_cluster_of_separate_roles_is_refused_the_loss_of_most_logs(tmp_path: Path) -> None:
    apart = ClusterShape(controllers=3, brokers=3)
    settings = RunSettings(out=tmp_path / "run", shape=apart, faults=("kill", "wipe-majority"))
    with pytest.raises(FaultUnsupported, match=r"wipe_majority: .*\(it may hit controllers alone"):
        run(settings, lambda *_: None)
    assert not (tmp_path / "run").exists()
    together = LocalProcesses(LocalCluster(tmp_path / "cluster"))
    assert together.why_not("wipe_majority") == ""
    assert "lose_records" in together.operations


def test_only_links_that_a_party_dials_are_used() -> None:
    controller = NodeSpec(id=1, roles=("controller",), kafka="h:1", control="h:2")
    broker = NodeSpec(id=2, roles=("broker",), kafka="h:3", control="h:4")
    nodes = (controller, broker)
    for used in (Link(CLIENTS, "2"), Link("2", CLIENTS, "kafka"), Link("2", "1"), Link("1", "2")):
        assert are_used(nodes, [Link(CLIENTS, "1"), used])
    for unused in (Link(CLIENTS, "1"), Link("1", CLIENTS), Link(CLIENTS, "2", "control")):
        assert not are_used(nodes, [unused])
    assert not are_used(nodes, [])


async def test_a_rule_on_links_that_nobody_uses_is_skipped() -> None:
    """Clients dial brokers alone: between them and a controller, nothing can be broken."""
    cluster = FakeCluster()
    cluster.nodes = [
        NodeSpec(id=1, roles=("controller",), kafka="h:1", control="h:2"),
        NodeSpec(id=2, roles=("broker",), kafka="h:3", control="h:4"),
    ]
    nodes = LocalProcesses(cluster)  # type: ignore[arg-type]  # what a back end needs of one
    action = Action(t_us=0, fault=DropRequests(sender="clients"), target=(1,), duration_us=1)
    rows: Rows = []
    nemesis = nemesis_of(nodes, action, record=lambda *row: rows.append(row))
    await nemesis.run()
    assert rows == [("skipped", "1", "#1 drop_request: named: there is no such link")]
    assert nemesis.done == []


def test_a_cluster_gets_no_equipment_that_its_faults_do_not_need() -> None:
    def needed(*faults: str) -> tuple[bool, bool]:
        schedule = draw_schedule(1, faults=faults, duration_ms=60_000)
        equipment = equipment_for(schedule, "proxy")
        return equipment.links, equipment.shim

    assert needed("kill", "wipe", "admin-churn") == (False, False)
    assert needed("kill", "partition-one") == (True, False)
    for name in ("disk-full", "disk-error", "slow-fsync", "clock-step"):
        assert needed("kill", name) == (False, True)
    nothing = draw_schedule(1, faults=[], duration_ms=1)
    assert equipment_for(nothing, "netns").links
    assert equipment_for(nothing, "proxy", forwards=True).links
    assert not equipment_for(nothing, "proxy").links


def test_only_what_is_named_destroys_more_than_a_cluster_survives() -> None:
    controls = {fault["name"] for fault in listing()["faults"] if fault["control"]}
    assert controls == {"wipe-majority"}
    assert RunSettings(out=Path()).faults == ("kill",)


def scene(count: int, victims: tuple[int, ...] = (1,), *, seed: int = 1) -> Scene:
    nodes = tuple(range(1, count + 1))
    return Scene(
        action_id="7",
        victims=victims,
        running=nodes,
        all_nodes=nodes,
        rng=Random(seed),
        hits_clients=not victims,
    )


def pairs(rules: tuple[LinkRule, ...]) -> set[tuple[str, str]]:
    return {(link.source, link.destination) for rule in rules for link in rule.links}


def test_a_partition_leaves_clients_and_who_is_isolated_reaches_nobody() -> None:
    cut = pairs(PartitionOne().rules(scene(3)))
    assert cut == {("1", "2"), ("2", "1"), ("1", "3"), ("3", "1")}
    assert pairs(PartitionOneWay(direction="in").rules(scene(3))) == {("2", "1"), ("3", "1")}
    assert pairs(PartitionOneWay(direction="out").rules(scene(3))) == {("1", "2"), ("1", "3")}
    cut = pairs(IsolateRole().rules(scene(3)))
    assert ("1", "clients") in cut
    assert len(cut) == 6
    assert pairs(IsolateRole().rules(scene(2, ()))) == {
        *(("clients", "1"), ("1", "clients"), ("clients", "2"), ("2", "clients"))
    }


@pytest.mark.parametrize("count", range(2, 10))
@pytest.mark.parametrize("seed", range(5))
def test_of_two_halves_one_is_a_majority(count: int, seed: int) -> None:
    cut = pairs(PartitionHalves().rules(scene(count, seed=seed)))
    reach = [1 + sum((str(a), str(b)) not in cut for b in nodes(count, a)) for a in all_of(count)]
    majority = count // 2 + 1
    assert sorted(reach) == sorted([majority] * majority + [count - majority] * (count - majority))


@pytest.mark.parametrize("count", range(3, 10))
@pytest.mark.parametrize("seed", range(5))
def test_in_a_ring_every_node_sees_a_majority_and_none_sees_all(count: int, seed: int) -> None:
    cut = pairs(PartitionRing().rules(scene(count, seed=seed)))
    assert cut
    assert {(b, a) for a, b in cut} == cut
    sees = [
        frozenset({a, *(b for b in nodes(count, a) if (str(a), str(b)) not in cut)})
        for a in all_of(count)
    ]
    assert all(len(seen) > count // 2 for seen in sees)
    assert len({*sees}) == count or count <= 4


def all_of(count: int) -> range:
    return range(1, count + 1)


def nodes(count: int, but: int) -> list[int]:
    return [node_id for node_id in all_of(count) if node_id != but]


def test_a_kind_of_request_is_lost_on_its_own_listener() -> None:
    (rule,) = DropRequests(api="Fetch").rules(scene(3))
    assert rule == LinkRule(
        "7", (Link("1", "2", "kafka"), Link("1", "3", "kafka")), DropRequest("Fetch")
    )
    (rule,) = DropRequests(api="AlterPartition", sender="nodes").rules(scene(3))
    assert rule.links == (Link("2", "1", "control"), Link("3", "1", "control"))
    (rule,) = DropRequests(api="control/Fetch").rules(scene(2))
    assert (rule.links, rule.effect) == ((Link("1", "2", "control"),), DropRequest("Fetch"))
    (rule,) = ReplyLost(api="EndTxn").rules(scene(2, (2,)))
    assert rule.links == (Link("clients", "2", "kafka"),)
    with pytest.raises(ValueError, match="no request is called 'Fech'; did you mean Fetch"):
        DropRequests(api="Fech")


@pytest.mark.parametrize("kind", sorted(EFFECTS, key=str))
def test_a_rule_is_told_as_json(kind: type[Effect]) -> None:
    values: dict[str, Any] = {"api": "Fetch", "us": 5, "min_us": 3, "bytes_per_s": 9, "error": "E"}
    needed: dict[str, Any] = {name: values[name] for name in kind.__match_args__ if name in values}
    effect = kind(**needed)
    rule = LinkRule("3-x", (Link("1", "clients", "kafka"), Link("2", "1")), effect)
    assert rule_of(json.loads(json.dumps(plain_rule(rule)))) == rule


def test_a_node_is_killed_once_or_while_it_starts_and_started_by_the_last() -> None:
    held = HeldNodes[str]()
    assert held.take("kill", [1, 2], "a") == (1, 2)
    assert held.take("stop", [2, 3], "b") == (3,)
    assert held.begin_to_undo("start", [1, 2], "a") == (1,)
    assert held.end_undoing("start", [1], "a") == (1,)
    assert [held.is_down(node_id) for node_id in (1, 2, 3)] == [False, True, True]
    assert held.held_by("start", [1, 2, 3], "b") == (2, 3)
    assert held.begin_to_undo("start", [2, 3], "b") == (2, 3)
    held = HeldNodes[str]()
    held.take("kill", [1], "a")
    held.begin_to_undo("start", [1], "a")
    assert held.take("kill", [1], "b") == (1,)
    assert held.held_by("start", [1], "a") == ()
    assert held.begin_to_undo("start", [1], "b") == (1,)
    assert held.end_undoing("start", [1], "a") == ()
    assert held.is_down(1)
    assert held.end_undoing("start", [1], "b") == (1,)
    assert not held.is_down(1)


def test_the_last_to_let_go_undoes_it_and_an_early_kill_leaves_the_node() -> None:
    held = HeldNodes[str]()
    held.take("kill", [1, 2], "a")
    held.take("kill", [1], "b")
    assert held.begin_to_undo("start", [1, 2], "a") == (2,)
    assert held.begin_to_undo("start", [1], "b") == (1,)
    held = HeldNodes[str]()
    held.take("kill", [1, 2], "a")
    held.begin_to_undo("start", [1], "a")
    held.take("kill", [1], "b")
    held.give_back("kill", [1])
    assert held.held_by("start", [1], "a") == (1,)
    held.give_back("kill", [2])
    assert not held.is_down(2)


def test_what_held_a_process_ends_with_it() -> None:
    held = HeldNodes[str]()
    held.take("pause", [1, 2], "a")
    held.take("fill_disk", [1], "c")
    held.take("kill", [1], "b")
    assert held.died([1]) == [Hold("resume", 1, "a")]
    assert held.held_by("resume", [1, 2], "a") == (2,)
    assert held.held_by("free_disk", [1], "c") == (1,)
    held.clear()
    assert not held.is_held(1)
