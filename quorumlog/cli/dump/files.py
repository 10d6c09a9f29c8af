"""Finds the kind of a log directory's file by its name, and opens it.

Files are only read: a running node may have them open. Later appends are left out.
"""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from quorumlog.cli.dump.batches import read_batches, read_snapshot
from quorumlog.cli.dump.contents import Asked, Contents, Item, Problem
from quorumlog.cli.dump.indexes import (
    LogFile,
    read_offset_index,
    read_time_index,
    read_transaction_index,
)
from quorumlog.cli.dump.record_kinds import (
    Decode,
    decode_group,
    decode_metadata,
    decode_transaction,
)
from quorumlog.cli.dump.small_files import NAMED, offsets, producers, read_small
from quorumlog.wire.codec.topic_names import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTIONS_TOPIC

CONTENT_BYTES_MAX: Final = 64 << 20  # of a file that is read whole
_BUFFER_BYTES: Final = 1 << 18
_SEGMENT_FILE: Final = re.compile(
    r"(?P<base>\d{20})?[^/]*?(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(\.deleted|\.cleaned|\.swap)?"
)
_SEGMENT_KINDS: Final = {
    ".log": "log",
    ".index": "offset_index",
    ".timeindex": "time_index",
    ".txnindex": "transaction_index",
    ".snapshot": "producers",
}
_METADATA_SNAPSHOT: Final = re.compile(r"(\d{20}-\d{10}|bootstrap)\.checkpoint")
_OFFSETS_SUFFIX: Final = "-offset-checkpoint"
_DECODERS: Final[dict[str, Decode]] = {
    METADATA_TOPIC: decode_metadata,
    OFFSETS_TOPIC: decode_group,
    TRANSACTIONS_TOPIC: decode_transaction,
}


class _Kind(NamedTuple):
    """The kind of a file, and the base offset in its name (0 if the name has none)."""

    name: str
    base_offset: int = 0


def files_in(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield (file, whether it belongs to a log) for all files below a directory, sorted.

    A segment's file belongs to a log if its name begins with its base offset (not `node.log`).
    """
    for directory, below, names in os.walk(path):
        below.sort()
        for name in sorted(names):
            segment = _SEGMENT_FILE.fullmatch(name)
            is_known = segment["base"] is not None if segment else _kind_of(name) is not None
            yield Path(directory, name), is_known


def open_contents(path: Path, asked: Asked, opened: ExitStack) -> tuple[Contents, int]:
    """Return the file's content and size; `opened` closes the file.

    Raises OSError, and ValueError if the name is no file name of a log directory.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")  # to open a pipe would wait for its writer
    file, size = _open(path, opened)
    return contents_of(path, file, size, asked, opened), size


def contents_of(path: Path, file: BinaryIO, size: int, asked: Asked, opened: ExitStack) -> Contents:
    """Return the content of the first `size` bytes of `file`, which has the name `path`.

    Raises as `open_contents`.
    """
    kind = _kind_of(path.name)
    if kind is None:
        raise ValueError("the name is no file name of a log directory")
    items_name, items = _read(path, kind, file, size, asked, opened)
    return Contents(kind.name, items_name, _readable(items))


def _readable(items: Iterator[Item | Problem]) -> Iterator[Item | Problem]:
    try:
        yield from items
    except OSError as error:
        yield Problem(None, f"not read to its end: {error.strerror}")


def _read(
    path: Path, kind: _Kind, file: BinaryIO, size: int, asked: Asked, opened: ExitStack
) -> tuple[str, Iterator[Item | Problem]]:
    """Return the name of the items, and the items."""
    if kind.name == "log":
        decode = _decoder_of(path)
        return "batches", read_batches(file, size, asked, decode, base_offset=kind.base_offset)
    if kind.name == "metadata_snapshot":
        return "batches", read_snapshot(file, size, asked, decode_metadata)
    content = file.read(min(size, CONTENT_BYTES_MAX))
    return "entries", chain(_read_content(path, kind, content, asked, opened), _too_large(size))


def _read_content(
    path: Path, kind: _Kind, content: bytes, asked: Asked, opened: ExitStack
) -> Iterator[Item | Problem]:
    if kind.name in {"offset_index", "time_index"}:
        log = _log_beside(path, opened) if asked.only_index_faults else None
        read = read_offset_index if kind.name == "offset_index" else read_time_index
        return read(content, kind.base_offset, asked, log)
    if kind.name == "transaction_index":
        return read_transaction_index(content, kind.base_offset, asked)
    if kind.name == "producers":
        return read_small(content, producers)
    if kind.name == "offsets":
        return read_small(content, offsets)
    return read_small(content, NAMED[path.name][1])


def _too_large(size: int) -> Iterator[Problem]:
    if size > CONTENT_BYTES_MAX:
        yield Problem(CONTENT_BYTES_MAX, f"{size - CONTENT_BYTES_MAX} bytes are not read")


def _kind_of(name: str) -> _Kind | None:
    if name in NAMED:
        return _Kind(NAMED[name][0])
    if name.endswith(_OFFSETS_SUFFIX):
        return _Kind("offsets")
    if _METADATA_SNAPSHOT.fullmatch(name):
        return _Kind("metadata_snapshot")
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    return _Kind(_SEGMENT_KINDS[match["kind"]], int(match["base"] or 0))


def _decoder_of(path: Path) -> Decode | None:
    """Return the decoder of the records, by the partition in the directory's name."""
    directory = path.absolute().parent.name  # TOPIC-PARTITION, or TOPIC-PARTITION.ID-delete
    for topic, decode in _DECODERS.items():
        if re.match(rf"{topic}-\d+(\.|$)", directory):
            return decode
    return None


def _log_beside(path: Path, opened: ExitStack) -> LogFile:
    """Open the `.log` of an index. Raises OSError."""
    log_path = path.with_name(re.sub(r"\.(time)?index", ".log", path.name, count=1))
    file, size = _open(log_path, opened)
    return LogFile(file, log_path, size)


def _open(path: Path, opened: ExitStack) -> tuple[BinaryIO, int]:
    file = opened.enter_context(path.open("rb", buffering=_BUFFER_BYTES))
    return file, os.fstat(file.fileno()).st_size
