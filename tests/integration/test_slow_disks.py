"""Real processes whose disks are slow, or stand still: a quorum has a leader, and says why not."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quorumlog import LocalCluster
from quorumlog.chaos.shim import shim as shims
from quorumlog.cluster import layout
from quorumlog.cluster.processes import Launch

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(shims.why_not()), reason=shims.why_not()),
]
IDS = (1, 2, 3)
LIMIT_S = 60.0


@contextmanager
def slowed(
    directory: Path, slow: Iterable[int] = (), fsync_us: int = 0
) -> Iterator[tuple[LocalCluster, shims.Shim]]:
    """A cluster of three, of which some have slow disks: an fsync takes up to `fsync_us` longer."""
    cluster = LocalCluster(directory / "cluster", nodes=len(IDS))
    roots = {id_: layout.node_directory(cluster.directory, id_) for id_ in IDS}
    with shims.Shim(directory / "orders", roots) as shim:
        for id_ in IDS:
            cluster.launch_by(id_, Launch(environment=shim.environment(id_)))
        for orders in shim.of(slow):
            orders.slow(fsync_us)
        with cluster:
            yield cluster, shim


def until(cluster: LocalCluster, holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end_s, cluster.status()
        time.sleep(0.01)


def active(cluster: LocalCluster) -> list[int]:
    views = {id_: cluster.node_status(id_) for id_ in cluster.running()}
    return [id_ for id_, view in views.items() if view and view["quorum"]["is_active_controller"]]


@pytest.mark.parametrize(("slow", "fsync_us"), [(IDS, 240_000), ((3,), 400_000)])
def test_a_killed_leader_is_replaced_on_slow_disks(
    tmp_path: Path, slow: tuple[int, ...], fsync_us: int
) -> None:
    with slowed(tmp_path, slow, fsync_us) as (cluster, _):
        for _ in range(2):
            until(cluster, lambda: bool(active(cluster)))
            leader = active(cluster)[0]
            victim = leader if leader not in slow or slow == IDS else 1
            cluster.kill(victim)  # it has no status from now on
            until(cluster, lambda: bool(active(cluster)))
            cluster.start_node(victim)


def test_a_node_logs_that_it_waited_for_its_disk(tmp_path: Path) -> None:
    with slowed(tmp_path) as (cluster, shim):
        until(cluster, lambda: bool(active(cluster)))
        leader = active(cluster)[0]
        slow = next(id_ for id_ in IDS if id_ != leader)
        log = layout.node_directory(cluster.directory, slow) / "node.log"
        shim.orders[slow].slow(20_000_000)
        cluster.kill(leader)
        until(cluster, lambda: f"node {slow} waited " in log.read_text())
        assert " s for its disk: " in log.read_text()
        shim.orders[slow].slow(0)
        until(cluster, lambda: bool(active(cluster)))
