"""What the damages of simulated disks do to the files of a broker, and which they spare."""

from random import Random
from typing import Final

import pytest

from quorumlog.chaos.faults.copies import AMOUNTS, KINDS
from quorumlog.chaos.node_simulation.damage import damage, is_identified, put_back
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.storage.io.disk import read_file
from quorumlog.wire.codec.identifiers import TopicId

LOG_DIRS: Final = ["/data", "/disk2"]
TOPIC_ID: Final = TopicId(b"0123456789abcdef")
OF_QUORUM: Final = "/data/__cluster_metadata-0"
LOG: Final = "/disk2/a-topic-1/00000000000000000000.log"
FILES: Final = {
    f"{OF_QUORUM}/00000000000000000000.log": b"records of the quorum",
    f"{OF_QUORUM}/leader-epoch-checkpoint": b"0",
    "/data/meta.properties": b"version=1",
    "/data/replication-offset-checkpoint": b"0\n1\n",
    "/data/other/partition.metadata": b"not of a partition",
    LOG: b"records",
    "/disk2/a-topic-1/00000000000000000000.index": b"entries",
    "/disk2/a-topic-1/00000000000000000007.log": b"",
}
METADATA: Final = "/disk2/a-topic-1/partition.metadata"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    for path, content in FILES.items():
        disk.mkdir(path.rpartition("/")[0])
        disk.open(path, create=True).append([content])
    write_partition_metadata(disk, "/disk2/a-topic-1", TOPIC_ID)
    return disk


def content(disk: SimDisk) -> dict[str, bytes]:
    return dict(disk.files())


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("log_bit", LOG),
        ("log_cut", LOG),
        ("metadata_cut", METADATA),
        ("metadata_gone", METADATA),
        ("metadata_bit", METADATA),
        ("checkpoint_gone", "/data/replication-offset-checkpoint"),
        ("index_bit", "/disk2/a-topic-1/00000000000000000000.index"),
        ("index_gone", "/disk2/a-topic-1/00000000000000000000.index"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_damage_is_of_one_file_and_lasts(disk: SimDisk, kind: str, path: str, seed: int) -> None:
    for directory in ("/data", "/data/other", "/disk2/a-topic-1", OF_QUORUM):
        disk.fsync_dir(directory)
    for name in FILES:
        disk.open(name).fsync()
    before = content(disk)
    assert path in damage(disk, LOG_DIRS, AMOUNTS[kind], Random(seed))
    disk.crash(Random(seed))
    after = content(disk)
    assert {one for one in before if before[one] != after.get(one)} == {path}
    match kind.partition("_")[2]:
        case "gone":
            assert path not in after
        case "cut":
            assert before[path].startswith(after[path])
        case _:
            assert len(before[path]) == len(after[path])


def test_every_kind_is_tried_and_one_without_a_file_does_nothing() -> None:
    assert [*AMOUNTS] == [*KINDS]
    for kind in AMOUNTS.values():
        assert damage(SimDisk(), LOG_DIRS, kind, Random(1)) == ""


def test_a_copy_takes_the_place_of_all_but_what_the_quorum_has(disk: SimDisk) -> None:
    copy = disk.copied("/data")
    for path in (f"{OF_QUORUM}/00000000000000000000.log", "/data/meta.properties"):
        disk.open(path).append([b", more"])
    disk.mkdir("/data/new-0")
    put_back(disk, "/data", copy)
    assert disk.listdir("/data") == [
        "__cluster_metadata-0", "meta.properties", "other", "replication-offset-checkpoint",
    ]  # fmt: skip
    assert read_file(disk, "/data/meta.properties") == b"version=1"
    of_quorum = read_file(disk, f"{OF_QUORUM}/00000000000000000000.log")
    assert of_quorum == b"records of the quorum, more"
    assert read_file(disk, LOG) == b"records"


def test_a_directory_says_whose_it_is(disk: SimDisk) -> None:
    assert is_identified(disk, "/disk2/a-topic-1", TOPIC_ID)
    assert not is_identified(disk, "/disk2/a-topic-1", TopicId(b"another topic id"))
    assert not is_identified(disk, "/data/other", TOPIC_ID)
    assert not is_identified(disk, "/data/none", TOPIC_ID)
