"""The formats in which `consume` prints a record: kcat's tokens and JSON."""

import json

import pytest

from quorumlog.cli import formats
from quorumlog.client import ConsumerRecord


def record(key: bytes | None = b"k", value: bytes | None = b"v") -> ConsumerRecord:
    return ConsumerRecord(
        topic="t",
        partition=3,
        offset=42,
        timestamp_ms=1_700_000_000_000,
        key=key,
        value=value,
        headers=(("h", b"1"), ("n", None)),
        leader_epoch=0,
    )


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (r"%t %p %o %T\n", b"t 3 42 1700000000000\n"),
        (r"%k\t%s", b"k\tv"),
        ("%K %S", b"1 1"),
        ("%h", b"h=1,n="),
        ("100%%", b"100%"),
        ("\u00fc\\\\", "\u00fc\\".encode()),
        ("", b""),
    ],
)
def test_a_format_has_kcats_tokens(text: str, printed: bytes) -> None:
    assert formats.parse(text)(record()) == printed


@pytest.mark.parametrize("text", ["%", "%z", "\\", "\\q", "%s%"])
def test_a_token_that_is_not_there_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="; use "):
        formats.parse(text)


def test_what_is_null_is_empty_and_has_the_length_minus_one() -> None:
    nothing = record(key=None, value=None)
    assert formats.parse("%k|%s|%K|%S")(nothing) == b"||-1|-1"
    assert formats.line(":")(nothing) == b":\n"
    assert formats.line(None)(nothing) == b"\n"
    assert formats.line(":")(record()) == b"k:v\n"


def test_json_is_one_line_and_keeps_bytes_that_are_no_text() -> None:
    line = formats.json_line(record(key=None, value=b"\xff\n"))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "t",
        "partition": 3,
        "offset": 42,
        "timestamp_ms": 1_700_000_000_000,
        "key": None,
        "value": {"base64": "/wo="},
        "headers": [["h", "1"], ["n", None]],
    }
