"""Idempotent producers and their transactions (KIP-98): kept, found after a crash, expired."""

from pathlib import Path
from random import Random

import pytest

from quorumlog.broker.partitions.core import producer_state
from quorumlog.broker.partitions.core.open_transactions import OpenTransactions
from quorumlog.broker.partitions.core.producer_state import SEQUENCE_MAX, Check, ProducerStates
from quorumlog.broker.partitions.log.loaded_log import load_producers, work_to_keep
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core import recovery
from quorumlog.storage.core.producer_snapshot import SnapshotEntry
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader, Record, encode_batch, read_header
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.broker.one_broker import (
    append,
    follow,
    from_leader,
    one_broker,
    publish,
    sequenced,
)
from tests.support.broker.produced import produced
from tests.support.broker.replicas import image
from tests.support.broker.transactional import transactional

APPEND = Check(ErrorCode.NONE)


def states(*batches: BatchHeader) -> ProducerStates:
    result = ProducerStates()
    for offset, batch in enumerate(batches):
        result.record(batch, offset, 1000)
    return result


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert states().check(produced(41)) == APPEND


def test_the_next_sequence_is_appended_and_a_gap_is_not() -> None:
    after = states(produced(0, last_offset_delta=4))
    assert after.check(produced(5)) == APPEND
    assert after.check(produced(6)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_one_of_the_last_five_batches_is_a_duplicate_and_an_older_one_is_out_of_order() -> None:
    after = states(*map(produced, range(6)))
    for sequence in range(1, 6):
        duplicate = after.check(produced(sequence)).duplicate_of
        assert duplicate is not None
        assert duplicate.base_offset == sequence
    assert after.check(produced(0)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_only_ends_where_a_known_one_ends_is_no_duplicate() -> None:
    after = states(produced(0, last_offset_delta=4))
    assert after.check(produced(3, last_offset_delta=1)).error_code is (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert after.check(produced(0, last_offset_delta=3)).error_code is (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )


def test_the_sequence_wraps_to_zero() -> None:
    after = states(produced(SEQUENCE_MAX - 1, last_offset_delta=1))
    assert after.check(produced(0)) == APPEND
    across = states(produced(SEQUENCE_MAX, last_offset_delta=1))
    assert across.check(produced(1)) == APPEND


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    after = states(produced(0), produced(1))
    assert after.check(produced(2, 1)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert after.check(produced(0, 1)) == APPEND
    after.record(produced(0, 1), 2, 1000)
    assert after.check(produced(2, 0)).error_code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert after.check(produced(1, 1)) == APPEND


def test_an_idle_producer_expires_and_a_marker_keeps_it() -> None:
    after = states(produced(0), produced(0, producer_id=8))
    after.record(produced(-1, producer_id=8, is_control=True), 2, 1500)
    after.expire(2001, 1000)
    assert len(after) == 1
    assert after.check(produced(9)) == APPEND
    refused = after.check(produced(9, producer_id=8))
    assert refused.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    after = states(*(produced(0, producer_id=who) for who in (1, 2, 1, 3)))
    assert len(after) == 2
    assert after.check(produced(5, producer_id=2)) == APPEND  # forgotten: idle for longest


def test_a_producer_with_an_open_transaction_neither_expires_nor_is_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KAFKA-9144: an id that is forgotten leaves its transaction open for ever."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    after = states(produced(0, producer_id=1, is_transactional=True))
    for offset, who in enumerate((2, 3, 4), start=1):
        after.record(produced(0, producer_id=who), offset, 1000)
    assert after.ids() == [3, 4, 1]
    after.expire(9000, 1000)
    assert after.ids() == [1]
    assert after.is_in_transaction(1, 0)


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


SMALL = LogSettings(segment_bytes=200)  # two batches each


def snapshots(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("orders-0/*.snapshot"))


async def test_a_leader_writes_one_where_a_segment_begins_and_at_its_end(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=SMALL) as replicas:
        for sequence in range(5):
            assert append(replicas, records=sequenced(sequence)).base_offset == sequence
        assert snapshots(tmp_path) == [2, 4]
    assert snapshots(tmp_path) == [2, 4, 5]


async def test_a_follower_does_as_well(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2), log_settings=SMALL) as replicas:
        take = follow(replicas)
        for offset in range(5):
            take(from_leader(offset, sequence=offset))
        assert snapshots(tmp_path) == [2, 4]
    assert snapshots(tmp_path) == [2, 4, 5]


async def test_every_one_of_five_batches_is_known_again_without_reading_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_broker(tmp_path) as replicas:
        for sequence in range(7):
            append(replicas, records=sequenced(sequence))
    monkeypatch.setattr(Log, "headers", lambda log, offset: pytest.fail("the log is read"))
    async with one_broker(tmp_path) as replicas:
        publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))
        for sequence in range(2, 7):
            assert append(replicas, records=sequenced(sequence)).base_offset == sequence
        forgotten = append(replicas, records=sequenced(1))
        assert forgotten.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert append(replicas, records=sequenced(7)).base_offset == 7


SOME_BATCHES = LogSettings(segment_bytes=400)  # some batches in a segment


def opened(disk: SimDisk, recovery_point: int = 0) -> Log:
    return Log.open(disk, "/log", SOME_BATCHES, clean=False, recovery_point=recovery_point)


def fill(disk: SimDisk, rng: Random) -> ProducerStates:
    """Write batches of several producers, and keep snapshots now and then; return what is known."""
    log, producers = opened(disk), ProducerStates()
    for number in range(rng.randrange(1, 80)):
        producer = rng.randrange(-1, 4)
        batch = encode_batch(
            [Record(0, number, None, b"v")],
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else number // 40,
            base_sequence=-1 if producer < 0 else number,
        )
        info = log.append_as_leader(batch, leader_epoch=0, wall_ms=number)
        for header in log.headers(info.first_offset):
            producers.record(header, header.base_offset, header.max_timestamp)
        if rng.random() < 0.05:
            log.producers.keep(ProducerSnapshot(log.log_end_offset, producers.snapshot()))
    log.flush()
    log.close(clean=False)
    return producers


def differing() -> list[int]:
    """Return the seeds of logs whose producers are not found as they were."""
    found = []
    for seed in range(15):
        rng = Random(seed)
        disk = SimDisk()
        known = fill(disk, rng)
        log = opened(disk, recovery_point=rng.choice([0, 0, 5, 30]))
        if load_producers(log).snapshot() != known.snapshot():
            found.append(seed)
        log.close(clean=False)
    return found


def test_the_producers_are_those_of_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differing() == []
    with monkeypatch.context() as planted:  # a batch that is not noted is missed
        planted.setattr(recovery, "BATCHES_MAX", 4)
        assert differing() != []
    monkeypatch.setattr(recovery, "PRODUCERS_MAX", 2)  # a log of more is read once more
    assert differing() == []


def test_what_was_noted_does_not_outlive_a_cut() -> None:
    disk = SimDisk()
    fill(disk, Random(1))
    log = opened(disk)
    log.truncate_to(3)
    known = ProducerStates()
    known.rebuild(log.headers(0))
    assert load_producers(log).snapshot() == known.snapshot()
    log.close(clean=False)


def test_the_log_is_not_read_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    fill(disk, Random(2))
    log = opened(disk)
    monkeypatch.setattr(Log, "headers", None)
    load_producers(log)
    log.close(clean=False)
