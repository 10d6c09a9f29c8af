"""Histories as the text of a file: tests can also write invalid ones."""

import json
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
Change = Callable[[list[Row]], list[Row]]
HEADER: Row = {"quorumlog_history": 2}


def event(
    index: int, process: int, type_: str, f: str, *records: Sequence[int], **more: Any
) -> Row:
    """Return one event of format 2; `records` are (offset, value) of the key x-0."""
    micro = [{"key": "x-0", "offset": offset, "value": value} for offset, value in records]
    row = {"index": index, "time_ns": 1000 * index, "process": process, "type": type_, "f": f}
    return row | {"micro": micro} | more


def good_events() -> list[Row]:
    """Return a history that is valid: two sends, a poll, and final reads of all."""
    return [
        event(0, 0, "invoke", "send", (-1, 10)),
        event(1, 0, "ok", "send", (0, 10)),
        event(2, 1, "invoke", "poll"),
        event(3, 0, "invoke", "send", (-1, 11)),
        event(4, 1, "ok", "poll", (0, 10)),
        event(5, 0, "ok", "send", (1, 11)),
        event(6, -1, "info", "kill", node="1"),
        event(7, 9, "invoke", "final_poll"),
        event(8, 9, "ok", "final_poll", (0, 10), (1, 11)),
        event(9, 9, "invoke", "final_end"),
        event(10, 9, "ok", "final_end", (2, 0)),
    ]


def text_of(events: Sequence[Row], *, end: bool = True) -> str:
    """Return the text of a file of format 2."""
    rows = [HEADER, *events, *([{"end": {"events": len(events)}}] if end else [])]
    return "".join(json.dumps(row) + "\n" for row in rows)


def format_1(events: Sequence[Row]) -> str:
    """Return the same events as a file of format 1."""
    return "".join(json.dumps(row) + "\n" for row in rows_of_format_1(events))


def rows_of_format_1(events: Sequence[Row]) -> list[Row]:
    """Return the same events with all columns that a Parquet file of format 1 has."""
    texts = {"error": "", "node": "", "details": ""}
    named = [{"messages" if name == "micro" else name: row[name] for name in row} for row in events]
    return [texts | row for row in named]


def jepsen_events() -> list[Row]:
    """Return operations of Jepsen's Kafka workload: two sends and a poll of both."""
    values: list[tuple[int, str, str, Any]] = [
        (0, "invoke", "send", [["send", 3, 10]]),
        (0, "ok", "send", [["send", 3, [0, 10]]]),
        (0, "invoke", "send", [["send", 3, 11]]),
        (0, "ok", "send", [["send", 3, [1, 11]]]),
        (1, "invoke", "poll", [["poll"]]),
        (1, "ok", "poll", [["poll", {"3": [[0, 10], [1, 11]]}]]),
    ]
    return [
        {"index": n, "time": n, "process": process, "type": type_, "f": f, "value": value}
        for n, (process, type_, f, value) in enumerate(values)
    ]


def at(place: int, **fields: Any) -> Change:
    """Change fields of one event."""

    def change(events: list[Row]) -> list[Row]:
        events[place] |= fields
        return events

    return change
