"""The file `log-end-checkpoint`: offsets that the metadata log has certainly reached.

It distinguishes a damaged log from a torn tail. Committed records on the disk never disappear, nor
does any record after a clean stop. A log that ends earlier is damaged, and to cut it there would
silently lose metadata. JSON with a checksum; written regularly while the node runs, and at its
stop.
"""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from quorumlog.storage.errors import CorruptCheckpoint, storage_errors
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably
from quorumlog.wire.codec.identifiers import Offset

FILE_NAME: Final = "log-end-checkpoint"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Exclusive offsets, 0 if there is none.

    `closed`: the end of the log at a clean stop. `installing`: the end of a snapshot that is
    replacing the log: the log's records no longer count.
    """

    committed: Offset = Offset(0)
    closed: Offset = Offset(0)
    installing: Offset = Offset(0)


class LogEndCheckpoint:
    """The file of one node. Any thread may write; after `close` no write follows."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Read the file. Raises CorruptCheckpoint."""
        self.path: Final = f"{directory}/{FILE_NAME}"
        self._disk: Final = disk
        self._lock: Final = threading.Lock()
        self._is_closed = False
        self.last = self._load()  # the content of the file

    def opened(self) -> None:
        """Reset the clean stop: from now on the log may be truncated. Raises StorageError."""
        with self._lock:
            if self.last.closed:
                self._save(replace(self.last, closed=Offset(0)))

    def advance(self, committed: Offset) -> None:
        """Record that all records below are committed, and durable here. Raises StorageError."""
        with self._lock:
            if not self._is_closed and committed > self.last.committed:
                self._save(replace(self.last, committed=committed))

    def begin_install(self, end_offset: Offset) -> None:
        """Record that a snapshot is replacing the log. Raises StorageError."""
        with self._lock:
            self._save(LogEnd(committed=self.last.committed, installing=end_offset))

    def finish_install(self, end_offset: Offset) -> None:
        """Record that the log starts where the snapshot ends. Raises StorageError."""
        with self._lock:
            self._save(LogEnd(committed=max(self.last.committed, end_offset)))

    def close(self, end_offset: Offset | None) -> None:
        """Record the end of the log, all of it durable; None: it was not closed cleanly."""
        with self._lock:
            if end_offset is not None and not self._is_closed:
                self._save(replace(self.last, closed=end_offset))
            self._is_closed = True

    def _load(self) -> LogEnd:
        if not self._disk.exists(self.path):
            return LogEnd()
        try:
            fields = decode_log_end(read_file(self._disk, self.path))
            if fields["version"] != _VERSION:
                raise CorruptCheckpoint(
                    f"{self.path} is of version {fields['version']}, this is {_VERSION}"
                )
            return LogEnd(
                committed=Offset(int(fields["committed"])),
                closed=Offset(int(fields["closed"])),
                installing=Offset(int(fields.get("installing", 0))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpoint(
                f"{self.path} is damaged ({type(error).__name__}: {error}): delete it; a damaged "
                "log would then be cut at the damage"
            ) from error

    def _save(self, log_end: LogEnd) -> None:
        state = {"version": _VERSION, "committed": log_end.committed, "closed": log_end.closed}
        if log_end.installing:
            state["installing"] = log_end.installing
        with storage_errors(f"cannot write {self.path}"):
            content = json.dumps({**state, "crc": _checksum(state)})
            write_file_durably(self._disk, self.path, content.encode())
        self.last = log_end


def decode_log_end(content: bytes) -> dict[str, int]:
    """Return the fields of the file without its checksum, which a former release did not write.

    Raises TypeError or ValueError if the checksum differs.
    """
    fields: dict[str, int] = json.loads(content)
    if not isinstance(fields, dict):
        raise TypeError(f"{type(fields).__name__} instead of an object")
    if fields.pop("crc", None) not in {None, _checksum(fields)}:
        raise ValueError("its checksum differs")
    return fields


def _checksum(fields: Mapping[str, int]) -> int:
    return crc32c(json.dumps(fields, sort_keys=True).encode())
