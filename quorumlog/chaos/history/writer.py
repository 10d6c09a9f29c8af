"""Writes a history during the run: a header, one line per event, and an end row at the end.

Each line is written by one write: the lines survive a crash of the harness. A file without the end
row is unfinished, and its verdict is never valid.
"""

import errno
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from quorumlog.chaos.history.files import JSON_LINES, PARQUET, make_parquet, require_pyarrow
from quorumlog.chaos.history.meta import write_meta
from quorumlog.chaos.history.model import TYPES, UNKNOWN_OFFSET, Message, Operation

_FORMAT: Final = 2
_OF_RECORDS: Final = frozenset({"send", "poll", "final_poll"})  # their offsets are of records
_HEADER_FIELDS: Final = ("model", "workload", "dense")  # of meta, for a file without its directory


class HistoryWriter:
    """Records a history during the run; any thread may append.

    `meta` is written at once: seed, workload, faults, topic, cluster configuration, and any other
    facts that explain the run; `started_wall_ns`, the wall clock (Unix time) at time 0 of the
    history, is added, so that the history can be compared with the logs of the nodes. Leaving the
    `with` block, or `close`, makes the Parquet file. Raises HistoryError at the start, not after
    the run, if pyarrow is missing.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        meta: Mapping[str, object] | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        require_pyarrow()
        self.directory: Final = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / PARQUET).unlink(missing_ok=True)  # it would win over the new lines
        self._lock = threading.Lock()
        self._now_ns = now_ns
        self._started_ns = now_ns()
        self._started_wall_ns: Final = wall_ns()
        self.meta: Final = {**(meta or {}), "started_wall_ns": self._started_wall_ns}
        write_meta(self.directory, self.meta)
        self._next_index = 0
        # Unbuffered: a line is with the operating system before the next operation starts.
        self._file = (self.directory / JSON_LINES).open("wb", buffering=0)
        self._broken: OSError | None = None
        self._digest = hashlib.sha256()  # of all lines so far, for the end row
        # Written, by outcome and f. A message of an `info` with an offset was acknowledged: ok.
        self.messages: Final[Counter[tuple[str, str]]] = Counter()
        self.operations: Final[Counter[tuple[str, str]]] = Counter()  # by outcome and f, too
        self.furthest: Final[dict[str, int]] = {}  # key -> the highest offset so far
        told = {name: said for name, said in self.meta.items() if name in _HEADER_FIELDS}
        try:
            self._write_line({"quorumlog_history": _FORMAT, **told})
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(finished=kind is None)

    @property
    def started_wall_ms(self) -> int:
        """The wall clock at time 0 of the history, in ms of Unix time."""
        return self._started_wall_ns // 1_000_000

    def elapsed_ns(self) -> int:
        """Return the time since the history began, on its clock."""
        return self._now_ns() - self._started_ns

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
        """Write one event, with the next index and the time since the writer was made.

        Raises OSError if it cannot be written; the history ends there, and no Parquet is made.
        """
        taken = tuple(messages)
        with self._lock:
            operation = Operation(
                index=self._next_index,
                time_ns=self.elapsed_ns(),
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
        """Write an event that has its index and time already; the index must be the next one."""
        with self._lock:
            self._write(operation)

    def close(self, *, finished: bool = True) -> Path:
        """End the history and return the path of its Parquet file. May be called again.

        A history that is not `finished`, such as that of a run cut short, gets no end row: its
        verdict is never valid. Raises OSError if the end row cannot be written.
        """
        with self._lock:
            if not self._file.closed:
                try:
                    if finished and self._broken is None:
                        digest = self._digest.hexdigest()
                        self._write_line({"end": {"events": self._next_index, "sha256": digest}})
                finally:
                    self._file.close()
                if self._broken is None:
                    make_parquet(self.directory)
        return self.directory / PARQUET

    def _write(self, operation: Operation) -> None:
        if operation.type not in TYPES or operation.index != self._next_index:
            raise ValueError(f"not the next event of this history: {operation}")
        self._write_line(operation.as_json())
        self._next_index = operation.index + 1
        if operation.f in _OF_RECORDS:
            for message in operation.messages:
                furthest = self.furthest.get(message.key, UNKNOWN_OFFSET)
                self.furthest[message.key] = max(message.offset, furthest)
        self.operations[operation.type, operation.f] += 1
        known = 0
        if operation.type == "info":
            known = sum(message.offset != UNKNOWN_OFFSET for message in operation.messages)
            self.messages["ok", operation.f] += known
        self.messages[operation.type, operation.f] += len(operation.messages) - known

    def _write_line(self, row: Mapping[str, object]) -> None:
        """Write a line, unless an earlier one may be incomplete. Raises OSError with the reason."""
        name = str(self.directory / JSON_LINES)
        if self._broken is not None:
            reason = f"an earlier line could not be written: {self._broken.strerror}"
            raise OSError(self._broken.errno, reason, name) from self._broken
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        try:
            written = self._file.write(line)
        except OSError as error:
            self._broken = OSError(error.errno, error.strerror, name)
            raise self._broken from error
        self._digest.update(line[:written])
        if written != len(line):
            reason = "No space left on device: only a part of a line could be written"
            self._broken = OSError(errno.ENOSPC, reason, name)
            raise self._broken
