"""Reads `history.jsonl`: format 2, and format 1, which had neither a header nor an end row.

Arrow parses the lines, strictly: an unknown field, a null and a wrong type are errors. A file that
Arrow or a later check refuses is read once more, line by line, to name the line.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from quorumlog.chaos.history.model import TYPES, HistoryError
from quorumlog.chaos.history.operations_table import EventError, operations_of
from quorumlog.chaos.history.schema import DENSE, EVENTS, MICRO, MODEL, WORKLOAD, facts_of

HEADER: Final = "quorumlog_history"
END: Final = "end"
VERSION: Final = 2
LINE_BYTES_MAX: Final = 16 << 20  # of one line; also the most that is parsed at once
_INT64: Final = range(-(1 << 63), 1 << 63)
_MICRO_FIELD: Final = {1: "messages", 2: "micro"}
_MICRO_INTS: Final = ("offset", "value")
_CHECKSUM: Final = "checksum"  # may be absent
_MICRO_TEXTS: Final = {1: (), 2: ("f", "text")}  # beside the key; may be absent
_TEXTS: Final = ("error", "node", "details")  # may be absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The lines around the events of a file, and the position of the events: [start, stop).

    `first_line` is the number (from 1) of the line at `start`; `events` is the count in the end
    row.
    """

    version: int
    start: int
    stop: int
    first_line: int
    header: dict[str, Any]
    events: int | None
    cut_off: bool

    def facts(self) -> dict[bytes, bytes]:
        """Return the metadata of the table of operations."""
        is_ended = self.events is not None or (self.version == 1 and not self.cut_off)
        facts: dict[bytes, bytes] = facts_of(
            final_reads=self.header.get("final_reads", "marked"),
            cut_off=self.cut_off,
            ended=is_ended,
        )
        for key, name in ((MODEL, "model"), (WORKLOAD, "workload")):
            if name in self.header:
                facts[key] = self.header[name].encode()
        if self.header.get("dense"):
            facts[DENSE] = b"1"
        return facts


def read_lines(file: Path, frame: Frame) -> pa.Table:
    """Return the operations of a file of JSON lines. Raises HistoryError with its line, OSError."""
    try:
        table = operations_of(_events(file, frame), frame.facts())
    except EventError as error:
        _explain(file, frame)
        lines = enumerate(_lines(file, frame))
        line = next(line for n, (line, _) in lines if n == error.place)
        raise HistoryError(f"{file}:{line}: {error.reason}") from error
    except (pa.ArrowException, HistoryError) as error:
        _explain(file, frame)
        raise HistoryError(f"{file}: {error}") from error
    return table


def find_frame(file: Path) -> Frame:
    """Parse the first and the last lines. Raises HistoryError, OSError."""
    with file.open("rb") as opened:
        return _frame_of(file, opened)


def _frame_of(file: Path, opened: BinaryIO) -> Frame:
    size = opened.seek(0, 2)
    opened.seek(0)
    head = opened.readline(LINE_BYTES_MAX)
    header = _object(head) if head.endswith(b"\n") else None
    version, start = 1, 0
    if header is not None and HEADER in header:
        _check_header(file, header)
        version, start = header[HEADER], len(head)
    tail = _tail(opened, start, size)
    events, stop = None, tail.stop
    last = _object(tail.last)
    if version > 1 and last is not None and END in last:
        events, stop = _count_of(file, last), tail.last_start
        _check_digest(file, last[END].get("sha256"), opened, stop)
        if tail.cut_off:
            raise HistoryError(f"{file}: something follows its end row")
    return Frame(
        version=version,
        start=start,
        stop=stop,
        first_line=2 if start else 1,
        header=header if start and header is not None else {},
        events=events,
        cut_off=tail.cut_off,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """The end of the file: its last whole line, and where the whole lines end."""

    last: bytes
    last_start: int
    stop: int
    cut_off: bool


def _tail(opened: BinaryIO, start: int, size: int) -> _Tail:
    """Read back from the end until the last whole line is complete."""
    length = 1 << 16
    while True:
        base = max(start, size - length)
        opened.seek(base)
        text = opened.read(size - base)
        whole, newline, rest = text.rpartition(b"\n")
        cut_off = bool(rest.strip()) and _object(rest) is None
        stop = base + len(whole + newline) if cut_off else size
        lines = text[: stop - base].rstrip()
        place = lines.rfind(b"\n") + 1
        if place or base == start:
            return _Tail(last=lines[place:], last_start=base + place, stop=stop, cut_off=cut_off)
        length *= 8


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, or None."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _check_header(file: Path, header: dict[str, Any]) -> None:
    said = header[HEADER]
    if type(said) is not int or said != VERSION:
        raise HistoryError(f"{file}:1: its format is {said!r}; this version reads 1 and {VERSION}")
    if header.get("final_reads", "marked") not in ("marked", "unmarked"):
        raise HistoryError(f"{file}:1: final_reads is neither marked nor unmarked")
    for name in ("model", "workload"):
        if not isinstance(header.get(name, ""), str):
            raise HistoryError(f"{file}:1: {name} is not a string: {header[name]!r}")
    if not isinstance(header.get("dense", False), bool):
        raise HistoryError(f"{file}:1: dense is neither true nor false: {header['dense']!r}")


def _count_of(file: Path, end: dict[str, Any]) -> int:
    said = end[END]
    count = said.get("events") if isinstance(said, dict) else None
    is_one = len(end) == 1 and isinstance(said, dict) and said.keys() <= {"events", "sha256"}
    if not is_one or type(count) is not int or count < 0:
        raise HistoryError(f"{file}: its last line is no end row: {end!r}")
    return count


def _check_digest(file: Path, said: Any, opened: BinaryIO, stop: int) -> None:
    """Raise HistoryError if the end row's digest does not match the lines before it."""
    if said is None:  # of another program
        return
    digest = hashlib.sha256()
    opened.seek(0)
    while stop > 0 and (block := opened.read(min(stop, 1 << 20))):
        digest.update(block)
        stop -= len(block)
    if said != digest.hexdigest():
        raise HistoryError(f"{file}: its lines are not as they were written")


def _events(file: Path, frame: Frame) -> pa.Table:
    """Return the events as a table of schema.EVENTS; the text is held a block at a time."""
    options = pa_json.ParseOptions(
        explicit_schema=_line_schema(frame.version), unexpected_field_behavior="error"
    )
    parts = [EVENTS.empty_table()]
    with file.open("rb") as opened:
        opened.seek(frame.start)
        left = frame.stop - frame.start
        rest = b""
        while left:
            read = opened.read(min(left, LINE_BYTES_MAX))
            left -= len(read)
            whole, newline, cut = (rest + read).rpartition(b"\n")
            block, rest = (whole, cut) if left and read else (whole + newline + cut, b"")
            if block.strip():  # Arrow refuses an empty text
                parsed = pa_json.read_json(
                    pa.BufferReader(block),
                    read_options=pa_json.ReadOptions(block_size=len(block) + 1),
                    parse_options=options,
                )
                parts.append(events_from(parsed, frame.version))
            if not read:  # the file has become shorter
                break
    return _counted(pa.concat_tables(parts).combine_chunks(), frame)


def _counted(events: pa.Table, frame: Frame) -> pa.Table:
    if frame.events is not None and frame.events != events.num_rows:
        raise HistoryError(
            f"it holds {events.num_rows} events, but its end row counts {frame.events}"
        )
    return events


def _line_schema(version: int) -> pa.Schema:
    """Return the schema of the lines: EVENTS, with the micro-operations as written."""
    written = [("key", pa.string()), ("offset", pa.int64()), ("value", pa.int64())]
    written += [(name, pa.string()) for name in _MICRO_TEXTS[version]]
    written += [(_CHECKSUM, pa.int64())] if version > 1 else []
    micro = pa.field(_MICRO_FIELD[version], pa.list_(pa.struct(written)))
    return pa.schema([micro if field.name == "micro" else field for field in EVENTS])


def events_from(parsed: pa.Table, version: int) -> pa.Table:
    """Return a table of schema.EVENTS from columns as format 1 or 2 writes them.

    Optional fields are filled in. Raises HistoryError for a null in any other place.
    """
    columns: dict[str, Any] = {}
    for name in EVENTS.names:
        column = parsed.column(_MICRO_FIELD[version] if name == "micro" else name)
        if name in _TEXTS:
            column = pc.fill_null(column, "")
        elif name == "micro":
            column = _micro(column.combine_chunks(), columns["f"])
        elif column.null_count:
            raise HistoryError(f"an event has no {name}")
        columns[name] = column.combine_chunks() if name == "f" else column
    return pa.table(columns, schema=EVENTS)


def _micro(lists: pa.ListArray, f: pa.Array) -> pa.ListArray:
    flat = lists.flatten()  # without the values under null lists
    fields = {name: flat.field(name) for name in flat.type.names}
    if flat.null_count or any(fields[name].null_count for name in ("key", *_MICRO_INTS)):
        raise HistoryError("a micro-operation lacks its key, offset or value")
    lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy(zero_copy_only=False)
    names = f.dictionary_encode()
    own = np.repeat(names.indices.to_numpy(), lengths)
    own_f = pa.DictionaryArray.from_arrays(own, names.dictionary).cast(pa.string())
    said_f = fields.get("f")
    fields["f"] = own_f if said_f is None else pc.coalesce(said_f, own_f)
    said_text = fields.get("text", pa.nulls(len(flat), pa.string()))
    fields["text"] = pc.fill_null(said_text, "")
    said_checksum = fields.get(_CHECKSUM, pa.nulls(len(flat), pa.int64()))
    fields[_CHECKSUM] = pc.fill_null(said_checksum, 0)
    ordered = [fields[name] for name in MICRO.value_type.names]
    values = pa.StructArray.from_arrays(ordered, fields=[*MICRO.value_type])
    starts = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return pa.ListArray.from_arrays(pa.array(starts), values, type=MICRO)


def _lines(file: Path, frame: Frame) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the text of each line that holds an event."""
    at = frame.start
    with file.open("rb") as opened:
        opened.seek(frame.start)
        for number, line in enumerate(opened, start=frame.first_line):
            at += len(line)
            if at > frame.stop:
                return
            if line.strip():
                yield number, line


def _explain(file: Path, frame: Frame) -> None:
    """Raise HistoryError for the first line that is no event. Slow; for bad files only."""
    for number, line in _lines(file, frame):
        try:
            _check_row(_parsed(line), frame.version)
        except RecursionError as error:
            raise HistoryError(f"{file}:{number}: too many brackets within brackets") from error
        except (ValueError, TypeError, KeyError) as error:
            raise HistoryError(f"{file}:{number}: {_reason(error)}") from error


def _parsed(line: bytes) -> Any:
    if len(line) > LINE_BYTES_MAX:
        raise ValueError(f"a line of {len(line)} bytes; at most {LINE_BYTES_MAX}")
    return json.loads(line, object_pairs_hook=_distinct)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field is there twice: " + ", ".join(name for name, _ in pairs))
    return found


def _reason(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def _check_row(row: Any, version: int) -> None:
    if not isinstance(row, dict):
        raise TypeError("not a JSON object")
    field = _MICRO_FIELD[version]
    _check_fields(row, {*EVENTS.names} - {"micro"} | {field})
    for name in ("index", "time_ns", "process"):
        _check_int(name, row[name])
    for name in ("type", "f", *_TEXTS):
        said = row[name] if name in ("type", "f") else row.get(name)
        if not isinstance(said, str) and not (said is None and name in _TEXTS):
            raise TypeError(f"{name} is not a string: {said!r}")
    if row["type"] not in TYPES:
        raise ValueError(f"type is {row['type']!r}, not one of {', '.join(TYPES)}")
    micro = row.get(field)
    if not isinstance(micro, list | None):
        raise TypeError(f"{field} is not a list: {micro!r}")
    for message in micro or []:
        _check_micro(message, version)


def _check_micro(message: Any, version: int) -> None:
    if not isinstance(message, dict):
        raise TypeError(f"not a message with key, offset and value: {message!r}")
    optional = {*_MICRO_TEXTS[version], *([_CHECKSUM] if version > 1 else [])}
    _check_fields(message, {"key", *_MICRO_INTS, *optional})
    for name in _MICRO_INTS:
        _check_int(name, message.get(name))
    if message.get(_CHECKSUM) is not None:
        _check_int(_CHECKSUM, message[_CHECKSUM])
    for name in ("key", *_MICRO_TEXTS[version]):
        said = message.get(name)
        if not isinstance(said, str) and not (said is None and name != "key"):
            raise TypeError(f"{name} is not a string: {said!r}")


def _check_fields(row: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(row.keys() - known):
        raise ValueError(f"{unknown[0]} is no field; there are {', '.join(sorted(known))}")


def _check_int(name: str, said: Any) -> None:
    if type(said) is not int:
        raise TypeError(f"{name} is not an integer: {str(said)[:80]!r}")
    if said not in _INT64:
        raise ValueError(f"{name} is beyond 64 bits: {str(said)[:80]}")
