"""Whose directory it is: found once, and never guessed where there are logs."""

from pathlib import Path

import pytest

from quorumlog.node import config
from quorumlog.node.config import NodeConfig
from quorumlog.node.errors import StartFailed
from quorumlog.node.identity import (
    BOOT_ID_FILE,
    check_identity,
    forget_new_cluster,
    is_new_cluster,
    read_boot_id,
)
from quorumlog.storage.io.disk import RealDisk


@pytest.fixture
def node(tmp_path: Path) -> NodeConfig:
    return config.build(
        {
            "node.id": "1",
            "cluster.id": "c",
            "listeners": "127.0.0.1:9092",
            "control.listener": "127.0.0.1:19092",
            "controller.quorum.voters": "1@127.0.0.1:19092,2@127.0.0.1:19093",
            "log.dirs": str(tmp_path),
        }
    )


def test_a_new_directory_gets_an_id_and_keeps_it(node: NodeConfig) -> None:
    (node.log_dir / "lost+found").mkdir()  # a whole disk
    (node.log_dir / "meta.properties.tmp").write_text("cluster.i")  # a crash at the first start
    first = check_identity(RealDisk(), node)
    assert check_identity(RealDisk(), node) == first
    (node.log_dir / "meta.properties").unlink()
    assert check_identity(RealDisk(), node) != first


@pytest.mark.parametrize("log", ["t-0", "__cluster_metadata-0", "a-b-12"])
def test_logs_without_meta_properties_are_not_a_new_directory(node: NodeConfig, log: str) -> None:
    (node.log_dir / log).mkdir()
    with pytest.raises(StartFailed, match=f"holds {log}, but no meta.properties: write it again"):
        check_identity(RealDisk(), node)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is not whole"),
        (b"version=1\nnonsense\n", "is not whole"),
        (b"version=1\ncluster.id=c\nnode.id=1\ndirectory.i", "is not whole"),
        (b"version=2\ncluster.id=c\nnode.id=1\ndirectory.id=d\n", "version 2"),
        (b"version=1\ncluster.id=c\nnode.id=one\ndirectory.id=d\n", "is not whole"),
        (b"\xff\xfe", "is not whole"),
        (b"version=1\ncluster.id=other\nnode.id=1\ndirectory.id=d\n", "belongs to cluster other"),
        (b"version=1\ncluster.id=c\nnode.id=2\ndirectory.id=d\n", "belongs to node 2, not 1"),
    ],
)
def test_a_directory_that_is_not_ours_is_refused(
    node: NodeConfig, text: bytes, reason: str
) -> None:
    (node.log_dir / "meta.properties").write_bytes(text)
    with pytest.raises(StartFailed, match=reason):
        check_identity(RealDisk(), node)


def test_the_mark_of_a_new_cluster_is_found_and_goes_when_it_has_served(node: NodeConfig) -> None:
    disk = RealDisk()
    assert not is_new_cluster(disk, node)
    (node.log_dir / "new-cluster").touch()
    assert is_new_cluster(disk, node)
    check_identity(disk, node)  # it does not count as a log
    forget_new_cluster(disk, node)
    forget_new_cluster(disk, node)
    assert not is_new_cluster(disk, node)


def test_the_boot_id_is_the_systems_or_none(tmp_path: Path) -> None:
    assert read_boot_id(tmp_path / "absent") is None
    (tmp_path / "empty").write_text("\n")
    assert read_boot_id(tmp_path / "empty") is None
    (tmp_path / "id").write_text("d0d2d362\n")
    assert read_boot_id(tmp_path / "id") == "d0d2d362"
    assert read_boot_id(BOOT_ID_FILE) == read_boot_id(BOOT_ID_FILE)
