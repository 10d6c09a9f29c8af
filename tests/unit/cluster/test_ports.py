"""Free ports, and which process listens on one that is taken."""

import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog.cluster import ports


def test_the_process_that_listens_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        obstacle = ports.obstacle("127.0.0.1", taken.getsockname()[1])
    assert obstacle is not None
    assert obstacle.reason.startswith("in use")
    if sys.platform == "linux":
        assert obstacle.reason.startswith(f"in use by process {os.getpid()} (")
        assert obstacle.pid == os.getpid()


def test_a_port_that_only_closes_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    assert ports.obstacle("127.0.0.1", port) is None


def test_an_address_of_another_machine_is_told_as_such() -> None:
    assert "assign" in str(ports.obstacle("192.0.2.1", 9092))


def test_without_proc_nothing_is_known_of_the_listener(tmp_path: Path) -> None:
    assert ports.listener(9092, proc=tmp_path) is None


def test_a_listener_of_another_user_stays_unnamed(tmp_path: Path) -> None:
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
from quorumlog.cluster import ports
ports.FREE_PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 100)
print(*ports.free_ports("127.0.0.1", 49))
"""


def test_two_processes_never_choose_the_same_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    start = random.SystemRandom().randrange(10_000, 14_900, 100)
    monkeypatch.setattr(ports, "FREE_PORTS", range(start, start + 100))
    monkeypatch.setattr(ports, "_blocks", blocks := ports._Blocks())
    ours = {*ports.free_ports("127.0.0.1", 20)}
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(start)]
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
