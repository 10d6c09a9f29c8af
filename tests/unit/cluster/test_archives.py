"""A cluster as one file: whole or not there, and a cluster of its own when it is unpacked."""

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumlog.cluster import (
    ClusterError,
    InvalidArgument,
    LocalCluster,
    archives,
    layout,
    registry,
)
from quorumlog.storage.io.checkpoints import CLEAN_SHUTDOWN_FILE

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
    assert [*(cluster.directory / "snapshots").iterdir()] == []
    copy = tmp_path / "copy"
    archives.unpack(tmp_path / name, copy, host="127.0.0.1", port=0)
    found = layout.load(copy)
    assert (found.cluster_id, found.config) == (cluster.spec.cluster_id, cluster.spec.config)
    assert [node.id for node in found.nodes] == [4, 5]
    assert found.was_ready
    assert (copy / "node-5/data/orders-0/0.log").read_text() == "records of 5"
    secrets = [(one / layout.SECRET_FILE).read_text() for one in (copy, cluster.directory)]
    assert secrets[0] != secrets[1]
    own = properties(copy, 4)
    assert own["peer.control.addresses"] == f"5@{found.node(5).control}"
    assert own["peer.kafka.addresses"] == f"5@{found.node(5).kafka}"
    assert "peer.kafka.addresses" not in properties(cluster.directory, 4)
    ports = [{node.kafka for node in spec.nodes} for spec in (found, cluster.spec)]
    assert not ports[0] & ports[1]


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
