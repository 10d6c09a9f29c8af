"""The small files, in Kafka's bytes: replaced whole; refused, or left out, when damaged."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.invariants import InvariantViolation
from quorumlog.storage.core.leader_epochs import LeaderEpochs
from quorumlog.storage.core.log_index import CorruptIndex, OffsetIndex, TimeIndex
from quorumlog.storage.core.recovery import SegmentScan
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import CorruptCheckpoint
from quorumlog.storage.io.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANED_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    CleanShutdownMarker,
    MetaProperties,
    decode_offset_checkpoint,
    decode_partition_metadata,
    encode_offset_checkpoint,
    encode_partition_metadata,
    read_meta_properties,
    read_offset_checkpoint,
    read_partition_metadata,
    uuid_from_text,
    uuid_to_text,
    write_meta_properties,
    write_offset_checkpoint,
    write_partition_metadata,
)
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably
from quorumlog.storage.io.epoch_checkpoint import decode_epochs, encode_epochs
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicId, TopicPartition
from tests.support.storage.batches import batch
from tests.support.storage.crashes import flipped_bits, lose_power_at

OFFSETS = {TopicPartition("b", 10): Offset(5), TopicPartition("a.b_c-1", 2): Offset(1 << 40)}
META = MetaProperties(
    cluster_id="MkU3OEVBNTcwNTJENDM2Qg", node_id=BrokerId(3), directory_id="AAAAAAAAAAAAAAAAAAAAZA"
)
TOPIC_ID = TopicId(bytes(range(240, 256)))
Read = Callable[[Disk], object]


def topic_id_in(disk: Disk) -> TopicId | None:
    metadata = read_partition_metadata(disk, "/d")
    return metadata and metadata.topic_id


CASES: list[tuple[str, Callable[[Disk], None], Read]] = [
    (
        RECOVERY_POINT_FILE,
        lambda disk: write_offset_checkpoint(disk, "/d", RECOVERY_POINT_FILE, OFFSETS),
        lambda disk: read_offset_checkpoint(disk, "/d", RECOVERY_POINT_FILE),
    ),
    (
        META_PROPERTIES_FILE,
        lambda disk: write_meta_properties(disk, "/d", META),
        lambda disk: read_meta_properties(disk, "/d"),
    ),
    (
        PARTITION_METADATA_FILE,
        lambda disk: write_partition_metadata(disk, "/d", TOPIC_ID),
        topic_id_in,
    ),
]


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/d")
    return disk


def test_the_files_are_those_of_kafka(disk: SimDisk) -> None:
    for _, write, _ in CASES:
        write(disk)
    assert read_file(disk, "/d/recovery-point-offset-checkpoint") == (
        b"0\n3\na.b_c-1 2 1099511627776\nb 10 5\n#crc32c 0 2478345976\n"
    )
    assert read_file(disk, "/d/meta.properties") == (
        b"#crc32c=48a0c6e9\n"
        b"cluster.id=MkU3OEVBNTcwNTJENDM2Qg\ndirectory.id=AAAAAAAAAAAAAAAAAAAAZA\n"
        b"node.id=3\nversion=1\n"
    )
    assert read_file(disk, "/d/partition.metadata") == (
        b"version: 0\ntopic_id: 8PHy8_T19vf4-fr7_P3-_w\ncrc32c: a6ae6d52\n"
    )


def test_no_flipped_bit_makes_partition_metadata_that_of_another_topic() -> None:
    content = encode_partition_metadata(TOPIC_ID)
    for damaged in flipped_bits(content):
        with pytest.raises(ValueError, match=r"checksum|begins|unpack|ascii|base64"):
            decode_partition_metadata(damaged)
    kafka = b"".join(content.splitlines(keepends=True)[:2])
    for old in (kafka, kafka.rstrip()):
        assert decode_partition_metadata(old) == (TOPIC_ID, False)
    assert decode_partition_metadata(content) == (TOPIC_ID, True)


def test_a_flipped_bit_in_meta_properties_is_found_or_changes_nothing(disk: SimDisk) -> None:
    write_meta_properties(disk, "/d", META)
    harmless = 0
    for damaged in flipped_bits(read_file(disk, "/d/meta.properties")):
        write_file_durably(disk, "/d/meta.properties", damaged)
        try:
            assert read_meta_properties(disk, "/d") == META
            harmless += 1
        except CorruptCheckpoint as error:
            assert "write it again without the #crc32c line" in str(error)  # noqa: PT017 - or it is META
    assert harmless <= 8 * len("#crc32c=")  # then it is a comment, or a property of no meaning


@pytest.mark.parametrize(("name", "write", "read"), CASES)
def test_what_was_written_is_read_and_survives_power_loss(
    name: str, write: Callable[[Disk], None], read: Read, disk: SimDisk
) -> None:
    nothing = read(disk)
    assert not nothing
    write(disk)
    written = read(disk)
    disk.crash(Random(0))
    assert read(disk) == written in (OFFSETS, META, TOPIC_ID)
    assert disk.listdir("/d") == [name]


@pytest.mark.parametrize(("name", "write", "read"), CASES)
def test_a_torn_file_is_named_with_what_to_do_or_what_follows(
    name: str,
    write: Callable[[Disk], None],
    read: Read,
    disk: SimDisk,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(disk)
    whole, written = read_file(disk, f"/d/{name}"), read(disk)
    for size in range(len(whole)):
        for rest in (b"", bytes(len(whole) - size)):
            write_file_durably(disk, f"/d/{name}", whole[:size] + rest)
            try:
                caplog.clear()
                found = read(disk)
                if found == {} and (size or rest):
                    assert f"/d/{name} is damaged" in caplog.text
                    assert "counts as missing: every segment is checked" in caplog.text
                else:  # nothing but the last newline is missing
                    assert found in (written, {})
            except CorruptCheckpoint as error:
                assert not name.endswith("-offset-checkpoint")
                assert f"/d/{name} is damaged" in str(error)  # noqa: PT017 - or it is equal
                assert "delete" in str(error) or "write it again" in str(error)  # noqa: PT017 - either will do


@pytest.mark.parametrize(("name", "write", "read"), CASES)
@pytest.mark.parametrize("operation", range(8))
def test_kafka_9892_power_loss_at_any_operation_leaves_the_old_file_or_the_new(
    name: str, write: Callable[[Disk], None], read: Read, operation: int
) -> None:
    for seed in range(8):
        disk = SimDisk()
        disk.mkdir("/d")
        if lose_power_at(disk, operation, partial(write, disk), None):
            disk.crash(Random(seed))
        assert read(disk) in ({}, None, OFFSETS, META, TOPIC_ID)
        write(disk)
        assert read(disk) in (OFFSETS, META, TOPIC_ID)


def test_comments_and_escapes_of_java_properties_are_understood(disk: SimDisk) -> None:
    content = b"#\n#Mon Jan 01 2026\nversion=1\ncluster.id=a\\=b\n\nnode.id=4\ndirectory.id=x\n"
    write_file_durably(disk, "/d/meta.properties", content)
    assert read_meta_properties(disk, "/d") == MetaProperties(
        cluster_id="a=b", node_id=BrokerId(4), directory_id="x"
    )


def test_versions_of_another_age_are_refused(disk: SimDisk) -> None:
    write_file_durably(disk, "/d/meta.properties", b"version=0\nbroker.id=1\n")
    write_file_durably(disk, "/d/partition.metadata", b"version: 9\ntopic_id: AA\n")
    for read in (read_meta_properties, read_partition_metadata):
        with pytest.raises(CorruptCheckpoint, match="version"):
            read(disk, "/d")
    with pytest.raises(ValueError, match="version"):
        decode_offset_checkpoint(b"1\n0\n")


@pytest.mark.parametrize(
    "name", [RECOVERY_POINT_FILE, REPLICATION_FILE, LOG_START_FILE, CLEANED_FILE]
)
def test_an_empty_file_has_no_entries_and_zeros_are_damage(
    name: str, disk: SimDisk, caplog: pytest.LogCaptureFixture
) -> None:
    write_file_durably(disk, f"/d/{name}", b"")  # as Kafka creates it
    assert read_offset_checkpoint(disk, "/d", name) == {}
    assert not caplog.records
    write_file_durably(disk, f"/d/{name}", bytes(4))
    assert read_offset_checkpoint(disk, "/d", name) == {}
    [record] = caplog.records
    assert record.getMessage().startswith(f"/d/{name} is damaged (")


def test_no_flipped_bit_changes_an_offset() -> None:
    unfound = 0
    for damaged in flipped_bits(encode_offset_checkpoint(OFFSETS)):
        try:
            found = decode_offset_checkpoint(damaged)
        except ValueError:
            continue
        unfound += 1
        assert {at: found.get(at) for at in OFFSETS} == OFFSETS
    assert 0 < unfound <= 8 * len("#crc32c")  # the checksum is then an entry that no log has


def test_offsets_of_kafka_or_of_a_former_release_have_no_checksum() -> None:
    *lines, checksum = encode_offset_checkpoint(OFFSETS).decode().splitlines()
    former = "\n".join(["0", "2", *lines[2:], ""])
    assert decode_offset_checkpoint(former.encode()) == OFFSETS
    # It reads the checksum as any entry, and writes it among the others.
    rewritten = "\n".join(["0", "3", checksum, *lines[2:-1], "b 10 6", ""])
    newer = {**OFFSETS, TopicPartition("b", 10): Offset(6)}
    assert decode_offset_checkpoint(rewritten.encode()) == newer


def test_uuids_are_written_as_kafka_writes_them() -> None:
    assert uuid_to_text(bytes(15) + b"d") == "AAAAAAAAAAAAAAAAAAAAZA"
    assert uuid_from_text("8PHy8_T19vf4-fr7_P3-_w") == TOPIC_ID
    for bad in ("", "AAAA", "AAAAAAAAAAAAAAAAAAAAZB", "8PHy8/T19vf4+fr7/P3+/w", "é" * 22):
        with pytest.raises(ValueError, match=r"UUID|base64|ASCII|padd"):
            uuid_from_text(bad)


@pytest.mark.parametrize("seed", range(12))
def test_the_clean_shutdown_marker_is_there_only_between_shutdown_and_start(
    seed: int, disk: SimDisk
) -> None:
    marker = CleanShutdownMarker(disk, "/d")
    assert marker.take() is None
    marker.note_started()
    assert marker.leave(42)
    assert read_file(disk, "/d/.kafka_cleanshutdown") == b'{"version": 0, "brokerEpoch": 42}'
    disk.crash(Random(seed))
    assert CleanShutdownMarker(disk, "/d").take() == 42
    disk.crash(Random(seed))
    assert CleanShutdownMarker(disk, "/d").take() is None


def test_kafka_15375_no_marker_is_left_by_a_start_that_did_not_finish(disk: SimDisk) -> None:
    marker = CleanShutdownMarker(disk, "/d")
    with pytest.raises(InvariantViolation):
        marker.note_started()
    marker.take()
    assert not marker.leave(1)
    assert not disk.exists(f"/d/{CLEAN_SHUTDOWN_FILE}")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"brokerEpoch": "x"}', b"\xff"])
def test_a_marker_counts_by_its_name(disk: SimDisk, content: bytes) -> None:
    write_file_durably(disk, f"/d/{CLEAN_SHUTDOWN_FILE}", content)
    assert CleanShutdownMarker(disk, "/d").take() == -1


def test_records_without_partition_metadata_are_damage(disk: SimDisk) -> None:
    disk.open("/d/00000000000000000000.log", create=True)
    assert read_partition_metadata(disk, "/d") is None  # the crash came before the first append
    disk.open("/d/00000000000000000000.log").append([b"records"])
    with pytest.raises(CorruptCheckpoint, match=r"/d/partition.metadata is damaged \(there is no"):
        read_partition_metadata(disk, "/d")


# --- the sparse indexes, and where they send a reader ---


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


def test_a_lookup_starts_at_or_before_the_batch() -> None:
    """By an offset, by a position in the file, by a time that no record before it has."""
    by_offset = {
        0: None, 103: None, 104: (104, 50), 108: (104, 50), 119: (109, 5000), 999: (120, 9000),
    }  # fmt: skip
    for offset, found in by_offset.items():
        assert offset_index().ending_by(offset) == found
    for position, last_offset in {0: None, 49: None, 50: 104, 8999: 109}.items():
        entry = offset_index().starting_by(position)
        assert (entry and entry.last_offset) == last_offset
    for timestamp, reached in {0: None, 999: None, 1000: (1000, 104), 5000: (2000, 120)}.items():
        assert time_index().reached_by(timestamp) == reached


def test_entries_at_or_behind_an_offset_are_forgotten() -> None:
    for offset, left in ((0, 0), (104, 0), (105, 1), (120, 2), (121, 3)):
        offsets, times = offset_index(), time_index()
        offsets.truncate_to(offset)
        times.truncate_to(offset)
        assert (len(offsets), len(times)) == (left, min(left, 1) + (left == 3))


@pytest.mark.parametrize(
    ("index", "content"),
    [
        (OffsetIndex, b"1234567"),
        (OffsetIndex, bytes(16)),
        (OffsetIndex, b"\0\0\0\1\0\0\0\2\0\0\0\2\0\0\0\2"),
        (TimeIndex, bytes(13)),
        (TimeIndex, bytes(24)),
    ],
)
def test_an_index_that_does_not_rise_is_refused(
    index: type[OffsetIndex | TimeIndex], content: bytes
) -> None:
    with pytest.raises(CorruptIndex):
        index.decode(0, content)


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
    bad = (
        b"",
        b"1\n0\n",
        b"0\n2\n0 0\n",
        b"0\n1\n0 0",
        b"0\n2\n3 0\n2 5\n",
        b"0\n2\n3 5\n4 5\n",
        b"0\n1\nx y\n",
    )
    reason = r"announced|after|values|literal|checksum|ascii|argum"
    for damaged in (*flipped_bits(content), *bad):
        with pytest.raises(ValueError, match=reason):
            decode_epochs(damaged)
    assert decode_epochs(b"0\n2\n0 0\n3 17\n").entries == epochs.entries  # of Kafka
    assert decode_epochs(encode_epochs(epochs)).entries == epochs.entries
