"""Reads and writes `history.parquet`: one row per operation, in row groups of at most 100,000.

Every page has a checksum, and the file has a digest of each row group's values and of its own
metadata: a later change to the file is an error, never another verdict. Files of format 1, with one
row per event, are read, too.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quorumlog.chaos.history.lines import events_from
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.history.operations_table import EventError, operations_of
from quorumlog.chaos.history.schema import (
    CUT_OFF,
    ENDED,
    EVENTS,
    FINAL_READS,
    FORMAT,
    MESSAGES,
    MICRO,
    OPERATIONS,
    facts_of,
    known_facts,
)
from quorumlog.chaos.history.validate import merge_facts, part_facts

ROW_GROUP: Final = 100_000  # operations
MICRO_OF_A_GROUP: Final = 500_000  # micro-operations: a poll may have hundreds
GROUP_DIGESTS: Final = b"quorumlog.group_sha256"  # JSON list: digest_of each row group
DIGEST: Final = b"quorumlog.sha256"  # of all other metadata of ours, so of the data, too
_OURS: Final = b"quorumlog."
_CHECKSUM: Final = "checksum"  # the field of micro-operations
_FORMAT_1: Final = pa.schema(
    [
        pa.field("messages", pa.list_(pa.struct([*MICRO.value_type][1:4])))
        if field.name == "micro"
        else field
        for field in EVENTS
    ]
)


def write_operations(table: pa.Table, file: Path, metadata: Mapping[bytes, bytes]) -> None:
    """Write a valid table to a temporary file, then rename it to `file`."""
    groups = [*row_groups_of(table)]
    digests = [digest_of(group) for group in groups]
    kept = {**metadata, FORMAT: b"2", GROUP_DIGESTS: json.dumps(digests).encode()}
    kept[MESSAGES] = str(pc.sum(pc.list_value_length(table.column("micro"))).as_py() or 0).encode()
    kept[DIGEST] = _digest_of_metadata(kept)
    unfinished = file.with_suffix(".parquet.part")
    try:
        schema = table.schema.with_metadata(kept)
        with pq.ParquetWriter(
            unfinished, schema, compression="zstd", write_page_checksum=True
        ) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=ROW_GROUP)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def row_groups_of(table: pa.Table) -> Iterator[pa.Table]:
    """Split operations into row groups of limited size; an empty table is one group."""
    lengths = pc.list_value_length(table.column("micro")).to_numpy()
    ends, start = np.cumsum(lengths), 0
    while start < table.num_rows:
        before = ends[start - 1] if start else 0
        full = int(np.searchsorted(ends, before + MICRO_OF_A_GROUP, side="right"))
        end = min(max(full, start + 1), start + ROW_GROUP)
        yield table.slice(start, end - start)
        start = end
    if not table.num_rows:
        yield table


def read_footer(file: Path) -> pq.FileMetaData:
    """Return the footer of a file. Raises HistoryError with the file."""
    try:
        return pq.read_metadata(file)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error


def read_operations(file: Path, footer: pq.FileMetaData) -> pa.Table:
    """Return a valid table of operations. Raises HistoryError with the file."""
    try:
        with open_parquet(file, footer) as opened:
            if is_format_1(footer):
                return _from_format_1(opened)
            facts = facts_in(footer)
            groups = [row_group(opened, place) for place in range(opened.num_row_groups)]
        merge_facts(part_facts(group) for group in groups)
    except (pa.ArrowException, OSError, ValueError, HistoryError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error
    table = pa.concat_tables(groups) if groups else OPERATIONS.empty_table()
    return table.replace_schema_metadata(facts)


def open_parquet(file: Path, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """Open a file and verify its page checksums on reading; a given footer is not read again.

    Raises pa.ArrowException, OSError.
    """
    return pq.ParquetFile(file, metadata=footer, page_checksum_verification=True)


def is_format_1(footer: pq.FileMetaData) -> bool:
    """Return whether the file has one row per event. Raises HistoryError."""
    try:
        return "time_ns" in footer.schema.to_arrow_schema().names
    except pa.ArrowException as error:
        raise HistoryError(str(error)) from error


def facts_in(footer: pq.FileMetaData) -> dict[bytes, bytes]:
    """Return the file's facts about its history. Raises HistoryError if it was changed."""
    metadata = footer.metadata or {}
    is_sealed = DIGEST in metadata or GROUP_DIGESTS in metadata
    if is_sealed and metadata.get(DIGEST) != _digest_of_metadata(metadata):
        raise HistoryError("its metadata is not as it was written")
    facts = known_facts(metadata)
    if FORMAT not in facts:  # of another program: Parquet is whole, or it is no Parquet
        facts = {FINAL_READS: b"marked"} | facts | {FORMAT: b"2", ENDED: b"1"}
    if len(json.loads(metadata.get(GROUP_DIGESTS, b"[]"))) not in (0, footer.num_row_groups):
        raise HistoryError("its row groups are not as they were written")
    if facts[FORMAT] != b"2":
        raise HistoryError(f"its format is {facts[FORMAT].decode()!r}; this version reads 1 and 2")
    return facts


def row_group(opened: pq.ParquetFile, place: int) -> pa.Table:
    """Return one row group as OPERATIONS. Raises HistoryError if it was changed."""
    check_names(opened.schema_arrow.names, OPERATIONS)
    table = opened.read_row_group(place, use_threads=False).select(OPERATIONS.names)
    table = with_checksums(table).replace_schema_metadata(None).cast(OPERATIONS)
    digests = (opened.metadata.metadata or {}).get(GROUP_DIGESTS)
    if digests is not None and json.loads(digests)[place : place + 1] != [digest_of(table)]:
        raise HistoryError(f"row group {place} is not as it was written")
    return table


def with_checksums(table: pa.Table) -> pa.Table:
    """Return operations whose micro-operations have checksums: 0 where they had none.

    Files of earlier versions, and of other programs, have no such field.
    """
    place = table.schema.get_field_index("micro")
    column = table.column(place)
    has_field = column.type.value_type.get_field_index(_CHECKSUM) >= 0
    chunks = [_with_checksums(chunk, has_field=has_field) for chunk in column.chunks]
    return table.set_column(place, "micro", pa.chunked_array(chunks, None if chunks else MICRO))


def _with_checksums(micro: pa.ListArray, *, has_field: bool) -> pa.ListArray:
    flat = micro.flatten()
    if has_field and not flat.field(_CHECKSUM).null_count:
        return micro
    known = flat.field(_CHECKSUM) if has_field else pa.nulls(len(flat), pa.int64())
    fields = [flat.field(name) for name in flat.type.names if name != _CHECKSUM]
    names = [name for name in flat.type.names if name != _CHECKSUM]
    values = pa.StructArray.from_arrays(
        [*fields, pc.fill_null(known, 0)], names=[*names, _CHECKSUM]
    )
    starts = np.append(0, np.cumsum(micro.value_lengths().to_numpy(zero_copy_only=False)))
    return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), values)


def check_names(names: list[str], schema: pa.Schema) -> None:
    """Raise HistoryError unless the columns are those of `schema`, in any order."""
    if missing := [name for name in schema.names if name not in names]:
        raise HistoryError(f"it has no column {', '.join(missing)}")
    if others := [name for name in names if name not in schema.names]:
        raise HistoryError(f"{others[0]} is no column of a history")


def digest_of(table: pa.Table) -> str:
    """Return the SHA-256 of the values of a table of OPERATIONS, for any chunks."""
    digest = hashlib.sha256()
    for column in table.columns:
        _feed(digest, column.combine_chunks())
    return digest.hexdigest()


def _feed(digest: "hashlib._Hash", values: pa.Array) -> None:
    if pa.types.is_list(values.type):
        digest.update(pc.cast(values.value_lengths(), pa.int64()).to_numpy())
        flat = values.flatten()
        for name in flat.type.names:
            if name != _CHECKSUM or pc.any(pc.not_equal(flat.field(name), 0)).as_py():
                _feed(digest, flat.field(name))  # a file of before has no checksums
    elif pa.types.is_string(values.type):
        digest.update(pc.cast(pc.binary_length(values), pa.int64()).to_numpy())
        ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset :][: len(values) + 1]
        if len(values) and values.buffers()[2] is not None:
            digest.update(memoryview(values.buffers()[2])[ends[0] : ends[-1]])
    else:
        digest.update(values.to_numpy())


def _digest_of_metadata(metadata: Mapping[bytes, bytes]) -> bytes:
    digest = hashlib.sha256()
    for key in sorted(key for key in metadata if key.startswith(_OURS) and key != DIGEST):
        digest.update(b"%d:%b=%d:%b;" % (len(key), key, len(metadata[key]), metadata[key]))
    return digest.hexdigest().encode()


def _from_format_1(opened: pq.ParquetFile) -> pa.Table:
    """Return the operations of a file of events."""
    check_names(opened.schema_arrow.names, _FORMAT_1)
    table = opened.read().select(_FORMAT_1.names).replace_schema_metadata(None).cast(_FORMAT_1)
    for name in _FORMAT_1.names:
        column = table.column(name)
        if column.null_count:
            row = int(pc.index(column.is_null(), value=True).as_py()) + 1
            raise HistoryError(f"row {row}: it has no {name}")
    metadata = opened.metadata.metadata or {}
    facts = facts_of(
        final_reads=metadata.get(FINAL_READS, b"marked").decode(), cut_off=CUT_OFF in metadata
    )
    try:
        return operations_of(events_from(table, 1), facts)
    except EventError as error:
        raise HistoryError(f"row {error.place + 1}: {error.reason}") from error
