"""`python -m tools.compare_replicas`: replicas that agree below the high watermark, and others."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from quorumlog.chaos.history import HistoryWriter, Message
from quorumlog.chaos.run.stopped_replicas import stop_and_compare
from quorumlog.chaos.verify import verify_history
from quorumlog.cluster import compared_replicas
from quorumlog.cluster.compared_replicas import Outcome, Replica, difference
from quorumlog.storage.io.checkpoints import CLEANED_FILE, REPLICATION_FILE, write_offset_checkpoint
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch, iterate_headers
from tests.support.storage.batches import open_log
from tools.compare_replicas import EXIT_USAGE, compare, main

AT = TopicPartition("t", 0)
Values = Sequence[tuple[bytes | None, bytes | None]]


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


def test_a_difference_has_its_offset_and_its_nodes(tmp_path: Path) -> None:
    for node_id, last in ((1, b"2"), (2, b"2"), (3, b"other")):
        replica(tmp_path, node_id, [(b"k", b"1"), (b"k", last)], committed=2)
    (found,) = compared_replicas.compare(tmp_path).values()
    assert (found.offset, found.nodes) == (1, (3,))
    (left,) = compared_replicas.compare(tmp_path, without=(3,)).values()
    assert (left.offset, left.how, left.same) == (None, "", 2)
    assert compared_replicas.compare(tmp_path, without=(2, 3)) == {}


def test_replicas_of_another_topic_of_the_same_name_are_not_compared(tmp_path: Path) -> None:
    for node_id, value in ((1, b"1"), (2, b"1"), (3, b"other")):
        replica(tmp_path, node_id, [(b"k", value)], committed=1)
        topic_id = b"old" if node_id == 3 else b"new"
        (tmp_path / f"node-{node_id}" / "data" / "t-0" / "partition.metadata").write_bytes(topic_id)
    assert compare(tmp_path) == {"t-0": ""}


def test_the_metadata_log_is_compared_as_far_as_it_is_committed(tmp_path: Path) -> None:
    for node_id, last in ((1, b"2"), (2, b"other")):
        replica(tmp_path, node_id, [(b"k", b"1"), (b"k", last)], committed=None)
        data = tmp_path / f"node-{node_id}" / "data"
        (data / "t-0").rename(data / "__cluster_metadata-0")
    for metadata_end, offset in ((None, 1), (2, 1), (1, None)):
        (found,) = compared_replicas.compare(tmp_path, metadata_end=metadata_end).values()
        assert (found.offset, found.is_compared) == (offset, True)


def test_a_log_that_was_cleaned_before_a_kill_is_known_by_its_holes(tmp_path: Path) -> None:
    whole = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2")]
    replica(tmp_path / "a", 1, whole, committed=3)
    replica(tmp_path / "a", 2, whole, committed=3)
    _drop_first_batch(tmp_path / "a" / "node-2" / "data" / "t-0")
    assert compare(tmp_path / "a") == {"t-0": ""}
    no_keys: Values = [(None, b"1"), (None, b"2")]
    replica(tmp_path / "b", 1, no_keys, committed=2)
    replica(tmp_path / "b", 2, no_keys, committed=2)
    _drop_first_batch(tmp_path / "b" / "node-2" / "data" / "t-0")
    assert compare(tmp_path / "b") == {"t-0": "the batch at 0 of [0, 2) differs"}


def _drop_first_batch(log: Path) -> None:
    (file,) = log.glob("*.log")
    content = file.read_bytes()
    _, second = [position for position, _ in iterate_headers(content)][:2]
    file.write_bytes(content[second:])


def test_a_log_that_cannot_be_read_is_not_compared(tmp_path: Path) -> None:
    for node_id in (1, 2):
        replica(tmp_path, node_id, [(b"k", b"1"), (b"k", b"2")], committed=2)
    (file,) = (tmp_path / "node-2" / "data" / "t-0").glob("*.log")
    file.write_bytes(b"\xff" * 100)
    (found,) = compared_replicas.compare(tmp_path).values()
    assert (found.is_compared, found.offset) == (False, None)
    assert found.how.startswith("a log cannot be read: ")


class StoppedCluster:
    """As much of a LocalCluster as the end of a run needs."""

    def __init__(self, directory: Path, killed: tuple[int, ...] = ()) -> None:
        self.directory, self._killed, self.is_stopped = directory, killed, False

    def running(self) -> tuple[int, ...]:
        return (1, 2)

    def node_status(self, node_id: int) -> dict[str, int] | None:
        return None if node_id == 1 else {"metadata_offset": 7}

    def stop(self) -> tuple[int, ...]:
        self.is_stopped = True
        return self._killed


@pytest.mark.parametrize("killed", [(), (2,)])
def test_a_run_keeps_the_difference_and_every_check_finds_it(
    killed: tuple[int, ...], tmp_path: Path
) -> None:
    run, nodes = tmp_path / "run", tmp_path / "run" / "cluster"
    for node_id, last in ((1, b"2"), (2, b"other"), (3, b"2")):
        replica(nodes, node_id, [(b"k", b"1"), (b"k", last)], committed=2)
    cluster = StoppedCluster(nodes, killed)
    with HistoryWriter(run, meta={"model": "kafka_log"}) as history:
        for type_, offset in (("invoke", -1), ("ok", 0)):
            history.append(0, type_, "send", [Message("t-0", offset, 5)])
        for f, messages in (("poll", [(0, 5)]), ("final_poll", [(0, 5)]), ("final_end", [(1, 0)])):
            told = [Message("t-0", *one) for one in messages]
            history.append(1, "invoke", f, told if f == "final_end" else [])
            history.append(1, "ok", f, told)
        found = stop_and_compare(cluster, history)  # type: ignore[arg-type]  # as much as it needs
    assert cluster.is_stopped
    assert found == (1, 0 if killed else 1)
    for _ in range(2):
        verdict = verify_history(run)
        assert verdict.valid is bool(killed)
        assert verdict.figures["faults"] == 0
        document = verdict.as_json()["anomalies"]
        if not killed:
            (witness,) = document["replicas-differ"]["witnesses"]
            assert witness["key"] == "t-0"
            assert witness["note"] == "the batch at 1 of [0, 2) differs (node 2)"
            assert verdict.meanings["replicas-differ"].startswith("The stopped replicas")


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
