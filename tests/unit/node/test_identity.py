"""Whose directory it is: found once, never guessed where there are logs; the former process."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.node import config
from quorumlog.node.config import NodeConfig
from quorumlog.node.identity import (
    BOOT_ID_FILE,
    check_identities,
    forget_new_cluster,
    is_new_cluster,
    read_boot_id,
)
from quorumlog.node.listeners import StartFailed
from quorumlog.node.node_broker import BootGate
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.metadata_quorum.brokers import broker_image


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
    first = check_identities(RealDisk(), node)
    assert check_identities(RealDisk(), node) == first
    (node.log_dir / "meta.properties").unlink()
    assert check_identities(RealDisk(), node) != first


@pytest.mark.parametrize("log", ["t-0", "__cluster_metadata-0", "a-b-12"])
def test_logs_without_meta_properties_are_not_a_new_directory(node: NodeConfig, log: str) -> None:
    (node.log_dir / log).mkdir()
    with pytest.raises(StartFailed, match=f"holds {log}, but no meta.properties: write it again"):
        check_identities(RealDisk(), node)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is damaged"),
        (b"version=1\nnonsense\n", "is damaged"),
        (b"version=1\ncluster.id=c\nnode.id=1\ndirectory.i", "is damaged"),
        (b"version=2\ncluster.id=c\nnode.id=1\ndirectory.id=d\n", "version 2"),
        (b"version=1\ncluster.id=c\nnode.id=one\ndirectory.id=d\n", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"version=1\ncluster.id=other\nnode.id=1\ndirectory.id=d\n", "belongs to cluster other"),
        (b"version=1\ncluster.id=c\nnode.id=2\ndirectory.id=d\n", "belongs to node 2, not 1"),
    ],
)
def test_a_directory_that_is_not_ours_is_refused(
    node: NodeConfig, text: bytes, reason: str
) -> None:
    (node.log_dir / "meta.properties").write_bytes(text)
    with pytest.raises(StartFailed, match=reason):
        check_identities(RealDisk(), node)


def with_directories(node: NodeConfig, *names: str) -> NodeConfig:
    return replace(
        node, log_dirs=tuple(node.log_dir / name for name in names), log_dir=node.log_dir / names[0]
    )


def test_each_directory_has_an_id_of_its_own(node: NodeConfig) -> None:
    both = with_directories(node, "a", "b")
    first, second = check_identities(RealDisk(), both)
    assert (first.path, second.path) == (str(both.log_dirs[0]), str(both.log_dirs[1]))
    assert first.directory_id != second.directory_id
    assert check_identities(RealDisk(), both) == [first, second]


def test_a_copied_directory_is_refused_by_the_names_of_both_files(node: NodeConfig) -> None:
    both = with_directories(node, "a", "b")
    check_identities(RealDisk(), both)
    copy = (both.log_dirs[0] / "meta.properties").read_bytes()
    (both.log_dirs[1] / "meta.properties").write_bytes(copy)
    with pytest.raises(StartFailed, match=r"a/meta.properties and .*b/meta.properties have"):
        check_identities(RealDisk(), both)


def test_a_foreign_directory_among_ours_is_refused(node: NodeConfig) -> None:
    both = with_directories(node, "a", "b")
    check_identities(RealDisk(), both)
    file = both.log_dirs[1] / "meta.properties"
    properties = file.read_text().partition("\n")[2]  # without the checksum, as a person writes it
    file.write_text(properties.replace("node.id=1", "node.id=2"))
    with pytest.raises(StartFailed, match=r"b belongs to node 2, not 1, by its meta\.properties"):
        check_identities(RealDisk(), both)


def test_a_directory_that_the_disk_refuses_has_no_id(node: NodeConfig) -> None:
    both = with_directories(node, "a", "b")
    both.log_dirs[1].write_text("no directory")
    _, refused = check_identities(RealDisk(), both)
    assert refused.directory_id is None
    _, unlocked = check_identities(
        RealDisk(), with_directories(node, "a", "c"), [node.log_dir / "c"]
    )
    assert unlocked.directory_id is None
    with pytest.raises(StartFailed, match=r"cannot use .*b"):
        check_identities(RealDisk(), with_directories(node, "b", "a"))  # that of the metadata


def test_the_mark_of_a_new_cluster_is_found_and_goes_when_it_has_served(node: NodeConfig) -> None:
    disk = RealDisk()
    assert not is_new_cluster(disk, node)
    (node.log_dir / "new-cluster").touch()
    assert is_new_cluster(disk, node)
    check_identities(disk, node)  # it does not count as a log
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


# --- decision 0013: our former process in the metadata log must not reach the broker ---


OURS, NOBODY = BrokerId(1), ClusterDelta()


class Listener:
    def __init__(self) -> None:
        self.seen: list[tuple[ClusterDelta, ClusterImage]] = []

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        self.seen.append((delta, image))


def image_of(broker_epoch: int) -> ClusterImage:
    return ClusterImage(brokers={OURS: broker_image(epoch=broker_epoch)})


def test_the_former_process_is_never_shown_and_ours_is_shown_whole() -> None:
    listener = Listener()
    gate = BootGate(OURS, [listener])
    gate.publish(NOBODY, image_of(broker_epoch=5))  # replayed: the process that crashed
    gate.registered(9)
    assert listener.seen == []
    assert not gate.opened.is_set()
    gate.publish(NOBODY, image_of(broker_epoch=9))
    assert gate.opened.is_set()
    ((delta, image),) = listener.seen
    assert delta.brokers == {OURS}  # everything, not what changed last
    assert image.brokers[OURS].broker_epoch == 9
    gate.publish(NOBODY, image_of(broker_epoch=9))
    assert listener.seen[1][0] is NOBODY  # from now on, each change as it is


def test_an_image_that_is_faster_than_the_answer_is_kept_for_it() -> None:
    listener = Listener()
    gate = BootGate(OURS, [listener])
    gate.publish(NOBODY, image_of(broker_epoch=9))
    assert listener.seen == []
    gate.registered(9)
    assert [image.brokers[OURS].broker_epoch for _, image in listener.seen] == [9]
