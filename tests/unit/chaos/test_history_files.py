"""Histories as files: lines and Parquet, crashes while writing, and what is refused."""

import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.history import (
    HistoryError,
    HistoryWriter,
    Message,
    Operation,
    read_history,
    read_meta,
)
from quorumlog.chaos.history.schema import CUT_OFF, ENDED, OPERATIONS

ROW = '{"index":0,"time_ns":5,"process":0,"type":"invoke","f":"poll"}'


def write_run(directory: Path) -> None:
    with HistoryWriter(directory, meta={"seed": 7}) as writer:
        writer.append(0, "invoke", "send", [Message("t-0", -1, 1)])
        writer.append(-1, "info", "kill", node="2", details='{"why": "schedule"}')
        writer.append(0, "ok", "send", [Message("t-0", 4, 1)])
        writer.append(1, "invoke", "poll")
        writer.append(1, "info", "poll", error='said "no"\nand more')


def test_lines_and_parquet_are_the_same_table(tmp_path: Path) -> None:
    write_run(tmp_path)
    lines = read_history(tmp_path / "history.jsonl")
    assert lines.equals(read_history(tmp_path / "history.parquet"))
    assert lines.equals(read_history(tmp_path))
    assert lines.schema.equals(OPERATIONS)
    assert lines.column("index").to_pylist() == [0, 1, 2]
    rows = lines.to_pylist()
    sent = {"f": "send", "key": "t-0", "offset": 4, "value": 1, "text": ""}
    assert (rows[0]["type"], rows[0]["micro"]) == ("ok", [sent])
    assert (rows[1]["process"], rows[1]["node"]) == (-1, "2")
    assert rows[2]["error"] == 'said "no"\nand more'
    assert [(row["invoked"], row["completed"]) for row in rows] == [(0, 2), (1, 1), (3, 4)]
    assert rows[0]["invoked_ns"] <= rows[1]["invoked_ns"] <= rows[0]["completed_ns"]
    assert read_meta(tmp_path) == read_meta(tmp_path / "history.jsonl")
    assert read_meta(tmp_path)["seed"] == 7


def test_nothing_follows_an_end_row(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "history.parquet").unlink()
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"index":5,"time_ns":99,"proc')
    with pytest.raises(HistoryError, match="something follows its end row"):
        read_history(tmp_path)


def test_a_crash_leaves_lines_and_loses_at_most_the_one_being_written(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "history.parquet").unlink()
    file = tmp_path / "history.jsonl"
    *whole, end = file.read_text().splitlines(keepends=True)
    assert json.loads(end)["end"]["events"] == 5
    file.write_text("".join(whole) + '{"index":5,"time_ns":99,"proc')
    table = read_history(tmp_path)
    assert table.num_rows == 3
    assert CUT_OFF in table.schema.metadata
    assert ENDED not in table.schema.metadata
    file.write_text("".join(whole))
    assert read_history(tmp_path).schema.metadata.keys() & {CUT_OFF, ENDED} == set()


def test_a_last_line_without_its_end_is_still_a_line(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text(ROW)
    table = read_history(file)
    assert table.num_rows == 1
    assert CUT_OFF not in table.schema.metadata


def test_an_empty_history_is_an_empty_table(tmp_path: Path) -> None:
    HistoryWriter(tmp_path).close()
    assert read_history(tmp_path).num_rows == 0
    assert read_history(tmp_path / "history.jsonl").num_rows == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "2: "),
        ("[1, 2]", "2: not a JSON object"),
        (ROW.replace('"time_ns":5,', ""), "2: time_ns is missing"),
        (ROW.replace('"process":0', '"process":"p"'), "2: process is not an integer"),
        (ROW.replace('"f":"poll"', '"f":3'), "2: f is not a string"),
        (ROW.replace("invoke", "begin"), "2: type is 'begin'"),
        (ROW[:-1] + ',"messages":[{"key":"k"}]}', "2: offset is not an integer"),
        (
            ROW[:-1] + ',"messages":[{"key":"k","offset":null,"value":2}]}',
            "2: offset is not an integer",
        ),
        (ROW, "2: its index is 0, not the next one"),
    ],
)
def test_a_line_that_is_no_row_is_named(line: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text(f"{ROW}\n{line}\n")
    with pytest.raises(HistoryError) as raised:
        read_history(file)
    assert str(raised.value).startswith(str(file))
    assert reason in str(raised.value)


def test_fields_we_do_not_know_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text(ROW[:-1] + ',"lag":{"deep":[1]}}\n')
    with pytest.raises(HistoryError, match=r"h\.jsonl:1: lag is no field"):
        read_history(file)


def test_what_is_not_there_or_not_a_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no such file"):
        read_history(tmp_path / "absent")
    with pytest.raises(HistoryError, match="holds neither"):
        read_history(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(HistoryError, match="not a history"):
        read_history(tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("no parquet at all")
    with pytest.raises(HistoryError, match="not a history"):
        read_history(tmp_path / "text.parquet")
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(HistoryError, match=r"meta\.json"):
        read_meta(tmp_path)


def test_rows_are_refused_that_would_not_be_a_history(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as writer:
        with pytest.raises(ValueError, match="not the next event"):
            writer.append(0, "maybe", "send")
        writer.write(Operation(index=0, time_ns=0, process=0, type="invoke", f="poll"))
        with pytest.raises(ValueError, match="not the next event"):
            writer.write(Operation(index=0, time_ns=1, process=0, type="ok", f="poll"))
    assert read_history(tmp_path).num_rows == 1


def test_a_new_run_in_the_same_place_replaces_the_old_one(tmp_path: Path) -> None:
    write_run(tmp_path)
    writer = HistoryWriter(tmp_path)
    assert not (tmp_path / "history.parquet").exists()
    writer.close()
    assert read_history(tmp_path).num_rows == 0
    assert writer.close() == tmp_path / "history.parquet"


def test_time_0_of_a_history_has_a_wall_clock(tmp_path: Path) -> None:
    ticks = iter([500, 700])
    with HistoryWriter(tmp_path, now_ns=lambda: next(ticks), wall_ns=lambda: 10**18) as writer:
        writer.append(-1, "info", "kill")
    assert read_meta(tmp_path)["started_wall_ns"] == 10**18  # when the other clock said 500
    assert read_history(tmp_path).column("invoked_ns").to_pylist() == [200]


def test_threads_may_write_at_once(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path) as writer:

        def work(process: int) -> None:
            for _ in range(50):
                writer.append(process, "invoke", "poll")
                writer.append(process, "ok", "poll")

        threads = [threading.Thread(target=work, args=(process,)) for process in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = read_history(tmp_path)
    assert table.column("index").to_pylist() == list(range(200))
    times = table.column("invoked_ns").to_pylist()
    assert times == sorted(times)


def test_jepsen_operations_are_read(tmp_path: Path) -> None:
    operations: list[dict[str, object]] = [
        {"process": "nemesis", "type": "info", "f": "kill", "value": ["n1"]},
        {"process": 0, "type": "invoke", "f": "send", "value": [["send", 3, 1]]},
        {"process": 0, "type": "ok", "f": "send", "value": [["send", 3, [None, 1]]]},
        {"process": 1, "type": "invoke", "f": "subscribe", "value": [3, 4]},
        {"process": 0, "type": "invoke", "f": "poll", "value": [["poll"]]},
        {"process": 0, "type": "fail", "f": "poll", "value": [["poll"]], "error": ["x", 1]},
    ]
    file = tmp_path / "jepsen.json"
    rows = [{"index": n, "time": n, **operation} for n, operation in enumerate(operations)]
    file.write_text("\n".join(map(json.dumps, rows)))
    table = read_history(file).to_pylist()
    assert [row["process"] for row in table] == [-1, 0, 1, 0]
    assert [(m["key"], m["offset"], m["value"]) for m in table[1]["micro"]] == [("3", -1, 1)]
    assert [message["key"] for message in table[2]["micro"]] == ["3", "4"]
    assert table[3]["error"] == '["x", 1]'
    file.write_text(json.dumps([{"index": 0, "time": 0}]))
    with pytest.raises(HistoryError, match=r"jepsen\.json:1: not a Jepsen operation"):
        read_history(file)


def test_files_of_two_runs_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    lines = tmp_path / "history.jsonl"
    said = lines.read_bytes()
    lines.write_bytes(said.replace(b'"offset":4', b'"offset":5'))
    with pytest.raises(HistoryError, match="not of one run"):
        read_history(tmp_path)
    lines.write_bytes(said)
    assert read_history(tmp_path).num_rows == 3
    table = read_history(tmp_path).slice(0, 2).replace_schema_metadata(None)
    pq.write_table(table, tmp_path / "history.parquet")  # somebody else's, without a digest
    with pytest.raises(HistoryError, match="not of one run"):
        read_history(tmp_path)
    (tmp_path / "history.parquet").write_bytes(b"torn")
    with pytest.raises(HistoryError, match="not a history"):
        read_history(tmp_path)
