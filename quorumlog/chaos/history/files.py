"""Histories on disk: a run's directory holds `history.jsonl`, `history.parquet` and `meta.json`.

The JSON lines are written during the run (`writer`) and survive a crash of the harness. Parquet is
made from them at the end and has their digest, so that two files of different runs are refused. A
last line cut off by a crash is left out and recorded (schema.CUT_OFF), and so is a missing end row
(schema.ENDED); any other defect is an error with its line.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.history.model import HistoryError
from quorumlog.extras import why_no_checks

if TYPE_CHECKING:
    import pyarrow as pa

JSON_LINES: Final = "history.jsonl"
PARQUET: Final = "history.parquet"


def locate_history(path: str | Path) -> Path:
    """Return the file of the history: `path`, or the preferred one of a run's directory.

    Raises HistoryError if there is none, or if the files of a directory are of different runs.
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


def read_history(path: str | Path) -> "pa.Table":
    """Read a run's directory, a `.parquet` file, JSON lines, or a file of another tool (`foreign`).

    The table has schema.OPERATIONS and is valid (`validate`). Raises HistoryError for a file that
    is absent, unreadable or no history.
    """
    require_pyarrow()
    from quorumlog.chaos.history import foreign, lines, parquet

    file = locate_history(path)
    try:
        if file.suffix == ".parquet":
            return parquet.read_operations(file)
        if (table := foreign.read_foreign(file)) is not None:
            return table
        try:
            return lines.read_lines(file)
        except HistoryError as error:
            raise HistoryError(f"{error}{foreign.ruled_out(file)}") from error
    except OSError as error:
        raise HistoryError(f"{file}: {error}") from error


def is_foreign(file: Path) -> bool:
    """Return whether another tool than ours wrote this file. Raises HistoryError."""
    require_pyarrow()
    from quorumlog.chaos.history import foreign

    try:
        return file.suffix != ".parquet" and foreign.is_foreign(file)
    except OSError as error:
        raise HistoryError(f"{file}: {error}") from error


def named_model(file: Path) -> str | None:
    """Return the model that a file of ours names, or None. Raises HistoryError."""
    require_pyarrow()
    import pyarrow as pa

    from quorumlog.chaos.history import lines, parquet, schema

    try:
        if file.suffix == ".parquet":
            with parquet.open_parquet(file) as table:
                facts = {} if parquet.is_format_1(table) else parquet.facts_in(table)
        else:
            with file.open("rb") as opened:
                facts = lines.find_frame(file, opened).facts()
        said = facts.get(schema.MODEL)
        return None if said is None else said.decode()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error
    except HistoryError as error:
        if str(error).startswith(str(file)):
            raise
        raise HistoryError(f"{file}: not a history: {error}") from error


def make_parquet(directory: Path) -> Path:
    """Make `history.parquet` of a directory from its JSON lines. Raises HistoryError, OSError."""
    from quorumlog.chaos.history import lines, parquet, schema

    source, file = directory / JSON_LINES, directory / PARQUET
    table = lines.read_lines(source)
    metadata = {**(table.schema.metadata or {}), schema.LINES_DIGEST: _digest(source)}
    parquet.write_operations(table, file, metadata)
    return file


def require_pyarrow() -> None:
    """Raise HistoryError with the install command if pyarrow or numpy is missing."""
    if reason := why_no_checks():
        raise HistoryError(reason)


def _check_same_run(parquet: Path, lines: Path) -> None:
    """Raise HistoryError unless the Parquet file was made from these lines."""
    require_pyarrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    from quorumlog.chaos.history import schema

    try:
        digest = (pq.read_metadata(parquet).metadata or {}).get(schema.LINES_DIGEST)
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{parquet}: not a history: {error}") from error
    if digest != _digest(lines):
        raise HistoryError(f"{parquet} and {lines.name} are not of one run: remove one of them")


def _digest(file: Path) -> bytes:
    with file.open("rb") as lines:
        return hashlib.file_digest(lines, "sha256").hexdigest().encode()
