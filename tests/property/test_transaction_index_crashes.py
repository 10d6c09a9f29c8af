"""Power loss at every operation: a start knows the producers and transactions of its log.

From a snapshot and the indexes of transactions it learns the same as from all batches.
"""

from collections.abc import Callable
from random import Random

import pytest

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log.loaded_log import load_producers
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.aborted_transactions import HEAD_BYTES, AbortedTransaction
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.storage.io.kept_producers import KeptProducers
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot, ProducerSnapshots
from quorumlog.storage.io.transaction_index import ALL_KNOWN
from quorumlog.wire.codec.records import Record, encode_batch, read_header
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.sizes import tries
from tests.support.storage.batches import DIRECTORY
from tests.support.storage.power import Nothing, power_losses

SETTINGS = LogSettings(segment_bytes=400, index_interval_bytes=0)
SEEDS = 2


class Replica:
    """One process that appends as a leader does: letters are batches, `+` commits, `-` aborts."""

    def __init__(
        self,
        disk: SimDisk,
        *,
        clean: bool = False,
        recovery_point: int = 0,
        settings: LogSettings = SETTINGS,
    ) -> None:
        self.log = Log.open(disk, DIRECTORY, settings, clean=clean, recovery_point=recovery_point)
        self.producers = load_producers(self.log)
        self.sequences: dict[int, int] = {}

    def run(self, script: str, epoch: int) -> None:
        """Each word is a producer and what it does: `5t` `5+` `5-` `5n`."""
        for word in script.split():
            producer_id, action = int(word[:-1]), word[-1]
            marker = None
            if action in "+-":
                marker = TransactionMarker(producer_id, 0, epoch, action == "+")
                batch = encode_marker(marker, 1)
            else:
                sequence = self.sequences.get(producer_id, 0)
                self.sequences[producer_id] = sequence + 2
                batch = encode_batch(
                    [Record(0, 1, None, b"v"), Record(1, 1, None, b"w")],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=sequence,
                    is_transactional=action == "t",
                )
            info = self.log.append_as_leader(batch, leader_epoch=epoch, wall_ms=0)
            if info.first_offset == self.log.active_base_offset:
                self.keep(info.first_offset)
            header = read_header(batch)
            aborted = self.producers.record(header, info.first_offset, 1, marker)
            if aborted is not None:
                self.log.aborted.add(aborted)

    def keep(self, offset: int) -> None:
        self.log.producers.keep(ProducerSnapshot(offset, self.producers.snapshot()))

    def truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self.producers = load_producers(self.log)
        self.sequences.clear()

    def flush(self, recovery_points: list[int]) -> None:
        """Flush, and then note how far the log need not be checked, as a checkpoint does."""
        self.log.flush()
        recovery_points.append(self.log.flushed_offset)

    def close(self) -> None:
        self.keep(self.log.log_end_offset)
        self.log.close()


def learnt(log: Log) -> tuple[ProducerStates, list[AbortedTransaction]]:
    """Return what all batches of a log say."""
    producers, aborted = ProducerStates(), list[AbortedTransaction]()
    for header, marker in log.producers.batches(log.segment_base_offsets[0]):
        found = producers.record(header, header.base_offset, header.max_timestamp, marker)
        aborted += [] if found is None else [found]
    return producers, aborted


def require_known(replica: Replica) -> None:
    log = replica.log
    producers, aborted = learnt(log)
    assert replica.producers.snapshot() == producers.snapshot()
    open_now = replica.producers.transactions, producers.transactions
    assert len(open_now[0]) == len(open_now[1])
    assert log.aborted.within(0, log.log_end_offset) == aborted
    # In a log that is opened again, a marker that it already had holds nothing back.
    for transactions in open_now:
        transactions.committed_to(log.log_end_offset)
    assert open_now[0].first_unstable_offset == open_now[1].first_unstable_offset


def live(disk: SimDisk, recovery_points: list[int]) -> None:
    disk.mkdir("/data")
    replica = Replica(disk)
    replica.run("5t 6t 5- 5t 7n 5- 6t 6- 5t", 0)
    replica.flush(recovery_points)
    replica.run("5- 6t 7n 6- 5t 5t 5- 7t", 0)
    recovery_points.append(9)
    replica.truncate(9)
    require_known(replica)
    replica.run("5t 5- 6t 7n 6+ 7t 7-", 1)
    replica.flush(recovery_points)
    replica.close()
    replica = Replica(disk, clean=True)
    require_known(replica)
    replica.run("5t 7t 5- 7- 6t 6t 6t 6- 5t", 2)
    replica.flush(recovery_points)
    recovery_points.append(replica.log.log_end_offset - 2)
    replica.truncate(replica.log.log_end_offset - 2)
    replica.run("5t 5- 6t", 3)
    replica.close()


def live_without_transactions(disk: SimDisk, _recovery_points: list[int]) -> None:
    """No index of transactions is written, whose fsync would cover the snapshots."""
    disk.mkdir("/data")
    replica = Replica(disk)
    replica.run("5n 5n 6n 5n 5n 6n 5n", 0)
    replica.log.flush()
    replica.truncate(6)
    replica.run("6n 5n 5n 5n 5n", 1)
    replica.run("5n 6n 6n 5n", 2)
    replica.close()
    replica = Replica(disk)
    cut = replica.log.log_end_offset - 2
    assert cut > replica.log.active_base_offset  # no file is deleted but snapshots
    replica.truncate(cut)
    replica.run("5n 6n", 3)
    replica.close()


def check(disk: SimDisk, recovery_point: int) -> None:
    disk.mkdir("/data")
    for _ in range(2):
        replica = Replica(disk, recovery_point=recovery_point)
        require_known(replica)
        replica.sequences = {5: 100, 6: 100}  # others than those that a crash or a cut has taken
        replica.run("5t 6t 6- 5-", 9)
        replica.log.flush()
        require_known(replica)
        disk.crash(Random(0))


def check_all(
    life: Callable[[SimDisk, list[int]], None], *, seeds: int = SEEDS, step: int = 1
) -> None:
    points: list[int] = []

    def live_from_zero(disk: SimDisk) -> None:
        points[:] = [0]
        life(disk, points)

    for disk in power_losses(live_from_zero, seeds=seeds, step=step):
        check(disk, points[-1])


@pytest.mark.parametrize("life", [live, live_without_transactions])
def test_a_start_knows_producers_and_transactions_after_power_loss_anywhere(
    life: Callable[[SimDisk, list[int]], None],
) -> None:
    check_all(life, step=4 // tries(4))


def _drops_without_fsync(snapshots: ProducerSnapshots, offset: int) -> None:
    snapshots._drop([known for known in snapshots.offsets if known > offset])


def _writes_too_late(snapshots: ProducerSnapshots, snapshot: ProducerSnapshot) -> None:
    WRITE(snapshots, snapshot._replace(offset=snapshot.offset + 2))


WRITE = ProducerSnapshots.write
PLANTED = {
    "a cut leaves later snapshots": ("drop_above", lambda snapshots, offset: None),
    "a drop is not durable": ("drop_above", _drops_without_fsync),
    "a snapshot is taken too late": ("write", _writes_too_late),
}


@pytest.mark.planted
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerSnapshots, *PLANTED[name])
    with pytest.raises(AssertionError):
        check_all(live_without_transactions, seeds=20)


def test_a_start_after_a_clean_stop_reads_no_batch_header(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(closed(SCRIPT), DIRECTORY, SETTINGS, clean=True)
    monkeypatch.setattr(Log, "headers", lambda log, offset: pytest.fail("read"))
    assert len(load_producers(log)) == 3


def test_a_cut_reads_on_from_the_last_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    replica = Replica(disk)
    replica.run("5n " * 20, 0)
    last = replica.log.segment_base_offsets[-1]
    batches, read_from = KeptProducers.batches, list[int]()

    def noted(kept: KeptProducers, offset: int) -> object:
        read_from.append(offset)
        return batches(kept, offset)

    monkeypatch.setattr(KeptProducers, "batches", noted)
    replica.truncate(last + 2)
    assert read_from == [last]


def test_a_segment_that_was_flushed_before_it_was_full_is_known_after_a_crash() -> None:
    """The recovery point is where the segment ends, and no file of it says what was aborted."""
    words = SCRIPT.split()
    for flushed in range(1, len(words)):
        disk, recovery_points = SimDisk(), list[int]()
        disk.mkdir("/data")
        replica = Replica(disk)
        replica.run(" ".join(words[:flushed]), 0)
        replica.flush(recovery_points)
        replica.run(" ".join(words[flushed:]), 0)
        disk.kill()
        replica = Replica(disk, recovery_point=recovery_points[-1])
        require_known(replica)
        epochs = replica.log.epochs.entries
        disk.kill()
        again = Replica(disk, recovery_point=recovery_points[-1])
        require_known(again)
        assert again.log.epochs.entries == epochs


def closed(script: str) -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    replica = Replica(disk)
    replica.run(script, 0)
    replica.close()
    return disk


SCRIPT = "5t 6t 5- 5t 7n 5- 6t 6- 5t 5- 6t 7n 6- 5t 5t 5- 7t 7- 5t 5- 6t 7n 6+"


def index_files(disk: SimDisk) -> list[str]:
    names = disk.listdir(DIRECTORY)
    return [f"{DIRECTORY}/{name}" for name in names if name.endswith(".txnindex")]


def require_known_after(disk: SimDisk) -> None:
    """Start on a directory that was closed, whose files were damaged; and twice more."""
    for _ in range(2):
        replica = Replica(disk, clean=True)
        require_known(replica)
        replica.close()
    disk.kill()
    replica = Replica(disk, recovery_point=10**6)
    require_known(replica)
    replica.close()


def test_an_index_that_is_missing_is_learnt_anew_whichever_it_is() -> None:
    for path in index_files(closed(SCRIPT)):
        disk = closed(SCRIPT)
        disk.unlink(path)
        disk.fsync_dir(DIRECTORY)
        require_known(Replica(disk, clean=True))
        disk.crash(Nothing())
        assert disk.exists(path)
        require_known_after(disk)
    for script in ("5t 5-", "5t 5- 6t 6+"):  # there is no other one
        disk = closed(script)
        [path] = index_files(disk)
        disk.unlink(path)
        require_known_after(disk)


def test_a_missing_index_is_known_after_a_crash_too() -> None:
    """Except the index of the last segment below the recovery point: its snapshot is the newest."""
    paths = index_files(closed(SCRIPT))
    for path in paths[:-1]:
        disk = closed(SCRIPT)
        disk.unlink(path)
        require_known(Replica(disk, recovery_point=10**6))


def test_an_index_is_learnt_anew_wherever_a_bit_is_flipped() -> None:
    disk = closed(SCRIPT)
    [path, *_] = index_files(disk)
    whole = read_file(disk, path)
    for position in range(0, 8 * len(whole), 5 if tries(4) < 4 else 1):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        disk = closed(SCRIPT)
        write_file_durably(disk, path, bytes(damaged))
        require_known(Replica(disk, clean=True))
        assert read_file(disk, path) == whole


def test_indexes_of_a_former_release_are_read() -> None:
    disk = closed(SCRIPT)
    for path in index_files(disk):
        write_file_durably(disk, path, read_file(disk, path)[HEAD_BYTES:])
    log = Log.open(disk, DIRECTORY, SETTINGS, clean=True)
    assert log.producers.transactions.learnt_from == ALL_KNOWN
    require_known(Replica(disk, clean=True))


@pytest.mark.parametrize("clean", [True, False])
def test_an_index_that_is_cut_at_any_byte_or_spoilt_is_learnt_anew(*, clean: bool) -> None:
    paths = index_files(closed(SCRIPT))
    assert len(paths) > 3
    for path in paths:
        size = closed(SCRIPT).size(path)
        for at in range(0, size, 4 // tries(4)):
            disk = closed(SCRIPT)
            file = disk.open(path)
            if at % 34:
                file.truncate(at)
            else:
                content = file.pread(size, 0)
                file.truncate(at)
                file.append([b"\xff", content[at + 1 :]])
            file.close()
            replica = Replica(disk, clean=clean, recovery_point=0 if not clean else 10**6)
            require_known(replica)
            replica.log.flush()
            replica.close()
            require_known(Replica(disk, clean=True))


def test_without_any_snapshot_the_whole_log_is_read() -> None:
    disk = closed(SCRIPT)
    for name in disk.listdir(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.unlink(f"{DIRECTORY}/{name}")
    require_known(Replica(disk, clean=True))


def test_a_start_after_a_crash_knows_where_a_long_transaction_begins() -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    Replica(disk, settings=LogSettings()).run("5n " + "6t " * 12, 0)
    replica = Replica(disk, settings=LogSettings())
    require_known(replica)
    assert replica.producers.transactions.first_unstable_offset == 2


def test_an_index_goes_with_its_segment() -> None:
    disk = closed(SCRIPT)
    replica = Replica(disk, clean=True)
    third = replica.log.segment_base_offsets[2]
    replica.log.advance_log_start_offset(third)
    replica.log.remove_dead_segments()
    kept = replica.log.aborted.within(0, replica.log.log_end_offset)
    assert min(one.last_offset for one in kept) >= third
    assert all(int(path[-29:-9]) >= third for path in index_files(disk))
    replica.close()
    again = Replica(disk, clean=True)
    assert again.log.aborted.within(0, again.log.log_end_offset) == kept
