"""Which faults each network of a run can do, and what is refused before anything starts."""

import os
import platform
import shutil
from pathlib import Path

import pytest

from quorumlog.chaos.back_ends.equipment import equipment_for
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.faults.links import CLIENTS, Link
from quorumlog.chaos.faults.registry import STEP_FAULTS, FaultUnsupported
from quorumlog.chaos.faults.requests import DropRequests
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.network import namespaces
from quorumlog.chaos.network.routes import are_used
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.cli.chaos_list import listing
from quorumlog.cluster import ClusterShape, LocalCluster
from quorumlog.cluster.layout import NodeSpec
from tests.support.chaos.fake_cluster import FakeCluster

OF_REQUESTS = {"drop_request", "delay_request", "reply_lost"}


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


def test_a_machine_without_namespaces_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lacks(monkeypatch, "it needs root")
    assert not [fault for fault in listing()["faults"] if "netns" in fault["backends"]]
    assert listing()["back_ends"]["netns"].endswith("(not here: it needs root)")
    with pytest.raises(ValueError, match=r"^--network netns: it needs root$"):
        run(RunSettings(out=tmp_path / "run", network="netns"), lambda *_: None)
    assert not (tmp_path / "run").exists()


def test_a_kernel_that_ends_no_connections_is_not_taken_for_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_what_a_network_cannot_do_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    rows: list[tuple[str, str, str]] = []
    schedule = Schedule(seed=1, duration_us=1, actions=(action,))
    nemesis = Nemesis(nodes, schedule, topic="t", record=lambda *row: rows.append(row))
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
    assert equipment_for(draw_schedule(1, faults=[], duration_ms=1), "netns").links


def test_only_what_is_named_destroys_more_than_a_cluster_survives() -> None:
    controls = {fault["name"] for fault in listing()["faults"] if fault["control"]}
    assert controls == {"wipe-majority"}
    assert RunSettings(out=Path()).faults == ("kill",)
