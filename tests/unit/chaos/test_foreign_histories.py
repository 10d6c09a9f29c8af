"""Histories as other tools print them: keys in pairs, times that go back, all of EDN."""

import json
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.history import HistoryError, HistorySource, read_history
from quorumlog.chaos.history.edn import EdnError, read_forms
from quorumlog.chaos.verify import verify_history

Rows = list[tuple[int, str, str, str]]  # process, type, f, value in EDN

TWO_KEYS: Rows = [
    (0, "invoke", "write", "[0 1]"),
    (0, "ok", "write", "[0 1]"),
    (1, "invoke", "write", "[1 5]"),
    (1, "ok", "write", "[1 5]"),
    (0, "invoke", "read", "[0 nil]"),
    (0, "ok", "read", "[0 1]"),
]
CAS_OF_A_KEY: Rows = [(0, "invoke", "cas", "[0 [1 2]]"), (0, "ok", "cas", "[0 [1 2]]")]


def edn_of(rows: Rows) -> str:
    fields = "{{:process {}, :type :{}, :f :{}, :value {}}}\n"
    return "".join(fields.format(*row) for row in rows)


def written(directory: Path, text: str | bytes, name: str = "history.edn") -> Path:
    file = directory / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def judged(directory: Path, text: str, model: str | None = None, **options: Any) -> Any:
    source = HistorySource(written(directory, text), **options)
    return verify_history(source, model=model, engine="local").valid


@pytest.mark.parametrize(
    ("rows", "model"), [(TWO_KEYS, "register"), (TWO_KEYS + CAS_OF_A_KEY, "cas-register")]
)
def test_pairs_of_a_key_and_a_value_are_told_by_a_read_of_a_key(
    tmp_path: Path, rows: Rows, model: str
) -> None:
    assert judged(tmp_path, edn_of(rows), model) is True
    table = read_history(tmp_path / "history.edn").to_pylist()
    assert [micro["key"] for micro in table[0]["micro"]] == ["0"]
    assert [micro["value"] for micro in table[1]["micro"]] == [5]
    stale = [*rows, (0, "invoke", "read", "[1 nil]"), (0, "ok", "read", "[1 4]")]
    assert judged(tmp_path, edn_of(stale), model) is False


@pytest.mark.parametrize(
    "others",
    [
        [(2, "invoke", "read", "[0 nil]"), (2, "info", "read", ":timed-out")],
        [(2, "invoke", "write", "[0 7]"), (2, "fail", "write", "nil")],
        [(2, "invoke", "write", "[0 1]"), (2, "ok", "write", "nil")],
    ],
    ids=["info", "fail", "ok without a value"],
)
def test_only_what_clients_ask_and_are_answered_shows_the_form(
    tmp_path: Path, others: Rows
) -> None:
    assert judged(tmp_path, edn_of(TWO_KEYS + others), "register") is True
    table = read_history(tmp_path / "history.edn").to_pylist()
    assert {micro["key"] for row in table for micro in row["micro"]} == {"0", "1"}


def test_pairs_in_json_are_read_alike(tmp_path: Path) -> None:
    text = edn_of(TWO_KEYS)
    as_edn = read_history(written(tmp_path, text))
    rows = [
        {
            "process": process,
            "type": type_,
            "f": f,
            "value": json.loads(value.replace(" ", ",").replace("nil", "null")),
        }
        for process, type_, f, value in TWO_KEYS
    ]
    assert read_history(written(tmp_path, json.dumps(rows), "a.json")).equals(as_edn)


def test_a_register_of_pairs_is_no_register_of_keys(tmp_path: Path) -> None:
    rows: Rows = [
        (0, "invoke", "write", "[0 1]"),
        (0, "ok", "write", "[0 1]"),
        (0, "invoke", "write", "[1 5]"),
        (0, "ok", "write", "[1 5]"),
        (1, "invoke", "read", "nil"),
        (1, "ok", "read", "[0 1]"),
    ]
    assert judged(tmp_path, edn_of(rows), "register") is False
    rows[-1] = (1, "ok", "read", "[1 5]")
    assert judged(tmp_path, edn_of(rows), "register") is True
    assert [row["micro"][0]["key"] for row in read_history(tmp_path / "history.edn").to_pylist()]


def test_a_cas_alone_is_no_pair_of_a_key(tmp_path: Path) -> None:
    rows: Rows = [(0, "invoke", "cas", "[1 2]"), (0, "ok", "cas", "[1 2]")]
    (row,) = read_history(written(tmp_path, edn_of(rows))).to_pylist()
    assert [micro["value"] for micro in row["micro"]] == [1, 2]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (TWO_KEYS[:4], "no invocation has .key nil.*--pairs keys or --pairs values decides"),
        (
            [*TWO_KEYS, (2, "invoke", "read", "nil"), (2, "ok", "read", "[0 1]")],
            "5 rules out values, and 7, an invocation of nil, rules out keys",
        ),
        (
            [*TWO_KEYS, (2, "invoke", "write", "7"), (2, "ok", "write", "7")],
            "5 invokes .key nil.*rules out plain values; the value at 7 is no pair",
        ),
    ],
    ids=["no sign", "both signs", "a value that is no pair"],
)
def test_pairs_in_doubt_are_an_error_that_names_the_option(
    tmp_path: Path, rows: Rows, said: str
) -> None:
    with pytest.raises(HistoryError, match=rf"history.edn: .*{said}"):
        judged(tmp_path, edn_of(rows), "register")


def test_the_option_decides_about_pairs(tmp_path: Path) -> None:
    rows = TWO_KEYS[:4]
    text = edn_of(rows)
    for pairs, keys in (("keys", ["0", "1"]), ("values", ["", ""])):
        table = read_history(written(tmp_path, text), pairs=pairs).to_pylist()  # type: ignore[arg-type]
        assert [row["micro"][0]["key"] for row in table] == keys
        assert judged(tmp_path, text, "register", pairs=pairs) is True
    mixed = edn_of([*rows, (0, "invoke", "write", "7")])
    with pytest.raises(HistoryError, match="the value at 5 is no pair of a key and a value"):
        judged(tmp_path, mixed, "register", pairs="keys")


@pytest.mark.parametrize("tuple_", ["", "#jepsen.independent.Tuple "], ids=["pairs", "tuples"])
def test_transactions_of_two_keys_are_apart(tmp_path: Path, tuple_: str) -> None:
    """Both databases have an x: as one, its values would be in another order than the reads."""
    rows: Rows = []
    for process, (key, value) in enumerate([(0, 1), (1, 2)]):
        micros = f"[[:append :x {value}] [:r :x nil]]"
        rows.append((process, "invoke", "txn", f"{tuple_}[{key} {micros}]"))
        micros = f"[[:append :x {value}] [:r :x [{value}]]]"
        rows.append((process, "ok", "txn", f"{tuple_}[{key} {micros}]"))
    assert judged(tmp_path, edn_of(rows), "list-append") is True
    table = read_history(tmp_path / "history.edn").to_pylist()
    assert [row["micro"][0]["key"] for row in table] == ['[0, "x"]', '[1, "x"]']


def test_the_order_of_the_lines_is_the_order_though_times_go_back(tmp_path: Path) -> None:
    """Threads take the times of Jepsen before they take their turn in the history."""
    times = (99, 5, 100, 50)
    rows = zip(times, (*TWO_KEYS[:2], *TWO_KEYS[4:]), strict=True)
    text = "".join(
        f"{{:process {process} :type :{type_} :f :{f} :value {value} :time {time}}}\n"
        for time, (process, type_, f, value) in rows
    )
    assert judged(tmp_path, text, "register") is True
    table = read_history(tmp_path / "history.edn").to_pylist()
    assert [(row["invoked_ns"], row["completed_ns"]) for row in table] == [(99, 99), (100, 100)]


def test_the_times_of_a_kafka_history_may_go_back_and_lie_before_its_start(tmp_path: Path) -> None:
    rows = [
        ("invoke", "[[:send 3 10]]", -7),
        ("ok", "[[:send 3 [0 10]]]", 40),
        ("invoke", "[[:send 3 11]]", 39),
        ("ok", "[[:send 3 [1 11]]]", 41),
    ]
    text = "".join(
        f"{{:process 0 :type :{type_} :f :send :value {value} :time {time}}}\n"
        for type_, value, time in rows
    )
    table = read_history(written(tmp_path, text)).to_pylist()
    assert [(row["invoked_ns"], row["completed_ns"]) for row in table] == [(0, 40), (40, 41)]


def test_our_own_lines_keep_their_rule_about_times(tmp_path: Path) -> None:
    row = '{"index":%d,"time_ns":%d,"process":0,"type":"%s","f":"poll"}\n'
    text = row % (0, 5, "invoke") + row % (1, 4, "ok")
    with pytest.raises(HistoryError, match=r"jsonl:2: its time_ns, 4, is below"):
        read_history(written(tmp_path, text, "history.jsonl"))


@pytest.mark.parametrize("f", ["read", "send"])
def test_an_operation_may_lack_an_index_and_a_time(tmp_path: Path, f: str) -> None:
    """jepsen.history gives -1 to operations without an index, and nil is no time."""
    value = {"read": "nil", "send": "[[:send 3 10]]"}[f]
    bare = f":process 0 :f :{f} :value {value} :index -1 :time nil"
    text = f"{{{bare} :type :invoke}}\n{{{bare} :type :info}}\n"
    (row,) = read_history(written(tmp_path, text)).to_pylist()
    assert (row["invoked"], row["completed"]) == (0, 1)


@pytest.mark.parametrize("process", ["", '"process": null, '], ids=["none", "null"])
def test_operations_without_a_process_follow_each_other(tmp_path: Path, process: str) -> None:
    text = (
        f'[{{{process}"type": "invoke", "f": "read", "value": [["r", 0, null], ["r", 1, null]]}},\n'
        f' {{{process}"type": "ok", "f": "read", "value": [["r", 0, 1], ["r", 1, null]]}}]'
    )
    (row,) = read_history(written(tmp_path, text, "a.json")).to_pylist()
    assert (row["process"], row["f"], row["type"]) == (0, "txn", "ok")
    assert [(micro["f"], micro["key"]) for micro in row["micro"]] == [("r", "0"), ("r", "1")]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", [edn_of(TWO_KEYS), '[{"type": "ok"}]'], ids=["edn", "json"])
def test_utf_16_is_refused_in_words(tmp_path: Path, text: str, encoding: str) -> None:
    file = written(tmp_path, ("\ufeff" + text).encode(encoding))
    with pytest.raises(HistoryError, match="a text in UTF-16: convert it to UTF-8"):
        read_history(file)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["bare", "marked"])
def test_a_byte_order_mark_changes_nothing(tmp_path: Path, mark: bytes) -> None:
    file = written(tmp_path, mark + edn_of(TWO_KEYS).encode())
    assert read_history(file).num_rows == 3


def test_all_of_edn_may_be_in_a_history(tmp_path: Path) -> None:
    text = r"""; #{a history}
    (#:jepsen.op{:_/process 0, :_/type :invoke, :_/f :write, :_/value \newline, :note ##Inf}
     #jepsen.history.Op {:process 0 :type :ok :f :write :value \newline,
       :exception #error {:via [] :trace [[a.b$c invoke "C.java" 7]]}}
     #_ {:process 9}
     {:process 1 :type :invoke :f :my.ns/read :value nil :error [:ns/timeout #inst "2020-01-01"]}
     {:process :nemesis :type :info :f :start :value {:n1 #{:n2 "n3"} [1 2] nil}})"""
    rows = read_history(written(tmp_path, text)).to_pylist()
    assert [(row["process"], row["f"], row["type"]) for row in rows] == [
        (0, "write", "ok"),
        (1, "my.ns/read", "info"),
        (-1, "start", "info"),
    ]
    assert rows[0]["micro"][0]["text"] == '"\\n"'
    assert rows[1]["error"] == '["ns/timeout", "2020-01-01"]'
    assert json.loads(rows[2]["details"]) == {"n1": ["n2", "n3"], "[1, 2]": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"[\a \tab \formfeed \backspace \u0041 \o101 \( \,]", [*"a\t\f\bAA(,"]),
        ("[##Inf ##-Inf ##NaN]", ["##Inf", "##-Inf", "##NaN"]),
        ('#:a{:b 1 :c/d 2 :_/e 3 "f" 4}', {"a/b": 1, "c/d": 2, "e": 3, "f": 4}),
        ("[4/2 1/3 -0 +7 1e3 2.5M]", [2, "1/3", 0, 7, 1000.0, 2.5]),
    ],
)
def test_each_literal_of_edn_is_one_form(text: str, value: object) -> None:
    assert [form.value for form in read_forms(text)] == [value]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"\newlines", "cannot read"),
        ("##Foo", "cannot read"),
        ("#:a [1]", "cannot read"),
        ("9" * 5000, "an integer of 5000 digits"),
    ],
)
def test_a_literal_that_is_none_is_an_error(text: str, said: str) -> None:
    with pytest.raises(EdnError, match=said):
        read_forms(text)
