"""The control server of real clusters: by HTTP, by `quorumlog nemesis`, and its lifetime."""

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from quorumlog.chaos.back_ends.local_processes import ORDERS, RUN_FAULTS
from quorumlog.client import NewTopic
from quorumlog.client.errors import KafkaError
from quorumlog.client.sync import SyncAdmin, SyncProducer
from quorumlog.cluster import (
    ClusterError,
    InvalidArgument,
    LocalCluster,
    process_identity,
    running_clusters,
)
from quorumlog.cluster.control_server import CONNECTION_FILE
from tests.support.cli.processes import TIMEOUT_S, Commands
from tests.support.testing.plugin import run_pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="waits for processes that are no children"),
]
ONE_NODE = ("--nodes", "1", "--port", "0", "--control", "0")


class Server:
    """Requests to a control server."""

    def __init__(self, *, url: str, token: str) -> None:
        self.url = url
        self._token = token

    def __call__(self, method: str, path: str, **body: object) -> tuple[int, dict[str, Any]]:
        data = json.dumps(body).encode() if method == "POST" else None
        headers = {"Authorization": f"Bearer {self._token}"}
        request = Request(self.url + path, method=method, data=data, headers=headers)
        try:
            with urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def done(self, method: str, path: str, **body: object) -> dict[str, Any]:
        status, answer = self(method, path, **body)
        assert status == 200, answer
        return answer


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    running_clusters.stop(running_clusters.running())


@pytest.fixture
def commands(tmp_path: Path, state: None) -> Commands:
    del state
    return Commands(cwd=tmp_path, env=dict(os.environ))


def server_of(cluster: LocalCluster) -> Server:
    assert cluster.control is not None
    return Server(url=cluster.control.url, token=cluster.control.token)


def make_topic(bootstrap: str, name: str, replicas: int = 3) -> None:
    with SyncAdmin(bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, replicas)])


def send(bootstrap: str, topic: str, value: bytes) -> int:
    with SyncProducer(bootstrap) as producer:
        return producer.send_and_wait(topic, value, partition=0).offset


def gone(pid: int) -> None:
    """Wait for the end of a process that may be no child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], TIMEOUT_S)[0]
    finally:
        os.close(descriptor)


def test_a_leader_is_killed_and_the_history_is_judged(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", control=True) as cluster:
        ask = server_of(cluster)
        assert stat.S_IMODE((tmp_path / "c" / CONNECTION_FILE).stat().st_mode) == 0o600
        make_topic(cluster.bootstrap, "orders")
        history = ask.done("POST", "/v1/histories", name="orders survive")["id"]
        for number in range(4):
            micro = {"key": "orders-0", "value": f"order {number}"}
            event = {"process": 0, "f": "send", "type": "invoke", "micro": [micro]}
            path = f"/v1/histories/{history}/operations"
            ask.done("POST", path, operations=[event])
            offset = send(cluster.bootstrap, "orders", micro["value"].encode())
            completed = {**event, "type": "ok", "micro": [{**micro, "offset": offset}]}
            ask.done("POST", path, operations=[completed])
            if number == 1:
                (leader,) = ask.done("GET", "/v1/holders?role=partition-leader&topic=orders")[
                    "nodes"
                ]
                pid = cluster.pid(leader) or 0
                killed = ask.done("POST", "/v1/kill", target="partition-leader", topic="orders")
                assert killed == {"nodes": [leader]}
                assert process_identity.started(pid) is None  # it has ended
        verdict = ask.done("POST", f"/v1/histories/{history}/verdict")
        assert verdict["valid"] is True, verdict
        assert verdict["figures"]["acknowledged"] == 4
        assert ask.done("POST", f"/v1/histories/{history}/verdict") == verdict
        assert len(cluster.running()) == 3  # the verdict has healed the cluster
        rows = Path(verdict["report"]).with_name("history.jsonl").read_text()
        assert '"f":"kill"' in rows
        pids = [node["pid"] for node in ask.done("GET", "/v1/nodes")["nodes"]]
        server_pid = cluster.control.pid if cluster.control is not None else 0
    for pid in [*pids, server_pid]:
        gone(pid)
    assert not (tmp_path / "c" / CONNECTION_FILE).exists()
    assert running_clusters.running() == []


def test_a_disk_is_full_until_it_is_mended(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", nodes=1, control=True, breakable=True) as cluster:
        ask = server_of(cluster)
        make_topic(cluster.bootstrap, "orders", replicas=1)
        for _ in range(2):  # the second time in a process that the server has started
            full = ask.done("POST", "/v1/inflict", fault="disk-full", target=1)
            assert full == {"nodes": [1]}
            with (
                SyncProducer(
                    cluster.bootstrap, request_timeout_ms=1_000, delivery_timeout_ms=1_500
                ) as producer,
                pytest.raises(KafkaError),
            ):
                producer.send_and_wait("orders", bytes(300_000), partition=0)
            ask.done("POST", "/v1/mend")
            ask.done("POST", "/v1/heal")
            send(cluster.bootstrap, "orders", b"there is space again")
            ask.done("POST", "/v1/kill", target=1)
            ask.done("POST", "/v1/start")


NEEDED: dict[str, dict[str, Any]] = {
    "drop_request": {"api": "Fetch"},
    "delay_request": {"api": "AlterPartition"},
    "reply_lost": {"api": "Produce"},
    "answer": {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"},
    "observe": {"api": "Produce"},
    "one_way_cut": {"direction": "out"},
    "slow_disk": {"min_us": 1, "spread_us": 1},
}
"""The parameters without a default, by fault."""


def inflict(ask: Server, **fault: Any) -> None:
    """Inflict a fault. A conflict, as with voters that change, ends with time: try again then."""
    for attempts_left in reversed(range(6)):
        status, answer = ask("POST", "/v1/inflict", **fault)
        if status != 409 or not attempts_left:
            assert status == 200, (fault, answer)
            return
        ask.done("POST", "/v1/mend")
        ask.done("POST", "/v1/heal")
        ask.done("GET", "/v1/settled?timeout_ms=30000")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("breakable", [False, True])
def test_every_fault_of_the_list_is_inflicted_mended_and_healed(
    tmp_path: Path, breakable: bool
) -> None:
    """Faults of disks and clocks have a cluster of their own.

    Its nodes import all their modules at each start, because they cannot be forked.
    """
    faults = {
        name: kind
        for name, kind in RUN_FAULTS.items()
        if name != "grow" and bool(kind.needs & ORDERS.keys()) is breakable
    }
    with LocalCluster(tmp_path / "c", control=True, breakable=breakable) as cluster:
        ask = server_of(cluster)
        make_topic(cluster.bootstrap, "orders")
        for name, kind in faults.items():
            target = "all" if "all" in kind.targets else kind.targets[0]
            more = NEEDED.get(name, {})
            inflict(ask, fault=name, target=target, **more)
            ask.done("POST", "/v1/mend")
            ask.done("POST", "/v1/heal")
        ask.done("GET", "/v1/settled?timeout_ms=30000")
        send(cluster.bootstrap, "orders", b"after all faults")


def test_a_cluster_names_the_start_that_lets_its_disks_be_broken(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", nodes=1, control=True) as cluster:
        ask = server_of(cluster)
        status, answer = ask("POST", "/v1/inflict", fault="clock-step", target=1)
        assert status == 409
        assert "without the library that breaks disks and clocks" in answer["error"]
        assert "quorumlog up --control 0 --breakable" in answer["hint"]
        assert ask("POST", "/v1/inflict", fault="power_loss", target=1)[0] == 400


def test_links_are_cut_for_nodes_and_clients(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", control=True) as cluster:
        ask = server_of(cluster)
        (leader,) = ask.done("POST", "/v1/isolate", target="metadata-leader")["nodes"]
        others = {node.id for node in cluster.nodes} - {leader}
        while (held := ask.done("GET", "/v1/holders?role=metadata-leader")["nodes"]) == [leader]:
            assert cluster.pid(leader) is not None
        assert set(held) <= others
        assert ask.done("POST", "/v1/mend")["nodes"] == [leader]
        assert ask.done("POST", "/v1/heal") == {"nodes": []}


def test_requests_states_and_the_time_are_verbs_too(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", control=True) as cluster:
        ask = server_of(cluster)
        make_topic(cluster.bootstrap, "orders")
        seen = ask.done("GET", "/v1/wait?topic=orders&isr=3&leader=any&timeout_ms=20000")
        assert sorted(seen["partitions"][0]["isr"]) == [1, 2, 3]
        error = {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER", "times": 2}
        assert ask.done("POST", "/v1/answer", **error, topic="orders") == {"rule": 1}
        assert ask.done("POST", "/v1/observe", api="Produce", topic="orders") == {"rule": 2}
        send(cluster.bootstrap, "orders", b"1")
        first, second = ask.done("GET", "/v1/rules")["rules"]
        assert (first["matches"], first["answered"]) == (2, 2)
        assert second["matches"] == 1  # refused requests reach no later rule
        assert "did you mean Produce?" in str(ask("POST", "/v1/observe", api="Produc"))
        ask.done("POST", "/v1/mend")
        ask.done("POST", "/v1/snapshot", name="one")
        send(cluster.bootstrap, "orders", b"2")
        assert ask.done("POST", "/v1/restore", name="one") == {"name": "one"}
        ask.done("GET", "/v1/settled")
        assert send(cluster.bootstrap, "orders", b"3") == 1  # the second record is gone
        assert ask.done("POST", "/v1/advance", days=8)["ahead_ms"] == 8 * 24 * 3600 * 1000
        status, answer = ask("POST", "/v1/compact", topic="orders")
        assert (status, "compact" in answer["hint"]) == (400, True), answer
        ask.done("POST", "/v1/kill", target=1)
        ask.done("POST", "/v1/start")
        assert cluster.node_status(1) is not None
        views = [cluster.node_status(node.id) for node in cluster.nodes]
        assert {view and view["clock_ahead_ms"] for view in views} == {8 * 24 * 3600 * 1000}
        ask.done("POST", "/v1/reset")
        assert "orders" not in cluster.status()["topics"]
        status, answer = ask("GET", "/v1/wait?group=billing&state=Stable&timeout_ms=100")
        assert (status, "group billing" in answer["error"]) == (409, True), answer
        assert ask("GET", "/v1/wait?group=g&state=Dead&timeout_ms=700000")[0] == 400
        assert ask("GET", "/v1/wait?group=g&state=Stabel")[0] == 400
    assert running_clusters.running() == []


def test_a_detached_cluster_is_broken_by_commands(commands: Commands, tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "c"))
    up = commands.json("up", "--detach", *ONE_NODE, *where)
    assert up["control"]["url"].startswith("http://127.0.0.1:")
    assert commands("nemesis", "kill", "1", *where) == "kill: node 1\n"
    assert commands.json("nemesis", "nodes", *where)["nodes"][0]["state"] == "killed"
    assert commands("nemesis", "start", *where) == "start: node 1\n"
    assert commands.json("status", *where)["bootstrap"] == up["bootstrap"]
    commands("nemesis", "kill", "any", *where)
    commands("node", "start", "1", *where)  # behind the same forwarders
    assert commands.json("status", *where)["bootstrap"] == up["bootstrap"]
    assert "did you mean any?" in commands("nemesis", "kill", "ani", *where, status=64)
    delayed = ("nemesis", "inflict", "delay", "client", *where)
    assert commands(*delayed, "--set", "min_us=5") == "inflict: node -\n"
    assert "it must be from" in commands(*delayed, "--set", "min_us=-5", status=64)
    twice = ("nemesis", "inflict", "delay", "all", "--topic", "a", "--set", "topic=b")
    assert "topic is given twice" in commands(*twice, *where, status=64)
    (running,) = commands.json("status", "--all")["clusters"]
    commands("down", *where)
    gone(running["control_server"]["pid"])
    said = commands("nemesis", "heal", *where, status=1)
    assert "`quorumlog up --control PORT` starts a cluster with one" in said


def test_all_ends_with_down_all_and_after_a_loss_of_the_server(
    commands: Commands, tmp_path: Path
) -> None:
    where = ("--dir", str(tmp_path / "c"))
    for end in (("down", "--all"), ("down", *where)):
        commands("up", "--detach", *ONE_NODE, *where)
        (running,) = running_clusters.running()
        assert running.control_server is not None
        if end != ("down", "--all"):
            os.kill(running.control_server.pid, signal.SIGKILL)
        commands(*end)
        gone(running.control_server.pid)
        assert running_clusters.running() == []


@pytest.mark.parametrize("end", ["SIGKILL", "end of input"])
def test_nothing_outlives_a_foreground_cluster(
    commands: Commands, tmp_path: Path, end: str
) -> None:
    command = commands.command("up", *ONE_NODE, "--until-stdin-closes", "--json")
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=dict(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"}\n")
        control = json.loads(b"".join(lines) + b"}")["control"]
        ask = Server(**control)
        ask.done("POST", "/v1/kill", target=1)
        ask.done("POST", "/v1/start")  # the node is a child of the server now
        (running,) = running_clusters.running()
        assert running.control_server is not None
        if end == "SIGKILL":
            process.kill()
        else:
            process.stdin.close()
            assert process.wait(TIMEOUT_S) == 0
        for one in (*running.nodes, running.control_server):
            gone(one.pid)
    assert running_clusters.running() == []


def test_a_second_start_keeps_the_server_that_runs(commands: Commands, tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "c"))
    up = commands.json("up", "--detach", "--nodes", "3", "--port", "0", "--control", "0", *where)
    os.kill(up["nodes"][0]["pid"], signal.SIGKILL)  # from outside: the nemesis does not know it
    gone(up["nodes"][0]["pid"])
    port = int(up["control"]["url"].rpartition(":")[2])
    another = ("--control", str(port - 1))
    assert "runs already at" in commands("up", "--detach", *another, *where, status=1)
    again = commands.json("up", "--detach", "--control", "0", *where)  # the dead node is back
    assert (again["control"], again["bootstrap"]) == (up["control"], up["bootstrap"])
    assert (
        commands.json("up", "--detach", "--control", str(port), *where)["control"]
        == (up["control"])
    )
    states = {node["state"] for node in commands.json("nemesis", "nodes", *where)["nodes"]}
    assert states == {"running"}


def test_nodes_without_their_server_are_named_lost(commands: Commands, tmp_path: Path) -> None:
    where = ("--dir", str(tmp_path / "c"))
    up = commands.json("up", "--detach", "--nodes", "3", "--port", "0", "--control", "0", *where)
    (running,) = running_clusters.running()
    assert running.control_server is not None
    for pid in (up["nodes"][0]["pid"], running.control_server.pid):
        os.kill(pid, signal.SIGKILL)
        gone(pid)
    for command in (
        ("up", "--detach"),
        ("up", "--detach", "--control", "0"),
        ("node", "start", "1"),
    ):
        assert "server that has ended" in commands(*command, *where, status=1)
    assert "the control server of the cluster" in commands("nemesis", "heal", *where, status=1)
    commands("down", *where)
    plain = commands.json("up", "--detach", *where)  # the file of the server is no obstacle
    assert plain["control"] is None
    os.kill(plain["nodes"][0]["pid"], signal.SIGKILL)
    gone(plain["nodes"][0]["pid"])
    assert commands.json("up", "--detach", *where)["bootstrap"] == plain["bootstrap"]


def test_a_server_that_cannot_listen_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"127.0.0.1:{port} \(control server\).*in use"):
            LocalCluster(tmp_path / "c", nodes=1, control=port).start()
    assert running_clusters.running() == []
    for wrong in ("9099x", "127.0.0.1:x", "70000", ":9099"):
        with pytest.raises(InvalidArgument, match="write a port"):
            LocalCluster(tmp_path / "d", control=wrong)


def test_nodes_do_not_run_before_their_server(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", nodes=1):
        late = LocalCluster(tmp_path / "c", control=True)
        with pytest.raises(ClusterError, match="a control server starts before the nodes"):
            late.start()
        assert late.running() == [1]


def test_a_test_in_python_lends_its_nemesis(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        """
import json, urllib.request

def ask(control, method, path, **body):
    headers = {"Authorization": f"Bearer {control.token}"}
    data = json.dumps(body).encode() if method == "POST" else None
    request = urllib.request.Request(control.url + path, data, headers, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())

def test_it(quorumlog_control, quorumlog_cluster, nemesis, topic, history, quorumlog_trial):
    assert ask(quorumlog_control, "POST", "/v1/kill", target=1) == {"nodes": [1]}
    assert quorumlog_cluster.pid(1) is None
    assert nemesis.start().node_ids == (1,)
    opened = ask(quorumlog_control, "POST", "/v1/histories")
    ask(quorumlog_control, "POST", "/v1/pause", target="partition-leader")
    assert '"pause"' in (quorumlog_trial.store / "history.jsonl").read_text()
    assert '"pause"' in open(opened["directory"] + "/history.jsonl").read()
    assert len(ask(quorumlog_control, "POST", "/v1/resume")["nodes"]) == 1
"""
    )
    done = run_pytest(tmp_path, "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
