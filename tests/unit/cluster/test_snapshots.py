"""Snapshots on a disk: whole or not there, restored as a whole, also after a crash between."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.cluster import ClusterError, InvalidArgument, LocalCluster, layout, snapshots
from quorumlog.storage.io.checkpoints import CLEAN_SHUTDOWN_FILE

Make = Callable[..., LocalCluster]


@pytest.fixture
def cluster(make: Make) -> LocalCluster:
    """A stopped cluster of two nodes that have closed their logs."""
    cluster = make(nodes=2)
    cluster.start()
    cluster.stop()
    fill(cluster, "first")
    return cluster


def fill(cluster: LocalCluster, text: str) -> None:
    for node in cluster.nodes:
        data = layout.data_directory(cluster.directory, node.id)
        (data / "orders-0").mkdir(exist_ok=True)
        (data / "orders-0/0.log").write_text(f"{text} of {node.id}")
        (data / CLEAN_SHUTDOWN_FILE).touch()
        (data / ".lock").touch()


def contents(cluster: LocalCluster) -> list[str]:
    files = (layout.data_directory(cluster.directory, node.id) for node in cluster.nodes)
    return [(data / "orders-0/0.log").read_text() for data in files]


def tree(cluster: LocalCluster) -> list[str]:
    return sorted(str(path.relative_to(cluster.directory)) for path in cluster.directory.rglob("*"))


def test_a_restore_brings_back_the_files_of_the_snapshot(cluster: LocalCluster) -> None:
    cluster.snapshot("seeded")
    assert not [*(cluster.directory / "snapshots").rglob(".lock")]
    fill(cluster, "second")
    before = tree(cluster)
    cluster.restore("seeded")
    assert contents(cluster) == ["first of 1", "first of 2"]
    assert {*before} - {*tree(cluster)} == {"node-1/data/.lock", "node-2/data/.lock"}
    (cluster.directory / "node-1/data/orders-0/0.log").write_text("third")
    cluster.restore("seeded")  # the snapshot has not changed with the restored files
    assert contents(cluster) == ["first of 1", "first of 2"]


def test_a_node_that_has_not_closed_its_logs_is_refused(cluster: LocalCluster) -> None:
    (cluster.directory / "node-2/data" / CLEAN_SHUTDOWN_FILE).unlink()
    with pytest.raises(ClusterError, match="node 2 did not stop cleanly"):
        cluster.snapshot("seeded")
    assert snapshots.names(cluster.directory) == []


def test_nodes_that_ran_run_again_after_a_refusal(cluster: LocalCluster) -> None:
    cluster.start()  # these nodes close no log
    for node in (1, 2):
        (cluster.directory / f"node-{node}/data" / CLEAN_SHUTDOWN_FILE).unlink()
    with pytest.raises(ClusterError, match="ended without closing its logs"):
        cluster.snapshot("seeded")
    assert cluster.running() == [1, 2]


def test_names(cluster: LocalCluster) -> None:
    cluster.snapshot("seeded")
    for wrong in ("", "../x", ".hidden", "a b", "x" * 101):
        with pytest.raises(InvalidArgument, match="cannot be called"):
            cluster.snapshot(wrong)
    with pytest.raises(InvalidArgument, match="there is a snapshot seeded already"):
        cluster.snapshot("seeded")
    with pytest.raises(InvalidArgument, match=r"did you mean seeded\?; there are seeded"):
        cluster.restore("seded")


def test_a_full_disk_leaves_no_snapshot_and_no_half_restore(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.snapshot("seeded")
    fill(cluster, "second")
    before = tree(cluster)

    def fail(source: Path, target: Path) -> None:
        if "node-2" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        shutil.copy(source, target)

    monkeypatch.setattr(snapshots, "_copy_file", fail)
    with pytest.raises(ClusterError, match=r"no snapshot was taken: .*No space left"):
        cluster.snapshot("other")
    with pytest.raises(ClusterError, match=r"seeded is not restored: .*No space left"):
        cluster.restore("seeded")
    assert tree(cluster) == before
    assert contents(cluster) == ["second of 1", "second of 2"]


@pytest.mark.parametrize("renames", range(5))
def test_the_next_start_completes_a_restore(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """The process ends after so many of the four renames."""
    cluster.snapshot("seeded")
    fill(cluster, "second")
    rename, left = Path.rename, [renames]

    def limited(path: Path, target: Path) -> Path:
        if path.name.startswith("data"):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", limited)
    if renames < 4:
        with pytest.raises(KeyboardInterrupt):
            cluster.restore("seeded")
    else:
        cluster.restore("seeded")
    monkeypatch.undo()
    again = LocalCluster(cluster.directory, node_module="tests.support.cluster.fake_node")
    again.start()
    again.stop()
    assert contents(again) == ["first of 1", "first of 2"]
    assert not (again.directory / layout.RESTORING_FILE).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "format 9; this is"),
        ({"version": "9.0.0"}, "was taken by quorumlog 9.0.0"),
        ({"cluster_id": "x"}, "is of cluster x, another one"),
        ({"nodes": [1, 2, 3]}, r"of the nodes \[1, 2, 3\]; there are \[1, 2\]"),
    ],
)
def test_a_snapshot_of_another_release_or_cluster(
    cluster: LocalCluster, change: dict[str, object], message: str
) -> None:
    cluster.snapshot("seeded")
    manifest = cluster.directory / "snapshots/seeded/snapshot.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    fill(cluster, "second")
    with pytest.raises(ClusterError, match=message):
        cluster.restore("seeded")
    assert contents(cluster) == ["second of 1", "second of 2"]


def test_a_damaged_snapshot(cluster: LocalCluster) -> None:
    cluster.snapshot("seeded")
    shutil.rmtree(cluster.directory / "snapshots/seeded/node-2")
    with pytest.raises(ClusterError, match="lacks the directory of node 2"):
        cluster.restore("seeded")
    (cluster.directory / "snapshots/seeded/snapshot.json").write_text("{")
    with pytest.raises(ClusterError, match="cannot be read"):
        cluster.restore("seeded")
