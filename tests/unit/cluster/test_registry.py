"""Nodes of this user are found again by process id and start; free ports, and their listeners."""

import json
import logging
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cluster import ports, process_identity, registry, running_clusters
from quorumlog.cluster.registry import Entry

Start = Callable[..., Entry]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes that stand for nodes, and write them down; none outlives the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(node_id: int = 1, **changes: Any) -> Entry:
        process = subprocess.Popen(["sleep", "600"])
        processes.append(process)
        entry = Entry(
            directory=str(tmp_path / "cluster"),
            cluster_id="c",
            node_id=node_id,
            kafka=f"127.0.0.1:909{node_id}",
            pid=process.pid,
            started=process_identity.started(process.pid) or "",
            owner_pid=os.getpid(),
            owner_started="",  # not ours: the owner has ended
            temporary=False,
        )
        entry = replace(entry, **changes)
        registry.add(entry)
        return entry

    yield start
    for process in processes:
        process.kill()
        process.wait()


def end(entry: Entry) -> None:
    os.kill(entry.pid, signal.SIGKILL)
    os.waitpid(entry.pid, 0)


def test_a_process_is_its_id_and_its_start() -> None:
    own = process_identity.started(os.getpid())
    assert own is not None
    assert process_identity.is_running(os.getpid(), own)
    assert not process_identity.is_running(os.getpid(), f"{own}0")
    assert not process_identity.is_running(2**22 + 1, own)
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
    assert process_identity.started(process.pid) is None  # gone before its parent waits
    process.wait()


FIRST_THREAD_ENDS = """
import ctypes, os, platform, sys, threading

number = {"x86_64": 60, "aarch64": 93}[platform.machine()]  # exit: of the calling thread alone
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(number, 0)
"""


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="numbers of exit(2)")
@pytest.mark.skipif(sys.platform != "linux", reason="threads are seen in /proc")
def test_a_process_has_not_ended_before_its_last_thread() -> None:
    """Until then it holds its ports: a node that is started again would find them in use."""
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_THREAD_ENDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        assert process_identity.started(process.pid) is not None
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process_identity.started(process.pid) is None


def test_running_nodes_are_found_and_ended_ones_forgotten(start: Start, state: Path) -> None:
    first, second = start(1), start(2)
    assert registry.running() == [first, second]
    end(first)
    assert registry.running() == [second]
    again = start(2)  # one that starts again is written down once
    assert registry.running() == [again]
    assert len(list(state.iterdir())) == 1
    entry = start(3, started="when another process had this id")
    assert registry.running() == [again]
    assert process_identity.started(entry.pid) is not None  # and was not touched


def test_a_temporary_directory_goes_when_nobody_owns_it(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / f"{registry.TEMPORARY_PREFIX}1"
    directory.mkdir()
    mine = process_identity.started(os.getpid()) or ""
    owned = start(directory=str(directory), temporary=True, owner_started=mine)
    end(owned)
    assert registry.running() == []
    assert directory.exists()  # its owner may start the node again
    other = start(directory=str(directory), temporary=True)  # the owner's start is not ours
    assert registry.running() == [other]
    end(other)
    assert registry.running() == []
    assert not directory.exists()


def test_a_directory_of_another_name_is_never_removed(start: Start, tmp_path: Path) -> None:
    directory = tmp_path / "quorumlog-data"
    directory.mkdir()
    end(start(directory=str(directory), temporary=True))
    assert registry.running() == []
    assert directory.exists()


def test_a_damaged_file_is_removed_and_said(
    start: Start, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = asdict(start())
    for number, damaged in enumerate([[], {"pid": 1}, {**whole, "pid": "1"}, {**whole, "x": 1}]):
        (state / f"c-{number}.json").write_text(json.dumps(damaged))
    (state / "d-1.json").write_text("{")
    assert [asdict(entry) for entry in registry.running()] == [whole]
    assert len(list(state.iterdir())) == 1
    assert caplog.text.count("is damaged") == 5


def test_a_home_that_cannot_be_written_is_a_warning(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file, where a directory is to be made")
    with caplog.at_level(logging.WARNING):
        start(1)
        start(2)
    assert caplog.text.count("will not show the nodes started here") == 1
    assert registry.running() == []


def test_without_a_home_there_is_no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setenv("XDG_STATE_HOME", "here")  # one that is relative is ignored
    monkeypatch.setenv("HOME", "/home/somebody")
    assert registry.home() == Path("/home/somebody/.local/state/quorumlog/nodes")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert registry.home() is None
    assert registry.running() == []


def test_every_cluster_is_stopped_paused_nodes_too(start: Start, tmp_path: Path) -> None:
    start(1)
    paused = start(2)
    os.kill(paused.pid, signal.SIGSTOP)
    other = start(1, cluster_id="d", directory=str(tmp_path / "other"))
    clusters = running_clusters.running()
    assert [cluster.cluster_id for cluster in clusters] == ["c", "d"]
    assert clusters[0].bootstrap == "127.0.0.1:9091,127.0.0.1:9092"
    assert running_clusters.running(tmp_path / "other") == [clusters[1]]
    assert running_clusters.stop(clusters[:1]) == []  # none had to be killed
    assert registry.running() == [other]


def test_a_node_that_does_not_stop_is_killed_and_told(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_clusters, "STOP_TIMEOUT_S", 0.0)
    monkeypatch.setattr(signal, "SIGTERM", signal.SIGCONT)  # not heard
    entry = start(1)
    assert running_clusters.stop(running_clusters.running()) == [entry]
    os.waitpid(entry.pid, 0)
    assert running_clusters.running() == []


# --- free ports, and which process listens on one that is taken ---


def test_the_process_that_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        obstacle = ports.obstacle("127.0.0.1", port)
    assert obstacle is not None
    assert obstacle.reason.startswith("in use")
    if sys.platform == "linux":
        assert obstacle.reason.startswith(f"in use by process {os.getpid()} (")
        assert obstacle.pid == os.getpid()
    assert ports.obstacle("127.0.0.1", port) is None  # it is closed
    assert "assign" in str(ports.obstacle("192.0.2.1", 9092))  # of another machine


def test_a_port_of_a_connection_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "range"
    assert ports.connection_ports(table) == range(0)
    table.write_text("32768\t60999\n")
    assert ports.connection_ports(table) == range(32_768, 61_000)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connected,
    ):
        port = connected.getsockname()[1]
        monkeypatch.setattr(ports, "connection_ports", lambda: range(port, port + 2))
        obstacle = ports.obstacle("127.0.0.1", port)
    assert obstacle is not None
    reason = f"in use, as by a connection, which gets a port from {port} to {port + 1}"
    assert obstacle == ports.Obstacle(reason)


def test_a_listener_of_another_user_stays_unnamed(tmp_path: Path) -> None:
    assert ports.listener(9092, proc=tmp_path) is None  # without /proc
    row = "0: 0100007F:2384 00000000:0000 0A 0:0 00:0 0 0 0 777 1"
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(f"header\n{row}\n")
    assert ports.listener(9092, proc=tmp_path) is None
    held = tmp_path / "123"
    (held / "fd").mkdir(parents=True)
    (held / "fd/4").symlink_to("socket:[777]")
    (held / "comm").write_text("java\n")
    assert ports.listener(9092, proc=tmp_path) == (123, "java")
    assert ports.listener(9093, proc=tmp_path) is None


def test_free_ports_are_all_different() -> None:
    assert len({*ports.free_ports("127.0.0.1", 10)}) == 10
    with pytest.raises(Exception, match="has no 501 free ports"):
        ports.free_ports("127.0.0.1", 501)


ANOTHER_PROCESS = """
import sys
import time
from quorumlog.cluster import ports
ports.FREE_PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 100)
print(*ports.free_ports("127.0.0.1", 49))
"""


def test_two_processes_never_choose_the_same_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    first_port = random.SystemRandom().randrange(10_000, 14_900, 100)
    monkeypatch.setattr(ports, "FREE_PORTS", range(first_port, first_port + 100))
    monkeypatch.setattr(ports, "_blocks", blocks := ports._Blocks())
    ours = {*ports.free_ports("127.0.0.1", 20)}
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(first_port)]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        theirs = {*map(int, told.split())}
        assert len(theirs) == 49
        assert {port // 50 for port in ours}.isdisjoint(port // 50 for port in theirs)
        assert len({*ports.free_ports("127.0.0.1", 29)} | ours) == 49
        assert {*ports.free_ports("127.0.0.1", 49)} == theirs, "the other process has ended"
    finally:
        blocks.let_go()


def test_ports_of_stopped_clusters_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_BLOCKS_MAX", 1)
    monkeypatch.setattr(ports, "_blocks", blocks := ports._Blocks())
    try:
        first = {*ports.free_ports("127.0.0.1", 40)}
        again = {*ports.free_ports("127.0.0.1", 40)}
        assert len(first | again) < 80
        with socket.create_server(("127.0.0.1", min(first))):
            assert min(first) not in ports.free_ports("127.0.0.1", 40)
    finally:
        blocks.let_go()
