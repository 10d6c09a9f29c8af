"""Reads Jepsen's Kafka-workload operations, as JSON (one per line, or one array), into our table.

`value` is a list of micro-operations: ["send", k, v], ["send", k, [offset, v]], ["poll"],
["poll", {k: [[offset, v], ...]}]; of an assign or a subscribe, the list of keys. A definite
transaction that only sends is a send, one that only polls a poll: cycles through those are legal in
Kafka. Others keep f = "txn". Jepsen marks no final reads: schema.FINAL_READS. Values are never
coerced: anything outside this workload is an error. Source: jepsen.tests.kafka, the docstring of
the namespace.
"""

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from quorumlog.chaos.history.event_columns import EventColumns
from quorumlog.chaos.history.lines import END, HEADER, LINE_BYTES_MAX
from quorumlog.chaos.history.model import (
    IN_TXN,
    INVOKE,
    NEMESIS,
    REBALANCED,
    TYPES,
    UNKNOWN_OFFSET,
    HistoryError,
)
from quorumlog.chaos.history.operations_table import EventError, operations_of
from quorumlog.chaos.history.schema import facts_of

_KEY_LISTS: Final = ("assign", "subscribe")
_MICRO_LISTS: Final = ("send", "poll", "txn")
_OTHERS: Final = ("crash", "debug-topic-partitions")
_OURS: Final = (HEADER, END, "time_ns", "messages", "micro")  # fields of our lines alone
_TXN: Final = "txn"
_ORDER: Final = frozenset({"index", "time"})
NO_INDEX: Final = -1  # of jepsen.history's operations that have none
INT64: Final = range(-(1 << 63), 1 << 63)


def looks_like_jepsen(file: Path) -> bool:
    """Return whether the first operation is Jepsen's JSON, not our JSON lines. Raises OSError."""
    return why_not_jepsen(file) is None


def why_not_jepsen(file: Path) -> str | None:
    """Return why the first line is not Jepsen's JSON, or None.

    An operation of Jepsen's has a type, and an f or a value; `time` and `index` may be absent, as
    in elle-cli. Raises OSError.
    """
    line = _first_line(file)
    if line.startswith(b"["):
        return None
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return "its first line is no JSON"
    if not isinstance(first, dict):
        return "its first line is neither an object nor the beginning of an array"
    ours = [name for name in _OURS if name in first]
    if ours:
        return f"its first line has {ours[0]}, as only quorumlog's own lines have"
    if "type" not in first:
        return "its first line has no type"
    return None if {"f", "value"} & first.keys() else "its first line has neither f nor value"


def is_ours(file: Path) -> bool:
    """Return whether the first line has a field that only our JSON lines have. Raises OSError."""
    try:
        first = json.loads(_first_line(file))
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and any(name in first for name in _OURS)


def _first_line(file: Path) -> bytes:
    """Return the first line that is not blank, without a byte order mark."""
    with file.open("rb") as opened:
        line = opened.readline(LINE_BYTES_MAX).removeprefix(BOM_UTF8)
        while line and not line.strip():
            line = opened.readline(LINE_BYTES_MAX)
    return line.strip()


def table_of_rows(file: str, rows: Sequence[tuple[int, Any]]) -> pa.Table:
    """Return the operations of rows, each with its line, or its place in the file.

    Raises HistoryError with the file and the place.
    """
    stated = {
        name
        for _, row in rows
        if isinstance(row, dict)
        for name in _ORDER
        if row.get(name) is not None and (name, row[name]) != ("index", NO_INDEX)
    }
    events = _Events(has_index="index" in stated, has_time="time" in stated)
    for place, row in rows:
        try:
            events.add(row)
        except KeyError as error:
            reason = f"it has no {error.args[0]}"
            raise HistoryError(f"{file}:{place}: not a Jepsen operation: {reason}") from error
        except (TypeError, ValueError) as error:
            raise HistoryError(f"{file}:{place}: not a Jepsen operation: {error}") from error
    try:
        return operations_of(events.columns.table(), facts_of(final_reads="unmarked"))
    except EventError as error:
        raise HistoryError(f"{file}:{rows[error.place][0]}: {error.reason}") from error
    except HistoryError as error:
        raise HistoryError(f"{file}: {error}") from error


def rows_of_json(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield each operation with its line, or with its place from 1 in an array."""
    text = file.read_bytes().removeprefix(BOM_UTF8)
    if text.lstrip().startswith(b"["):
        yield from enumerate(_parsed(text, str(file)), start=1)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, _parsed(line, f"{file}:{number}")


def _parsed(text: bytes, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise HistoryError(f"{name}: {error}") from error
    except RecursionError as error:
        raise HistoryError(f"{name}: too many brackets within brackets") from error


class _Events:
    """Adds rows to columns; without an index or a time, as in elle-cli, their order counts.

    A definite transaction of one kind of micro-operations becomes a send or a poll; its invocation
    gets the same f.
    """

    def __init__(self, *, has_index: bool, has_time: bool) -> None:
        self.columns: Final = EventColumns()
        self._has_index, self._has_time = has_index, has_time
        self._invoked: dict[int, int] = {}  # process -> place of its open transaction of one kind

    def add(self, row: Any) -> None:
        """Add one event. Raises KeyError, TypeError, ValueError."""
        if not isinstance(row, dict):
            raise TypeError(f"{str(row)[:80]!r} is not an object")
        process, f, type_, value = _process(row["process"]), row["f"], row["type"], row.get("value")
        if type_ not in TYPES:
            raise ValueError(f"type {type_!r}")
        details = REBALANCED if row.get("rebalance-log") else ""
        if process == NEMESIS:
            details = "" if value is None else json.dumps(value)
        elif f in _KEY_LISTS:
            for key in [] if value is None else list_of(value):
                self.columns.add_record(f, str(key), UNKNOWN_OFFSET, 0)
        elif f in _MICRO_LISTS:
            if value is None and type_ == "ok":
                raise ValueError(f"an ok {f} without a value")
            kinds = self._add_micro(f, value)
            if f == _TXN and len(kinds) == 1:
                f, details = self._kind_of(process, type_, kinds.pop())
        elif f not in _OTHERS:
            known = ", ".join((*_MICRO_LISTS, *_KEY_LISTS, *_OTHERS))
            raise ValueError(f"f is {f!r}; the Kafka workload has {known}")
        number = len(self.columns)
        self.columns.add_event(
            index=integer("index", row["index"]) if self._has_index else number,
            time_ns=integer("time", row["time"]) if self._has_time else number,
            process=process,
            type_=type_,
            f=str(f),
            error=json.dumps(row["error"]) if row.get("error") else "",
            details=details,
        )

    def _kind_of(self, process: int, type_: str, kind: str) -> tuple[str, str]:
        """Return f and details of a transaction of one kind: of that kind if it is definite."""
        if type_ == INVOKE:
            self._invoked[process] = len(self.columns)
            return _TXN, ""
        invoked = self._invoked.pop(process, None)
        if type_ == "info" or invoked is None:
            return _TXN, ""
        self.columns.f[invoked] = kind
        return kind, IN_TXN

    def _add_micro(self, f: str, value: Any) -> set[str]:
        """Add the micro-operations, and return their kinds."""
        micros = [] if value is None else [list_of(one) for one in list_of(value)]
        kinds = {str(one[0]) if one else "" for one in micros}
        if f != _TXN and kinds - {f}:
            raise ValueError(f"a {f} that holds {', '.join(sorted(kinds))}")
        for micro in micros:
            match micro:
                case ["send", key, [offset, value]]:
                    self._add_record("send", str(key), offset, value)
                case ["send", key, value]:
                    self._add_record("send", str(key), None, value)
                case ["poll"]:
                    pass
                case ["poll", dict(polled)]:
                    for key, pairs in polled.items():
                        for pair in list_of(pairs):
                            self._add_record("poll", str(key), *_pair(pair))
                case _:
                    raise ValueError(f"micro-operation {str(micro)[:80]}")
        return kinds

    def _add_record(self, f: str, key: str, offset: Any, value: Any) -> None:
        known = UNKNOWN_OFFSET if offset is None else integer("offset", offset)
        self.columns.add_record(f, key, known, integer("value", value))


def _process(said: Any) -> int:
    if said in ("nemesis", ":nemesis"):
        return NEMESIS
    if type(said) is not int or said < 0:
        raise ValueError(f"process {said!r} is neither a client nor the nemesis")
    return integer("process", said)


def integer(name: str, said: Any) -> int:
    """Return an integer of 64 bits. Raises TypeError for anything else."""
    if type(said) is not int or said not in INT64:
        raise TypeError(f"{name} {str(said)[:80]!r} is not an integer of 64 bits")
    return said


def list_of(said: Any) -> list[Any]:
    """Return a list. Raises TypeError for anything else."""
    if not isinstance(said, list):
        raise TypeError(f"{str(said)[:80]!r} is not a list")
    return said


def _pair(said: Any) -> tuple[Any, Any]:
    match list_of(said):
        case [offset, value]:
            return offset, value
        case _:
            raise ValueError(f"{str(said)[:80]} is not an offset and a value")
