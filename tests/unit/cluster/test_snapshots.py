"""Snapshots on a disk: whole or not there, restored as a whole, also after a crash between."""

import errno
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cluster import (
    ClusterError,
    InvalidArgument,
    LocalCluster,
    cluster_nodes,
    layout,
    snapshots,
)
from quorumlog.cluster.processes import NodeProcess
from quorumlog.storage.io.checkpoints import CLEAN_SHUTDOWN_FILE

Make = Callable[..., LocalCluster]


@pytest.fixture
def cluster(make: Make, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A stopped cluster of two nodes that have closed their logs."""
    cluster = make(nodes=2)
    start_without_processes(cluster, monkeypatch)
    fill(cluster, "first")
    return cluster


def start_without_processes(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a cluster, except for the processes: they would do nothing with their data."""
    with monkeypatch.context() as patch:
        patch.setattr(cluster_nodes, "spawn_together", lambda nodes, limit: None)
        patch.setattr(NodeProcess, "wait_ready", lambda node, limit: None)
        cluster.start()


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
    monkeypatch.setattr(snapshots, "_remove", lambda directories: None)  # nor does it clean up
    if renames < 4:
        with pytest.raises(KeyboardInterrupt):
            cluster.restore("seeded")
    else:
        cluster.restore("seeded")
    monkeypatch.undo()
    again = LocalCluster(cluster.directory, node_module="tests.support.cluster.fake_node")
    start_without_processes(again, monkeypatch)
    assert contents(again) == ["first of 1", "first of 2"]
    assert left_of_a_restore(again) == []


def left_of_a_restore(cluster: LocalCluster) -> list[Path]:
    beside = [*cluster.directory.glob("node-*/data.*")]
    return [*beside, *cluster.directory.glob(f"{layout.RESTORING_FILE}*")]


class Killed(BaseException):
    """The process has ended: nothing of it runs any more."""


def kill_in_a_restore(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, changes: int) -> bool:
    """End a restore of `seeded` at the next change of the disk after so many; False: it is done."""
    left, lock = [changes], threading.Lock()

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*arguments: Any, **more: Any) -> Any:
            with lock:
                if not left[0]:
                    raise Killed
                left[0] -= 1
            return change(*arguments, **more)

        return limited

    with monkeypatch.context() as patch:
        for name in ("rename", "replace", "unlink"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        for name in ("_copy_file", "_remove", "_write"):
            patch.setattr(snapshots, name, counted(getattr(snapshots, name)))
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            cluster.restore("seeded")
        except Killed:
            return True
    return False


@pytest.mark.parametrize("then", ["start", "restore", "snapshot"])
def test_a_killed_restore_is_finished_or_given_up_by_the_next_act(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """It ends at each of its changes: the directories of all nodes are old, or all are new."""
    cluster.snapshot("seeded")
    seen, changes = set(), 0
    while True:
        fill(cluster, "second")
        is_killed = kill_in_a_restore(cluster, monkeypatch, changes)
        again = LocalCluster(cluster.directory, node_module="tests.support.cluster.fake_node")
        if then == "start":
            start_without_processes(again, monkeypatch)
        elif then == "snapshot":
            again.snapshot(f"after-{changes}")
        else:
            shutil.copytree(again.directory / "snapshots/seeded", again.directory / "snapshots/b")
            (again.directory / "snapshots/b/node-1/orders-0/0.log").write_text("b of 1")
            (again.directory / "snapshots/b/node-2/orders-0/0.log").write_text("b of 2")
            with monkeypatch.context() as patch:
                patch.setattr(snapshots, "_copy_file", _full)
                with pytest.raises(ClusterError, match="No space"):
                    again.restore("b")
            shutil.rmtree(again.directory / "snapshots/b")
        (text,) = {content.partition(" ")[0] for content in contents(again)}
        assert text in {"first", "second"}
        assert left_of_a_restore(again) == []
        seen.add(text)
        changes += 1
        if not is_killed:
            break
    assert seen == {"first", "second"}
    assert changes > 8


def _full(source: Path, target: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(target))


def test_a_restore_that_runs_is_not_resolved_by_others(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.snapshot("seeded")
    fill(cluster, "second")
    other = LocalCluster(cluster.directory, node_module="tests.support.cluster.fake_node")
    refused = []

    def copy(source: Path, target: Path) -> None:
        for act in (other.start, lambda: other.snapshot("b"), lambda: other.restore("seeded")):
            with pytest.raises(ClusterError, match="being taken or restored") as error:
                act()
            refused.append(error)
        shutil.copy(source, target)

    monkeypatch.setattr(snapshots, "_copy_file", copy)
    cluster.restore("seeded")
    assert refused
    assert contents(cluster) == ["first of 1", "first of 2"]


def test_nodes_run_again_after_an_interrupt_while_they_stop(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt during the stop finds nodes that have not ended yet, but will."""
    cluster = make(nodes=2)
    cluster.start()
    stop, stops = cluster.stop_nodes, []

    def interrupted(**_: Any) -> tuple[int, ...]:
        stops.append(1)
        if len(stops) == 1:
            for node in cluster.nodes:
                os.kill(cluster.pid(node.id) or 0, signal.SIGTERM)
            raise KeyboardInterrupt
        return stop()

    monkeypatch.setattr(cluster, "stop_nodes", interrupted)
    before = [cluster.pid(1), cluster.pid(2)]
    with pytest.raises(KeyboardInterrupt):
        cluster.snapshot("seeded")
    assert cluster.running() == [1, 2]
    assert not {*before} & {cluster.pid(1), cluster.pid(2)}
    assert [*(cluster.directory / "snapshots").glob("*")] == []


def test_nodes_run_again_after_an_interrupt_while_they_start(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(nodes=2)
    cluster.start()
    for node in cluster.nodes:
        layout.data_directory(cluster.directory, node.id).mkdir(exist_ok=True)
        (layout.data_directory(cluster.directory, node.id) / CLEAN_SHUTDOWN_FILE).touch()
    save, saves = layout.save, []

    def interrupted(*arguments: Any) -> None:
        saves.append(1)  # at the end of the start: the nodes are ready
        if len(saves) == 1:
            raise KeyboardInterrupt
        save(*arguments)

    monkeypatch.setattr(layout, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cluster.snapshot("seeded")
    assert len(saves) == 2
    assert cluster.running() == [1, 2]


def test_nodes_that_cannot_start_again_are_named_with_the_command_that_starts_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(nodes=2)
    cluster.start()
    for node in cluster.nodes:
        (layout.data_directory(cluster.directory, node.id)).mkdir(exist_ok=True)
        (layout.data_directory(cluster.directory, node.id) / CLEAN_SHUTDOWN_FILE).touch()
    monkeypatch.setenv("FAKE_NODES", "2:fails")
    with pytest.raises(ClusterError, match=r"are stopped: .*`quorumlog up --detach --dir .*c`"):
        cluster.snapshot("seeded")


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
