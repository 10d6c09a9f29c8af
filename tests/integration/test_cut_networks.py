"""A real cluster behind the lab's forwarders: cut off, with lost requests, with lost replies."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quorumlog.addresses import host_and_port
from quorumlog.chaos.back_ends.run_resources import Equipment, started
from quorumlog.chaos.faults.fault import StepFault
from quorumlog.chaos.faults.partitions import IsolateRole, PartitionOne
from quorumlog.chaos.faults.requests import DropRequests, ReplyLost
from quorumlog.chaos.faults.rows import PHASE, PHASE_OVER
from quorumlog.chaos.history import read_history
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.network import link_proxy
from quorumlog.chaos.network.link_proxy import LinkProxy, ProxyFailed
from quorumlog.chaos.network.routes import plan_routes
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.chaos.verify import verify_history
from quorumlog.client import Admin, NewTopic, Producer
from quorumlog.cluster import LocalCluster, process_identity
from quorumlog.cluster.ports import free_ports
from tests.support.waiting import until

pytestmark = pytest.mark.integration


def action(t_ms: int, fault: StepFault, target: str, duration_ms: int) -> Action:
    return Action(t_us=t_ms * 1000, fault=fault, target=target, duration_us=duration_ms * 1000)


def test_a_cut_off_leader_lost_answers_and_clients_without_nodes_cost_nothing(
    tmp_path: Path,
) -> None:
    """A batch whose answer was lost is sent again, and appended once."""
    actions = (
        action(500, PartitionOne(), "metadata-leader", 3_000),
        action(4_500, ReplyLost(share_ppm=300_000), "all", 2_000),
        action(7_000, IsolateRole(), "client", 1_500),
    )
    schedule = Schedule(seed=1, duration_us=9_000_000, actions=actions)
    settings = RunSettings(
        out=tmp_path, schedule=schedule, seed=1, duration_s=9.0, workload="idempotent_send"
    )
    summary = run(settings, lambda *_: None)
    assert summary.reads_complete
    verdict = verify_history(tmp_path, engine="local")
    assert verdict.valid is True, verdict.as_json()
    logs = [path.read_text() for path in tmp_path.glob("cluster/node-*/node.log")]
    assert sum(log.count("is the active controller") for log in logs) >= 2
    rows = [row["f"] for row in read_history(tmp_path).to_pylist() if row["process"] == -1]
    faults = ("partition_one", "reply_lost", "isolate_role")
    assert rows == [
        PHASE, *(f for name in faults for f in (name, f"stop-{name}")), PHASE_OVER, "heal",
    ]  # fmt: skip


async def isr_becomes(cluster: LocalCluster, wanted: set[int]) -> None:
    """Wait until every partition of the topic has this ISR."""
    async with asyncio.timeout(30):
        while not all({*one["isr"]} == wanted for one in await partitions(cluster)):
            await asyncio.sleep(0.05)


async def partitions(cluster: LocalCluster) -> list[dict[str, Any]]:
    status = await asyncio.to_thread(cluster.status)
    found: list[dict[str, Any]] = status["topics"].get("t", {"partitions": []})["partitions"]
    return found


async def test_a_follower_whose_fetches_are_lost_leaves_the_isr(tmp_path: Path) -> None:
    config = {"replica.lag.time.max.ms": "1500"}
    with started(LocalCluster(tmp_path, nodes=3, config=config), Equipment(links=True)) as nodes:
        cluster = nodes.cluster
        everybody = {*nodes.node_ids}
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topics([NewTopic("t", num_partitions=1, replication_factor=3)])
        await isr_becomes(cluster, everybody)
        (partition,) = await partitions(cluster)
        follower = min(everybody - {partition["leader"]})
        drop = Action(t_us=0, fault=DropRequests(), target=(follower,), duration_us=60 * 1_000_000)
        rows: list[str] = []
        nemesis = Nemesis(
            nodes,
            Schedule(seed=1, duration_us=1, actions=(drop,)),
            topic="t",
            record=lambda f, *_: rows.append(f),
        )
        breaking = asyncio.create_task(nemesis.run())
        await until(lambda: rows)
        async with Producer(cluster.bootstrap) as producer:  # acks=all: it waits for the ISR
            await producer.send_and_wait("t", b"1")
        await isr_becomes(cluster, everybody - {follower})
        breaking.cancel()
        await asyncio.wait([breaking])
        assert await nemesis.heal()
        await isr_becomes(cluster, everybody)
        assert rows == ["drop_request", "heal"]


def test_a_port_of_a_forwarder_that_is_in_use_is_an_error(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=1)
    routes = plan_routes(cluster.nodes)
    with (
        socket.create_server(host_and_port(routes[0].listen)),
        pytest.raises(
            ProxyFailed,
            match=rf"{routes[0].listen} .the forwarder clients->1.: Address already in use",
        ),
        LinkProxy(routes),
    ):
        pass


def test_the_forwarders_end_with_the_run_that_was_killed(tmp_path: Path) -> None:
    port = free_ports("127.0.0.1", 1)[0]
    program = f"""
from quorumlog.chaos.faults.links import Link
from quorumlog.chaos.network import link_proxy
from quorumlog.chaos.network.link_proxy import LinkProxy
from quorumlog.chaos.network.links import Route
route = Route(link=Link("1", "2", "kafka"), listen="127.0.0.1:{port}", target="127.0.0.1:1")
with LinkProxy([route]) as proxy:
    print(proxy.pid, flush=True)
    input()
"""
    run_of_its_own = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with run_of_its_own as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
    while process_identity.started(pid) is not None:
        time.sleep(0.01)


@pytest.mark.parametrize("orders", [b"", b'{"routes": [', b'{"routes": [], "seed": 0}\n{"lift"'])
def test_the_forwarders_end_quietly_with_a_run_that_is_interrupted(orders: bytes) -> None:
    command = [sys.executable, "-m", "quorumlog.chaos.network"]
    ended = subprocess.run(command, input=orders, capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_forwarders_that_do_not_answer_hold_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster(nodes=1)
    with LinkProxy(plan_routes(cluster.nodes)) as proxy:
        assert proxy.pid is not None
        monkeypatch.setattr(link_proxy, "ANSWER_TIMEOUT_S", 0.2)
        os.kill(proxy.pid, signal.SIGSTOP)
        with pytest.raises(ProxyFailed, match="do not answer"):
            proxy.lift("1")
        with pytest.raises(ProxyFailed, match="have ended"):
            proxy.lift("1")
