"""Producer snapshots: Kafka's bytes, and when a snapshot may be believed."""

import struct
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.aborted_transactions import NONE_ABORTED
from quorumlog.storage.core.producer_snapshot import (
    CorruptSnapshot,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from tests.support.storage.batches import DIRECTORY, fill, open_log

ENTRY = SnapshotEntry(5, 1, 7, 42, 2, 1000)


def names(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir(DIRECTORY) if name.endswith(".snapshot")]


def test_the_bytes_are_those_of_kafka() -> None:
    content = encode_snapshot([ENTRY])
    assert len(content) == 2 + 4 + 4 + 46
    assert content[:2] == b"\x00\x01"
    assert content[6:10] == b"\x00\x00\x00\x01"
    assert content[10:] == struct.pack(">qhiqiqiq", 5, 1, 7, 42, 2, 1000, -1, -1)
    assert decode_snapshot(content) == ([ENTRY], NONE_ABORTED)
    assert decode_snapshot(encode_snapshot([])) == ([], NONE_ABORTED)


def test_the_newest_aborted_transaction_is_behind_the_bytes_of_kafka() -> None:
    content = encode_snapshot([ENTRY], 41)
    assert content[10:56] == encode_snapshot([ENTRY])[10:]
    assert content[56:] == struct.pack(">q", 41)
    assert decode_snapshot(content) == ([ENTRY], 41)


def test_a_snapshot_that_is_not_whole_is_refused_wherever_it_is_cut_or_changed() -> None:
    content = encode_snapshot([ENTRY, ENTRY._replace(producer_id=6)], 41)
    for size in range(len(content)):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(content[:size])
        flipped = bytearray(content)
        flipped[size] ^= 1
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(bytes(flipped))


def test_the_newest_whole_snapshot_counts() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, ["v" * 30] * 20)
    second = log.segment_base_offsets[1]
    log.producers.keep(ProducerSnapshot(second, [ENTRY]))
    log.producers.keep(ProducerSnapshot(20, []))
    log.close()
    disk.open(f"{DIRECTORY}/{20:020d}.snapshot").truncate(9)
    log = open_log(disk, clean=True)
    assert log.producers.newest() == ProducerSnapshot(second, [ENTRY])
    assert names(disk) == [f"{second:020d}.snapshot"]


def test_a_cut_takes_the_snapshots_above_with_it_before_others_are_written() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, "abcdefgh")
    for offset in (3, 5, 8):
        log.producers.keep(ProducerSnapshot(offset, [ENTRY]))
    log.truncate_to(5)
    fill(log, "xyz", leader_epoch=1)
    log.flush()
    disk.crash(Random(0))
    log = open_log(disk)
    assert log.log_end_offset == 8
    assert log.producers.newest() == ProducerSnapshot(5, [ENTRY])
    log.truncate_fully_and_start_at(20)
    assert log.producers.newest() is None


def test_a_snapshot_of_records_that_a_crash_has_taken_is_dropped_at_the_start() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, "abcd")
    log.flush()
    fill(log, "efgh")
    log.producers.keep(ProducerSnapshot(8, [ENTRY]))
    for seed in range(20):
        disk.crash(Random(seed))
        log = open_log(disk)
        newest = log.producers.newest()
        assert newest is None or newest.offset <= log.log_end_offset
        log.close(clean=False)


def test_a_start_keeps_the_snapshots_of_segments_and_the_newest() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, ["v" * 30] * 20)
    second = log.segment_base_offsets[1]
    for offset in (1, second, second + 1, 20):
        log.producers.keep(ProducerSnapshot(offset, []))
    log.close()
    open_log(disk, clean=True)
    assert names(disk) == [f"{offset:020d}.snapshot" for offset in (second, 20)]


def test_snapshots_go_with_their_segments() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, ["v" * 30] * 20)
    first, second, third = log.segment_base_offsets[1:4]
    for offset in (first, second, third):
        log.producers.keep(ProducerSnapshot(offset, []))
    log.flush()
    log.advance_log_start_offset(second)
    log.remove_dead_segments()
    assert names(disk) == [f"{offset:020d}.snapshot" for offset in (second, third)]
