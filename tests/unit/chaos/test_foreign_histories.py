"""What other tools wrote is read as it is, or refused with the line that is wrong."""

import json
from pathlib import Path

import pytest

from quorumlog.chaos.history import HistoryError, HistorySource, read_history
from quorumlog.chaos.history.edn import EdnError, Keyword, Tagged, read_forms, write_form
from quorumlog.chaos.verify import verify_history


def values(text: str) -> list[object]:
    return [form.value for form in read_forms(text)]


def test_edn_is_read() -> None:
    text = (
        '{:a [1 -2 3N], :b #{"x\\"" nil} ; a comment\n :c/d #inst "2020"} #_ (1 2) true \\a 1.5e1'
    )
    first = {"a": [1, -2, 3], "b": ['x"', None], "c/d": Tagged("inst", "2020")}
    assert values(text) == [first, True, "a", 15.0]
    assert isinstance(next(iter(first)), str)
    assert values("1/2 -4/6 4/2 a/b") == ["1/2", "-2/3", 2, "a/b"]
    assert [form.lines for form in read_forms("[{:a 1}\n {:b 2}\n\n3]")] == [(1, 2, 4)]


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


def test_edn_that_is_written_is_read_again() -> None:
    value = {Keyword("f"): Keyword("cas"), "x": [1, None, True, 'a\n"b'], Keyword("m"): {"k": 2}}
    assert write_form(read_forms("[1/2]")[0].value) == "[1/2]"
    assert values(write_form(value)) == [value]


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
        (
            "{:process 0 :type :invoke :f :read :time 4}\n{:process 0 :type :ok :f :read :time 3}",
            "edn:2: .*below the previous event's",
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


def test_a_line_that_is_no_operation_of_etcd_is_refused(tmp_path: Path) -> None:
    text = "INFO  jepsen.util - 0\t:invoke\t:read\tnil\nINFO  jepsen.util - 0\t:ok\t:read\t1.5\n"
    with pytest.raises(HistoryError, match="log:2: not an operation of Jepsen's etcd test"):
        read(tmp_path, text, "x.log")


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


def test_a_register_may_hold_a_ratio(tmp_path: Path) -> None:
    write = ":process 0 :f :write :value 1/2"
    text = f"{{{write} :type :invoke}} {{{write} :type :ok}}"
    assert micro(read(tmp_path, text)[0]) == [("write", "", 0, '"1/2"')]


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


def test_a_line_of_ours_that_is_wrong_names_its_fault_alone(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"index": 0, "time_ns": 0, "type": "ok", "f": "send", "process": "x"}\n')
    with pytest.raises(HistoryError) as error:
        read_history(file)
    assert str(error.value).endswith("process is not an integer: 'x'")
