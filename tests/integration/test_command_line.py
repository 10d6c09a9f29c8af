"""The command line as a person and a script use it: real commands, a real cluster."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.cluster import LocalCluster
from tests.support.cli.processes import Commands

pytestmark = pytest.mark.integration


class Shell(Commands):
    """Runs commands against one cluster directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def words(self, *arguments: str) -> list[str]:
        return [*arguments, "--dir", str(self.directory)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "cluster")
    yield shell
    if shell.directory.exists():
        LocalCluster.open(shell.directory).stop()


def test_a_session_at_the_terminal(shell: Shell) -> None:
    up = shell.json("up", "--detach", "--port", "0")
    keys = ["bootstrap", "cluster_id", "control", "dir", "nodes", "ready_ms", "security"]
    assert sorted(up) == keys
    assert [node["roles"] for node in up["nodes"]] == [["broker", "controller"]] * 3
    assert "runs already" in shell("up", status=1)
    assert "--nodes 3, not 5" in shell("up", "--nodes", "5", status=64)
    assert "--nodes 3, not 1" in shell("up", "--one", status=64)
    assert "--port" in shell("up", "--port", "9092", status=64)

    shell("topics", "create", "orders", "--partitions", "2", "--replication", "3")
    assert "TOPIC_ALREADY_EXISTS" in shell("topics", "create", "orders", status=1)
    assert "did you mean retention.ms?" in shell(
        "topics", "create", "t", "--config", "retention=1", status=1
    )
    assert shell.json("topics", "list") == {"topics": ["orders"]}
    assert shell("topics", "list") == "orders\n"
    described = shell.json("topics", "describe", "orders")
    assert [sorted(row["replicas"]) for row in described["partitions"]] == [[1, 2, 3]] * 2
    shell("configs", "alter", "topic", "orders", "--set", "retention.ms=3600000")
    title, *lines = shell("topics", "describe", "orders").splitlines()
    assert title == f"orders  id {described['topic_id']}  retention.ms=3600000"
    assert [line.split()[0] for line in lines] == ["0", "1"]
    assert shell("groups", "list") == shell("transactions", "list") == ""

    lines = [f"k{number}:v{number}" for number in range(300)]
    shell("produce", "orders", "--key-separator", ":", lines="\n".join(lines))
    everything = ("consume", "orders", "--from", "beginning", "--key-separator", ":")
    assert sorted(shell(*everything, "--max", "300").splitlines()) == sorted(lines)
    first = shell(*everything, "--group", "g", "--max", "100").splitlines()
    rest = shell(*everything, "--group", "g", "--max", "200").splitlines()
    assert sorted(first + rest) == sorted(lines)  # the group went on where it was

    shell("node", "kill", "2")
    assert "node 2 does not run" in shell("node", "kill", "2", status=1)
    nodes = {node["id"]: node for node in shell.json("status")["nodes"]}
    assert nodes[2]["pid"] is None
    assert nodes[1]["answers"]
    again = shell.json("up", "--detach")  # what is missing is started, the rest left alone
    pids = {node["id"]: node["pid"] for node in again["nodes"]}
    assert pids[1] == nodes[1]["pid"]
    assert pids[2] not in {None, up["nodes"][1]["pid"]}

    assert shell.json("down")["stopped"] == [1, 2, 3]
    for idle in (("produce", "orders"), ("consume", "orders"), ("topics", "list")):
        assert "`quorumlog up` starts it" in shell(*idle, status=1)
    shell("status", status=1)


def test_node_0_is_a_node_like_the_others(shell: Shell) -> None:
    up = shell.json("up", "--first-id", "0", "--detach", "--port", "0")
    assert [node["id"] for node in up["nodes"]] == [0, 1, 2]
    assert "--first-id 0, not 1" in shell("up", "--first-id", "1", status=64)
    shell("topics", "create", "orders", "--partitions", "1", "--replication", "3")
    shell("produce", "orders", lines="\n".join(map(str, range(100))))

    moved = shell.json("reassign", "--topic", "orders", "--brokers", "0,2")
    assert moved == {"topic": "orders", "completed": True, "partitions": moved["partitions"]}
    elected = shell.json("elect", "--preferred", "--topic", "orders")["partitions"]
    assert [row["error"] for row in elected] in [[None], ["ELECTION_NOT_NEEDED"]]
    (row,) = shell.json("topics", "describe", "orders")["partitions"]
    assert (row["leader"], row["replicas"], sorted(row["isr"])) == (0, [0, 2], [0, 2])
    quorum = shell.json("quorum", "describe")
    assert [voter["replica_id"] for voter in quorum["voters"]] == [0, 1, 2]
    shell("configs", "alter", "broker", "0", "--set", "log.retention.ms=3600000")
    (changed,) = [
        row
        for row in shell.json("configs", "describe", "broker", "0")["configs"]
        if row["name"] == "log.retention.ms"
    ]
    assert (changed["value"], changed["source"]) == ("3600000", "broker, dynamic")

    shell("node", "kill", "0")
    assert shell.json("status")["nodes"][0]["pid"] is None
    shell("consume", "orders", "--from", "beginning", "--max", "100")  # 2 leads
    again = shell.json("up", "--detach")  # its id is kept
    assert [node["id"] for node in again["nodes"]] == [0, 1, 2]
    assert shell.json("down")["stopped"] == [0, 1, 2]


def test_a_closed_pipe_ends_a_cluster_without_a_word(shell: Shell) -> None:
    for words in (["up", "--nodes", "1", "--port", "0"], ["status"], ["up", "--json"]):
        reader, writer = os.pipe()
        os.close(reader)  # as `head` does
        try:
            done = subprocess.run(
                shell.command(*words), stdout=writer, stderr=subprocess.PIPE, check=False
            )
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (1, b""), words
        assert LocalCluster.open(shell.directory).running() == []


@pytest.fixture
def unignored_hangup() -> Iterator[None]:
    """Tests that run under nohup hand an ignored SIGHUP to the processes that they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("unignored_hangup")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_cluster_at_the_terminal_ends_with_it(shell: Shell, number: signal.Signals) -> None:
    command = shell.command("up", "--nodes", "1", "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"press Ctrl-C" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(60) == 0
    assert shell.json("down")["stopped"] == []


def test_a_cluster_under_nohup_outlives_its_terminal(shell: Shell) -> None:
    command = ["nohup", *shell.command("up", "--nodes", "1", "--port", "0")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while b"press Ctrl-C" not in (line := process.stderr.readline()):
            assert line  # else it ended; nohup has words of its own
        process.send_signal(signal.SIGHUP)
        assert shell.json("status")["nodes"][0]["answers"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert shell.json("down")["stopped"] == []
