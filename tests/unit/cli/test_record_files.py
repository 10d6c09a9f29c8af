"""Lines of `dump`, which `load` reads back: exactly, or not at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.cli.formats import json_line
from quorumlog.cli.record_files import Line, parse_line
from quorumlog.client import ConsumerRecord

BYTES = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=4).map(tuple)
RECORD = {"topic": "t", "partition": 0, "timestamp_ms": 1}


@given(key=BYTES, value=BYTES, headers=HEADERS, timestamp_ms=st.integers(0, 2**53))
def test_a_record_comes_back_as_it_was(
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    timestamp_ms: int,
) -> None:
    record = ConsumerRecord(
        topic="orders",
        partition=3,
        offset=7,
        timestamp_ms=timestamp_ms,
        timestamp_type=0,
        key=key,
        value=value,
        headers=headers,
        leader_epoch=1,
    )
    line = json_line(record)
    assert line.count(b"\n") == 1
    assert parse_line(line) == Line("orders", 3, timestamp_ms, key, value, headers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no JSON"),
        ("[]", "a record is a JSON object"),
        (json.dumps({**RECORD, "valu": 1}), "a record has no field 'valu'"),
        (json.dumps({**RECORD, "topic": ""}), "topic: a name"),
        (json.dumps({**RECORD, "partition": -1}), "partition: a whole number, 0 or above"),
        (json.dumps({**RECORD, "timestamp_ms": 1.5}), "timestamp_ms: a whole number"),
        (json.dumps({**RECORD, "partition": True}), "partition: a whole number"),
        (json.dumps({**RECORD, "key": 5}), "key: text, null or"),
        (json.dumps({**RECORD, "value": {"base64": "%"}}), "value: this is no base64"),
        (json.dumps({**RECORD, "value": {"base64": "", "x": 1}}), "value: text, null or"),
        (json.dumps({**RECORD, "value": "\ud800"}), "surrogates not allowed"),
        (json.dumps({**RECORD, "headers": {"a": "b"}}), "headers: a list of"),
        (json.dumps({**RECORD, "headers": [["a"]]}), "headers: a list of"),
        (json.dumps({**RECORD, "headers": [["a", 5]]}), "header a: text, null or"),
    ],
)
def test_a_line_that_is_no_record(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse_line(text.encode())
    assert message in str(error.value)
