"""Nodes that start or stop are waited for as long as they make progress, and no longer."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quorumlog.cluster import LocalCluster, NodeFailed, layout, running_clusters, time_limit
from quorumlog.cluster.errors import ClusterError
from quorumlog.cluster.time_limit import Say, TimeLimit, say_nothing
from quorumlog.node.progress import progress_file
from tests.support.cluster.fake_node import STEPS
from tests.unit.cluster.conftest import FAKE

HANGS = 'made no progress for 30 s after "{}: 0"'


class Clock:
    """The time, ahead by as much as the test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time_limit, "time", clock)
    monkeypatch.setattr(time_limit, "SAY_EVERY_S", 0.0)
    return clock


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Make a cluster of two nodes, the first of them slow."""
    monkeypatch.setenv("FAKE_NODES", "1:slow")
    cluster = LocalCluster(tmp_path / "c", nodes=2, node_module=FAKE, detached=True)
    yield cluster
    for node in cluster.nodes:
        with contextlib.suppress(ClusterError):  # it does not run, or was killed a moment ago
            cluster.kill(node.id)


class Watcher:
    """Is told what is waited for; each time, 20 s go by, and node 1 takes its next step."""

    def __init__(self, cluster: LocalCluster, clock: Clock) -> None:
        self.lines: list[str] = []
        self._cluster = cluster
        self._clock = clock

    def resume(self, line: str) -> None:
        self.lines.append(line)
        self._clock.ahead_s += 20
        pid = self._cluster.pid(1)
        assert pid is not None
        os.kill(pid, signal.SIGUSR1)

    def hang(self, line: str) -> None:
        self.lines.append(line)
        self._clock.ahead_s += 31


def stop_here(cluster: LocalCluster, say: Say) -> list[int]:
    return list(cluster.stop(say=say))


def stop_found(cluster: LocalCluster, say: Say) -> list[int]:
    found = running_clusters.running(cluster.directory)
    return [node.node_id for node in running_clusters.stop(found, say)]


def stop_node(cluster: LocalCluster, say: Say) -> list[int]:
    cluster.stop_node(1, say=say)
    return []


@pytest.mark.parametrize("stop", [stop_here, stop_found, stop_node])
def test_a_slow_start_and_a_slow_stop_are_waited_for(
    cluster: LocalCluster, clock: Clock, stop: Callable[[LocalCluster, Say], list[int]]
) -> None:
    starting, stopping = Watcher(cluster, clock), Watcher(cluster, clock)
    assert cluster.start(say=starting.resume) < 30
    assert starting.lines == [f"waiting for node 1: starting: {step}" for step in range(STEPS)]
    assert stop(cluster, stopping.resume) == []
    where = f"{cluster.directory}: " if stop is stop_found else ""
    told = [f"{where}waiting for node 1: stopping: {step}" for step in range(STEPS)]
    assert stopping.lines == told
    assert clock.ahead_s == 2 * STEPS * 20  # far above the limit


def test_a_start_that_makes_no_progress_is_given_up(cluster: LocalCluster, clock: Clock) -> None:
    lack = f"node 1 is not ready: it {HANGS.format('starting')}; see "
    with pytest.raises(NodeFailed, match=re.escape(lack)):
        cluster.start(say=Watcher(cluster, clock).hang)
    assert [cluster.pid(node.id) for node in cluster.nodes] == [None, None]
    # The killed node has left its file. An equal text in the next start is no progress.
    progress_file(layout.pid_file(cluster.directory, 1)).unlink()
    with pytest.raises(NodeFailed, match="node 1 is not ready"):
        cluster.start_node(1, say=Watcher(cluster, clock).hang)
    assert cluster.pid(1) is not None  # one node alone is left as it is


WAITS = "it waits for a quorum, and so for node 2"
FINAL = "it cannot get ready: p-0 is refused as damaged"


@pytest.mark.parametrize(("reason", "waited_s"), [(WAITS, 31), (FINAL, 0)])
def test_the_error_gives_the_reason_that_the_node_gives_and_a_final_one_at_once(
    cluster: LocalCluster, clock: Clock, reason: str, waited_s: int
) -> None:
    file = progress_file(layout.pid_file(cluster.directory, 1))

    def say(_: str) -> None:
        file.write_text(f"starting: 0\n{reason}\n")
        clock.ahead_s += waited_s

    with pytest.raises(NodeFailed, match=re.escape(f"node 1 is not ready: {reason}; see ")):
        cluster.start_node(1, say=say)
    assert cluster.pid(1) is not None  # it is left alone


@pytest.mark.parametrize("stop", [stop_here, stop_found])
def test_a_stop_that_makes_no_progress_ends_by_a_kill_and_says_so(
    cluster: LocalCluster, clock: Clock, stop: Callable[[LocalCluster, Say], list[int]]
) -> None:
    cluster.start(say=Watcher(cluster, clock).resume)
    watcher = Watcher(cluster, clock)
    assert 1 in stop(cluster, watcher.hang)
    (said,) = (line for line in watcher.lines if "node 1 made no" in line)
    kept = "and was killed: its logs will be checked at its next start"
    assert said.endswith(f"node 1 {HANGS.format('stopping')}, {kept}")


def test_what_was_there_before_is_no_progress(tmp_path: Path, clock: Clock) -> None:
    pid_file = tmp_path / "node.pid"
    progress = tmp_path / "node.progress"
    progress.write_text("closing logs: 1 of 2")
    limit = TimeLimit(30, {1: pid_file}, say_nothing)
    clock.ahead_s = 20
    progress.write_text("")  # the node begins
    assert not limit.is_over()
    clock.ahead_s = 31
    assert limit.is_over()
    assert limit.lack(1) == "made no progress for 30 s"
    progress.write_text("opening logs: 1 of 2")
    assert not limit.is_over()
    clock.ahead_s = 60
    assert not limit.is_over()
    clock.ahead_s = 62
    assert limit.is_over()
