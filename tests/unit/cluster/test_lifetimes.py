"""How long nodes live: no longer than the process that started them, unless they are detached."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from quorumlog.cluster import LocalCluster, registry

linux_only = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="waits for processes that are not its children"
)


def pids(cluster: LocalCluster) -> list[int | None]:
    return [cluster.pid(node.id) for node in cluster.nodes]


STARTED = """
import os, signal, sys
from quorumlog.cluster import LocalCluster
directory = {directory!r}
cluster = LocalCluster(
    directory or None,
    nodes=2,
    node_module="tests.support.cluster.fake_node",
    detached={detached},
)
cluster.start()
if {paused}:
    cluster.pause(2)
print(cluster.directory, *[cluster.pid(node.id) for node in cluster.nodes], flush=True)
{then}
"""


@contextmanager
def starting(
    then: str, *, directory: str = "", detached: bool = False, paused: bool = False
) -> Iterator[IO[str]]:
    """Start two nodes in another process, which then does so; yield its output."""
    code = STARTED.format(directory=directory, detached=detached, paused=paused, then=then)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout
        process.wait(30)


def nodes_in(output: IO[str]) -> tuple[Path, list[int]]:
    """The directory of the cluster and the processes of its nodes."""
    path, *nodes = output.readline().split()
    return Path(path), [int(node) for node in nodes]


def run_and_end(then: str, **how: Any) -> tuple[Path, list[int]]:
    with starting(then, **how) as output:
        return nodes_in(output)


def wait_until_gone(nodes: list[int]) -> None:
    """Wait for processes that are not our children."""
    for pid in nodes:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], 30)[0], pid
        finally:
            os.close(descriptor)


@linux_only
@pytest.mark.parametrize(
    "then",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "sys.exit()",
        "os._exit(3)",
    ],
)
@pytest.mark.parametrize("paused", [False, True])
def test_nodes_end_with_the_process_that_started_them(
    then: str, paused: bool, tmp_path: Path
) -> None:
    directory, nodes = run_and_end(then, directory=str(tmp_path / "c"), paused=paused)
    wait_until_gone(nodes)
    assert pids(LocalCluster.open(directory)) == [None, None]


@linux_only
@pytest.mark.parametrize("then", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit()"])
def test_a_temporary_cluster_leaves_nothing(then: str) -> None:
    directory, nodes = run_and_end(then)
    wait_until_gone(nodes)
    assert not directory.exists()
    assert registry.running() == []


FORKS = """
child = os.fork()
if not child:
    signal.pause()
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@linux_only
def test_a_forked_child_does_not_keep_the_nodes(tmp_path: Path) -> None:
    with starting(FORKS, directory=str(tmp_path / "c")) as output:
        _, nodes = nodes_in(output)
        child = int(output.readline())
        try:
            wait_until_gone(nodes)
        finally:
            os.kill(child, signal.SIGKILL)


def test_detached_nodes_outlive_the_process_that_started_them(tmp_path: Path) -> None:
    directory, _ = run_and_end("os._exit(0)", directory=str(tmp_path / "c"), detached=True)
    cluster = LocalCluster.open(directory)
    try:
        assert None not in pids(cluster)
        assert [entry.node_id for entry in registry.running()] == [1, 2]
    finally:
        cluster.stop()
    assert registry.running() == []
