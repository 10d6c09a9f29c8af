"""Cuts tables into parts, by process or by key, and packs parts into blocks of bytes.

The part of a value is a function of the value alone: every task of every machine cuts alike.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.chaos.checkers.entries import sorted_codes

Places = npt.NDArray[np.int64]
ROWS_PER_BLOCK: Final = 250_000
_PRIME: Final = 2_654_435_761  # Knuth's: neighbouring processes go to different parts
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


def cut_by_key(entries: pa.Table, parts: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (part, entries of its keys). Order within a part stays; keys become a dictionary."""
    keys, code = sorted_codes(entries.column("key"))
    of_key = np.array([zlib.crc32(key.encode()) % parts for key in keys], np.int64)
    names = pa.DictionaryArray.from_arrays(code, pa.array(keys, pa.string()))
    place = entries.schema.get_field_index("key")
    yield from _cut(entries.set_column(place, "key", names), of_key[code], parts)


def cut_by_process(operations: pa.Table, parts: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (part, operations of its processes). Order within a part stays."""
    process = operations.column("process").to_numpy()
    yield from _cut(operations, process * _PRIME % (1 << 32) % parts, parts)


def _cut(table: pa.Table, part: Places, parts: int) -> Iterator[tuple[int, pa.Table]]:
    # Of 16 bits: numpy sorts those by their digits.
    order = np.argsort(part.astype(np.uint16 if parts <= 1 << 16 else np.int64), kind="stable")
    counts = np.bincount(part, minlength=parts)
    ends = np.cumsum(counts)
    table = table.combine_chunks()
    for name in np.flatnonzero(counts).tolist():
        chosen = order[ends[name] - counts[name] : ends[name]]
        yield name, table.take(pa.array(chosen))


def pack(table: pa.Table) -> Iterator[bytes]:
    """Return a table as blocks of bytes, none of them large."""
    for start in range(0, table.num_rows, ROWS_PER_BLOCK):
        sink = pa.BufferOutputStream()
        part = table.slice(start, ROWS_PER_BLOCK)
        with pa.ipc.new_stream(sink, part.schema, options=_OPTIONS) as writer:
            writer.write_table(part)
        yield sink.getvalue().to_pybytes()


def unpack(blocks: Iterable[bytes | pa.Buffer], schema: pa.Schema) -> pa.Table:
    """Return the table of `schema` of which these are the blocks, in their order."""
    tables = []
    for block in blocks:
        with pa.ipc.open_stream(block) as reader:
            tables.append(reader.read_all())
    if not tables:
        return schema.empty_table()
    return pa.concat_tables(tables).unify_dictionaries().cast(schema)
