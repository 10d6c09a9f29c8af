"""The back end `commands`, on real processes: signals and commands, and what it puts back."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from quorumlog.chaos.back_ends import commands
from quorumlog.chaos.back_ends.back_end import BackEndFailed, NodeUnavailable
from quorumlog.chaos.back_ends.commands import Commands, open_commands
from quorumlog.chaos.back_ends.registry import open_back_end
from quorumlog.chaos.faults.fault import OUTSIDE

# A node that puts itself into the background and writes its pid, as Kafka's start script does.
PROGRAM = """
import os, sys, time
if os.fork():
    os._exit(0)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


class Nodes:
    """Two processes, and the file that says how to break them."""

    def __init__(self, directory: Path) -> None:
        (directory / "node.py").write_text(PROGRAM)
        self.pid_files = {node_id: directory / f"{node_id}.pid" for node_id in (1, 2)}
        self.file = directory / "nodes.toml"
        self.tables = {
            node_id: {
                "pid_file": str(pid_file),
                "start": f"{sys.executable} {directory / 'node.py'} {pid_file}",
            }
            for node_id, pid_file in self.pid_files.items()
        }
        for table in self.tables.values():
            subprocess.run(table["start"].split(), check=True)
        for pid_file in self.pid_files.values():
            while not pid_file.exists():
                time.sleep(0.005)

    def pid(self, node_id: int) -> int:
        return int(self.pid_files[node_id].read_text())

    def state(self, node_id: int) -> str:
        command = ["ps", "-o", "stat=", "-p", str(self.pid(node_id))]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout[:1]

    def write(self) -> Path:
        text = ""
        for node_id, table in self.tables.items():
            text += f"[[nodes]]\nid = {node_id}\n"
            text += "".join(f"{name} = '{value}'\n" for name, value in table.items())
        self.file.write_text(text)
        return self.file

    def open(self) -> Commands:
        return open_commands(str(self.write()), "127.0.0.1:1", {})


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path)
    yield started
    for node_id in started.pid_files:
        with suppress(ProcessLookupError, FileNotFoundError):
            os.kill(started.pid(node_id), signal.SIGKILL)


async def test_nodes_are_killed_started_paused_and_resumed(nodes: Nodes) -> None:
    back_end = nodes.open()
    assert back_end.node_ids == await back_end.running() == (1, 2)
    assert back_end.operations == {"kill", "stop", "start", "pause", "resume", OUTSIDE}
    before = nodes.pid(1)
    await back_end.perform("kill", [1])
    assert await back_end.running() == (2,)
    with pytest.raises(NodeUnavailable, match="node 1 does not run"):
        await back_end.perform("pause", [1, 2])
    assert nodes.state(2) == "T", "every node is tried"
    await back_end.perform("resume", [2])
    await back_end.perform("start", [1, 2])
    assert await back_end.running() == (1, 2)
    assert nodes.pid(1) != before
    assert nodes.state(2) in {"S", "R"}


async def test_what_a_cut_short_run_broke_is_mended_and_nothing_else(nodes: Nodes) -> None:
    back_end = nodes.open()
    await back_end.perform("pause", [1, 2])
    await back_end.perform("kill", [1])
    await back_end.restore()
    assert await back_end.running() == (1, 2)
    assert nodes.state(2) in {"S", "R"}
    pids = [nodes.pid(1), nodes.pid(2)]
    await back_end.restore()
    assert [nodes.pid(1), nodes.pid(2)] == pids


async def test_no_signal_goes_to_another_process_that_has_the_number_now(nodes: Nodes) -> None:
    back_end = nodes.open()
    await back_end.perform("kill", [1])
    nodes.pid_files[1].write_text(str(nodes.pid(2)))  # the number was given to another process
    assert await back_end.running() == (2,)
    with pytest.raises(NodeUnavailable, match="node 1 does not run"):
        await back_end.perform("kill", [1])
    assert nodes.state(2) in {"S", "R"}
    nodes.pid_files[1].write_text("0")  # which would stand for our own process group
    assert await back_end.running() == (2,)
    nodes.pid_files[1].unlink()


async def test_a_command_that_fails_ends_the_run_with_its_words(nodes: Nodes) -> None:
    nodes.tables[1] |= {"pause": 'sh -c "echo no such unit >&2; exit 4"', "resume": "true"}
    back_end = nodes.open()
    with pytest.raises(BackEndFailed, match=r"node 1: sh .* ended with status 4: no such unit"):
        await back_end.perform("pause", [1])


async def test_only_what_all_nodes_can_do_is_offered(nodes: Nodes) -> None:
    del nodes.tables[2]["start"]
    assert nodes.open().operations == {"kill", "stop", "pause", "resume", OUTSIDE}
    nodes.tables[2] = {"is_running": "true", "pause": "true", "resume": "true"}
    assert nodes.open().operations == {"pause", "resume", OUTSIDE}


async def test_a_silent_cluster_has_no_roles(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_ADMIN_TIMEOUT_MS", 50)
    back_end = nodes.open()
    assert await back_end.holders("partition-leader", "t") == []
    assert await back_end.holders("metadata-leader", "t") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes = 1", "one table [[nodes]] for each node"),
        ("[[nodes]]\nid = 'a'", "needs an id"),
        ("[[nodes]]\nid = 1", "node 1: it needs a pid_file, or is_running"),
        ("[[nodes]]\nid = 1\nhost = 'b'", "node 1: there is no 'host'"),
        ("[[nodes]]\nid = 1\npid_file = 7", "node 1: pid_file must be text"),
        ("[[nodes]]\nid = 1\nis_running = '\"'", "node 1: No closing quotation"),
        ("[[nodes]]\nid = 1\npid_file = '/nonexistent'", "node 1 does not run"),
        ("[[nodes]]\nid = 1\nis_running = 'true'\n" * 2, "two nodes have the same id"),
        ("[[nodes", "nodes.toml: "),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "nodes.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)):
        open_commands(str(file), "b:1", {})


def test_the_racks_of_the_nodes_are_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "nodes.toml"
    node = "[[nodes]]\nid = {}\nis_running = 'true'\n{}\n"
    racks = ["rack = 'b'", "", "rack = 'a'", "rack = 'b'"]
    file.write_text("".join(node.format(n, rack) for n, rack in enumerate(racks, start=1)))
    assert open_commands(str(file), "b:1", {}).racks == {"a": (3,), "b": (1, 4)}


@pytest.mark.parametrize("text", ["nodes.toml", "commands", "commands:", "proxy:x"])
def test_a_back_end_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write it as NAME:ARGUMENT; there are commands:FILE"):
        open_back_end(text, "b:1")
