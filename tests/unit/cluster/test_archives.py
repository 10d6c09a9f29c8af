"""A cluster as one file: whole or not there, and a cluster of its own when it is unpacked."""

import json
import os
import signal
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cli.save_command import unpacked
from quorumlog.cluster import (
    ClusterError,
    InvalidArgument,
    LocalCluster,
    archives,
    layout,
    registry,
    snapshots,
)
from quorumlog.cluster.files import SECRET_FILE
from quorumlog.storage.io.checkpoints import CLEAN_SHUTDOWN_FILE
from tests.support.cli.in_process import CommandLine

Make = Callable[..., LocalCluster]


@pytest.fixture
def cluster(make: Make) -> LocalCluster:
    """A stopped cluster of two nodes that have closed their logs."""
    cluster = make(nodes=2, first_id=4, config={"num.partitions": "7"})
    cluster.start()
    cluster.stop()
    for node in cluster.nodes:
        data = layout.data_directory(cluster.directory, node.id)
        (data / "orders-0").mkdir()
        (data / "orders-0/0.log").write_text(f"records of {node.id}")
        (data / CLEAN_SHUTDOWN_FILE).touch()
    return cluster


def properties(directory: Path, node_id: int) -> dict[str, str]:
    lines = layout.properties_file(directory, node_id).read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("name", ["saved.tar", "saved.tar.gz", "saved.tgz"])
def test_the_unpacked_cluster_has_the_same_data_and_places_of_its_own(
    cluster: LocalCluster, tmp_path: Path, name: str
) -> None:
    written: list[float] = []
    archives.save(cluster, tmp_path / name, written.append)
    assert written == sorted(written)
    assert written[-1] == 1
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert [*(cluster.directory / "snapshots").iterdir()] == []
    copy = tmp_path / "copy"
    archives.unpack(tmp_path / name, copy, host="127.0.0.1", port=0)
    found = layout.load(copy)
    assert (found.cluster_id, found.config) == (cluster.spec.cluster_id, cluster.spec.config)
    assert [node.id for node in found.nodes] == [4, 5]
    assert found.was_ready
    assert (copy / "node-5/data/orders-0/0.log").read_text() == "records of 5"
    secrets = [(one / SECRET_FILE).read_text() for one in (copy, cluster.directory)]
    assert secrets[0] != secrets[1]
    own = properties(copy, 4)
    assert own["peer.control.addresses"] == f"5@{found.node(5).control}"
    assert own["peer.kafka.addresses"] == f"5@{found.node(5).kafka}"
    assert "peer.kafka.addresses" not in properties(cluster.directory, 4)
    ports = [{node.kafka for node in spec.nodes} for spec in (found, cluster.spec)]
    assert not ports[0] & ports[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_that_the_nodes_run_again(
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    cluster.start()
    file = tmp_path / "saved.tar"
    monkeypatch.setattr(archives, "save", lambda *_: os.kill(os.getpid(), number))
    save = CommandLine("", monkeypatch, capsys)
    said = save("save", file, "--dir", cluster.directory, status=130)
    assert said == f"quorumlog: interrupted: {file} is not written; the nodes run again\n"

    def ends(*_: Any) -> None:
        cluster.stop()
        raise KeyboardInterrupt

    monkeypatch.setattr(archives, "save", ends)
    said = save("save", file, "--dir", cluster.directory, status=130)
    assert f"; `quorumlog up --detach --dir {cluster.directory}` starts the nodes" in said


def test_an_interrupt_leaves_no_copy(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshots, "_copy_file", interrupt)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        archives.save(cluster, tmp_path / "saved.tar", lambda _: None)
    assert [*(cluster.directory / "snapshots").iterdir()] == []
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_or_a_directory_that_exists_is_left_alone(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "saved.tar"
    archives.save(cluster, file, lambda _: None)
    before = file.read_bytes()
    with pytest.raises(InvalidArgument, match="exists; choose another file"):
        archives.save(cluster, file, lambda _: None)
    with pytest.raises(InvalidArgument, match="is no directory"):
        archives.save(cluster, tmp_path / "none/saved.tar", lambda _: None)
    with pytest.raises(InvalidArgument, match="is not empty: choose another --dir"):
        archives.unpack(file, cluster.directory, host="127.0.0.1", port=0)
    assert file.read_bytes() == before
    assert layout.load(cluster.directory).nodes == cluster.spec.nodes


def test_a_file_that_is_no_saved_cluster_makes_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    text, other = tmp_path / "text.tar", tmp_path / "other.tar"
    text.write_text("no archive")
    with tarfile.open(other, "w") as archive:
        archive.add(text, arcname="text")
    before = sorted(tmp_path.iterdir())
    for file in (text, other):
        with pytest.raises(ClusterError, match="is no archive of `quorumlog save`"):
            archives.unpack(file, tmp_path / "copy", host="127.0.0.1", port=0)
    with pytest.raises(ClusterError, match="No such file"):
        archives.unpack(tmp_path / "none", tmp_path / "copy", host="127.0.0.1", port=0)
    assert sorted(tmp_path.iterdir()) == before


def test_a_cluster_of_the_same_id_is_recorded_beside_the_other(
    cluster: LocalCluster, make: Make, tmp_path: Path
) -> None:
    archives.save(cluster, tmp_path / "saved.tar", lambda _: None)
    archives.unpack(tmp_path / "saved.tar", tmp_path / "copy", host="127.0.0.1", port=0)
    copy = make(tmp_path / "copy")
    for one in (cluster, copy):
        one.start()
    directories = [entry.directory for entry in registry.running()]
    assert directories == sorted([str(cluster.directory), str(copy.directory)] * 2)
    copy.stop()
    assert [entry.node_id for entry in registry.running()] == [4, 5]


def edited(source: Path, target: Path, name: str, **fields: Any) -> Path:
    """Copy an archive without a file, or with other fields in it."""
    with tarfile.open(source) as archive:
        archive.extractall(target.with_suffix(""), filter="data")
    path = target.with_suffix("") / name
    if fields:
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    else:
        path.unlink()
    with tarfile.open(target, "w") as archive:
        archive.add(target.with_suffix(""), arcname=".")
    return target


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("cluster.json", {}, "it lacks cluster.json"),
        ("snapshot.json", {}, "it lacks snapshot.json"),
        ("cluster.json", {"nodes": []}, r"the snapshot is of the nodes \[4, 5\]; there are \[\]"),
        ("cluster.json", {"config": 1}, "cluster.json is damaged"),
        ("snapshot.json", {"version": "99.0"}, "the snapshot was taken by quorumlog 99.0"),
    ],
)
def test_the_error_of_a_damaged_archive_names_the_archive(
    cluster: LocalCluster, tmp_path: Path, name: str, fields: dict[str, Any], reason: str
) -> None:
    archives.save(cluster, tmp_path / "saved.tar", lambda _: None)
    file = edited(tmp_path / "saved.tar", tmp_path / "bad.tar", name, **fields)
    with pytest.raises(ClusterError, match=f"^{file}.*{reason}") as raised:
        archives.unpack(file, tmp_path / "copy", host="127.0.0.1", port=0)
    assert "unfinished" not in str(raised.value)
    assert not (tmp_path / "copy").exists()


def test_the_unpacked_cluster_takes_the_addresses_of_the_options(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    archives.save(cluster, tmp_path / "saved.tar", lambda _: None)
    archives.unpack(
        tmp_path / "saved.tar",
        tmp_path / "copy",
        host="127.0.0.2",
        port=23970,
        advertised="h.test",
        listeners=["A://127.0.0.1:23980,advertised=a.test"],
    )
    last = layout.load(tmp_path / "copy").nodes[1]
    assert (last.kafka, last.advertised) == ("127.0.0.2:23971", "h.test:23971")
    [other] = last.listeners
    assert (other.bind, other.advertised) == ("127.0.0.1:23981", "a.test:23981")


@pytest.mark.parametrize("has_started", [False, True])
def test_the_copy_goes_if_its_options_are_refused_before_a_node_starts(
    cluster: LocalCluster, tmp_path: Path, has_started: bool
) -> None:
    file, copy = tmp_path / "saved.tar", tmp_path / "copy"
    archives.save(cluster, file, lambda _: None)

    def refuse() -> None:
        with unpacked(file, copy, host="127.0.0.1", port=0, advertised=None, listeners=()):
            assert (copy / "cluster.json").exists()
            if has_started:
                (copy / "node-4/node.log").touch()
            raise InvalidArgument("--nodes 3")

    with pytest.raises(InvalidArgument, match="--nodes 3"):
        refuse()
    assert copy.exists() == has_started


def test_segments_keep_their_times_by_which_their_records_age(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    segment = cluster.directory / "node-4/data/orders-0/0.log"
    os.utime(segment, ns=(5_000_000_000, 7_000_000_000))
    archives.save(cluster, tmp_path / "saved.tgz", lambda _: None)
    archives.unpack(tmp_path / "saved.tgz", tmp_path / "copy", host="127.0.0.1", port=0)
    copied = tmp_path / "copy/node-4/data/orders-0/0.log"
    assert copied.stat().st_mtime == 7
    cluster.snapshot("old")
    segment.write_text("newer")
    cluster.restore("old")
    assert segment.stat().st_mtime == 7
