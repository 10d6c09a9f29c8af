"""Power loss at every operation: a start learns the same from a snapshot as from all batches."""

from collections.abc import Callable
from random import Random

import pytest

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log.producer_loading import load_producers
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.kept_producers import KeptProducers
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot, ProducerSnapshots
from quorumlog.wire.codec.records import Record, encode_batch, read_header
from tests.support.storage.batches import DIRECTORY

SETTINGS = LogSettings(segment_bytes=400, index_interval_bytes=0)
SEEDS = 2


class PowerLoss(BaseException):
    """Not an Exception: a process that is gone handles nothing."""


class Replica:
    """One process that appends for two producers, as a leader does."""

    def __init__(self, disk: SimDisk) -> None:
        self.log = Log.open(disk, DIRECTORY, SETTINGS, clean=False)
        self.producers = load_producers(self.log)
        self.sequences = {5: 0, 6: 0}

    def append(self, producer_ids: list[int], epoch: int) -> None:
        for producer_id in producer_ids:
            batch = encode_batch(
                [Record(0, 1, None, b"v"), Record(1, 1, None, b"w")],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=self.sequences[producer_id],
            )
            self.sequences[producer_id] += 2
            info = self.log.append_as_leader(batch, leader_epoch=epoch, wall_ms=0)
            if info.first_offset == self.log.active_base_offset:
                self.keep()
            self.producers.record(read_header(batch), info.first_offset, 1)

    def keep(self) -> None:
        end = self.log.active_base_offset
        self.log.producers.keep(ProducerSnapshot(end, self.producers.snapshot()))

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self.producers = load_producers(self.log)
        self.sequences = {5: 0, 6: 0}

    def close(self) -> None:
        end = self.log.log_end_offset
        self.log.producers.keep(ProducerSnapshot(end, self.producers.snapshot()))
        self.log.close()


def live(disk: SimDisk) -> None:
    disk.mkdir("/data")
    replica = Replica(disk)
    replica.append([5, 5, 6, 5, 5, 6, 5], 0)
    replica.log.flush()
    replica.truncate(6)
    replica.append([6, 5, 5, 5, 5], 1)
    replica.append([5, 6, 6, 5], 2)
    replica.close()
    replica = Replica(disk)
    cut = replica.log.log_end_offset - 2
    assert cut > replica.log.active_base_offset  # no file is deleted but snapshots
    replica.truncate(cut)
    replica.append([5, 6], 3)
    replica.close()


def lose_power_at(number: int) -> Callable[[str, str], None]:
    count = 0

    def on_operation(operation: str, path: str) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise PowerLoss

    return on_operation


def check_all(seeds: int = SEEDS) -> None:
    operations: list[str] = []
    live(SimDisk(on_operation=lambda operation, path: operations.append(operation)))
    for number in range(len(operations), 0, -1):  # the last ones tell the most
        for seed in range(seeds):
            disk = SimDisk(on_operation=lose_power_at(number))
            with pytest.raises(PowerLoss):
                live(disk)
            disk.on_operation = None
            disk.crash(Random(number * seeds + seed))
            check(disk)


def check(disk: SimDisk) -> None:
    disk.mkdir("/data")
    for append_more in (True, False):
        replica = Replica(disk)
        learnt = ProducerStates()
        learnt.rebuild(replica.log.headers(0))
        assert replica.producers.snapshot() == learnt.snapshot()
        if append_more:  # over what a crash or a cut has taken, with other sequences
            replica.sequences = {5: 100, 6: 100}
            replica.append([6, 5, 6, 5, 6, 5, 6, 5], 9)
            replica.log.flush()
            disk.crash(Random(0))


def test_a_snapshot_says_what_the_log_says_after_power_loss_anywhere() -> None:
    check_all()


def test_a_start_after_a_clean_stop_reads_no_batch_header(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    live(disk)
    log = Log.open(disk, DIRECTORY, SETTINGS, clean=True)
    monkeypatch.setattr(Log, "headers", lambda log, offset: pytest.fail("read"))
    assert len(load_producers(log)) == 2


def test_a_cut_reads_on_from_the_last_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    replica = Replica(disk)
    replica.append([5] * 20, 0)
    last = replica.log.segment_base_offsets[-1]
    batches, read_from = KeptProducers.batches, list[int]()

    def noted(kept: KeptProducers, offset: int) -> object:
        read_from.append(offset)
        return batches(kept, offset)

    monkeypatch.setattr(KeptProducers, "batches", noted)
    replica.truncate(last + 2)
    assert read_from == [last]


@pytest.mark.planted
def test_the_first_test_finds_a_cut_that_leaves_later_snapshots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ProducerSnapshots, "drop_above", lambda snapshots, offset: None)
    with pytest.raises(AssertionError):
        check_all(seeds=20)


@pytest.mark.planted
def test_the_first_test_finds_a_drop_that_is_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_above(snapshots: ProducerSnapshots, offset: int) -> None:
        snapshots._drop([known for known in snapshots.offsets if known > offset])

    monkeypatch.setattr(ProducerSnapshots, "drop_above", drop_above)
    with pytest.raises(AssertionError):
        check_all(seeds=20)


@pytest.mark.planted
def test_the_first_test_finds_a_snapshot_that_is_taken_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = ProducerSnapshots.write

    def write(snapshots: ProducerSnapshots, snapshot: ProducerSnapshot) -> None:
        original(snapshots, snapshot._replace(offset=snapshot.offset + 2))

    monkeypatch.setattr(ProducerSnapshots, "write", write)
    with pytest.raises(AssertionError):
        check_all(seeds=20)
