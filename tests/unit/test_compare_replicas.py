"""`python -m tools.compare_replicas`: replicas that agree below the high watermark, and others."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from quorumlog.storage.io.checkpoints import CLEANED_FILE, REPLICATION_FILE, write_offset_checkpoint
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.storage.batches import open_log
from tools.compare_replicas import EXIT_USAGE, Outcome, Replica, compare, difference, main

AT = TopicPartition("t", 0)
Values = Sequence[tuple[bytes, bytes | None]]


def replica(
    directory: Path,
    node_id: int,
    values: Values,
    *,
    committed: int | None,
    is_cleaned: bool = False,
) -> None:
    data = directory / f"node-{node_id}" / "data"
    data.mkdir(parents=True)
    log = open_log(RealDisk(), directory=str(data / "t-0"))
    for key, value in values:
        batch = encode_batch([Record(0, 1000, key, value)])
        log.append_as_leader(batch, leader_epoch=0, wall_ms=0)
    log.close()
    if committed is None:
        return
    files = {REPLICATION_FILE: committed} | ({CLEANED_FILE: committed} if is_cleaned else {})
    for name, offset in files.items():
        write_offset_checkpoint(RealDisk(), str(data), name, {AT: Offset(offset)})


def test_what_is_above_the_least_high_watermark_may_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replica(tmp_path, 1, [(b"k", b"1"), (b"k", b"2"), (b"k", b"3")], committed=2)
    replica(tmp_path, 2, [(b"k", b"1"), (b"k", b"2"), (b"k", b"other")], committed=3)
    assert main([str(tmp_path)]) == 0
    assert "1 of 1 partitions agree" in capsys.readouterr().out


def test_a_committed_record_that_differs_or_is_not_there_is_told(tmp_path: Path) -> None:
    replica(tmp_path / "a", 1, [(b"k", b"1"), (b"k", b"2")], committed=2)
    replica(tmp_path / "a", 2, [(b"k", b"1"), (b"k", b"other")], committed=2)
    assert compare(tmp_path / "a") == {"t-0": "the batch at 1 of [0, 2) differs"}
    replica(tmp_path / "b", 1, [(b"k", b"1"), (b"k", b"2")], committed=2)
    replica(tmp_path / "b", 2, [(b"k", b"1")], committed=2)
    assert compare(tmp_path / "b") == {"t-0": "the batch at 1 of [0, 2) differs"}
    assert main([str(tmp_path / "b")]) == 1


def test_compacted_replicas_have_the_same_newest_records(tmp_path: Path) -> None:
    long = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)]
    replica(tmp_path / "a", 1, long, committed=4, is_cleaned=True)
    replica(tmp_path / "a", 2, long, committed=4)
    assert compare(tmp_path / "a") == {"t-0": ""}
    replica(tmp_path / "b", 1, long, committed=4, is_cleaned=True)
    replica(tmp_path / "b", 2, [*long[:2], (b"a", b"3"), long[3]], committed=4)
    assert compare(tmp_path / "b") == {"t-0": "the newest records below 4 differ"}


def test_cleaned_replicas_with_other_high_watermarks_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that is ahead has removed an old record, which the other still has to have."""
    ahead = Replica(tmp_path / "a", 0, 17, is_cleaned=True)
    behind = Replica(tmp_path / "b", 0, 10, is_cleaned=False)
    assert difference("t-0", [ahead, behind]) == Outcome(
        "cleaned, with the high watermarks [17, 10]", is_compared=False
    )
    replica(tmp_path, 1, [(b"k", b"1"), (b"k", b"2")], committed=2, is_cleaned=True)
    replica(tmp_path, 2, [(b"k", b"1"), (b"k", b"2")], committed=1)
    assert compare(tmp_path) == {}
    assert main([str(tmp_path)]) == EXIT_USAGE
    assert "0 of 0 partitions agree; 1 were not compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("committed", "how"),
    [
        (None, "nothing compared: a replica has no high watermark"),
        (0, "nothing compared: a replica ends at 0, and another has records"),
    ],
)
def test_records_without_a_high_watermark_are_a_difference(
    committed: int | None, how: str, tmp_path: Path
) -> None:
    replica(tmp_path, 1, [(b"k", b"1")], committed=1)
    replica(tmp_path, 2, [(b"k", b"other")], committed=committed)
    assert compare(tmp_path) == {"t-0": how}
    assert main([str(tmp_path)]) == 1


def test_replicas_without_records_are_equal(tmp_path: Path) -> None:
    replica(tmp_path, 1, [], committed=0)
    replica(tmp_path, 2, [], committed=None)
    assert compare(tmp_path) == {"t-0": ""}


def test_one_replica_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    replica(tmp_path, 1, [(b"k", b"1")], committed=1)
    assert main([str(tmp_path)]) == EXIT_USAGE
