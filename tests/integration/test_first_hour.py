"""What a newcomer does wrong in the first hour, and what is said: real commands, real nodes."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.cluster import running_clusters
from quorumlog.cluster.ports import free_ports
from tests.support.cli.processes import TIMEOUT_S, Commands

pytestmark = pytest.mark.integration
ONE_NODE = ("--nodes", "1", "--port", "0")


class Terminal(Commands):
    """A working directory with a home of its own, where commands are typed."""

    def __init__(self, path: Path) -> None:
        self.path = path / "work"
        self.path.mkdir()
        self.state = path / "state"
        self.environment = {**os.environ, "XDG_STATE_HOME": str(self.state)}
        super().__init__(cwd=self.path, env=self.environment)

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script in which $Q is the command line."""
        return subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=self.path,
            env={**self.environment, "Q": " ".join(self.command())},
        )


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(terminal.state))
    yield terminal
    running_clusters.stop(running_clusters.running())


def test_a_mistyped_setting_leaves_a_cluster_as_it_was(terminal: Terminal) -> None:
    said = terminal("up", "--config", "log.rol.ms=5", status=64)
    assert "did you mean log.roll.ms?" in said
    assert list(terminal.path.iterdir()) == []
    terminal("up", "--detach", *ONE_NODE)
    terminal("topics", "create", "kept")
    terminal("down")
    terminal("up", "--detach", "--config", "log.rol.ms=5", status=64)
    terminal("up", "--detach", "--config", "num.partitions=4")
    assert terminal("topics", "list") == "kept\n"
    recorded = json.loads((terminal.path / "quorumlog-data/cluster.json").read_text())
    assert recorded["config"]["num.partitions"] == "4"


def test_a_port_in_use_does_not_bind_the_directory(terminal: Terminal) -> None:
    with socket.socket() as taken:
        while True:
            (port,) = free_ports("127.0.0.1", 1)
            with contextlib.suppress(OSError, OverflowError):  # the other port is not free
                taken.bind(("127.0.0.1", port + 10_000))
                break
        taken.listen()
        said = terminal("up", "--nodes", "1", "--port", str(port), status=1)
    assert f"127.0.0.1:{port + 10_000} (node 1, control port, its Kafka port + 10000)" in said
    assert "in use" in said
    if sys.platform == "linux":
        assert f"by process {os.getpid()} (" in said
    up = terminal.json("up", "--detach", *ONE_NODE)  # another --port in the same directory
    assert up["dir"] == str(terminal.path / "quorumlog-data")


def test_a_folder_of_hostile_modules_harms_nothing(terminal: Terminal) -> None:
    for name in sorted({*sys.stdlib_module_names, "quorumlog", "aiohttp", "typer"}):
        (terminal.path / f"{name}.py").write_text("raise SystemError('imported')\n")
    up = f"$Q up --detach {' '.join(ONE_NODE)}"
    produce, consume = "echo a | $Q produce t", "$Q consume t --from beginning --max 1"
    ended = terminal.shell(f"set -e; {up} > up; {produce} > produced; {consume}")
    assert (ended.returncode, ended.stdout) == (0, "a\n"), ended


def test_a_container_settings_start_a_cluster_and_are_named(terminal: Terminal) -> None:
    names = ("log.retention.hours=168", "log.cleaner.threads=1", "num.io.threads=8")
    settings = [word for name in names for word in ("--config", name)]
    script = " ".join(["$Q up --detach", *ONE_NODE, *settings])
    ended = terminal.shell(script)
    assert ended.returncode == 0, ended
    assert "settings without effect" in ended.stderr
    assert "log.cleaner.threads, num.io.threads" in ended.stderr
    log = (terminal.path / "quorumlog-data/node-1/node.log").read_text()
    assert "have no effect here: log.cleaner.threads, num.io.threads" in log


def test_every_cluster_of_the_user_is_found_and_stopped(terminal: Terminal) -> None:
    first = terminal.json("up", "--detach", *ONE_NODE, "--dir", "first")
    terminal("up", "--detach", *ONE_NODE, "--dir", "second")
    subprocess.run(["rm", "-rf", str(terminal.path / "first")], check=True)
    found = terminal.json("status", "--all")["clusters"]
    assert [(Path(each["dir"]).name, each["dir_exists"]) for each in found] in (
        [("first", False), ("second", True)],
        [("second", True)],  # the node of the first ended by itself: its disk had gone
    )
    assert found[0]["nodes"][0]["pid"] == first["nodes"][0]["pid"] or len(found) == 1
    stopped = terminal.json("down", "--all")["clusters"]
    assert {Path(each["dir"]).name for each in stopped} >= {"second"}
    assert terminal("status", "--all") == "no cluster runs\n"
    assert terminal("down", "--all") == "no cluster runs\n"


def wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], TIMEOUT_S)[0]
    finally:
        os.close(descriptor)


def test_up_reports_a_node_that_has_ended(terminal: Terminal) -> None:
    command = terminal.command("up", *ONE_NODE)
    with subprocess.Popen(
        command, cwd=terminal.path, env=terminal.environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "press Ctrl-C" in process.stderr.readline()
        (terminal.path / "quorumlog-data/node-1/node.log").unlink()
        terminal("node", "kill", "1")
        line = process.stderr.readline()
        assert "node 1 ended with status -9: no output" in line
        assert "start it again with: quorumlog node start 1 --dir " in line
        terminal("node", "start", "1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="waits for a process that is no child")
def test_nodes_end_when_up_is_killed(terminal: Terminal) -> None:
    command = terminal.command("up", *ONE_NODE)
    with subprocess.Popen(
        command, cwd=terminal.path, env=terminal.environment, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert b"press Ctrl-C" in process.stderr.readline()
        (cluster,) = running_clusters.running()
        process.send_signal(signal.SIGKILL)
    wait_until_gone(cluster.nodes[0].pid)
    log = (terminal.path / "quorumlog-data/node-1/node.log").read_text()
    assert "the process that started this node has ended: the node stops" in log


def test_what_goes_in_and_out(terminal: Terminal) -> None:
    terminal("up", "--detach", *ONE_NODE)
    assert terminal.json("topics", "create", "t", "--partitions", "2") == {"created": "t"}
    headers = ("--header", "source=test", "--partition", "1", "--compression", "zstd")
    sent = terminal.shell(
        f"printf 'k:v\\n' | $Q produce t --json --key-separator : {' '.join(headers)}"
    )
    assert json.loads(sent.stdout) == {"topic": "t", "records": 1}
    everything = ("consume", "t", "--from", "beginning", "--max", "1")
    (record,) = (json.loads(line) for line in terminal(*everything, "--json").splitlines())
    assert (record["partition"], record["offset"], record["key"], record["value"]) == (
        1,
        0,
        "k",
        "v",
    )
    assert record["headers"] == [["source", "test"]]
    assert terminal(*everything, "--format", r"%p %o %k %s %h\n") == "1 0 k v source=test\n"
    assert terminal.json("topics", "delete", "t") == {"deleted": "t"}
    assert terminal.json("node", "pause", "1")["node"] == 1
    assert terminal("node", "resume", "1") == "resumed node 1\n"
    for script, status, said in (
        ("$Q produce u < /dev/null", 0, "0 records acknowledged"),
        ("$Q produce u <&-", 64, "standard input is closed"),
        ("$Q status > /dev/full", 1, "cannot write the output: No space left on device"),
        ("$Q status >&-", 0, ""),
        ("echo a | $Q produce u && $Q consume u --from beginning > /dev/full", 1, "No space left"),
        ("set -o pipefail; $Q consume u --from beginning --max 1 | true", 1, ""),
    ):
        ended = terminal.shell(script)
        assert (ended.returncode, "Traceback" in ended.stderr) == (status, False), ended
        assert said in ended.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_told_with_the_option(terminal: Terminal) -> None:
    terminal.path.chmod(0o555)
    try:
        assert "choose another --dir" in terminal("up", *ONE_NODE, status=1)
    finally:
        terminal.path.chmod(0o755)


def test_ctrl_c_is_no_traceback_from_the_first_moment_on(terminal: Terminal) -> None:
    """At the first output of a child that prints each import, which is long before the end."""
    command = [sys.executable, "-P", "-v", "-m", "quorumlog", "topics", "list"]
    with subprocess.Popen(
        command, cwd=terminal.path, stderr=subprocess.PIPE, text=True, env=terminal.environment
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("import 'typer"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait(TIMEOUT_S) == -signal.SIGINT
    assert "Traceback" not in rest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_says_so(terminal: Terminal, number: signal.Signals) -> None:
    command = terminal.command("up", "--nodes", "3", "--port", "0")
    with subprocess.Popen(
        command, cwd=terminal.path, stderr=subprocess.PIPE, text=True, env=terminal.environment
    ) as process:
        while not running_clusters.running():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 130
        assert process.stderr is not None
        assert "interrupted while starting" in process.stderr.read()
    assert running_clusters.running() == []


def test_the_document_of_a_cluster_in_the_foreground_comes_when_it_is_ready(
    terminal: Terminal,
) -> None:
    command = terminal.command("up", *ONE_NODE, "--json")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=terminal.path, stdout=pipe, stderr=pipe, env=terminal.environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"press Ctrl-C" in process.stderr.readline()
        assert process.stdout.readline() == b"{\n"  # what is not flushed does not come
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        process.stderr.read()
        assert process.wait(TIMEOUT_S) == 0
