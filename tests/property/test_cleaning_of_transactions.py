"""Compaction of transactions: a consumer sees the newest committed value of each key, and no other.

The model is a list of what was written and how its transactions ended. The consumer filters as
Kafka's does: by the aborted transactions that a fetch names, until it sees their markers.
"""

from collections.abc import Iterator
from random import Random

import pytest

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log.loaded_log import load_producers
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.cleaning import CleaningRules
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.records import Record, decode_batch, encode_batch, read_header
from quorumlog.wire.codec.transaction_markers import (
    TransactionMarker,
    encode_marker,
    marked_headers,
)
from tests.support.sizes import tries
from tests.support.storage.batches import DIRECTORY, read_all
from tests.support.storage.power import PowerLoss, at, operations_of

TINY = LogSettings(segment_bytes=400, index_interval_bytes=0, cleanup_policy="compact")
PRODUCERS = (5, 6, 7)
RETENTION_MS = 1000


class Compacted:
    """A log with transactions, and what must be seen of it."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.open_since: dict[int, int] = {}
        self.writes: list[tuple[int, int, bytes, bytes, bool]] = []  # offset, producer, ...
        self.aborted: set[int] = set()  # offsets
        self.first_dirty = 0
        self.sequences: dict[int, int] = dict.fromkeys(PRODUCERS, 0)
        self.epochs: dict[int, int] = dict.fromkeys(PRODUCERS, 0)
        self.reopen(clean=False)

    def reopen(self, *, clean: bool) -> None:
        self.log = Log.open(self.disk, DIRECTORY, TINY, clean=clean)
        self.producers = load_producers(self.log)

    def write(self, producer_id: int, key: bytes, value: bytes, *, in_transaction: bool) -> None:
        batch = encode_batch(
            [Record(0, 1, key, value)],
            producer_id=producer_id,
            producer_epoch=self.epochs[producer_id],
            base_sequence=self.sequences[producer_id],
            is_transactional=in_transaction,
        )
        self.sequences[producer_id] += 1
        offset = self._append(batch, None)
        self.writes.append((offset, producer_id, key, value, in_transaction))
        if in_transaction:
            self.open_since.setdefault(producer_id, offset)

    def end(self, producer_id: int, *, commits: bool, bumps: bool) -> None:
        if bumps:
            self.epochs[producer_id] += 1
            self.sequences[producer_id] = 0
        marker = TransactionMarker(producer_id, self.epochs[producer_id], 0, commits)
        self._append(encode_marker(marker, 1), marker)
        first = self.open_since.pop(producer_id, None)
        if not commits and first is not None:
            self.aborted |= {
                offset
                for offset, producer, *_, is_in in self.writes
                if producer == producer_id and offset >= first and is_in
            }

    def _append(self, batch: bytes, marker: TransactionMarker | None) -> int:
        info = self.log.append_as_leader(batch, leader_epoch=0, wall_ms=0)
        if info.first_offset == self.log.active_base_offset:
            self.log.producers.keep(ProducerSnapshot(info.first_offset, self.producers.snapshot()))
        aborted = self.producers.record(read_header(batch), info.first_offset, 1, marker)
        if aborted is not None:
            self.log.aborted.add(aborted)
        return info.first_offset

    @property
    def last_stable_offset(self) -> int:
        end = self.log.log_end_offset
        self.producers.transactions.committed_to(end)
        return self.producers.transactions.last_stable_offset(0, end)

    def clean(self, wall_ms: int) -> None:
        log = self.log
        log.flush()
        log.share_flushed_segments()
        borders = [at for at in log.segment_base_offsets if at <= self.last_stable_offset]
        rules = CleaningRules(
            first_dirty_offset=self.first_dirty,
            end_offset=borders[-1],
            wall_ms=wall_ms,
            delete_retention_ms=RETENTION_MS,
            producers_since_ms=0,
        )
        cleaning = log.compaction.begin(rules, log.settings, flushed_offset=log.flushed_offset)
        for cleaned in cleaning.run():
            names = cleaned and log.compaction.swap_in(cleaned, log.settings)
            if names:
                log.compaction.remove_replaced(names)
        self.first_dirty = cleaning.newest.end_offset

    def must_be_seen(self) -> dict[bytes, bytes]:
        stable = self.last_stable_offset
        return {
            key: value
            for offset, _, key, value, _ in self.writes
            if offset < stable and offset not in self.aborted
        }

    def check(self) -> None:
        seen: dict[bytes, bytes] = {}
        for offset, key, value in consumed(self.log, 0, self.last_stable_offset):
            assert offset not in self.aborted
            assert (offset, key, value) in {(one[0], one[2], one[3]) for one in self.writes}
            seen[key] = value
        assert seen == self.must_be_seen()


def consumed(log: Log, start: int, end: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield what a consumer of `read_committed` hands out, as Kafka's does."""
    to_come = sorted(
        [(one.first_offset, one.producer_id) for one in log.aborted.reaching_into(start, end)],
        reverse=True,
    )
    gone: set[int] = set()
    data = read_all(log)
    for position, header, marker in marked_headers(data):
        if header.next_offset > end:
            return
        while to_come and to_come[-1][0] <= header.last_offset:
            gone.add(to_come.pop()[1])
        if header.is_control:
            if marker is not None and not marker.commits:
                gone.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in gone):
            for record in decode_batch(data, position):
                yield record.offset, record.key or b"", record.value or b""


def act(log: Compacted, rng: Random, number: int) -> None:
    producer_id = rng.choice(PRODUCERS)
    is_open = producer_id in log.open_since
    if is_open and rng.random() < 0.3:
        log.end(producer_id, commits=rng.random() < 0.5, bumps=rng.random() < 0.5)
        return
    key, value = b"k%d" % rng.randrange(5), b"v%d" % number
    log.write(producer_id, key, value, in_transaction=is_open or rng.random() < 0.7)


def require_producers_known(log: Compacted) -> None:
    """Learn from the batches alone: the open transactions and the last sequences are there."""
    learnt = ProducerStates()
    for header, marker in log.log.producers.batches(0):
        learnt.record(header, header.base_offset, header.max_timestamp, marker)
    for producer_id in PRODUCERS:
        known, told = log.producers.describe(producer_id), learnt.describe(producer_id)
        assert (known is None) == (told is None)
        if known is not None and told is not None:
            assert told.producer_epoch == known.producer_epoch
            assert told.last_sequence == known.last_sequence
            assert (told.transaction_offset < 0) == (known.transaction_offset < 0)


@pytest.mark.parametrize("seed", range(25))
def test_a_consumer_sees_what_is_committed_however_often_the_log_is_cleaned(seed: int) -> None:
    rng = Random(seed)
    disk = SimDisk()
    disk.mkdir("/data")
    log = Compacted(disk)
    for number in range(150):
        act(log, rng, number)
        if rng.random() < 0.06:
            log.clean(wall_ms=number * 40)
            log.check()
            require_producers_known(log)
        if rng.random() < 0.03:
            is_clean = rng.random() < 0.5
            if is_clean:
                end = log.log.log_end_offset
                log.log.producers.keep(ProducerSnapshot(end, log.producers.snapshot()))
                log.log.close()
            log.reopen(clean=is_clean)
            log.check()
    log.check()


def filled(disk: SimDisk) -> Compacted:
    disk.mkdir("/data")
    log, rng = Compacted(disk), Random(3)
    for number in range(30):
        act(log, rng, number)
    for producer_id in sorted(log.open_since):
        log.end(producer_id, commits=False, bumps=False)
    log.log.flush()
    log.clean(wall_ms=0)
    for number in range(30, 40):
        act(log, rng, number)
    for producer_id in sorted(log.open_since):
        log.end(producer_id, commits=True, bumps=False)
    log.log.flush()
    return log


def test_a_crash_at_any_step_of_a_pass_shows_no_aborted_record() -> None:
    disk = SimDisk()
    log = filled(disk)
    count = operations_of(lambda _: log.clean(wall_ms=5000), disk)
    for number in range(1, count + 1, count // tries(count)):
        disk = SimDisk()
        log = filled(disk)
        disk.on_operation = at(number)
        with pytest.raises(PowerLoss):
            log.clean(wall_ms=5000)
        disk.on_operation = None
        point = log.log.flushed_offset if number % 2 else 0
        disk.crash(Random(number))
        log.log = Log.open(disk, DIRECTORY, TINY, clean=False, recovery_point=point)
        log.producers = load_producers(log.log)
        log.check()
        require_producers_known(log)


def test_an_index_without_entries_stays_for_the_snapshots_that_name_its_markers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else a start would take it for lost, and read the whole log."""
    disk = SimDisk()
    disk.mkdir("/data")
    log = Compacted(disk)
    for key in (b"k", b"l"):
        log.write(5, key, b"gone", in_transaction=True)
        log.end(5, commits=False, bumps=False)
        for number in range(20):
            log.write(6, b"other", b"%d" % number, in_transaction=False)
    log.write(5, b"k", b"stays", in_transaction=True)  # the last batch of a producer is not taken
    log.end(5, commits=True, bumps=False)
    for number in range(20):
        log.write(6, b"other", b"%d" % number, in_transaction=False)
    newest = log.log.aborted.newest_below(log.log.log_end_offset)
    assert newest > 0
    end_offset = log.log.log_end_offset
    log.log.producers.keep(ProducerSnapshot(end_offset, log.producers.snapshot()))
    for wall_ms in (0, 10, 10 + RETENTION_MS, 20 + 2 * RETENTION_MS):
        log.clean(wall_ms=wall_ms)
    assert len(log.log.aborted) == 0
    log.log.close()
    log.log = Log.open(disk, DIRECTORY, TINY, clean=True)
    snapshot = log.log.producers.newest()
    assert snapshot is not None
    assert (snapshot.offset, snapshot.newest_aborted) == (end_offset, newest)
    assert caplog.messages == []
    log.producers = load_producers(log.log)
    log.check()


def test_a_marker_goes_last_and_its_entry_with_its_records() -> None:
    disk = SimDisk()
    disk.mkdir("/data")
    log = Compacted(disk)
    log.write(5, b"k", b"gone", in_transaction=True)
    log.end(5, commits=False, bumps=False)
    log.write(5, b"k", b"stays", in_transaction=True)
    log.end(5, commits=True, bumps=False)
    for number in range(20):
        log.write(6, b"other", b"%d" % number, in_transaction=False)

    def markers() -> list[int]:
        data = read_all(log.log)
        return [header.base_offset for _, header, marker in marked_headers(data) if marker]

    log.clean(wall_ms=0)
    assert markers() == [1, 3]
    assert [one.last_offset for one in log.log.aborted.within(0, 100)] == [1]
    log.clean(wall_ms=10)  # nothing is left of it: the marker gets its delete horizon
    assert markers() == [1, 3]
    assert log.log.aborted.within(0, 100) == []
    log.clean(wall_ms=10 + RETENTION_MS)
    assert markers() == [3]  # its record is there
    log.check()
