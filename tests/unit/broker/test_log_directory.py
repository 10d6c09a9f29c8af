"""One log directory: logs that are opened, set aside, deleted, and found damaged after a crash."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.log.log_directory import OrphanedRecords, log_settings
from quorumlog.settings.servers import texts_of
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import LacksRecords
from quorumlog.storage.io.checkpoints import encode_offset_checkpoint, uuid_to_text
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.log_directories import close_all, started, write

AT = TopicPartition("orders", 3)
OTHER = TopicPartition("other", 0)
OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
BATCH = encode_batch([Record(offset, 1, None, b"x") for offset in range(4)])


def fill_and_stop(
    directory: Path,
    high_watermark: int = 2,
    *,
    segments: int = 1,
    start: int = 0,
    removes_dead: bool = True,
) -> None:
    """Close a log of so many segments, of a batch each, in order."""
    logs = started(directory)
    log, _ = logs.open(AT, OLD, {"segment.bytes": str(len(BATCH))})
    write(log, BATCH, segments)
    log.flush()
    log.advance_log_start_offset(start)
    if removes_dead:
        log.remove_dead_segments()
    close_all(logs, {AT: log}, {AT: Offset(high_watermark)}, broker_epoch=9)


def kill_with_a_record(directory: Path, at: TopicPartition = AT) -> None:
    log, _ = started(directory).open(at, OLD, {})
    write(log, BATCH)
    log.close(clean=False)


class Found(NamedTuple):
    start: Offset
    end: Offset
    high_watermark: Offset


def found(
    directory: Path,
    topic_id: TopicId = OLD,
    configs: Mapping[str, str] = {},
    *,
    standing: Standing = Standing.SPARE,
) -> Found:
    """Return how the log is found at a start, which a crash ends."""
    log, high_watermark = started(directory).open(AT, topic_id, configs, standing=standing)
    log.close(clean=False)
    return Found(log.log_start_offset, log.log_end_offset, high_watermark)


def segment_in(directory: Path, base: int = 0) -> Path:
    return directory / "orders-3" / f"{base:020d}.log"


def test_a_clean_stop_is_known_once(tmp_path: Path) -> None:
    fill_and_stop(tmp_path)
    logs = started(tmp_path)
    assert logs.clean_shutdown_epoch == 9
    log, high_watermark = logs.open(AT, OLD, {})
    assert (log.log_end_offset, high_watermark) == (4, 2)
    log.close(clean=False)  # as a crash would leave it
    again = started(tmp_path)
    assert not again.was_clean


def test_a_torn_tail_is_cut_after_a_crash(tmp_path: Path) -> None:
    kill_with_a_record(tmp_path)
    segment = segment_in(tmp_path)
    segment.write_bytes(segment.read_bytes() + BATCH[:30])
    assert found(tmp_path).end == 4


def test_no_marker_is_left_for_logs_that_were_never_checked(tmp_path: Path) -> None:
    fill_and_stop(tmp_path)
    started(tmp_path)  # and crashes
    second = started(tmp_path)
    close_all(second, {}, {}, broker_epoch=10)
    assert not started(tmp_path).was_clean
    assert (tmp_path / "orders-3").exists()


def test_a_log_of_another_topic_is_stray(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill_and_stop(tmp_path)
    logs = started(tmp_path)
    log, high_watermark = logs.open(AT, NEW, {})
    both = f"has the topic id {uuid_to_text(OLD)}, and the metadata has {uuid_to_text(NEW)}"
    assert f"its partition.metadata {both}" in caplog.text
    assert (log.log_end_offset, high_watermark) == (0, 0)
    assert len(list(tmp_path.glob("orders-3.*-stray"))) == 1
    close_all(logs, {AT: log}, {}, broker_epoch=1)


def test_what_is_not_assigned_any_more_is_set_aside_and_the_rest_left_alone(tmp_path: Path) -> None:
    fill_and_stop(tmp_path)
    (tmp_path / "__cluster_metadata-0").mkdir()
    logs = started(tmp_path)
    logs.set_aside_strays([AT])
    assert (tmp_path / "orders-3").exists()
    logs.set_aside_strays([OTHER])
    names = sorted(path.name[:9] for path in tmp_path.iterdir() if path.is_dir())
    assert names == ["__cluster", "orders-3."]


def test_a_deletion_leaves_nothing_also_one_that_a_crash_interrupted(tmp_path: Path) -> None:
    fill_and_stop(tmp_path)
    (tmp_path / "orders-3").rename(tmp_path / "orders-3.1-delete")
    started(tmp_path).remove_doomed()
    assert not list(tmp_path.glob("orders*"))
    fill_and_stop(tmp_path)
    logs = started(tmp_path)
    log, _ = logs.open(AT, OLD, {})
    logs.delete(AT, log)
    logs.remove_doomed()
    assert not list(tmp_path.glob("orders*"))
    log, high_watermark = logs.open(AT, NEW, {})
    assert (log.log_end_offset, high_watermark) == (0, 0)
    close_all(logs, {AT: log}, {}, broker_epoch=1)


def test_a_topic_with_the_longest_name_can_be_deleted_and_set_aside(tmp_path: Path) -> None:
    longest = [TopicPartition("x" * 249, index) for index in range(2)]
    logs = started(tmp_path)
    opened = {at: logs.open(at, OLD, {})[0] for at in longest}
    for log in opened.values():
        write(log, BATCH)
    close_all(logs, opened, {}, broker_epoch=1)
    logs = started(tmp_path)
    logs.set_aside_strays([])
    assert len(list(tmp_path.glob("x*-stray"))) == 2
    log, _ = logs.open(longest[0], NEW, {})
    write(log, BATCH)
    logs.delete(longest[0], log)
    logs.remove_doomed()
    assert len(list(tmp_path.glob("x*"))) == 2


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_recovery_point_does_not_outlive_a_truncation(tmp_path: Path, is_noted: bool) -> None:
    """Nor, where it was not noted, the crash after it."""
    fill_and_stop(tmp_path)
    logs = started(tmp_path)
    log, _ = logs.open(AT, OLD, {})
    log.truncate_to(0)
    if is_noted:
        logs.checkpoints.note_truncated(AT, log)
    log.close(clean=False)
    if not is_noted:
        found(tmp_path)
    checkpoint = (tmp_path / "recovery-point-offset-checkpoint").read_bytes()
    assert checkpoint == encode_offset_checkpoint({AT: Offset(0)})


def test_records_after_a_truncation_are_not_committed_or_compacted(tmp_path: Path) -> None:
    """An unclean election cuts below the high watermark; no value may outlive its tombstone."""
    fill_and_stop(tmp_path)
    logs = started(tmp_path)
    log, high_watermark = logs.open(AT, OLD, {})
    assert high_watermark == 2
    logs.checkpoints.note_cleaned(AT, log.log_end_offset)
    logs.checkpoints.write_cleaned()
    log.truncate_to(1)
    assert log.log_end_offset == 0, "whole batches are cut"
    logs.checkpoints.note_truncated(AT, log)
    write(log, BATCH, 3)
    log.flush()
    log.close(clean=False)
    logs = started(tmp_path)
    _, high_watermark = logs.open(AT, OLD, {})
    assert (high_watermark, logs.checkpoints.cleaned(AT)) == (0, 0)


@pytest.mark.parametrize("way", ["set aside", "deleted"])
def test_a_new_log_gets_no_checkpoints_of_an_older_one_by_a_crash(tmp_path: Path, way: str) -> None:
    fill_and_stop(tmp_path)
    logs = started(tmp_path)
    if "deleted" in way:
        log, _ = logs.open(AT, OLD, {})
        logs.delete(AT, log)
    log, _ = logs.open(AT, NEW, {})
    write(log, BATCH)
    log.close(clean=False)
    assert found(tmp_path, NEW)[1:] == (4, 0)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert (tmp_path / name).read_bytes() == encode_offset_checkpoint({})


def test_a_late_checkpoint_brings_back_nothing_of_a_deleted_log(tmp_path: Path) -> None:
    """After a crash, the new log of that name would show what nobody has committed."""
    logs = started(tmp_path)
    log, _ = logs.open(AT, OLD, {})
    logs.checkpoints.note_high_watermarks({AT: Offset(4), OTHER: Offset(1)})
    logs.delete(AT, log)
    log, _ = logs.open(AT, NEW, {})
    logs.checkpoints.write_high_watermarks()  # in a thread that was slow to begin
    checkpoint = (tmp_path / "replication-offset-checkpoint").read_bytes()
    assert checkpoint == encode_offset_checkpoint({OTHER: Offset(1)})
    log.close(clean=False)


def test_a_recovery_point_that_is_noted_late_does_not_outlive_the_log(tmp_path: Path) -> None:
    """The thread that writes recovery points still has a log that was deleted meanwhile."""
    logs = started(tmp_path)
    log, _ = logs.open(AT, OLD, {})
    write(log, BATCH)
    log.flush()
    logs.delete(AT, log)
    new, _ = logs.open(AT, NEW, {})
    logs.checkpoints.note_recovery_points({AT: log})
    assert logs.checkpoints.recovery_point(AT) == 0
    new.close(clean=False)


def test_topic_configs_override_the_brokers() -> None:
    configs = {"segment.bytes": "1000", "cleanup.policy": "compact", "unknown.name": "7"}
    settings = log_settings(TopicConfig(configs, texts_of(LogSettings(segment_ms=5))))
    assert (settings.segment_bytes, settings.segment_ms) == (1000, 5)
    assert settings.cleanup_policy == "compact"
    with pytest.raises(ValueError, match="segment"):
        log_settings(TopicConfig({"segment.bytes": "0"}, {}))


@pytest.mark.parametrize("damage", ["torn", "missing"])
def test_a_partition_of_unknown_topic_is_not_taken_as_new(tmp_path: Path, damage: str) -> None:
    fill_and_stop(tmp_path)
    metadata = tmp_path / "orders-3" / "partition.metadata"
    if damage == "torn":
        metadata.write_bytes(metadata.read_bytes()[:9])
    else:
        metadata.unlink()
    logs = started(tmp_path)
    for standing in (Standing.UNDECIDED, Standing.COUNTED_ON):
        with pytest.raises(OrphanedRecords, match=r"orders-3/partition\.metadata"):
            logs.open(AT, OLD, {}, standing=standing)
    log, _ = logs.open(AT, OLD, {})  # others have its records
    assert log.log_end_offset == 0
    log.close(clean=False)
    stray = tmp_path / "orders-3.unknown-stray" / segment_in(tmp_path).name
    assert stray.stat().st_size == len(BATCH)


def test_a_log_of_unknown_topic_without_a_record_is_taken_as_new(tmp_path: Path) -> None:
    """Its other files, an index or an epoch, are no records."""
    kill_with_a_record(tmp_path)
    segment = segment_in(tmp_path)
    segment.write_bytes(bytes(segment.stat().st_size))  # power was lost before the first flush
    (segment.parent / "partition.metadata").unlink()
    (segment.parent / "leader-epoch-checkpoint").write_bytes(b"0\n1\n0 0\n")
    log, _ = started(tmp_path).open(AT, OLD, {}, standing=Standing.UNDECIDED)
    assert log.log_end_offset == 0
    log.close(clean=False)


def test_records_of_unknown_topic_are_set_aside_if_others_have_them(tmp_path: Path) -> None:
    """Power was lost before the first flush: the segment was written back, the file was not."""
    kill_with_a_record(tmp_path)
    metadata, segment = tmp_path / "orders-3" / "partition.metadata", segment_in(tmp_path)
    metadata.write_bytes(bytes(metadata.stat().st_size))
    with pytest.raises(OrphanedRecords, match=r"orders-3/partition\.metadata") as refused:
        started(tmp_path).open(AT, OLD, {}, standing=Standing.UNDECIDED)
    assert segment.read_bytes()  # nothing has moved
    lines = re.findall(r"'(\w+: [^']+)'", str(refused.value))  # what the message says to write
    metadata.write_text("\n".join(lines) + "\n")
    assert found(tmp_path, standing=Standing.UNDECIDED).end == 4

    metadata.write_bytes(b"")
    assert found(tmp_path).end == 0
    assert (tmp_path / "orders-3.unknown-stray" / segment.name).read_bytes()


def test_a_log_of_unknown_topic_without_records_is_made_again(tmp_path: Path) -> None:
    kill_with_a_record(tmp_path)
    for name in ("partition.metadata", segment_in(tmp_path).name):
        file = tmp_path / "orders-3" / name
        file.write_bytes(bytes(file.stat().st_size))  # as lost power leaves it
    assert found(tmp_path, standing=Standing.UNDECIDED).end == 0


def test_a_log_that_starts_later_than_it_was_closed_is_refused_and_not_cut(tmp_path: Path) -> None:
    """Retention removes nothing between a clean stop and the next start."""
    fill_and_stop(tmp_path, 12, segments=3, start=5)
    second, third = segment_in(tmp_path, 4), segment_in(tmp_path, 8)
    taken, left = second.read_bytes(), third.read_bytes()
    second.unlink()
    with pytest.raises(LacksRecords, match=r"8.log is the first .* had the records \[5, 8\)"):
        started(tmp_path).open(AT, OLD, {}, standing=Standing.UNDECIDED)
    assert third.read_bytes() == left
    second.write_bytes(taken)
    assert found(tmp_path)[:2] == (5, 12)


def test_a_clean_stop_keeps_a_start_below_which_files_are_left(tmp_path: Path) -> None:
    """The log starts with a segment, and so Kafka's checkpoint would not name it."""
    fill_and_stop(tmp_path, 8, segments=2, start=4, removes_dead=False)
    assert found(tmp_path)[:2] == (4, 8)


@pytest.mark.parametrize("start", [0, 4])
def test_a_log_is_opened_whose_start_at_its_close_is_not_known(tmp_path: Path, start: int) -> None:
    """Kafka's checkpoint names a log only if it does not start with a segment."""
    fill_and_stop(tmp_path, 8, segments=2, start=start)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n0\n")
    assert found(tmp_path)[:2] == (start, 8)


@pytest.mark.parametrize("damage", ["missing", "shorter"])
def test_a_log_that_ends_before_its_close_is_refused_not_cut(tmp_path: Path, damage: str) -> None:
    """It would lead without records that others have, and they would give theirs up."""
    fill_and_stop(tmp_path, 8, segments=2)
    first, last = segment_in(tmp_path), segment_in(tmp_path, 4)
    if damage == "missing":
        last.unlink()
    else:
        last.write_bytes(last.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in (first, last) if path.exists()}
    for _ in range(2):  # the second start is after a kill
        with pytest.raises(LacksRecords, match=r"had the records \[4, 8\), .* Restore") as lacking:
            started(tmp_path).open(AT, OLD, {}, standing=Standing.COUNTED_ON)
        assert (lacking.value.end_offset, lacking.value.last_epoch) == (4, 0)
    assert {path: path.read_bytes() for path in before} == before
    assert found(tmp_path).end == 0  # others have what it lacks
    [stray] = tmp_path.glob("orders-3.*-stray")
    assert (stray / first.name).read_bytes() == before[first]


def test_a_log_that_was_refused_is_opened_once_it_is_whole(tmp_path: Path) -> None:
    fill_and_stop(tmp_path)
    segment = segment_in(tmp_path)
    whole = segment.read_bytes()
    segment.unlink()
    with pytest.raises(LacksRecords, match=r"has no segment; .* had the records \[0, 4\)"):
        started(tmp_path).open(AT, OLD, {}, standing=Standing.UNDECIDED)
    segment.write_bytes(whole)
    assert found(tmp_path).end == 4
    segment.write_bytes(whole[:-1])  # and is torn by a crash
    assert found(tmp_path).end == 0


def test_a_person_may_give_up_what_a_log_has_lost(tmp_path: Path) -> None:
    """By an unclean election, which the metadata shows."""
    fill_and_stop(tmp_path, 8, segments=2)
    segment_in(tmp_path, 4).unlink()
    with pytest.raises(LacksRecords):
        started(tmp_path).open(AT, OLD, {}, standing=Standing.UNDECIDED)
    for standing in (Standing.CHOSEN, Standing.UNDECIDED):  # and is whole from then on
        assert found(tmp_path, standing=standing)[1:] == (4, 4)


def three_segments(
    directory: Path, config: dict[str, str] | None = None, *, batches: int = 1, start: int = 0
) -> Path:
    """Close a log of three segments in order; return the file of the second."""
    logs, sizes = started(directory), {"segment.bytes": str(batches * len(BATCH))}
    log, _ = logs.open(AT, OLD, {"index.interval.bytes": "0", **sizes, **(config or {})})
    write(log, BATCH, 3 * batches)
    log.flush()
    assert len(log.segment_base_offsets) == 3
    log.advance_log_start_offset(start)  # dead segments are removed later
    close_all(logs, {AT: log}, {AT: log.log_end_offset}, broker_epoch=9)
    return segment_in(directory, 4 * batches)


@pytest.mark.parametrize("batches", [1, 5])
def test_a_log_without_its_middle_segment_is_refused_not_cut(tmp_path: Path, batches: int) -> None:
    second = three_segments(tmp_path, batches=batches)
    taken = second.read_bytes()
    second.unlink()
    end = 4 * batches
    for lack in (f"{end}, {2 * end}", f"{end}, {3 * end}"):  # the second start is after a kill
        with pytest.raises(LacksRecords, match=rf"the records \[{lack}\), which cannot be read"):
            started(tmp_path).open(AT, OLD, {}, standing=Standing.COUNTED_ON)
    second.write_bytes(taken)
    assert found(tmp_path)[:2] == (0, 3 * end)


@pytest.mark.parametrize(
    ("start", "config"), [(0, {"cleanup.policy": "compact"}), (8, {})], ids=["compacted", "dead"]
)
def test_a_middle_segment_may_be_gone(tmp_path: Path, start: int, config: dict[str, str]) -> None:
    three_segments(tmp_path, config, start=start).unlink()
    assert found(tmp_path, configs=config).end == 12


@pytest.mark.parametrize("damage", ["no index", "shorter", "zeros"])
def test_a_damaged_segment_is_left_to_its_readers(tmp_path: Path, damage: str) -> None:
    second = three_segments(tmp_path, batches=3)
    match damage:
        case "no index":
            second.with_suffix(".index").unlink()
        case "shorter":
            second.write_bytes(second.read_bytes()[: len(BATCH)])
        case _:
            second.write_bytes(bytes(second.stat().st_size))
    assert found(tmp_path).end == 36
