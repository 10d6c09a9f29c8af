"""What is no operation of Jepsen's Kafka workload is an error that names the line: no coercion."""

import json
from pathlib import Path

import pytest

from quorumlog.chaos.history import HistoryError
from quorumlog.chaos.verify import verify_history
from tests.support.chaos.written_histories import Change, at, jepsen_events

JEPSEN: dict[str, tuple[Change, int, str]] = {
    "a process that is a text": (at(4, process="1"), 5, "process '1' is neither"),
    "a process below 0": (at(4, process=-2), 5, "process -2 is neither"),
    "an index twice": (at(3, index=2), 4, "its index is 2, not the next one"),
    "rows in reverse order": (lambda rows: rows[::-1], 1, "its index is 5, not the next one"),
    "an offset that is not whole": (
        at(1, value=[["send", 3, [0.7, 10]]]),
        2,
        "offset '0.7' is not an integer",
    ),
    "an offset beyond 64 bits": (
        at(1, value=[["send", 3, [1 << 70, 10]]]),
        2,
        "is not an integer of 64 bits",
    ),
    "a value that is a text": (
        at(1, value=[["send", 3, [0, "10"]]]),
        2,
        "value '10' is not an integer",
    ),
    "an f that is mistyped": (  # so it is not the Kafka workload, and its sends are no sends
        lambda rows: [row | {"f": "polll"} if row["f"] == "poll" else row for row in rows],
        2,
        "names other messages than its invocation",
    ),
    "an ok poll of null": (at(5, value=None), 6, "an ok poll without a value"),
    "an ok send of null": (at(1, value=None), 2, "an ok send without a value"),
    "a poll that sends": (at(5, value=[["send", 3, 1]]), 6, "a poll that holds send"),
    "a micro-operation that is not known": (at(5, value=[["pol"]]), 6, "pol"),
    "a value that is a number": (at(5, value=7), 6, "is not a list"),
    "time that goes back": (at(5, time=0), 6, "is below the previous event's"),
    "no process": (
        lambda rows: [*rows[:5], {n: rows[5][n] for n in rows[5] if n != "process"}],
        6,
        "process",
    ),
}


@pytest.mark.parametrize("name", JEPSEN)
def test_a_jepsen_operation_that_is_none_is_named(name: str, tmp_path: Path) -> None:
    change, line, reason = JEPSEN[name]
    file = tmp_path / "jepsen.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in jepsen_events()))
    assert verify_history(file, engine="local").valid is True
    file.write_text("".join(json.dumps(row) + "\n" for row in change(jepsen_events())))
    with pytest.raises(HistoryError) as raised:
        verify_history(file, engine="local")
    assert str(raised.value).startswith(f"{file}:{line}: "), raised.value
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[" * 100_000, "too many brackets within brackets"),
        (b'[{"index": 0', "Expecting"),
        (b"[7]", ":1: not a Jepsen operation: '7' is not an operation"),
    ],
)
def test_a_jepsen_array_that_is_none_is_an_error(text: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "jepsen.json"
    file.write_bytes(text)
    with pytest.raises(HistoryError, match=r"jepsen\.json") as raised:
        verify_history(file, engine="local")
    assert said in str(raised.value)
