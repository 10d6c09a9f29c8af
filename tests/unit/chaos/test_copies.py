"""Copies of a committed log, each rule of shared losses, and what damages do to files."""

import logging
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from quorumlog.chaos.faults.copies import AMOUNTS, KINDS
from quorumlog.chaos.node_simulation.committed_log import CommittedLog
from quorumlog.chaos.node_simulation.copies import Copied, Copies
from quorumlog.chaos.node_simulation.disk_faults import damage, is_identified, put_back
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.storage.io.disk import read_file
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicId, TopicPartition
from quorumlog.wire.codec.records import read_header
from tests.support.storage.batches import batch

KEY: Final = (TopicId(b"0123456789abcdef"), TopicPartition("orders", 0))
BATCHES: Final = [
    batch("a", "b", base_offset=0, leader_epoch=1),
    batch("c", base_offset=2, leader_epoch=1),
    batch("d", "e", base_offset=3, leader_epoch=2),
]
END: Final = 5
FIRST: Final = f"{0:020d}.log"


def committed_log() -> CommittedLog:
    log = CommittedLog()
    assert not log.take(map(read_header, BATCHES), END)
    return log


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]


@pytest.mark.parametrize(
    ("files", "held"),
    [
        ({}, 0),
        ({FIRST: b"".join(BATCHES)}, 5),
        ({FIRST: BATCHES[0] + BATCHES[1], f"{3:020d}.log": BATCHES[2]}, 5),
        ({FIRST: BATCHES[0], f"{3:020d}.log": BATCHES[2]}, 2),  # a segment is missing
        ({f"{3:020d}.log": BATCHES[2]}, 5),  # the beginning was deleted
        ({f"{3:020d}.log": b""}, 3),
        ({FIRST: b"".join(BATCHES)[:-1]}, 3),
        ({FIRST: BATCHES[0] + flipped(BATCHES[1], 65) + BATCHES[2]}, 2),
        ({FIRST: BATCHES[0] + batch("x", base_offset=2, leader_epoch=1)}, 2),  # never committed
        ({FIRST: BATCHES[0] + bytes(len(BATCHES[1]))}, 2),
        ({FIRST: b"".join(BATCHES) + batch("f", base_offset=5, leader_epoch=2)}, 5),
    ],
)
def test_a_copy_holds_the_committed_up_to_a_gap(files: dict[str, bytes], held: int) -> None:
    assert committed_log().held_by(files) == held


def test_a_compacted_log_counts_by_checksums_and_a_cut_one_is_written_anew() -> None:
    log = committed_log()
    files = {FIRST: BATCHES[0] + BATCHES[2]}
    assert (log.held_by(files), log.held_by(files, is_compacted=True)) == (2, 5)
    files = {FIRST: BATCHES[0] + flipped(BATCHES[2], 65)}
    assert log.held_by(files, is_compacted=True) == 2
    log = committed_log()
    log.cut(2)
    assert log.end_offset == 2
    other = batch("x", base_offset=2, leader_epoch=4)
    assert not log.take([read_header(other)], 3)
    assert log.take([read_header(BATCHES[1])], 3)


class Cluster:
    """Machines 1 to 3 with a copy of one partition each."""

    def __init__(self, *, keeps_members: bool = True) -> None:
        self.disks = {node_id: SimDisk() for node_id in (1, 2, 3)}
        machines = {n: cast(Machine, SimpleNamespace(disk=disk)) for n, disk in self.disks.items()}
        self.copies = Copies(machines, ["/data"], keeps_members=keeps_members)
        self.committed, self.epoch = committed_log(), 2
        self.isr: tuple[int, ...] = (1, 2)
        self.elr: tuple[int, ...] = (3,)
        self.violations: list[str] = []
        for node_id in self.disks:
            self.write(node_id, *BATCHES)
        assert not self.look()

    def write(self, node_id: int, *batches: bytes) -> None:
        disk = self.disks[node_id]
        disk.mkdir("/data")
        disk.empty("/data")
        disk.mkdir("/data/orders-0")
        write_partition_metadata(disk, "/data/orders-0", KEY[0])
        disk.open(f"/data/orders-0/{FIRST}", create=True).append(batches)

    def copied(self) -> Copied:
        image = PartitionImage(
            leader_id=BrokerId(1),
            leader_epoch=Epoch(self.epoch),
            partition_epoch=Epoch(7),
            replicas=(BrokerId(1), BrokerId(2), BrokerId(3)),
            isr=tuple(map(BrokerId, self.isr)),
            elr=tuple(map(BrokerId, self.elr)),
        )
        return Copied(KEY, image, self.committed, self.epoch, is_compacted=False)

    def look(self, worse_on: int | None = None) -> bool:
        return self.copies.look(self.copied(), worse_on)

    def leads(self, node_id: int, log_end_offset: int) -> None:
        self.epoch += 1
        self.copies.look_at_leader(self.copied(), node_id, log_end_offset, self.violations.append)


def test_a_loss_is_shared_once_no_member_holds_the_records() -> None:
    cluster = Cluster()
    for node_id in (1, 3):
        cluster.write(node_id, BATCHES[0])
        assert not cluster.look(worse_on=node_id)
    assert cluster.committed.end_offset == END
    cluster.write(2, *BATCHES[:2])
    assert cluster.look(worse_on=2)
    assert cluster.committed.end_offset == 3
    assert cluster.copies.lost_in(KEY) == cluster.epoch
    cluster = Cluster()
    cluster.isr, cluster.elr = (1,), ()
    assert not cluster.look()
    cluster.write(2, *BATCHES[:2])
    assert not cluster.look(worse_on=2)
    cluster.write(1, BATCHES[0])
    assert cluster.look(worse_on=1)
    assert cluster.committed.end_offset == 2


@pytest.mark.parametrize("keeps_members", [True, False])
def test_who_may_leave_an_isr_that_commits_alone_is_not_asked(keeps_members: bool) -> None:
    cluster = Cluster(keeps_members=keeps_members)
    cluster.write(1, BATCHES[0])
    assert not cluster.look(worse_on=1)
    cluster.isr, cluster.elr = (1,), ()
    assert cluster.look() is not keeps_members


def test_who_leaves_by_a_decision_from_before_the_loss_is_not_asked_any_more() -> None:
    cluster = Cluster()
    cluster.write(1, BATCHES[0])
    assert not cluster.look(worse_on=1)
    cluster.isr, cluster.elr = (1,), ()
    assert cluster.copies.look(cluster.copied(), None, is_decided_before=True)
    assert cluster.committed.end_offset == 2


def test_a_copy_without_its_name_holds_nothing() -> None:
    cluster = Cluster()
    assert cluster.copies.held(1, cluster.copied()) == END
    cluster.disks[1].cut("/data/orders-0/partition.metadata", 20)
    assert cluster.copies.held(1, cluster.copied()) == 0


def test_a_leader_with_less_than_the_best_copy_is_a_finding() -> None:
    cluster = Cluster()
    cluster.write(3, BATCHES[0])
    cluster.look(worse_on=3)
    cluster.leads(2, END)
    assert not cluster.violations
    cluster.leads(3, END)  # its end alone would not tell
    assert [one.partition(":")[0] for one in cluster.violations] == ["best-copy"]


@pytest.fixture
def log_of_controllers(cluster_with_loss: Cluster) -> Any:
    cluster_with_loss.copies.listen()
    logger = logging.getLogger("quorumlog.metadata_quorum.driver.active_controller")
    yield logger
    logger.removeHandler(cluster_with_loss.copies.announced)
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def cluster_with_loss() -> Cluster:
    cluster = Cluster()
    for node_id in cluster.disks:
        cluster.write(node_id, BATCHES[0])
        cluster.look(worse_on=node_id)
    return cluster


def test_a_shared_loss_is_told(cluster_with_loss: Cluster, log_of_controllers: Any) -> None:
    cluster, log = cluster_with_loss, log_of_controllers
    assert not cluster.copies.untold()  # no leader is loud enough
    cluster.leads(1, 2)
    assert not cluster.violations
    for other in ("orders-01", "my.orders-0"):
        log.warning("UNCLEAN ELECTION: broker 1 now leads %s", other)
        assert cluster.copies.untold().startswith("orders-0: node 1 leads with 2 of 5")
    log.warning("UNCLEAN ELECTION: broker 1 now leads orders-0")
    assert not cluster.copies.untold()


def test_a_leader_that_has_all_loses_nothing(cluster_with_loss: Cluster) -> None:
    cluster_with_loss.leads(1, END)
    assert not cluster_with_loss.copies.untold()


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
