"""The promises of a table of operations, whole and cut; a file that was changed is an error."""

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history import HistoryError, HistoryWriter
from quorumlog.chaos.history.model import NEVER_NS
from quorumlog.chaos.history.operations_table import table_of
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.history.validate import merge_facts, part_facts, validate
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.hand_made_histories import rows_of
from tests.support.chaos.random_histories import good
from tests.support.chaos.wild_histories import wild
from tests.support.sizes import tries

Row = dict[str, Any]


def rows() -> list[Row]:
    """Return four operations: a send, a poll beside it, a fault, and a send that never ended."""
    micro = {"f": "send", "key": "x-0", "offset": 0, "value": 1, "text": "", "checksum": 0}
    common = {"error": "", "node": "", "details": ""}
    return [
        {"index": n, "process": process, "f": f, "type": type_, "micro": [micro], **common, **times}
        for n, (process, f, type_, times) in enumerate(
            [
                (0, "send", "ok", moments(0, 2)),
                (1, "poll", "ok", moments(1, 4)),
                (-1, "kill", "info", moments(3, 3)),
                (0, "send", "info", moments(5, None)),
            ]
        )
    ]


def moments(invoked: int, completed: int | None) -> Row:
    return {
        "invoked": invoked,
        "invoked_ns": 10 * invoked,
        "completed": -1 if completed is None else completed,
        "completed_ns": NEVER_NS if completed is None else 10 * completed,
    }


def table(changed: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(changed, schema=OPERATIONS)


def test_four_operations_keep_the_promises() -> None:
    validate(table(rows()))
    validate(OPERATIONS.empty_table())


@pytest.mark.parametrize(
    ("place", "fields", "reason"),
    [
        (1, {"index": 5}, "operation 5: the operation before it does not have the previous index"),
        (0, {"index": -1}, "operation 1: the operation before it does not have the previous index"),
        (1, {"process": -2}, "operation 1: its process is -2"),
        (1, {"type": "invoke"}, "operation 1: its type is not one of ok, info, fail"),
        (1, {"completed": -1}, "operation 1: it never completed, and is not info"),
        (3, {"completed_ns": 60}, "operation 3: it completed at 60 ns"),
        (1, {"completed_ns": NEVER_NS}, "operation 1: it completed at"),
        (2, {"type": "ok"}, "operation 2: it is the nemesis's, and not info"),
        (2, {"completed": 6, "completed_ns": 60}, "it is the nemesis's, and not one event"),
        (1, {"completed": 0}, "operation 1: it completed before it began"),
        (1, {"completed": 1}, "operation 1: it completed before it began"),
        (2, {"invoked": 0, "completed": 0}, "operation 2: it began before the operation before"),
        (0, {"invoked_ns": -1}, "operation 0: it began before the history"),
        (0, {"completed": 3}, "its event 3 is another operation's, too"),
        (0, {"completed_ns": 5}, "its event 2 is before an earlier event"),
        (1, {"completed_ns": 25}, "its event 4 is before an earlier event"),
        (1, {"completed": 6, "completed_ns": 60}, "event 4 is missing"),
        (0, {"invoked": 1 << 62}, "operation 0: it completed before it began"),
        (3, {"invoked": 1 << 62}, "event 5 and others are missing"),
        (3, {"process": 1, "invoked": 3}, "it began before the operation before it"),
        (2, {"process": 0, "type": "info"}, "it completed before it began"),
        (1, {"process": 0}, "operation 1: its process had not ended the operation before"),
    ],
)
def test_a_broken_promise_is_named(place: int, fields: Row, reason: str) -> None:
    changed = rows()
    changed[place] |= fields
    with pytest.raises(HistoryError) as raised:
        validate(table(changed))
    assert reason in str(raised.value)


def test_an_offset_below_minus_one_is_none() -> None:
    changed = rows()
    changed[1]["micro"] = [{**changed[1]["micro"][0], "offset": -2}]
    with pytest.raises(HistoryError, match="operation 1: an offset below -1"):
        validate(table(changed))


@pytest.mark.parametrize("name", OPERATIONS.names)
def test_a_null_is_none(name: str) -> None:
    changed = rows()
    changed[2][name] = None
    with pytest.raises(HistoryError, match=f"it has no {name}"):
        validate(table(changed))


@pytest.mark.parametrize("name", ["f", "key", "offset", "value", "text"])
def test_a_null_in_a_micro_operation_is_none(name: str) -> None:
    changed = rows()
    changed[2]["micro"] = [{**changed[2]["micro"][0], name: None}]
    with pytest.raises(HistoryError, match=f"a micro-operation has no {name}"):
        validate(table(changed))


def test_other_columns_are_none() -> None:
    whole = table(rows())
    for changed in (
        whole.drop_columns(["node"]),
        whole.append_column("lag", whole.column("index")),
        whole.set_column(0, "index", whole.column("index").cast(pa.int32())),
    ):
        with pytest.raises(HistoryError, match="not the columns of a history"):
            validate(changed)


def in_parts(whole: pa.Table, rng: random.Random) -> None:
    """Validate a table cut at random places, with parts that are empty."""
    cuts = sorted(rng.randrange(whole.num_rows + 1) for _ in range(rng.randrange(6)))
    borders = [0, *cuts, whole.num_rows]
    parts = [whole.slice(a, b - a) for a, b in pairwise(borders)]
    merge_facts(part_facts(part) for part in parts)


def spoiled(whole: pa.Table, rng: random.Random) -> pa.Table:
    """Change one number of one operation, or take an operation out, put one in twice, or swap."""
    changed = whole.to_pylist()
    row = rng.choice(changed)
    match rng.randrange(6):
        case 0:
            changed.remove(row)
        case 1:
            changed.insert(rng.randrange(len(changed)), row)
        case 2:
            name = rng.choice(["index", "invoked", "completed"])
            row[name] += rng.choice([-3, -2, -1, 1, 2, 3])
        case 3:
            name = rng.choice(["invoked_ns", "completed_ns"])
            row[name] += rng.choice([-1, 1]) * rng.randrange(1, 50_000)
        case 4:
            other = rng.choice(changed)
            row["process"], other["process"] = other["process"], row["process"]
        case _:
            other = rng.choice(changed)
            for name in ("completed", "completed_ns"):
                row[name], other[name] = other[name], row[name]
    return pa.Table.from_pylist(changed, schema=OPERATIONS)


def is_history(changed: list[Row]) -> bool:
    """Judge numbers, times and processes as the docs say it, with loops over rows."""
    ended = [row for row in changed if row["completed"] >= 0 and row["process"] >= 0]
    events = [(row["invoked"], row["invoked_ns"]) for row in changed]
    events += [(row["completed"], row["completed_ns"]) for row in ended]
    times = [time_ns for _, time_ns in sorted(events)]
    busy: dict[int, int] = {}  # process -> the end of its last operation
    for place, row in enumerate(changed):
        process, completed = row["process"], row["completed"]
        never = completed == -1
        if row["index"] != place or never != (row["completed_ns"] == NEVER_NS) or completed < -1:
            return False
        is_late = completed > row["invoked"] or never
        if process >= 0 and (busy.get(process, -1) >= row["invoked"] or not is_late):
            return False
        if process < 0 and (completed, row["completed_ns"]) != (row["invoked"], row["invoked_ns"]):
            return False
        if never and row["type"] != "info":
            return False
        busy[process] = 1 << 62 if never else completed
    numbers = [row["invoked"] for row in changed]
    is_dense = sorted(number for number, _ in events) == [*range(len(events))]
    return is_dense and numbers == sorted(numbers) and times == sorted(times) and times[:1] >= [0]


@pytest.mark.parametrize("first", range(0, tries(240), 30))
def test_parts_find_together_what_the_whole_shows(first: int) -> None:
    refused = 0
    for seed in range(first, first + 30):
        rng = random.Random(seed)
        ops = good(seed, sends=24).ops if seed % 2 else wild(seed)
        whole = table_of(rows_of(ops))
        in_parts(whole, rng)
        changed = spoiled(whole, rng)
        if changed.num_rows and is_history(changed.to_pylist()):
            validate(changed)
            in_parts(changed, rng)
        elif changed.num_rows:
            refused += 1
            with pytest.raises(HistoryError):
                validate(changed)
            with pytest.raises(HistoryError):
                in_parts(changed, rng)
    assert refused > 10


FLIPS = 200


def said(verdict: Verdict) -> str:
    document = verdict.as_json()
    del document["seconds"]
    return json.dumps(document, sort_keys=True)


def write(directory: Path, *, whole: bool = True) -> Path:
    writer = HistoryWriter(directory, meta={"model": "kafka_log"})
    for row in rows_of(good(7, sends=30).ops):
        writer.write(row)
    if whole:
        return writer.close()
    writer._file.close()  # as after a SIGKILL: no end row
    return directory / "history.jsonl"


@pytest.mark.parametrize("name", ["history.parquet", "history.jsonl"])
def test_a_flipped_bit_never_gives_another_verdict(name: str, tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "alone" / name
    file.parent.mkdir()
    whole = (tmp_path / name).read_bytes()
    file.write_bytes(whole)
    expected, rng, refused = said(verify_history(file, engine="local")), random.Random(1), 0
    assert '"valid": true' in expected
    for _ in range(tries(FLIPS)):
        bit = rng.randrange(8 * len(whole))
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        try:
            assert said(verify_history(file, engine="local")) == expected, bit
        except HistoryError:
            refused += 1
    assert refused > tries(FLIPS) / 2


@pytest.mark.parametrize("key", [b"quorumlog.sha256", b"quorumlog.cut_off", b"group_sha256"])
def test_what_a_parquet_file_says_of_itself_is_protected_too(key: bytes, tmp_path: Path) -> None:
    directory = tmp_path / "unfinished"
    lines = write(directory, whole=False)
    with lines.open("ab") as file:
        file.write(b'{"index":')
    from quorumlog.chaos.history.files import make_parquet

    parquet = make_parquet(directory)
    assert verify_history(parquet, engine="local").valid == "unknown"
    whole = parquet.read_bytes()
    assert key in whole
    parquet.write_bytes(whole.replace(key, key[:-1] + b"X"))
    with pytest.raises(HistoryError, match="not as it was written"):
        verify_history(parquet, engine="local")
