"""Writes a history as Jepsen writes them, for other checkers: EDN, or JSON lines.

One row per event. Of a Kafka history, a `final_poll` becomes a `poll`; a `final_end` and a `seek`
are left out, because Jepsen's workload has none. An `f` outside Jepsen's workload is unchanged.
`foreign` reads this output. Source: jepsen.history, jepsen.tests.kafka.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import pyarrow as pa

from quorumlog.chaos.history.edn import Keyword, write_form
from quorumlog.chaos.history.model import INVOKE, NEMESIS, UNKNOWN_OFFSET

Format = Literal["edn", "jsonl"]

_POLLS: Final = ("poll", "final_poll")
_KEY_LISTS: Final = ("assign", "subscribe")
_LEFT_OUT: Final = ("final_end", "seek")
_KEYWORDS: Final = ("type", "f")


def exported(table: pa.Table, format_: Format) -> Iterator[str]:
    """Yield the lines of a table of schema.OPERATIONS, in the order of its events."""
    for index, row in enumerate(_rows(table)):
        said = {"index": index, **row}
        yield json.dumps(said) if format_ == "jsonl" else write_form(_as_edn(said))


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    events: list[tuple[int, dict[str, Any]]] = []
    for one in table.to_pylist():
        if one["f"] in _LEFT_OUT and one["process"] != NEMESIS:
            continue
        events.append((one["invoked"], _event(one, INVOKE, one["invoked_ns"])))
        if one["completed"] >= 0 and one["process"] != NEMESIS:
            events.append((one["completed"], _event(one, one["type"], one["completed_ns"])))
    return (row for _, row in sorted(events, key=lambda event: event[0]))


def _event(one: Mapping[str, Any], type_: str, time_ns: int) -> dict[str, Any]:
    is_nemesis = one["process"] == NEMESIS
    f = "poll" if one["f"] in _POLLS else one["f"]
    row: dict[str, Any] = {
        "time": time_ns,
        "process": "nemesis" if is_nemesis else one["process"],
        "type": "info" if is_nemesis else type_,
        "f": f,
        "value": one["node"] or None if is_nemesis else _value(one, told=type_ == "ok"),
    }
    keys = {micro["key"] for micro in one["micro"]}
    if f not in ("send", "poll", "txn", *_KEY_LISTS) and len(keys) == 1 and keys != {""}:
        row["key"] = keys.pop()
    if one["error"] and type_ in ("info", "fail"):
        row["error"] = one["error"]
    return row


def _value(one: Mapping[str, Any], *, told: bool) -> Any:
    f, micro = one["f"], one["micro"]
    if f in _POLLS:
        return [["poll", _polled(micro)]] if told else [["poll"]]
    if f == "send":
        return [["send", each["key"], _sent(each, one, told=told)] for each in micro]
    if f in _KEY_LISTS:
        return [each["key"] for each in micro]
    if f == "txn":
        return [_of_transaction(each, one, told=told) for each in micro]
    values = [_plain(each) for each in micro]
    if f == "cas":
        return values
    is_read = f in ("read", "get") and not told
    return None if is_read or not values else values[0]


def _of_transaction(each: Mapping[str, Any], one: Mapping[str, Any], *, told: bool) -> list[Any]:
    match each["f"]:
        case "poll":
            return ["poll", _polled([each])] if told else ["poll"]
        case "send":
            return ["send", each["key"], _sent(each, one, told=told)]
        case "r" if not told:
            return ["r", each["key"], None]
        case f:
            return [f, each["key"], _plain(each)]


def _sent(each: Mapping[str, Any], one: Mapping[str, Any], *, told: bool) -> Any:
    offset = None if each["offset"] == UNKNOWN_OFFSET else each["offset"]
    acknowledged = told or (one["type"] == "info" and offset is not None and one["completed"] >= 0)
    return [offset, _plain(each)] if acknowledged else _plain(each)


def _polled(micro: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    polled: dict[str, list[list[Any]]] = {}
    for each in micro:
        polled.setdefault(each["key"], []).append([each["offset"], _plain(each)])
    return polled


def _plain(micro: Mapping[str, Any]) -> Any:
    return json.loads(micro["text"]) if micro["text"] else micro["value"]


def _as_edn(row: dict[str, Any]) -> dict[Any, Any]:
    said = dict(row)
    for name in _KEYWORDS:
        said[name] = Keyword(said[name])
    if said["process"] == "nemesis":
        said["process"] = Keyword("nemesis")
    if said["f"] in ("send", "poll", "txn"):
        said["value"] = [[Keyword(one[0]), *one[1:]] for one in said["value"] or []]
    return {Keyword(name): value for name, value in said.items()}
