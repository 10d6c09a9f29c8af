"""How much of a log need not be kept, and the snapshots of producers that go with it."""

import os
import struct
from pathlib import Path
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.aborted_transactions import NONE_ABORTED
from quorumlog.storage.core.producer_snapshot import (
    CorruptSnapshot,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from quorumlog.storage.core.retention import (
    EVERYTHING,
    Retention,
    RetentionLimits,
    SegmentFacts,
    retention_limits,
)
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import RealDisk
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from tests.support.storage.batches import DIRECTORY, fill, log_of, open_log, timed_batch

NOW = 1000
SEGMENTS = [  # the last is the active one, up to 40
    SegmentFacts(base_offset=0, size=100, newest_ms=100),
    SegmentFacts(base_offset=10, size=50, newest_ms=300),
    SegmentFacts(base_offset=20, size=100, newest_ms=200),
    SegmentFacts(base_offset=30, size=80, newest_ms=400),
]
END = 40


def start(
    limits: RetentionLimits, high_watermark: int = END, segments: list[SegmentFacts] = SEGMENTS
) -> int:
    return Retention().start_after(
        segments, limits, high_watermark=high_watermark, log_end_offset=END, wall_ms=NOW
    )


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [(-1, 0), (330, 0), (231, 0), (230, 10), (181, 10), (180, 20), (80, 30), (1, 30), (0, 40)],
)
def test_segments_go_while_enough_bytes_are_left(max_bytes: int, expected: int) -> None:
    assert start(RetentionLimits(max_bytes=max_bytes)) == expected


@pytest.mark.parametrize(
    ("max_age_ms", "expected"),
    [(-1, 0), (900, 0), (899, 10), (700, 10), (699, 30), (599, 40), (0, 40)],
)
def test_a_segment_goes_when_its_newest_record_is_too_old(max_age_ms: int, expected: int) -> None:
    assert start(RetentionLimits(max_age_ms=max_age_ms)) == expected


def test_a_record_of_the_future_keeps_its_segment_and_all_after_it() -> None:
    segments = [SEGMENTS[0], SEGMENTS[1]._replace(newest_ms=NOW + 1), *SEGMENTS[2:]]
    assert start(RetentionLimits(max_age_ms=0), segments=segments) == 10


def test_age_goes_on_where_size_ends() -> None:
    assert start(RetentionLimits(max_bytes=230, max_age_ms=699)) == 30


@pytest.mark.parametrize(("high_watermark", "expected"), [(40, 40), (39, 30), (20, 20), (9, 0)])
def test_what_is_not_committed_stays(high_watermark: int, expected: int) -> None:
    for limits in (RetentionLimits(max_bytes=0), RetentionLimits(max_age_ms=0)):
        assert start(limits, high_watermark) == expected


def test_an_empty_active_segment_stays() -> None:
    segments = [*SEGMENTS[:3], SegmentFacts(base_offset=END, size=0, newest_ms=0)]
    for limits in (RetentionLimits(max_bytes=0), RetentionLimits(max_age_ms=0)):
        assert start(limits, segments=segments) == END
        assert start(limits, segments=segments[3:]) == END


def test_a_topic_without_delete_in_its_policy_keeps_everything() -> None:
    own = {"retention.ms": "5", "retention.bytes": "7"}
    limits = RetentionLimits(max_bytes=7, max_age_ms=5)
    policies = {"delete": limits, "compact,delete": limits, "compact": EVERYTHING}
    for policy, expected in policies.items():
        assert retention_limits(TopicConfig({**own, "cleanup.policy": policy}, {})) == expected
    assert retention_limits(TopicConfig({"retention.ms": "-1"}, {})).keep_everything


def test_a_survey_says_the_same_of_loaded_and_of_closed_segments() -> None:
    disk, settings = SimDisk(), LogSettings(segment_bytes=1)
    log = open_log(disk, settings)
    expected = []
    for offset, newest_ms in enumerate((5, 9, 7, -1, 8, 6, 3)):
        appended = log.append_as_leader(timed_batch(newest_ms), leader_epoch=0, wall_ms=0)
        of_file = disk.modified_ms(f"{DIRECTORY}/{offset:020d}.log")
        known_ms = of_file if newest_ms < 0 else newest_ms
        expected.append(SegmentFacts(offset, appended.size, known_ms))
    assert log.survey.facts() == expected
    log.flush()
    log.share_flushed_segments()
    assert log.survey.facts() == expected
    log.close()
    log = open_log(disk, settings, clean=True)
    assert log.survey.facts() == expected
    log.advance_log_start_offset(3)
    assert log.survey.facts() == expected[3:]
    log.close()


def test_a_file_says_when_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    os.utime(path, ns=(0, 5_000_000_000))
    assert RealDisk().modified_ms(str(path)) == 5000


# --- producer snapshots: Kafka's bytes, and when a snapshot may be believed ---


ENTRY = SnapshotEntry(5, 1, 7, 42, 2, 1000)


def names(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir(DIRECTORY) if name.endswith(".snapshot")]


def of(*offsets: int) -> list[str]:
    return [f"{offset:020d}.snapshot" for offset in offsets]


def test_the_bytes_are_those_of_kafka_and_the_newest_aborted_transaction_behind_them() -> None:
    content = encode_snapshot([ENTRY], NONE_ABORTED)
    assert len(content) == 2 + 4 + 4 + 46
    assert content[:2] == b"\x00\x01"
    assert content[6:10] == b"\x00\x00\x00\x01"
    assert content[10:] == struct.pack(">qhiqiqiq", 5, 1, 7, 42, 2, 1000, -1, -1)
    assert decode_snapshot(content) == ([ENTRY], NONE_ABORTED)
    assert decode_snapshot(encode_snapshot([], NONE_ABORTED)) == ([], NONE_ABORTED)
    aborted = encode_snapshot([ENTRY], 41)
    assert aborted[10:] == content[10:] + struct.pack(">q", 41)
    assert decode_snapshot(aborted) == ([ENTRY], 41)


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
    log = log_of(["v" * 30] * 20, disk=disk)
    second = log.segment_base_offsets[1]
    log.producers.keep(ProducerSnapshot(second, [ENTRY]))
    log.producers.keep(ProducerSnapshot(20, []))
    log.close()
    disk.open(f"{DIRECTORY}/{20:020d}.snapshot").truncate(9)
    log = open_log(disk, clean=True)
    assert log.producers.newest() == ProducerSnapshot(second, [ENTRY])
    assert names(disk) == of(second)


def test_a_cut_takes_the_snapshots_above_with_it_before_others_are_written() -> None:
    disk = SimDisk()
    log = log_of("abcdefgh", disk=disk)
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
    log = log_of("abcd", disk=disk)
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
    log = log_of(["v" * 30] * 20, disk=disk)
    second = log.segment_base_offsets[1]
    for offset in (1, second, second + 1, 20):
        log.producers.keep(ProducerSnapshot(offset, []))
    log.close()
    open_log(disk, clean=True)
    assert names(disk) == of(second, 20)


def test_snapshots_go_with_their_segments() -> None:
    disk = SimDisk()
    log = log_of(["v" * 30] * 20, disk=disk)
    first, second, third = log.segment_base_offsets[1:4]
    for offset in (first, second, third):
        log.producers.keep(ProducerSnapshot(offset, []))
    log.flush()
    log.advance_log_start_offset(second)
    log.remove_dead_segments()
    assert names(disk) == of(second, third)
