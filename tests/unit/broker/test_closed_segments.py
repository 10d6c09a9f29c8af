"""A log that was closed in order has lost a segment between two others: decision 25."""

from pathlib import Path

import pytest

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.storage.errors import LacksRecords
from tests.support.broker.log_directories import close_all
from tests.unit.broker.test_log_directory import AT, BATCH, OLD, started


def three_segments(
    directory: Path, config: dict[str, str] | None = None, *, batches: int = 1, start: int = 0
) -> Path:
    """Close a log of three segments in order; return the file of the second."""
    logs, sizes = started(directory), {"segment.bytes": str(batches * len(BATCH))}
    log, _ = logs.open(AT, OLD, {"index.interval.bytes": "0", **sizes, **(config or {})})
    for _ in range(3 * batches):
        log.append_as_leader(BATCH, leader_epoch=0, wall_ms=0)
    log.flush()
    assert len(log.segment_base_offsets) == 3
    log.advance_log_start_offset(start)  # dead segments are removed later
    close_all(logs, {AT: log}, {AT: log.log_end_offset}, broker_epoch=9)
    return directory / "orders-3" / f"{4 * batches:020d}.log"


@pytest.mark.parametrize("batches", [1, 5])
def test_a_log_whose_middle_segment_is_gone_is_refused_and_not_cut(
    tmp_path: Path, batches: int
) -> None:
    second = three_segments(tmp_path, batches=batches)
    taken = second.read_bytes()
    second.unlink()
    end = 4 * batches
    for lack in (f"{end}, {2 * end}", f"{end}, {3 * end}"):  # the second start is after a kill
        with pytest.raises(LacksRecords, match=rf"the records \[{lack}\), which cannot be read"):
            started(tmp_path).open(AT, OLD, {}, standing=Standing.COUNTED_ON)
    second.write_bytes(taken)
    log, _ = started(tmp_path).open(AT, OLD, {})
    assert (log.log_start_offset, log.log_end_offset) == (0, 3 * end)
    log.close(clean=False)


@pytest.mark.parametrize(
    ("start", "config"), [(0, {"cleanup.policy": "compact"}), (8, {})], ids=["compacted", "dead"]
)
def test_a_middle_segment_that_may_be_gone_is_not_missed(
    tmp_path: Path, start: int, config: dict[str, str]
) -> None:
    three_segments(tmp_path, config, start=start).unlink()
    log, _ = started(tmp_path).open(AT, OLD, config)
    assert log.log_end_offset == 12
    log.close(clean=False)


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
    log, _ = started(tmp_path).open(AT, OLD, {})
    assert log.log_end_offset == 36
    log.close(clean=False)
