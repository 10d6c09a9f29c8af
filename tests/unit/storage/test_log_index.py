"""The sparse indexes: Kafka's bytes, and where they send a reader."""

import pytest

from quorumlog.storage.core.leader_epochs import LeaderEpochs
from quorumlog.storage.core.log_index import (
    CorruptIndex,
    IndexEntry,
    OffsetIndex,
    TimeEntry,
    TimeIndex,
)
from quorumlog.storage.core.recovery import SegmentScan
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.epoch_checkpoint import decode_epochs, encode_epochs
from tests.support.storage.batches import batch


def offset_index() -> OffsetIndex:
    index = OffsetIndex(100)
    for last_offset, position in ((104, 50), (109, 5000), (120, 9000)):
        index.append(last_offset, position)
    return index


def time_index() -> TimeIndex:
    index = TimeIndex(100)
    for timestamp, offset in ((1000, 104), (1000, 109), (900, 111), (2000, 120)):
        index.maybe_append(timestamp, offset)
    return index


def test_an_offset_index_has_eight_bytes_per_entry() -> None:
    content = offset_index().encode()
    assert content.hex(" ", 4) == "00000004 00000032 00000009 00001388 00000014 00002328"
    assert OffsetIndex.decode(100, content).encode() == content
    assert len(OffsetIndex.decode(100, content)) == 3


def test_a_time_index_has_twelve_bytes_per_entry_and_only_new_maxima() -> None:
    content = time_index().encode()
    assert content.hex(" ", 4) == "00000000 000003e8 00000004 00000000 000007d0 00000014"
    assert TimeIndex.decode(100, content).last() == (2000, 120)


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (0, None),
        (103, None),
        (104, (104, 50)),
        (108, (104, 50)),
        (119, (109, 5000)),
        (999, (120, 9000)),
    ],
)
def test_a_lookup_by_offset_starts_at_or_before_the_batch(
    offset: int, found: IndexEntry | None
) -> None:
    assert offset_index().ending_by(offset) == found


@pytest.mark.parametrize(("position", "found"), [(0, None), (49, None), (50, 104), (8999, 109)])
def test_a_lookup_by_position_finds_the_batch_before_it(position: int, found: int | None) -> None:
    entry = offset_index().starting_by(position)
    assert (entry and entry.last_offset) == found


@pytest.mark.parametrize(
    ("timestamp", "found"), [(0, None), (999, None), (1000, (1000, 104)), (5000, (2000, 120))]
)
def test_a_lookup_by_time_passes_no_record_with_that_time(
    timestamp: int, found: TimeEntry | None
) -> None:
    assert time_index().reached_by(timestamp) == found


def test_entries_at_or_behind_an_offset_are_forgotten() -> None:
    for offset, left in ((0, 0), (104, 0), (105, 1), (120, 2), (121, 3)):
        offsets, times = offset_index(), time_index()
        offsets.truncate_to(offset)
        times.truncate_to(offset)
        assert (len(offsets), len(times)) == (left, min(left, 1) + (left == 3))


@pytest.mark.parametrize("content", [b"1234567", bytes(16), b"\0\0\0\1\0\0\0\2\0\0\0\2\0\0\0\2"])
def test_an_offset_index_that_does_not_rise_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptIndex):
        OffsetIndex.decode(0, content)


@pytest.mark.parametrize("content", [bytes(13), bytes(24)])
def test_a_time_index_that_does_not_rise_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptIndex):
        TimeIndex.decode(0, content)


def test_a_scan_gives_the_same_answer_for_every_way_to_cut_the_bytes() -> None:
    content = batch("a", "b", leader_epoch=1) + batch("c", base_offset=2, leader_epoch=2) + b"torn"
    for step in (1, 7, 61, 62, 100, 1000):
        scan = SegmentScan(0, LogSettings(), size=len(content))
        while not scan.is_over:
            start = scan.index.size
            scan.feed(memoryview(content)[start : start + max(step, scan.bytes_wanted)])
        assert (scan.index.next_offset, scan.index.size) == (3, len(content) - 4)
        assert (scan.epoch_starts, scan.last_epoch) == ([(1, 0), (2, 2)], 2)
        assert scan.fault == "4 bytes are less than a batch header"


def test_epochs_are_written_as_kafka_writes_them_with_a_checksum() -> None:
    epochs = LeaderEpochs().assigned(0, 0).assigned(3, 17)
    content = encode_epochs(epochs)
    assert content == b"0\n3\n0 0\n3 17\n#crc32c 1020967254\n"
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(
            ValueError, match=r"announced|after|values|literal|checksum|ascii|argum"
        ):
            decode_epochs(bytes(damaged))
    assert decode_epochs(b"0\n2\n0 0\n3 17\n").entries == epochs.entries  # of Kafka
    assert decode_epochs(encode_epochs(epochs)).entries == epochs.entries
    for bad in (b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\n1\n0 0", b"0\n2\n3 0\n2 5\n", b"0\n1\nx y\n"):
        with pytest.raises(ValueError, match=r"announced|after|values|literal"):
            decode_epochs(bad)
