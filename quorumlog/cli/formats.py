"""Formats in which `consume` prints a record: kcat's tokens, or JSON."""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

from quorumlog.client import ConsumerRecord

Print = Callable[[ConsumerRecord], bytes]


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


def _length(field: bytes | None) -> bytes:
    return b"%d" % (-1 if field is None else len(field))


_TOKENS: Final[Mapping[str, Print]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "k": lambda record: record.key or b"",
    "s": lambda record: record.value or b"",
    "K": lambda record: _length(record.key),
    "S": lambda record: _length(record.value),
    "h": _headers,
    "%": lambda _: b"%",
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def parse(text: str) -> Print:
    r"""Return the formatter of records for kcat's -f format.

    %t topic, %p partition, %o offset, %T timestamp in ms, %k key, %s value, %K and %S their lengths
    (-1: null), %h headers (`name=value,...`), %% a percent sign; and \n \t \r \0 \\. Raises
    ValueError, with the token.
    """
    pieces: list[Print] = []
    rest = iter(text)
    for character in rest:
        if character == "%":
            token = next(rest, "")
            if token not in _TOKENS:
                raise ValueError(
                    f"%{token} is no token; use {' '.join(f'%{name}' for name in _TOKENS)}"
                )
            pieces.append(_TOKENS[token])
        elif character == "\\":
            escape = next(rest, "")
            if escape not in _ESCAPES:
                raise ValueError(f"\\{escape} is no escape; use \\n \\t \\r \\0 \\\\")
            pieces.append(_constant(_ESCAPES[escape]))
        else:
            pieces.append(_constant(character))
    return lambda record: b"".join(piece(record) for piece in pieces)


def _constant(text: str) -> Print:
    encoded = text.encode()
    return lambda _: encoded


def line(key_separator: str | None) -> Print:
    """Return the formatter of the value, with `separator` behind the key and the separator."""
    if key_separator is None:
        return lambda record: (record.value or b"") + b"\n"
    separator = key_separator.encode()
    return lambda record: (record.key or b"") + separator + (record.value or b"") + b"\n"


def json_line(record: ConsumerRecord) -> bytes:
    """Return a record as one line of JSON; bytes that are not UTF-8 are {"base64": "..."}."""
    described: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": text_or_base64(record.key),
        "value": text_or_base64(record.value),
        "headers": [[name, text_or_base64(value)] for name, value in record.headers],
    }
    return json.dumps(described).encode() + b"\n"


def text_or_base64(field: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as JSON: text, or {"base64": "..."} if they are not UTF-8."""
    if field is None:
        return None
    try:
        return field.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(field).decode()}
