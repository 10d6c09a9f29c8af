"""Reads histories that other tools wrote: their operations become ours, row by row.

  Jepsen and Knossos    EDN: one map per operation, one after the other or in one vector
  elle-cli              the same as JSON
  Porcupine             EDN maps with :key; and the log lines of Jepsen's etcd test, of one register

The format is detected from the text, not from the name of the file. `f` is unchanged; `value`
becomes one micro-operation, of a `cas` two (read, write), of a `txn` one for each of its own. A
value missing in a completion is taken from the invocation. Sources: jepsen.history;
github.com/ligurio/elle-cli; github.com/anishathalye/porcupine.
"""

import gc
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from quorumlog.chaos.history import jepsen
from quorumlog.chaos.history.edn import EdnError, Tagged, plain
from quorumlog.chaos.history.edn_lines import read_elements
from quorumlog.chaos.history.event_columns import EventColumns
from quorumlog.chaos.history.jepsen import integer, list_of
from quorumlog.chaos.history.key_pairs import Pairs, are_micros, have_keys, without_keys
from quorumlog.chaos.history.model import (
    INVOKE,
    NEMESIS,
    TYPES,
    UNKNOWN_OFFSET,
    HistoryError,
    Message,
    number_or_text,
)
from quorumlog.chaos.history.operations_table import EventError, operations_of
from quorumlog.chaos.history.schema import facts_of

CAS: Final = "cas"
CAS_REFUSED: Final = "cas_refused"
TXN: Final = "txn"
_READ: Final = "read"
_WRITE: Final = "write"
_HEAD_BYTES: Final = 1 << 16
_ETCD_LINE: Final = re.compile(
    r"INFO\s+jepsen\.util - (?P<process>\d+)\s+:(?P<type>invoke|ok|fail|info)\s+"
    r":(?P<f>read|write|cas)\s+(?P<value>nil|-?\d+|\[-?\d+ -?\d+\]|:[\w-]+)\s*\Z"
)
_ETCD_NEMESIS: Final = re.compile(
    r"INFO\s+jepsen\.util - :nemesis\s+:info\s+:(?P<f>[\w-]+)\s+(?P<value>.*)\Z"
)
_OTHER_LOG_LINE: Final = re.compile(r"(?:INFO|WARN|ERROR|DEBUG)\s+(?!jepsen\.util )[\w.$-]+ - ")
_ETCD_HEAD: Final = re.compile(rb"\s*INFO\s+jepsen\.util - ")
_EDN_HEAD: Final = re.compile(
    rb"(?:\s|,|;[^\n]*\n)*(?:\[|\()?(?:\s|,|;[^\n]*\n)*(?:#[\w.:/-]+\s*)?\{[\s,]*:"
)
_KAFKA: Final = frozenset(
    {"send", "poll", TXN, "assign", "subscribe", "crash", "debug-topic-partitions"}
)
_KAFKA_MICRO: Final = frozenset({"send", "poll"})


class _Row(NamedTuple):
    """One event of another tool's history: its place in the file, and its fields, as JSON."""

    place: int
    fields: dict[str, Any]


def reader_of(file: Path, pairs: Pairs | None = None) -> Callable[[Path], pa.Table] | None:
    """Return the reader of another tool's file, or None if its format is none of them.

    It returns the operations. `pairs`: the meaning of pairs, where their structure does not show
    it. It raises HistoryError with the file and the line (in a JSON array: the place, from 1). Both
    raise OSError.
    """
    with file.open("rb") as opened:
        head = opened.read(_HEAD_BYTES)
    if head.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise HistoryError(f"{file}:1: a text in UTF-16: convert it to UTF-8, such as by iconv")
    head = head.removeprefix(BOM_UTF8)
    if _ETCD_HEAD.match(head):
        return lambda file: _read(file, _etcd, "values")
    if _EDN_HEAD.match(head):
        return lambda file: _read(file, _edn, pairs)
    if jepsen.looks_like_jepsen(file):
        return lambda file: _read(file, _json, pairs)
    return None


def ruled_out(file: Path) -> str:
    """Return why `reader_of` finds no format; "" if the file is plainly ours.

    Raises OSError.
    """
    if jepsen.is_ours(file):
        return ""
    return (
        "; nor is it EDN (no map or vector of maps at its beginning), a log of Jepsen's etcd test"
        f" (no 'INFO jepsen.util - ' there), or Jepsen's JSON ({jepsen.why_not_jepsen(file)})"
    )


def _read(file: Path, rows_of: Callable[[Path], Iterator[_Row]], pairs: Pairs | None) -> pa.Table:
    """Return the operations, without collections of garbage: all rows live until the end.

    Collections walk through the millions of containers of a large file again and again, for more
    than half of the time, and find none to free.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _table(file, list(rows_of(file)), pairs)
    finally:
        if was_enabled:
            gc.enable()


def _json(file: Path) -> Iterator[_Row]:
    return (_Row(place, said) for place, said in jepsen.rows_of_json(file))


def _etcd(file: Path) -> Iterator[_Row]:
    """Yield the events of a log. A refused compare-and-set becomes an observation."""
    opened: dict[int, dict[str, Any]] = {}
    rows = []
    for number, line in enumerate(_text(file).splitlines(), start=1):
        if not line.strip():
            continue
        if _OTHER_LOG_LINE.match(line):
            continue
        if nemesis := _ETCD_NEMESIS.match(line):
            said = {"process": "nemesis", "type": "info", **nemesis.groupdict()}
            rows.append(_Row(number, said))
            continue
        match = _ETCD_LINE.match(line)
        if match is None:
            raise HistoryError(f"{file}:{number}: not an operation of Jepsen's etcd test")
        process, type_, value = int(match["process"]), match["type"], _etcd_value(match["value"])
        said = {"process": process, "type": type_, "f": match["f"], "value": value}
        begun = opened.pop(process, {})
        if type_ == INVOKE:
            opened[process] = said
        elif (match["f"], type_) == (CAS, "fail") and isinstance(value, list):
            said |= {"type": "ok", "f": CAS_REFUSED, "value": value[0]}
            begun |= {"f": CAS_REFUSED, "value": value[0]}
        rows.append(_Row(number, said))
    yield from rows


def _etcd_value(value: str) -> int | list[int] | None:
    """Return the values of a line; None if it timed out."""
    if value == "nil" or value.startswith(":"):
        return None
    found = [int(number) for number in re.findall(r"-?\d+", value)]
    return found if value.startswith("[") else found[0]


def _edn(file: Path) -> Iterator[_Row]:
    try:
        elements = read_elements(_text(file))
    except EdnError as error:
        raise HistoryError(f"{file}:{error.line}: {error}") from error
    for each in elements:
        said = each.value.form if isinstance(each.value, Tagged) else each.value
        if not isinstance(said, dict):
            raise HistoryError(f"{file}:{each.line}: not an operation: it is no map")
        row = said if each.is_plain else plain(said)
        value = said.get("value")
        if isinstance(value, Tagged) and value.tag.endswith("Tuple"):
            match plain(value):  # jepsen.independent: a key, and its value
                case [key, one]:
                    row |= {"key": key, "value": one}
                case _:
                    raise HistoryError(f"{file}:{each.line}: a tuple that is no pair")
        yield _Row(each.line, row)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise HistoryError(f"{file}: not a text: {error}") from error


def _table(file: Path, rows: Sequence[_Row], pairs: Pairs | None) -> pa.Table:
    if _is_kafka(rows):
        return jepsen.table_of_rows(str(file), rows)
    rows = _clear(file, rows, pairs)
    columns = EventColumns()
    last_index = None
    for row in rows:
        try:
            last_index = _check_index(row.fields, last_index)
            _add_event(columns, row.fields)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"it has no {error.args[0]}" if isinstance(error, KeyError) else error
            place = f"{file}:{row.place}"
            raise HistoryError(f"{place}: not a Jepsen operation: {reason}") from error
    try:
        return operations_of(columns.table(), facts_of(final_reads="unmarked"))
    except EventError as error:
        raise HistoryError(f"{file}:{rows[error.place].place}: {error.reason}") from error
    except HistoryError as error:
        raise HistoryError(f"{file}: {error}") from error


def _clear(file: Path, rows: Sequence[_Row], pairs: Pairs | None) -> Sequence[_Row]:
    """Return rows with a process, with their keys apart from their values, and as transactions.

    An operation whose value is a list of [f key value] is a transaction, also if its f is read or
    write, as in Jepsen's long-fork.
    """
    if not all(isinstance(row.fields, dict) for row in rows):
        return rows  # each row's own check names the first
    if all(row.fields.get("process") is None for row in rows):
        rows = [_Row(row.place, row.fields | {"process": 0}) for row in rows]
    try:
        keyed = have_keys([row.fields for row in rows], [row.place for row in rows], pairs)
    except ValueError as error:
        raise HistoryError(f"{file}: {error}") from error
    if keyed:
        rows = [_Row(row.place, without_keys(row.fields)) for row in rows]
    values = [row.fields.get("value") for row in rows if row.fields.get("f") in (_READ, _WRITE)]
    values = [value for value in values if value is not None]
    if values and all(are_micros(value) for value in values):
        rows = [
            _Row(row.place, row.fields | {"f": TXN})
            if row.fields.get("f") in (_READ, _WRITE)
            else row
            for row in rows
        ]
    return rows


def _is_kafka(rows: Sequence[_Row]) -> bool:
    """Return whether this is Jepsen's Kafka workload: its f, and only sends and polls inside."""
    said = [row.fields for row in rows if isinstance(row.fields, dict)]
    clients = [one for one in said if isinstance(one.get("process"), int)]
    kinds = {
        micro[0]
        for one in clients
        if one.get("f") == TXN and isinstance(one.get("value"), list)
        for micro in one["value"]
        if isinstance(micro, list) and micro and isinstance(micro[0], str)
    }
    fs = {str(one.get("f")) for one in clients}
    return bool(fs) and fs <= _KAFKA and kinds <= _KAFKA_MICRO and (fs != {TXN} or bool(kinds))


def _check_index(said: dict[str, Any], last: int | None) -> int | None:
    """Return the index of this row. Raises ValueError unless indexes grow."""
    if not isinstance(said, dict):
        raise TypeError(f"{str(said)[:80]!r} is not an operation")
    index = said.get("index")
    if index is None or index == jepsen.NO_INDEX:
        return last
    if type(index) is not int or (last is not None and index <= last):
        raise ValueError(f"its index is {str(index)[:40]!r}, after {last}")
    return index


def _add_event(columns: EventColumns, said: dict[str, Any]) -> None:
    type_, process = said["type"], _process(said["process"])
    value, f = said.get("value"), _f(said)
    if type_ not in TYPES:
        raise ValueError(f"its type is {str(type_)[:40]!r}, not one of {', '.join(TYPES)}")
    details = ""
    if process == NEMESIS:
        details, type_ = "" if value is None else json.dumps(value), "info"
    elif type_ in (INVOKE, "ok"):
        columns.add_messages(f, _messages(f, value, said, is_completion=type_ != INVOKE))
    error, time_ns = said.get("error"), said.get("time")
    columns.add_event(
        index=len(columns),
        time_ns=len(columns) if time_ns is None else integer("time", time_ns),
        process=process,
        type_=type_,
        f=f,
        error="" if error is None else json.dumps(error),
        details=details,
    )


def _f(said: dict[str, Any]) -> str:
    f, value = said.get("f"), said.get("value")
    if f is None and isinstance(value, list):  # elle: only transactions
        return TXN
    if not isinstance(f, str):
        raise TypeError(f"its f is {str(f)[:40]!r}")
    return f


def _process(said: Any) -> int:
    if said in ("nemesis", ":nemesis"):
        return NEMESIS
    if type(said) is not int or said < 0:
        raise ValueError(f"process {str(said)[:40]!r} is neither a client nor the nemesis")
    return integer("process", said)


def _messages(
    f: str, value: Any, said: dict[str, Any], *, is_completion: bool
) -> tuple[Message, ...]:
    """Return the micro-operations; none of a completion without a value."""
    key = _key(said.get("key"))
    if f == TXN:
        return tuple(_micro(one, said.get("key")) for one in list_of(value))
    if f == CAS and value is not None:
        match value:
            case [old, new]:
                return (_message(key, _READ, old), _message(key, _WRITE, new))
            case _:
                raise ValueError(f"a cas names two values, not {str(value)[:80]}")
    if is_completion and value is None and ("value" not in said or f not in (_READ, "get")):
        return ()
    return (_message(key, f, value),)


def _micro(said: Any, outer: Any) -> Message:
    """Return a micro-operation. `outer`: the transaction's own key, or None."""
    match list_of(said):
        case [str(f), key, value]:
            return _message(_key(key if outer is None else [outer, key]), f, value)
        case _:
            raise ValueError(f"a micro-operation is [f key value], not {str(said)[:80]}")


def _key(said: Any) -> str:
    if said is None:
        return ""
    if type(said) is int:
        return str(said)
    return said if isinstance(said, str) else json.dumps(said)


def _message(key: str, f: str, value: Any) -> Message:
    return Message(key, UNKNOWN_OFFSET, *number_or_text(value), f)
