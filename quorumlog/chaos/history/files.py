"""Histories on disk: a run's directory holds `history.jsonl`, `history.parquet` and `meta.json`.

The JSON lines are written as things happen, each line by one write: they survive a crash of the
harness. Parquet is made from them at the end and names their digest, so that two files which are
not of one run are refused. A last line cut off by a crash is left out and remembered
(schema.CUT_OFF); anything else odd is an error with its line.
"""

import errno
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from quorumlog.chaos.extras import install_command
from quorumlog.chaos.history.meta import write_meta
from quorumlog.chaos.history.model import TYPES, UNKNOWN_OFFSET, HistoryError, Message, Operation

if TYPE_CHECKING:
    import pyarrow as pa

JSON_LINES: Final = "history.jsonl"
PARQUET: Final = "history.parquet"
_BLOCK_BYTES: Final = 16 << 20  # what is parsed at once; one line must fit

_OF_RECORDS: Final = frozenset({"send", "poll", "final_poll"})  # their offsets are records'


class HistoryWriter:
    """Records a history as it happens; any thread may append.

    `meta` is written at once: seed, workload, faults, topic, cluster configuration, whatever
    explains the run later. Leaving the `with` block, or `close`, makes the Parquet file.
    Raises HistoryError at the start if pyarrow is missing, not after the run.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        meta: Mapping[str, object] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        _require_pyarrow()
        self.directory: Final = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / PARQUET).unlink(missing_ok=True)  # it would win over the new lines
        write_meta(self.directory, meta or {})
        self._lock = threading.Lock()
        self._now_ns = now_ns
        self._started_ns = now_ns()
        self._next_index = 0
        # Unbuffered: a line is with the operating system before the next operation starts.
        self._file = (self.directory / JSON_LINES).open("wb", buffering=0)
        self._is_broken = False
        # Written, by outcome and f. A message of an `info` that has an offset was acknowledged: ok.
        self.messages: Final[Counter[tuple[str, str]]] = Counter()
        self.furthest: Final[dict[str, int]] = {}  # key -> the highest known offset

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(
        self,
        process: int,
        type_: str,
        f: str,
        messages: Iterable[Message] = (),
        *,
        error: str = "",
        node: str = "",
        details: str = "",
    ) -> Operation:
        """Write one row, with the next index and the time since the writer was made.

        Raises OSError if it cannot be written; the history ends there, and no Parquet is made.
        """
        taken = tuple(messages)
        with self._lock:
            operation = Operation(
                index=self._next_index,
                time_ns=self._now_ns() - self._started_ns,
                process=process,
                type=type_,
                f=f,
                messages=taken,
                error=error,
                node=node,
                details=details,
            )
            self._write(operation)
        return operation

    def write(self, operation: Operation) -> None:
        """Write a row that has its index and time already; indexes must grow."""
        with self._lock:
            self._write(operation)

    def close(self) -> Path:
        """End the history and return the path of its Parquet file. May be called again."""
        parquet = self.directory / PARQUET
        with self._lock:
            if not self._file.closed:
                self._file.close()
                if not self._is_broken:
                    _write_parquet(self.directory / JSON_LINES, parquet)
        return parquet

    def _write(self, operation: Operation) -> None:
        if operation.type not in TYPES or operation.index < self._next_index:
            raise ValueError(f"not a next row of this history: {operation}")
        if self._is_broken:
            raise OSError(errno.EIO, "an earlier row could not be written", str(self.directory))
        line = json.dumps(operation.as_json(), separators=(",", ":")).encode() + b"\n"
        self._is_broken = True
        if self._file.write(line) != len(line):
            name = str(self.directory / JSON_LINES)
            raise OSError(errno.ENOSPC, "only a part of a row could be written", name)
        self._is_broken = False
        self._next_index = operation.index + 1
        if operation.f in _OF_RECORDS:
            for key, offset, _ in operation.messages:
                self.furthest[key] = max(offset, self.furthest.get(key, UNKNOWN_OFFSET))
        known = 0
        if operation.type == "info":
            known = sum(message.offset != UNKNOWN_OFFSET for message in operation.messages)
            self.messages["ok", operation.f] += known
        self.messages[operation.type, operation.f] += len(operation.messages) - known


def locate_history(path: str | Path) -> Path:
    """Return the file that holds the history: `path`, or the better one of a run's directory.

    Raises HistoryError if there is none, or if those of a directory are not of one run.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.is_file():
            raise HistoryError(f"{path}: no such file or directory")
        return path
    found = [path / name for name in (PARQUET, JSON_LINES) if (path / name).is_file()]
    if not found:
        raise HistoryError(
            f"{path}: holds neither {PARQUET} nor {JSON_LINES}; give a run or a file"
        )
    if len(found) > 1:
        _check_same_run(*found)
    return found[0]


def _check_same_run(parquet: Path, lines: Path) -> None:
    """Raise HistoryError unless the Parquet file was made from these lines."""
    _require_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    from quorumlog.chaos.history import schema

    try:
        footer = pq.read_metadata(parquet)
        digest = (footer.metadata or {}).get(schema.LINES_DIGEST)
        if digest is None:  # another program made it
            is_same = lines.read_bytes().count(b"\n") == footer.num_rows
        else:
            is_same = digest == _digest(lines)
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{parquet}: not a history: {error}") from error
    if not is_same:
        raise HistoryError(f"{parquet} and {lines.name} are not of one run: remove one of them")


def _digest(file: Path) -> bytes:
    with file.open("rb") as lines:
        return hashlib.file_digest(lines, "sha256").hexdigest().encode()


def read_history(path: str | Path) -> "pa.Table":
    """Read a run's directory, a `.parquet` file, JSON lines, or Jepsen's operations as JSON.

    The table has schema.SCHEMA, one row per operation row, in the order of the file.
    Raises HistoryError: absent, not readable, not a history.
    """
    _require_pyarrow()
    file = locate_history(path)
    try:
        if file.suffix == ".parquet":
            return _read_parquet(file)
        text = file.read_bytes()
    except OSError as error:
        raise HistoryError(f"{file}: {error}") from error
    return _read_json(file, text)


def _read_parquet(file: Path) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    from quorumlog.chaos.history import schema

    try:
        table = pq.read_table(file)
        metadata = table.schema.metadata
        if missing := [name for name in schema.SCHEMA.names if name not in table.schema.names]:
            raise HistoryError(f"{file}: not a history: it has no column {', '.join(missing)}")
        table = table.select(schema.SCHEMA.names).cast(schema.SCHEMA)
    except (pa.ArrowException, KeyError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error
    try:
        check_rows(table)
        check_order(table.column("index"))
    except HistoryError as error:
        raise HistoryError(f"{file}: {error}") from error
    known = {key: (metadata or {}).get(key) for key in (schema.FINAL_READS, schema.CUT_OFF)}
    kept = {key: value for key, value in known.items() if value is not None}
    return table.replace_schema_metadata(kept or {schema.FINAL_READS: b"marked"})


def _read_json(file: Path, text: bytes) -> "pa.Table":
    from quorumlog.chaos.history import jepsen, schema

    whole, newline, tail = text.rpartition(b"\n")
    if jepsen.looks_like_jepsen(text):
        return jepsen.read_jepsen(str(file), text)
    metadata = {schema.FINAL_READS: b"marked"}
    if _is_row(tail):
        whole, newline = text, b""
    elif tail.strip():
        metadata[schema.CUT_OFF] = b"1"
    table = _parse_lines(file, whole + newline)
    return table.replace_schema_metadata(metadata)


def _parse_lines(file: Path, text: bytes) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.json as pa_json

    from quorumlog.chaos.history import schema

    if not text.strip():
        return schema.SCHEMA.empty_table()
    try:
        table = pa_json.read_json(
            pa.BufferReader(text),
            read_options=pa_json.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pa_json.ParseOptions(
                explicit_schema=schema.SCHEMA, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowException as error:
        _explain(file, text)
        raise HistoryError(f"{file}: {error}") from error
    filled = [_without_nulls(table.column(name)) for name in schema.SCHEMA.names]
    table = pa.table(filled, schema=schema.SCHEMA)
    try:
        check_order(check_rows(table).column("index"))
        return table
    except HistoryError as error:
        _explain(file, text)
        raise HistoryError(f"{file}: {error}") from error


def _without_nulls(column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    import pyarrow as pa
    import pyarrow.compute as pc

    from quorumlog.chaos.history import schema

    if column.type == pa.string():
        return pc.fill_null(column, "")
    if column.type == schema.MESSAGES:
        empty = pa.scalar([], schema.MESSAGES)
        return pc.if_else(column.is_null(), empty, column)
    return column


def check_rows(table: "pa.Table") -> "pa.Table":
    """Return the table if it keeps the promises of history.schema; raise HistoryError if not."""
    if row := _first_incomplete_row(table):
        raise HistoryError(f"row {row}: a field is missing, or the type is unknown")
    return table


def check_order(index: "pa.ChunkedArray") -> None:
    """Raise HistoryError unless the indexes of the rows grow: no two rows have one index."""
    numbers = index.to_numpy()
    falls = (numbers[1:] <= numbers[:-1]).nonzero()[0]
    if len(falls):
        row = int(falls[0]) + 1
        raise HistoryError(f"row {row + 1}: index {numbers[row]} after {numbers[row - 1]}")


def _first_incomplete_row(table: "pa.Table") -> int:
    """Return the number (from 1) of the first row that breaks the schema's promises, or 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    bad = pc.invert(pc.is_in(table.column("type"), pa.array(TYPES)))
    for name in table.schema.names:
        bad = pc.or_(bad, table.column(name).is_null())
    row = int(pc.index(bad, value=True).as_py()) + 1
    messages = table.column("messages").combine_chunks()
    values = messages.flatten()
    if row or not any(values.field(name).null_count for name in ("key", "offset", "value")):
        return row
    holed = pc.or_(values.field("offset").is_null(), values.field("value").is_null())
    holed = pc.or_(holed, values.field("key").is_null())
    parents = pc.list_parent_indices(messages)
    return int(parents[int(pc.index(holed, value=True).as_py())].as_py()) + 1


def _explain(file: Path, text: bytes) -> None:
    """Raise HistoryError for the first line that is not a row. Slow; for bad files only."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            _check_row(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise HistoryError(f"{file}:{number}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)


def _check_row(row: Any) -> None:
    if not isinstance(row, dict):
        raise TypeError("not a JSON object")
    for name in ("index", "time_ns", "process"):
        if type(row[name]) is not int:
            raise TypeError(f"{name} is not an integer: {row[name]!r}")
    for name in ("type", "f", "error", "node", "details"):
        if not isinstance(row[name] if name in ("type", "f") else row.get(name, ""), str):
            raise TypeError(f"{name} is not a string: {row[name]!r}")
    if row["type"] not in TYPES:
        raise ValueError(f"type is {row['type']!r}, not one of {', '.join(TYPES)}")
    for message in row.get("messages") or []:
        if not (
            isinstance(message, dict)
            and isinstance(message.get("key"), str)
            and type(message.get("offset")) is int
            and type(message.get("value")) is int
        ):
            raise TypeError(f"not a message with key, offset and value: {message!r}")


def _is_row(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _write_parquet(lines: Path, file: Path) -> None:
    """Write by a new name and rename, so that a half-written file is never found."""
    import pyarrow.parquet as pq

    from quorumlog.chaos.history import schema

    table = read_history(lines)
    metadata = {**(table.schema.metadata or {}), schema.LINES_DIGEST: _digest(lines)}
    unfinished = file.with_suffix(".parquet.part")
    try:
        pq.write_table(
            table.replace_schema_metadata(metadata),
            unfinished,
            compression="zstd",
            row_group_size=100_000,
        )
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _require_pyarrow() -> None:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise HistoryError(f"histories need pyarrow: {install_command('chaos')}") from error
    del pa
