"""What is no history is an error that names the file and the line, before any check of it.

Each file here is one step from a history that is valid: without the error, some would be judged
valid, and others would accuse a cluster that did nothing wrong.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorumlog.chaos.history import HistoryError
from quorumlog.chaos.history.lines import LINE_BYTES_MAX
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.written_histories import (
    Change,
    Row,
    at,
    event,
    format_1,
    good_events,
    jepsen_events,
    rows_of_format_1,
    text_of,
)


def without(*places: int, renumber: bool = False) -> Change:
    """Take events out; `renumber`: so that the indexes do not show it."""

    def change(events: list[Row]) -> list[Row]:
        kept = [row for place, row in enumerate(events) if place not in places]
        return [row | {"index": n} for n, row in enumerate(kept)] if renumber else kept

    return change


def record(place: int, **fields: Any) -> Change:
    """Change fields of the first record of one event."""

    def change(events: list[Row]) -> list[Row]:
        events[place]["micro"][0] |= fields
        return events

    return change


def then(*rows: Row) -> Change:
    return lambda events: [*events, *rows]


def reversed_rows(events: list[Row]) -> list[Row]:
    return [row | {"time_ns": 5} for row in reversed(events)]


def nested(events: list[Row]) -> list[Row]:
    return [*events[:3], events[3] | {"details": "BRACKETS"}, *events[4:]]


class Wrong(NamedTuple):
    change: Change
    line: int  # that the error names
    reason: str  # a part of what it says


EVENTS: dict[str, Wrong] = {
    "a process that is neither a client nor the nemesis": Wrong(
        at(4, process=-2), 6, "process is -2"
    ),
    "a field that is not known": Wrong(
        lambda events: [*events[:4], events[4] | {"mesages": []}, *events[5:]],
        6,
        "mesages is no field",
    ),
    "a field of a record that is not known": Wrong(record(4, ofset=3), 6, "ofset is no field"),
    "the messages of format 1": Wrong(at(4, messages=[]), 6, "messages is no field"),
    "an operation that began before the process's last one ended": Wrong(
        without(1, renumber=True), 4, "an invocation while its process's last operation was open"
    ),
    "a process that began before it ended, by time": Wrong(
        at(3, time_ns=500), 5, "its time_ns, 500, is below the previous event's"
    ),
    "time that goes back": Wrong(at(5, time_ns=0), 7, "is below the previous event's"),
    "a time below zero": Wrong(at(0, time_ns=-5), 2, "its time_ns is -5"),
    "an offset that was acknowledged below -1": Wrong(
        record(1, offset=-7), 3, "an offset below -1"
    ),
    "an index twice": Wrong(at(4, index=3), 6, "its index is 3, not the next one"),
    "an index left out": Wrong(at(10, index=11), 12, "its index is 11, not the next one"),
    "an index that does not begin at 0": Wrong(
        lambda events: [row | {"index": row["index"] + 1} for row in events], 2, "its index is 1"
    ),
    "an event twice": Wrong(
        lambda events: [*events[:5], events[4], *events[5:]], 7, "its index is 4"
    ),
    "both events of a send are missing": Wrong(
        without(0, 1), 2, "its index is 2, not the next one"
    ),
    "both events of a poll are missing": Wrong(
        without(2, 4), 4, "its index is 3, not the next one"
    ),
    "a send without its invocation": Wrong(
        without(0, renumber=True), 2, "a completion without an invocation"
    ),
    "a completion of nothing": Wrong(
        then(event(11, 3, "ok", "poll")), 13, "a completion without an invocation"
    ),
    "a completion of another f": Wrong(
        at(1, f="poll"), 3, "a completion of another f than its invocation"
    ),
    "a completion that names another value": Wrong(
        record(1, value=99), 3, "names other messages than its invocation"
    ),
    "a completion that names another key": Wrong(
        record(1, key="y-0"), 3, "names other messages than its invocation"
    ),
    "a completion that names less": Wrong(
        lambda events: [event(0, 0, "invoke", "send", (-1, 10), (-1, 12)), *events[1:]],
        3,
        "names other messages than its invocation",
    ),
    "rows in reverse order": Wrong(reversed_rows, 2, "its index is 10, not the next one"),
    "a type that is not known": Wrong(at(1, type="okay"), 3, "type is 'okay'"),
    "an invocation by the nemesis": Wrong(at(6, type="invoke"), 8, "the nemesis's events are info"),
    "a time that is a text": Wrong(at(4, time_ns="4000"), 6, "time_ns is not an integer: '4000'"),
    "a time that is not whole": Wrong(at(4, time_ns=4.5), 6, "time_ns is not an integer: '4.5'"),
    "a process that is true": Wrong(at(4, process=True), 6, "process is not an integer: 'True'"),
    "an f that is a number": Wrong(at(4, f=7), 6, "f is not a string: 7"),
    "an offset that is not whole": Wrong(
        record(1, offset=0.7), 3, "offset is not an integer: '0.7'"
    ),
    "an offset that is null": Wrong(record(1, offset=None), 3, "offset is not an integer: 'None'"),
    "a value that is a text": Wrong(record(1, value="10"), 3, "value is not an integer: '10'"),
    "a value that is null": Wrong(record(1, value=None), 3, "value is not an integer: 'None'"),
    "a value of 64 bits and one": Wrong(
        record(1, value=1 << 63), 3, "value is beyond 64 bits: 92233"
    ),
    "a value of a hundred digits": Wrong(
        record(1, value=10**100), 3, "value is beyond 64 bits: 1000"
    ),
    "a time of 64 bits and one": Wrong(at(10, time_ns=1 << 63), 12, "time_ns is beyond 64 bits"),
    "records that are a number": Wrong(at(4, micro=7), 6, "micro is not a list: 7"),
    "a record that is a list": Wrong(at(4, micro=[[0, 10]]), 6, "not a message with key, offset"),
    "an event that is missing a field": Wrong(
        lambda events: [*events[:4], {"index": 4}, *events[5:]], 6, "time_ns is missing"
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_that_is_none_is_named(name: str, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    check_refusal(file, EVENTS[name], text_of, good_events())


def check_refusal(
    file: Path, wrong: Wrong, written: Callable[[list[Row]], str], events: list[Row]
) -> None:
    file.write_text(written(events))
    assert verify_history(file, engine="local").valid is True
    file.write_text(written(wrong.change(events)))
    with pytest.raises(HistoryError) as raised:
        verify_history(file, engine="local")
    assert str(raised.value).startswith(f"{file}:{wrong.line}: "), raised.value
    assert wrong.reason in str(raised.value)


def line_3(text: bytes) -> Callable[[bytes], bytes]:
    def change(whole: bytes) -> bytes:
        lines = whole.splitlines(keepends=True)
        return b"".join([*lines[:2], text + b"\n", *lines[3:]])

    return change


END = b'{"end": {"events": 11}}\n'
TEXTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    # name: (the change, what the error says after the name of the file)
    "a line that is no JSON": (line_3(b'{"index": 1,'), ":3: "),
    "a line of NUL bytes": (line_3(b"\0" * 90), ":3: "),
    "brackets within brackets": (
        line_3(b'{"index":1,"details":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ":3: too many brackets within brackets",
    ),
    "a line of more than 16 MB": (
        line_3(b'{"index":1,"details":"' + b"x" * LINE_BYTES_MAX + b'"}'),
        ":3: a line of 167",
    ),
    "a field twice": (
        lambda whole: whole.replace(b'"process": 1,', b'"process": 1, "process": 2,'),
        ":4: a field is there twice",
    ),
    "a file doubled": (lambda whole: whole * 2, ":13: end is no field"),
    "something after the end row": (
        lambda whole: whole + b'{"index": 11, "ti',
        ": something follows its end row",
    ),
    "an event after the end row": (
        lambda whole: whole + json.dumps(event(11, 0, "invoke", "poll")).encode() + b"\n",
        ":13: end is no field",
    ),
    "an end row that counts more": (
        lambda whole: whole.replace(END, b'{"end": {"events": 12}}\n'),
        ": it holds 11 events, but its end row counts 12",
    ),
    "an end row that counts nothing": (
        lambda whole: whole.replace(END, b'{"end": {}}\n'),
        ": its last line is no end row",
    ),
    "a format to come": (
        lambda whole: whole.replace(b'"quorumlog_history": 2', b'"quorumlog_history": 3'),
        ":1: its format is 3; this version reads 1 and 2",
    ),
    "a header that was taken away": (
        lambda whole: whole.partition(b"\n")[2],
        ":1: micro is no field",
    ),
    "UTF-16": (lambda whole: whole.decode().encode("utf-16"), ":1: a text in UTF-16"),
    "a compressed file": (lambda whole: b"\x1f\x8b\x08" + whole, ":1: "),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_history_is_named(name: str, tmp_path: Path) -> None:
    change, said = TEXTS[name]
    file = tmp_path / "history.jsonl"
    file.write_bytes(change(text_of(good_events()).encode()))
    with pytest.raises(HistoryError) as raised:
        verify_history(file, engine="local")
    assert str(raised.value).startswith(f"{file}{said}"), raised.value


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        (record(1, value=12), 2, "names other messages than its invocation"),
        (without(1), 2, "its index is 2, not the next one"),
        (at(2, time_ns=9), 3, "is below the previous event's"),
    ],
)
def test_files_of_format_1_are_checked_as_strictly(
    change: Change, place: int, reason: str, tmp_path: Path
) -> None:
    lines, parquet = tmp_path / "history.jsonl", tmp_path / "h.parquet"
    lines.write_text(format_1(good_events()))
    pq.write_table(pa.Table.from_pylist(rows_of_format_1(good_events())), parquet)
    assert verify_history(lines, engine="local").valid is True
    assert verify_history(parquet, engine="local").valid is True
    events = change(good_events())
    lines.write_text(format_1(events))
    with pytest.raises(HistoryError, match=rf"history\.jsonl:{place}: .*{reason}"):
        verify_history(lines, engine="local")
    pq.write_table(pa.Table.from_pylist(rows_of_format_1(events)), parquet)
    with pytest.raises(HistoryError, match=rf"h\.parquet: not a history: row {place}: .*{reason}"):
        verify_history(parquet, engine="local")


def test_an_f_or_a_value_that_the_model_does_not_know_is_an_error(tmp_path: Path) -> None:
    events = [row | {"f": row["f"].replace("poll", "polll")} for row in good_events()]
    (tmp_path / "history.jsonl").write_text(text_of(events))
    with pytest.raises(HistoryError, match="event 2: f = 'polll' is no operation of the model"):
        verify_history(tmp_path, engine="local")
    events = good_events()
    events[4]["micro"][0] |= {"value": 0, "text": '"ten"'}
    (tmp_path / "history.jsonl").write_text(text_of(events))
    with pytest.raises(HistoryError, match="a value is no integer"):
        verify_history(tmp_path, engine="local")


def test_whatever_a_file_is_cut_to_it_is_never_valid(tmp_path: Path) -> None:
    whole = text_of(good_events()).encode()
    file, lengths = tmp_path / "history.jsonl", []
    borders = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    cuts = {*range(0, len(whole), 61), *borders, *(border + 1 for border in borders[:-1])}
    for length in sorted(cuts):
        file.write_bytes(whole[:length])
        try:
            valid = verify_history(file, engine="local").valid
        except HistoryError:
            continue
        lengths.append(length)
        assert valid == "unknown" or length == len(whole) - 1, length
    assert len(lengths) > len(cuts) * 0.9  # a crash leaves something to look at


def test_a_history_that_was_cut_between_two_lines_says_so(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(text_of(good_events(), end=False))
    verdict = verify_history(file, engine="local")
    assert verdict.valid == "unknown"
    assert verdict.unknown_because == ["the history has no end row: it is unfinished"]


@pytest.mark.parametrize("text", ["", "\n\n", text_of([]), format_1(good_events()[6:7])[:-1]])
def test_no_operations_are_never_valid(text: str, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(text.replace('"index": 6', '"index": 0'))
    verdict = verify_history(file, engine="local")
    assert (verdict.valid, verdict.operations) == ("unknown", 0)


def test_lines_may_end_as_on_windows_begin_with_a_mark_and_lie_apart(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    text = text_of(good_events())
    for changed in (
        text.replace("\n", "\r\n"),
        "\ufeff" + format_1(good_events()),
        text.replace("\n", "\n\n"),
        text.rstrip("\n"),
        text.replace('"micro": []', '"micro": null'),
    ):
        file.write_text(changed, newline="")
        assert verify_history(file, engine="local").valid is True, changed[:80]


def test_the_history_of_the_docs_is_valid(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[2] / "docs/verification-history.md").read_text()
    start = docs.index('{"quorumlog_history"')
    file = tmp_path / "history.jsonl"
    file.write_text(docs[start : docs.index("```", start)])
    verdict = verify_history(file, engine="local")
    assert (verdict.valid, verdict.operations) == (True, 5)


# --- operations of Jepsen's Kafka workload: no coercion ---

JEPSEN: dict[str, Wrong] = {
    "a process that is a text": Wrong(at(4, process="1"), 5, "process '1' is neither"),
    "a process below 0": Wrong(at(4, process=-2), 5, "process -2 is neither"),
    "an index twice": Wrong(at(3, index=2), 4, "its index is 2, not the next one"),
    "rows in reverse order": Wrong(lambda rows: rows[::-1], 1, "its index is 5, not the next one"),
    "an offset that is not whole": Wrong(
        at(1, value=[["send", 3, [0.7, 10]]]), 2, "offset '0.7' is not an integer"
    ),
    "an offset beyond 64 bits": Wrong(
        at(1, value=[["send", 3, [1 << 70, 10]]]), 2, "is not an integer of 64 bits"
    ),
    "a value that is a text": Wrong(
        at(1, value=[["send", 3, [0, "10"]]]), 2, "value '10' is not an integer"
    ),
    "an f that is mistyped": Wrong(  # so it is not the Kafka workload, and its sends are no sends
        lambda rows: [row | {"f": "polll"} if row["f"] == "poll" else row for row in rows],
        2,
        "names other messages than its invocation",
    ),
    "an ok poll of null": Wrong(at(5, value=None), 6, "an ok poll without a value"),
    "an ok send of null": Wrong(at(1, value=None), 2, "an ok send without a value"),
    "a poll that sends": Wrong(at(5, value=[["send", 3, 1]]), 6, "a poll that holds send"),
    "a micro-operation that is not known": Wrong(at(5, value=[["pol"]]), 6, "pol"),
    "a value that is a number": Wrong(at(5, value=7), 6, "is not a list"),
    "no process": Wrong(
        lambda rows: [*rows[:5], {n: rows[5][n] for n in rows[5] if n != "process"}], 6, "process"
    ),
}


@pytest.mark.parametrize("name", JEPSEN)
def test_a_jepsen_operation_that_is_none_is_named(name: str, tmp_path: Path) -> None:
    def written(rows: list[Row]) -> str:
        return "".join(json.dumps(row) + "\n" for row in rows)

    check_refusal(tmp_path / "jepsen.json", JEPSEN[name], written, jepsen_events())
