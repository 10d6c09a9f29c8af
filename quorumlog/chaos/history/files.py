"""Histories on disk: a run's directory holds `history.jsonl`, `history.parquet` and `meta.json`.

The JSON lines are written during the run (`writer`) and survive a crash of the harness. Parquet is
made from them at the end and has their digest, so that two files of different runs are refused. A
last line cut off by a crash is left out and recorded (schema.CUT_OFF), and so is a missing end row
(schema.ENDED); any other defect is an error with its line.
"""

import hashlib
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from quorumlog.chaos.history.meta import read_meta
from quorumlog.chaos.history.model import HistoryError
from quorumlog.extras import why_no_checks

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from quorumlog.chaos.history.key_pairs import Pairs
    from quorumlog.chaos.history.lines import Frame

JSON_LINES: Final = "history.jsonl"
PARQUET: Final = "history.parquet"
BYTES_IN_A_FILE: Final = 4  # of a message, compressed, and rather too few: 8 were measured
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class HistorySource:
    """A history by its path: a run's directory, a file of ours or of another tool, a URL for Spark.

    Its files are located, hashed and parsed when first needed, and once: the source keeps the
    results. `pairs`: the meaning of pairs in another tool's file, if their structure does not show
    it (`key_pairs`). `meta`, `file` and all attributes that read the file raise HistoryError.
    """

    def __init__(self, path: str | Path, *, pairs: "Pairs | None" = None) -> None:
        self.path: Final = path
        self._pairs: Final = pairs

    @property
    def is_remote(self) -> bool:
        """Whether only Spark can read the path: it has a scheme other than `file`."""
        return bool(_SCHEME.match(str(self.path))) and urlsplit(str(self.path)).scheme != "file"

    @property
    def local_path(self) -> Path:
        """The path in the file system, of a path that is not remote."""
        text = str(self.path)
        return Path(unquote(urlsplit(text).path) if text.startswith("file:/") else self.path)

    @property
    def directory(self) -> Path:
        """The directory of the run: of `meta.json`, and of the other files beside the history."""
        return self.local_path if self.local_path.is_dir() else self.local_path.parent

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The facts in `meta.json`, or {}."""
        return read_meta(self.local_path)

    @property
    def file(self) -> Path:
        """The file of the history: `path`, or the preferred one of a run's directory."""
        return self._located[0]

    @property
    def footer(self) -> "pq.FileMetaData | None":
        """The footer of a Parquet file; None: a file of lines."""
        return self._located[1]

    @property
    def messages(self) -> int:
        """The number of messages in a Parquet file; 0 for any other file.

        Our files have it in their metadata. For others it is estimated from their size, rather too
        high: reading the columns from the footer of a damaged file may end the process (pyarrow
        aborts).
        """
        from quorumlog.chaos.history.schema import MESSAGES

        if self.footer is None:
            return 0
        said = (self.footer.metadata or {}).get(MESSAGES, b"")
        return int(said) if said.isdigit() else self.file.stat().st_size // BYTES_IN_A_FILE

    @property
    def is_foreign(self) -> bool:
        """Whether another tool than ours wrote this file."""
        return self._read_foreign is not None

    @property
    def named_model(self) -> str | None:
        """The model that a file of ours names, or None."""
        from quorumlog.chaos.history import parquet, schema

        try:
            if self.footer is None:
                facts = self._frame.facts()
            else:
                is_old = parquet.is_format_1(self.footer)
                facts = {} if is_old else parquet.facts_in(self.footer)
            said = facts.get(schema.MODEL)
            return None if said is None else said.decode()
        except (OSError, ValueError, HistoryError) as error:
            if str(error).startswith(str(self.file)):
                raise
            raise HistoryError(f"{self.file}: not a history: {error}") from error

    @cached_property
    def table(self) -> "pa.Table":
        """The operations: schema.OPERATIONS, and valid (`validate`)."""
        from quorumlog.chaos.history import foreign, lines, parquet

        try:
            if self.footer is not None:
                return parquet.read_operations(self.file, self.footer)
            if self._read_foreign is not None:
                return self._read_foreign(self.file)
            try:
                return lines.read_lines(self.file, self._frame)
            except HistoryError as error:
                raise HistoryError(f"{error}{foreign.ruled_out(self.file)}") from error
        except OSError as error:
            raise HistoryError(f"{self.file}: {error}") from error

    @cached_property
    def _located(self) -> "tuple[Path, pq.FileMetaData | None]":
        """The file, after a check that all files of a directory are of one run, and its footer."""
        require_pyarrow()
        from quorumlog.chaos.history import parquet, schema

        files = _files_of(self.local_path)
        footer = parquet.read_footer(files[0]) if files[0].suffix == ".parquet" else None
        if footer is not None and files[1:]:
            digest = (footer.metadata or {}).get(schema.LINES_DIGEST)
            if digest != _digest(files[1]):
                raise HistoryError(
                    f"{files[0]} and {files[1].name} are not of one run: remove one of them"
                )
        return files[0], footer

    @cached_property
    def _read_foreign(self) -> "Callable[[Path], pa.Table] | None":
        from quorumlog.chaos.history import foreign

        try:
            return None if self.footer is not None else foreign.reader_of(self.file, self._pairs)
        except OSError as error:
            raise HistoryError(f"{self.file}: {error}") from error

    @cached_property
    def _frame(self) -> "Frame":
        from quorumlog.chaos.history import lines

        return lines.find_frame(self.file)


def _files_of(path: Path) -> list[Path]:
    """Return the files of a history, the preferred one first. Raises HistoryError if none."""
    if not path.is_dir():
        if not path.is_file():
            raise HistoryError(f"{path}: no such file or directory")
        return [path]
    found = [path / name for name in (PARQUET, JSON_LINES) if (path / name).is_file()]
    if not found:
        raise HistoryError(
            f"{path}: holds neither {PARQUET} nor {JSON_LINES}; give a run or a file"
        )
    return found


def read_history(path: str | Path, *, pairs: "Pairs | None" = None) -> "pa.Table":
    """Read a run's directory, a `.parquet` file, JSON lines, or a file of another tool (`foreign`).

    The table has schema.OPERATIONS and is valid (`validate`). Raises HistoryError for a file that
    is absent, unreadable or no history.
    """
    return HistorySource(path, pairs=pairs).table


def make_parquet(directory: Path) -> Path:
    """Make `history.parquet` of a directory from its JSON lines. Raises HistoryError, OSError."""
    from quorumlog.chaos.history import lines, parquet, schema

    source, file = directory / JSON_LINES, directory / PARQUET
    table = lines.read_lines(source, lines.find_frame(source))
    metadata = {**(table.schema.metadata or {}), schema.LINES_DIGEST: _digest(source)}
    parquet.write_operations(table, file, metadata)
    return file


def require_pyarrow() -> None:
    """Raise HistoryError with the install command if pyarrow or numpy is missing."""
    if reason := why_no_checks():
        raise HistoryError(reason)


def _digest(file: Path) -> bytes:
    with file.open("rb") as lines:
        return hashlib.file_digest(lines, "sha256").hexdigest().encode()
