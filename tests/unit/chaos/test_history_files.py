"""Histories as files: ours and those of other tools, crashes while writing, what is refused."""

import json
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.history import (
    HistoryError,
    HistorySource,
    HistoryWriter,
    Message,
    Operation,
    read_history,
    read_meta,
)
from quorumlog.chaos.history.edn import EdnError, Keyword, Tagged, read_forms, write_form
from quorumlog.chaos.history.schema import CUT_OFF, ENDED, OPERATIONS
from quorumlog.chaos.verify import verify_history

ROW = '{"index":0,"time_ns":5,"process":0,"type":"invoke","f":"poll"}'


def write_run(directory: Path) -> None:
    with HistoryWriter(directory, meta={"seed": 7}) as writer:
        writer.append(0, "invoke", "send", [Message("t-0", -1, 1, checksum=7)])
        writer.append(-1, "info", "kill", node="2", details='{"why": "schedule"}')
        writer.append(0, "ok", "send", [Message("t-0", 4, 1, checksum=7)])
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
    sent = {"f": "send", "key": "t-0", "offset": 4, "value": 1, "text": "", "checksum": 7}
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


def test_an_empty_history_and_a_last_line_without_end_are_read(tmp_path: Path) -> None:
    HistoryWriter(tmp_path).close()
    assert read_history(tmp_path).num_rows == 0
    assert read_history(tmp_path / "history.jsonl").num_rows == 0
    file = tmp_path / "h.jsonl"
    file.write_text(ROW)
    table = read_history(file)
    assert table.num_rows == 1
    assert CUT_OFF not in table.schema.metadata


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


def test_unknown_fields_and_wrong_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    file.write_text(ROW[:-1] + ',"lag":{"deep":[1]}}\n')
    with pytest.raises(HistoryError, match=r"h\.jsonl:1: lag is no field"):
        read_history(file)
    file = tmp_path / "history.jsonl"
    file.write_text('{"index": 0, "time_ns": 0, "type": "ok", "f": "send", "process": "x"}\n')
    with pytest.raises(HistoryError) as error:
        read_history(file)
    assert str(error.value).endswith("process is not an integer: 'x'")


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


def values(text: str) -> list[object]:
    return [form.value for form in read_forms(text)]


def test_edn_is_read_and_written() -> None:
    text = (
        '{:a [1 -2 3N], :b #{"x\\"" nil} ; a comment\n :c/d #inst "2020"} #_ (1 2) true \\a 1.5e1'
    )
    first = {"a": [1, -2, 3], "b": ['x"', None], "c/d": Tagged("inst", "2020")}
    assert values(text) == [first, True, "a", 15.0]
    assert isinstance(next(iter(first)), str)
    assert values("1/2 -4/6 4/2 a/b") == ["1/2", "-2/3", 2, "a/b"]
    assert [form.lines for form in read_forms("[{:a 1}\n {:b 2}\n\n3]")] == [(1, 2, 4)]
    value = {Keyword("f"): Keyword("cas"), "x": [1, None, True, 'a\n"b'], Keyword("m"): {"k": 2}}
    assert write_form(read_forms("[1/2]")[0].value) == "[1/2]"
    assert values(write_form(value)) == [value]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("\n[1 2", 2, "never closed"),
        ("{:a}", 1, "a key and no value"),
        ("{:a 1 :a 2}", 1, "one key twice"),
        ("]", 1, "has no opening bracket"),
        ('"abc', 1, "cannot read"),
        ("\n\n12ab", 3, "cannot read"),
        ("[" * 100, 1, "lie in each other"),
        ("#_", 1, "ends within a form"),
        ("\n1/0", 2, "a ratio with denominator 0"),
    ],
)
def test_what_is_no_edn_names_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(EdnError, match=reason) as error:
        read_forms(text)
    assert error.value.line == line


def read(directory: Path, text: str, name: str = "history.edn") -> list[dict[str, object]]:
    file = directory / name
    file.write_text(text)
    rows: list[dict[str, object]] = read_history(file).to_pylist()
    return rows


def micro(row: dict[str, object]) -> list[tuple[object, ...]]:
    return [tuple(one[name] for name in ("f", "key", "value", "text")) for one in row["micro"]]  # type: ignore[attr-defined]


def test_edn_operations_become_ours(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        """; a history
        [{:process 0 :type :invoke :f :cas :value [1 2]}
         #jepsen.history.Op{:process 1 :type :invoke :f :read :value nil}
         {:process :nemesis :type :info :f :start}
         {:process 0, :type :fail, :f :cas, :value [1 2], :error [:no nil]}
         {:process 1 :type :ok :f :read :value nil}
         {:process 2 :type :invoke :f :write :value #jepsen.independent.Tuple [7 "x"]}]""",
    )
    assert [(row["process"], row["f"], row["type"]) for row in rows] == [
        (0, "cas", "fail"),
        (1, "read", "ok"),
        (-1, "start", "info"),
        (2, "write", "info"),
    ]
    assert micro(rows[0]) == [("read", "", 1, ""), ("write", "", 2, "")]
    assert rows[0]["error"] == '["no",null]' or rows[0]["error"] == '["no", null]'
    assert micro(rows[1]) == [("read", "", 0, "null")]
    assert micro(rows[3]) == [("write", "7", 0, '"x"')]


def test_a_log_of_etcd_is_read_and_a_refused_cas_is_an_observation(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        "INFO  jepsen.util - 0\t:invoke\t:cas\t[4 2]\n"
        "INFO  jepsen.util - 1   :invoke :write  3\n"
        "INFO  jepsen.util - 0\t:fail\t:cas\t[4 2]\n"
        "INFO  jepsen.util - 1\t:info\t:write\t:timed-out\n"
        "INFO  jepsen.util - 0\t:invoke\t:read\tnil\n"
        "INFO  jepsen.util - 0\t:fail\t:read\t:timed-out\n"
        "INFO  jepsen.core - Run complete\n"
        "INFO  jepsen.util - :nemesis\t:info\t:start\tnil\n",
        "x.log",
    )
    assert rows.pop()["process"] == -1
    assert [(row["f"], row["type"], micro(row)) for row in rows] == [
        ("cas_refused", "ok", [("cas_refused", "", 4, "")]),
        ("write", "info", [("write", "", 3, "")]),
        ("read", "fail", [("read", "", 0, "null")]),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[{:process 0 :type :invoke :f :read}\n 5]", "edn:2: not an operation"),
        ("{:process 0 :type :ok :f :read}", "edn:1: a completion without an invocation"),
        ("{:process 0 :f :read}", "edn:1: not a Jepsen operation: it has no type"),
        ("{:process -2 :type :invoke :f :read}", "neither a client nor the nemesis"),
        ("{:process 0 :type :invoke :f :cas :value 3}", "edn:1: not a Jepsen .* two values"),
        ("{:process 0 :type :invoke :f :txn :value [[1]]}", "a micro-operation is"),
        ("{:process 0 :type :maybe :f :read}", "its type is 'maybe'"),
        (
            "{:process 0 :type :invoke :f :read :index 4}\n"
            "{:process 0 :type :ok :f :read :index 3}",
            "edn:2: .*its index is '3', after 4",
        ),
        ("{:process 0 :type :invoke :f :read :time 0.5}", "time .* is not an integer"),
        ("{:process 0 :type", "edn:1: .*never closed"),
        (
            "{:process 0 :type :invoke :f :add :value 1}\n"
            "{:process 0 :type :invoke :f :add :value 2}",
            "edn:2: an invocation while",
        ),
    ],
)
def test_a_malformed_history_names_the_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(HistoryError, match=said):
        read(tmp_path, text)


def test_a_kafka_history_needs_no_index_and_no_time(tmp_path: Path) -> None:
    operations = [
        ":process 0 :type :invoke :f :send :value [[:send 3 10]]",
        ":process 1 :type :invoke :f :poll :value [[:poll]]",
        ":process 0 :type :ok :f :send :value [[:send 3 [0 10]]]",
        ":process 1 :type :ok :f :poll :value [[:poll {3 [[0 10]]}]]",
    ]
    bare = read(tmp_path, "\n".join(f"{{{one}}}" for one in operations))
    numbered = [f"{{{one} :index {n} :time {n}}}" for n, one in enumerate(operations)]
    assert bare == read(tmp_path, "\n".join(numbered))
    assert [(row["f"], row["type"]) for row in bare] == [("send", "ok"), ("poll", "ok")]


def test_a_register_may_hold_a_ratio_and_that_of_etcd_may_not(tmp_path: Path) -> None:
    write = ":process 0 :f :write :value 1/2"
    text = f"{{{write} :type :invoke}} {{{write} :type :ok}}"
    assert micro(read(tmp_path, text)[0]) == [("write", "", 0, '"1/2"')]
    text = "INFO  jepsen.util - 0\t:invoke\t:read\tnil\nINFO  jepsen.util - 0\t:ok\t:read\t1.5\n"
    with pytest.raises(HistoryError, match="log:2: not an operation of Jepsen's etcd test"):
        read(tmp_path, text, "x.log")


LINES_OF: dict[str, list[dict[str, object]]] = {
    "rw-register": [
        {"process": 0, "type": "invoke", "f": "txn", "value": [["w", "x", 3]]},
        {"process": 0, "type": "ok", "f": "txn", "value": [["w", "x", 3]]},
        {"process": 1, "type": "invoke", "f": "txn", "value": [["r", "x", None]]},
        {"process": 1, "type": "ok", "f": "txn", "value": [["r", "x", 3]]},
    ],
    "list-append": [
        {"process": 0, "type": "invoke", "value": [["append", "x", 3]]},
        {"process": 0, "type": "ok", "value": [["append", "x", 3]]},
        {"process": 1, "type": "invoke", "value": [["r", "x", None]]},
        {"process": 1, "type": "ok", "value": [["r", "x", [3]]]},
    ],
    "cas-register": [
        {"process": 0, "type": "invoke", "f": "write", "value": 3},
        {"process": 0, "type": "ok", "f": "write", "value": 3},
        {"process": 1, "type": "invoke", "f": "read"},
        {"process": 1, "type": "ok", "f": "read", "value": 3},
    ],
    "kafka_log": [
        {"process": 0, "type": "invoke", "f": "send", "value": [["send", "0", 3]]},
        {"process": 0, "type": "ok", "f": "send", "value": [["send", "0", [0, 3]]]},
        {"process": 1, "type": "invoke", "f": "poll", "value": [["poll"]]},
        {"process": 1, "type": "ok", "f": "poll", "value": [["poll", {"0": [[0, 3]]}]]},
    ],
}
NEMESIS_LINE: dict[str, object] = {
    "process": "nemesis",
    "type": "info",
    "f": "start",
    "value": None,
}


@pytest.mark.parametrize("fields", [(), ("index",), ("time",), ("index", "time")], ids=str)
@pytest.mark.parametrize("has_nemesis", [False, True], ids=["clients", "nemesis first"])
@pytest.mark.parametrize("begin", ["", "\n\n", "\ufeff"], ids=["plain", "blank", "mark"])
@pytest.mark.parametrize("model", LINES_OF)
def test_json_is_told_by_its_structure(
    tmp_path: Path, model: str, fields: tuple[str, ...], has_nemesis: bool, begin: str
) -> None:
    rows = [NEMESIS_LINE] * has_nemesis + LINES_OF[model]
    rows = [row | dict.fromkeys(fields, number) for number, row in enumerate(rows)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    as_lines = read(tmp_path, begin + lines, "history.json")
    assert HistorySource(tmp_path / "history.json").is_foreign
    assert as_lines == read(tmp_path, begin + json.dumps(rows), "history.json")
    assert len(as_lines) == 2 + has_nemesis
    (tmp_path / "history.json").write_text(begin + lines)
    verdict = verify_history(tmp_path / "history.json", model=model, engine="local")
    assert verdict.valid is True, verdict.unknown_because


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello\n", "its first line is no JSON"),
        ("7\n", "its first line is neither an object nor the beginning of an array"),
        ('{"process": 0, "value": 3}\n', "its first line has no type"),
        ('{"process": 0, "type": "ok"}\n', "its first line has neither f nor value"),
    ],
)
def test_a_file_of_no_format_is_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "history.txt"
    file.write_text(text)
    with pytest.raises(HistoryError, match=r"history.txt:1: .*; nor is it EDN") as error:
        read_history(file)
    assert f"or Jepsen's JSON ({said})" in str(error.value)
