"""`quorumlog dump-log`: files of nodes, whole, torn, changed and foreign."""

import tracemalloc
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cli.dump.contents import Asked, Problem
from quorumlog.cli.dump.files import open_contents
from quorumlog.cli.dump.printers import PROBLEMS_MAX
from quorumlog.cli.output import EXIT_FAILED, EXIT_UNKNOWN, EXIT_USAGE
from quorumlog.storage.core.aborted_transactions import HEAD_BYTES, AbortedTransaction, encode_index
from quorumlog.storage.io.checkpoints import (
    PARTITION_METADATA_FILE,
    uuid_to_text,
    write_partition_metadata,
)
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec import records
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.records import Compression, Record, encode_batch
from tests.support.cli.dumps import add_small_files, segment_of, told, told_of
from tests.support.cli.in_process import CommandLine
from tests.support.storage.batches import batch, fill, open_log

TOPIC_ID = TopicId(bytes(range(16)))
HEADERS = (("h", b"v"), ("none", None))


@pytest.fixture
def dump_log(command: CommandLine) -> CommandLine:
    """Runs `quorumlog dump-log`."""
    command.first = ["dump-log"]
    return command


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A partition of three segments; the first has two batches of one record each."""
    directory = tmp_path / "orders-0"
    log = open_log(RealDisk(), directory=str(directory))
    fill(log, ["a" * 100, "b" * 100, "c" * 200, "d" * 50, "e" * 200], leader_epoch=3)
    log.close(clean=True)
    write_partition_metadata(RealDisk(), str(directory), TOPIC_ID)
    return directory


def producer_batch(compression: Compression = Compression.NONE) -> bytes:
    records = [
        Record(offset, 1000 + offset, b"k", b"value %d" % offset, HEADERS) for offset in (7, 8, 9)
    ]
    return encode_batch(
        records,
        base_offset=7,
        leader_epoch=2,
        compression=compression,
        producer_id=40,
        producer_epoch=1,
        base_sequence=5,
    )


def test_a_directory_is_one_document(orders: Path, dump_log: CommandLine) -> None:
    document = dump_log.json(orders)
    assert (document["problem_count"], document["skipped"]) == (0, [])
    files = {Path(one["file"]).name: one for one in document["files"]}
    kinds = {"index": "offset_index", "log": "log", "timeindex": "time_index"}
    assert {name: one["kind"] for name, one in files.items()} == {
        **{f"{base:020d}.{end}": kind for base in (0, 2, 4) for end, kind in kinds.items()},
        "leader-epoch-checkpoint": "leader_epochs",
        "partition.metadata": "partition_metadata",
    }
    batches = files["00000000000000000002.log"]["batches"]
    assert [one["base_offset"] for one in batches] == [2, 3]
    assert [one["leader_epoch"] for one in batches] == [3, 3]
    assert batches[1]["position"] == batches[0]["size"]
    assert files["leader-epoch-checkpoint"]["entries"] == [{"epoch": 3, "start_offset": 0}]
    assert files["partition.metadata"]["entries"] == [{"topic_id": uuid_to_text(TOPIC_ID)}]
    index = files["00000000000000000000.index"]["entries"]
    assert index == [{"offset": 1, "position": batches_size(files, "00000000000000000000.log", 1)}]


def batches_size(files: dict[str, Any], name: str, count: int) -> int:
    return sum(one["size"] for one in files[name]["batches"][:count])


@pytest.mark.parametrize("compression", list(Compression), ids=lambda one: one.name.lower())
def test_a_batch_is_told_with_its_whole_header(compression: Compression, tmp_path: Path) -> None:
    path = segment_of(tmp_path, producer_batch(compression))
    (found,), problems = told(path, with_values=True)
    records = found.pop("records")
    assert problems == []
    assert isinstance(found.pop("crc"), int)
    assert found == {
        "base_offset": 7,
        "last_offset": 9,
        "record_count": 3,
        "leader_epoch": 2,
        "producer_id": 40,
        "producer_epoch": 1,
        "base_sequence": 5,
        "last_sequence": 7,
        "is_transactional": False,
        "is_control": False,
        "has_delete_horizon": False,
        "timestamp_type": "CreateTime",
        "base_timestamp_ms": 1007,
        "max_timestamp_ms": 1009,
        "compression": compression.name.lower(),
        "size": path.stat().st_size,
        "position": 0,
        "is_valid": True,
    }
    assert records[1] == {
        "offset": 8,
        "timestamp_ms": 1008,
        "key": "k",
        "value_bytes": 7,
        "value": "value 8",
        "headers": [["h", "v"], ["none", None]],
    }


def test_lines_are_pairs_without_control_characters(tmp_path: Path, dump_log: CommandLine) -> None:
    record = Record(0, 5, b"\x1b[2J", None, (("a b", b"\xff"),))
    shown = dump_log(segment_of(tmp_path, encode_batch([record])), "--values")
    title, batch_line, record_line, end = shown.splitlines()
    assert title.endswith(".log: log, 78 bytes")
    assert batch_line.startswith("base_offset: 0 last_offset: 0 record_count: 1 ")
    assert record_line == (
        r'| offset: 0 timestamp_ms: 5 key: "\u001b[2J" value_bytes: - value: -'
        ' headers: [["a b", {"base64": "/w=="}]]'
    )
    assert not end


def test_offsets_records_and_values_are_chosen(tmp_path: Path) -> None:
    path = segment_of(tmp_path, batch(*"abcde"), batch(*"fghij", base_offset=5))
    found, _ = told(path, offset=6, records_max=3, with_values=True)
    assert [one["base_offset"] for one in found] == [5]
    assert [record["value"] for record in found[0]["records"]] == ["g", "h", "i"]
    found, _ = told(path, records_max=6)
    assert [[one["offset"] for one in each["records"]] for each in found] == [[0, 1, 2, 3, 4], [5]]
    assert "value" not in found[0]["records"][0]
    found, _ = told(path, with_records=False)
    assert [("records" in one, one["is_valid"]) for one in found] == [(False, True)] * 2


# --- what is wrong ---


def test_a_changed_batch_is_told_and_a_torn_one_ends_the_dump(tmp_path: Path) -> None:
    first = bytearray(batch("aaa"))
    first[-2] ^= 1
    found, problems = told(segment_of(tmp_path, first, batch("bbb", base_offset=1)))
    assert [one["is_valid"] for one in found] == [False, True]
    assert [len(one["records"]) for one in found] == [0, 1]
    assert problems == [Problem(0, "the checksum of the batch at offset 0 differs")]
    whole, torn = batch("aaa"), batch("bbb", base_offset=1)[:-1]
    found, problems = told(segment_of(tmp_path, whole, torn))
    assert [one["base_offset"] for one in found] == [0]
    ((position, what),) = problems
    assert position == len(whole)
    assert what.endswith(f"but only {len(torn)} bytes are left; {len(torn)} bytes are not read")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (bytes(5000), "zeros where a batch should begin; 5000 bytes are not read"),
        (b"x" * 80, f"magic {ord('x')}: only format 2 is read; 80 bytes are not read"),
        (b"\0", "zeros where a batch should begin; 1 bytes are not read"),
    ],
    ids=["zeros", "foreign", "one byte"],
)
def test_a_file_without_a_batch_says_so(tmp_path: Path, content: bytes, what: str) -> None:
    assert told(segment_of(tmp_path, content)) == ([], [Problem(0, what)])


def test_offsets_and_epochs_that_fall_are_told(tmp_path: Path) -> None:
    batches = (
        batch("a", base_offset=4, leader_epoch=2),
        batch("b", base_offset=4, leader_epoch=2),
        batch("c", base_offset=9, leader_epoch=1),
    )
    found, problems = told(segment_of(tmp_path, *batches))
    assert [one["is_valid"] for one in found] == [True] * 3
    assert [problem.what for problem in problems] == [
        "base offset 4 is below 5, the end of the batch before",
        "leader epoch 1 after 2",
    ]


def unseen_changes(path: Path) -> set[int]:
    """Change each byte of a segment of two batches; return where in a batch no problem is told."""
    first, second = producer_batch(), batch("x", base_offset=10, leader_epoch=2)
    good = first + second
    unseen = set()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0x41
        _, problems = told_of(path, damaged, with_values=True)
        if not problems:
            unseen.add(position if position < len(first) else position - len(first))
    return unseen


BEFORE_THE_CHECKSUM = {*range(8), *range(12, 16)}  # base offset and leader epoch


def test_every_changed_byte_under_the_checksum_is_told(tmp_path: Path) -> None:
    assert unseen_changes(segment_of(tmp_path)) <= BEFORE_THE_CHECKSUM


def test_a_dump_without_checksums_would_not_see_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "validate_checksum", lambda *_: None)
    assert not unseen_changes(segment_of(tmp_path)) <= BEFORE_THE_CHECKSUM


def test_every_torn_length_of_every_file_is_told(orders: Path) -> None:
    for path in sorted(orders.iterdir()):
        good = path.read_bytes()
        whole, problems = told(path)
        assert problems == []
        for size in range(len(good)):
            found, problems = told_of(path, good[:size])
            assert found == whole[: len(found)]
            lacks_a_line_end = size == len(good) - 1 and found == whole
            is_one_of_kafka = path.name == PARTITION_METADATA_FILE and (
                good[size:].lstrip().startswith(b"crc32c: ")
            )
            assert problems or len(found) < len(whole) or lacks_a_line_end or is_one_of_kafka


def test_every_changed_byte_of_every_file_leaves_a_dump(orders: Path) -> None:
    add_small_files(orders)
    for path in sorted(orders.iterdir()):
        good = path.read_bytes()
        for position in range(len(good)):
            damaged = bytearray(good)
            damaged[position] ^= 0x81
            told_of(path, damaged, only_index_faults=True)


def test_the_status_tells_of_damage(orders: Path, tmp_path: Path, dump_log: CommandLine) -> None:
    missing = tmp_path / "missing.log"
    document = dump_log.json(missing, status=EXIT_UNKNOWN)
    assert document["files"][0]["problems"] == [
        {"position": None, "problem": f"{missing}: No such file or directory"}
    ]
    good = orders / "leader-epoch-checkpoint"
    assert dump_log.json(missing, good, status=EXIT_FAILED)["problem_count"] == 1
    (tmp_path / "notes.txt").write_text("x")
    dump_log(tmp_path / "notes.txt", status=EXIT_UNKNOWN)
    assert "the name is no file name of a log directory" in dump_log.out
    (tmp_path / "empty").mkdir()
    assert dump_log.json(tmp_path / "empty", status=EXIT_UNKNOWN)["problem_count"] == 1
    (tmp_path / "node.log").write_text("what a node says")
    others = [str(tmp_path / name) for name in ("node.log", "notes.txt")]
    assert dump_log.json(tmp_path)["skipped"] == others
    (orders / "00000000000000000004.log").write_bytes(bytes(100))
    dump_log(orders, status=EXIT_FAILED)
    assert "! byte 0: zeros where" in dump_log.out


def test_a_segment_without_records_is_whole_and_has_none_to_choose(
    tmp_path: Path, dump_log: CommandLine
) -> None:
    document = dump_log.json(segment_of(tmp_path))
    assert document["files"][0]["batches"] == []
    for option in (("--values",), ("--max-records", "5")):
        dump_log(segment_of(tmp_path), "--batches", *option, status=EXIT_USAGE)


def test_only_one_batch_is_in_memory(tmp_path: Path, dump_log: CommandLine) -> None:
    one = batch("x" * 50_000)
    path = tmp_path / f"{0:020d}.log"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(one)
    dump_log(path, "--batches", status=EXIT_FAILED)  # what is loaded once is loaded
    tracemalloc.start()
    try:
        with ExitStack() as opened:
            contents, size = open_contents(path, Asked(), opened)
            problems = sum(isinstance(item, Problem) for item in contents.items)
        assert problems == 199  # each batch has the offsets of the first
        assert tracemalloc.get_traced_memory()[1] < size // 10
    finally:
        tracemalloc.stop()


def test_problems_of_a_document_are_all_counted(tmp_path: Path, dump_log: CommandLine) -> None:
    path = segment_of(tmp_path, *[batch("x")] * (PROBLEMS_MAX + 5))
    (told_of,) = dump_log.json(path, "--batches", status=EXIT_FAILED)["files"]
    assert (len(told_of["problems"]), told_of["problem_count"]) == (PROBLEMS_MAX, PROBLEMS_MAX + 4)


# --- indexes ---


def test_an_index_is_held_against_its_log(orders: Path) -> None:
    for path in (*orders.glob("*.index"), *orders.glob("*.timeindex")):
        assert told(path, only_index_faults=True) == ([], [])
    path = orders / "00000000000000000000.index"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    _, ((position, what),) = told(path, only_index_faults=True)
    assert position == 0
    assert what.endswith("no batch begins")
    path = orders / "00000000000000000000.timeindex"
    path.write_bytes((1001).to_bytes(8, "big") + bytes(4))
    _, ((_, what),) = told(path, only_index_faults=True)
    assert what == "offset 0: the batch [0, 0] has the timestamp 1000"


def test_room_at_the_end_of_an_index_is_told_behind_its_entries(orders: Path) -> None:
    path = orders / "00000000000000000000.index"
    good = path.read_bytes()
    path.write_bytes(good + bytes(4096))
    found, problems = told(path)
    assert len(found) == 1
    assert problems == [
        Problem(len(good), "4096 zeros: preallocated space, or entries lost in a crash")
    ]


def test_an_index_without_its_log_cannot_be_compared(orders: Path, dump_log: CommandLine) -> None:
    (orders / "00000000000000000000.log").unlink()
    path = orders / "00000000000000000000.index"
    assert dump_log.json(path)["problem_count"] == 0
    document = dump_log.json(path, "--index-sanity", status=EXIT_UNKNOWN)
    assert ".log: No such file" in document["files"][0]["problems"][0]["problem"]


def test_a_transaction_index_is_told_up_to_what_is_wrong(orders: Path) -> None:
    path = orders / "00000000000000000002.txnindex"
    entries = [AbortedTransaction(9, 1, 2, 3), AbortedTransaction(8, 2, 3, 4)]
    path.write_bytes(encode_index(entries, 1))
    found, problems = told(path)
    assert (found, problems) == ([one._asdict() for one in entries], [])
    former = encode_index(entries, 1)[HEAD_BYTES:]
    path.write_bytes(former)
    assert told(path) == ([one._asdict() for one in entries], [])
    path.write_bytes(former[:-1])
    found, ((position, what),) = told(path)
    assert (found, position) == ([entries[0]._asdict()], 34)
    assert what == "33 bytes; 33 bytes are not read"
    path.write_bytes(encode_index(entries, 1)[:-34])
    assert told(path) == ([entries[0]._asdict()], [Problem(0, "48 bytes without their checksum")])
    path.write_bytes(b"")
    assert told(path) == ([], [Problem(0, "0 bytes without their checksum")])
