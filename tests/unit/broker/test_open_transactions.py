"""Which transactions hold back the readers of read_committed."""

from quorumlog.broker.partitions.core.open_transactions import OpenTransactions
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log.producer_loading import load_producers, work_to_keep
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import read_header
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.broker.transactional import transactional


def test_one_that_has_ended_counts_until_its_marker_is_committed() -> None:
    transactions = OpenTransactions()
    transactions.begin(7, 10)
    transactions.begin(8, 12)
    assert transactions.last_stable_offset(0, 20) == 10
    assert transactions.end(10, 14) == 12  # so far readers will come then
    assert (len(transactions), transactions.first_unstable_offset) == (1, 10)
    transactions.committed_to(14)
    assert transactions.first_unstable_offset == 10
    transactions.committed_to(15)
    assert transactions.first_unstable_offset == 12
    assert transactions.end(12, 16) == 17
    transactions.committed_to(17)
    assert transactions.first_unstable_offset is None
    assert transactions.last_stable_offset(0, 17) == 17


def test_those_that_end_out_of_their_order_leave_the_first_one() -> None:
    transactions = OpenTransactions()
    for first_offset in (1, 2, 3):
        transactions.begin(first_offset, first_offset)
    transactions.end(3, 4)
    transactions.end(2, 5)
    transactions.committed_to(6)
    assert transactions.first_unstable_offset == 1
    assert transactions.end(1, 6) == 7


def test_a_snapshot_has_them_in_the_order_of_its_producers() -> None:
    def entry(producer_id: int, offset: int, last_offset: int, begun: int) -> SnapshotEntry:
        return SnapshotEntry(producer_id, 0, offset, last_offset, 0, 0, transaction_offset=begun)

    states = ProducerStates()
    states.rebuild((), [entry(1, 0, 5, 5), entry(1, 1, 6, 5), entry(2, 0, 3, 3), entry(3, 0, 4, 4)])
    assert states.transactions.first_unstable_offset == 3
    assert [states.transactions.end(*ended) for ended in ((3, 7), (4, 8), (5, 9))] == [4, 5, 10]


def test_nothing_of_a_snapshot_is_decided_until_all_of_it_is_committed() -> None:
    disk, settings = SimDisk(), LogSettings()
    disk.mkdir("/log")
    log = Log.open(disk, "/log", settings, clean=False)
    states = ProducerStates()
    marker = TransactionMarker(5, 0, 0, commits=True)
    for batch, ends in ((transactional(0), None), (encode_marker(marker, 1), marker)):
        info = log.append_as_leader(batch, leader_epoch=1, wall_ms=1)
        states.record(read_header(batch), info.first_offset, 1, ends)
    assert states.transactions.decided_end(0, 1) == 0  # the marker is not committed
    work_to_keep(log, states, log.log_end_offset)()
    loaded = load_producers(log).transactions
    assert [loaded.decided_end(0, high_watermark) for high_watermark in (0, 1, 2)] == [0, 0, 2]
