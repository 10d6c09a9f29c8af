"""Free ports, and which process listens on one that is taken."""

import os
import socket
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
