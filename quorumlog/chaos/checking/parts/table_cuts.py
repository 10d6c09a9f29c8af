"""Splits tables into parts, by process or by key, and packs parts into blocks of bytes.

Every task of every machine splits alike: the part of a value depends on the value alone, or is
given to all of them.
"""

import heapq
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.chaos.checkers.checker import SHARED, Ranges
from quorumlog.chaos.checkers.entries import sorted_codes

Places = npt.NDArray[np.int64]
ROWS_PER_BLOCK: Final = 250_000
_PRIME: Final = 2_654_435_761  # Knuth's: neighbouring processes go to different parts
_FEW: Final = 1 << 16
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


def spread(sizes: Mapping[str, int], parts: int) -> dict[str, int]:
    """Return the parts of keys of these sizes, so that the largest part is not much too large."""
    loads = [(0, part) for part in range(parts)]
    places = {}
    for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
        load, places[key] = heapq.heappop(loads)
        heapq.heappush(loads, (load + sizes[key], places[key]))
    return places


@dataclass(frozen=True, slots=True)
class Cuts:
    """The ranges of positions into which one key is split; each is a part of its own.

    The range at place n of `starts` begins there, and is part first_part + n; positions below the
    first start are in the first range.
    """

    first_part: int
    starts: tuple[int, ...]

    @property
    def parts(self) -> range:
        """The parts, in the order of their ranges."""
        return range(self.first_part, self.first_part + len(self.starts))


def cut_by_key(
    entries: pa.Table,
    parts: int,
    places: Mapping[str, int] = MappingProxyType({}),
    *,
    cuts: Mapping[str, Cuts] = MappingProxyType({}),
    ranges: Ranges | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """Yield (part, entries of its keys). Order within a part stays; keys become a dictionary.

    `places`: the parts of some keys; the part of any other key is a checksum of its name. `cuts`:
    the keys that `ranges` splits. Each of their ranges gets all shared entries.
    """
    keys, code = sorted_codes(entries.column("key"))
    of_key = np.array(
        [places[key] if key in places else zlib.crc32(key.encode()) % parts for key in keys],
        np.int64,
    )
    names = pa.DictionaryArray.from_arrays(code, pa.array(keys, pa.string()))
    place = entries.schema.get_field_index("key")
    table, part = entries.set_column(place, "key", names), of_key[code]
    row = np.arange(len(part))
    if ranges is not None:
        for number, key in enumerate(keys):
            if key in cuts:
                positions = ranges.positions(table)
                row, part = _in_ranges(row, part, code == number, cuts[key], positions)
    yield from _cut(table, row, part)


def _in_ranges(
    row: Places, part: Places, mine: npt.NDArray[np.bool_], cuts: Cuts, positions: Places
) -> tuple[Places, Places]:
    """Move the rows in `mine` into ranges: shared rows into each, others by position."""
    shared = np.flatnonzero(mine & (positions == SHARED))
    inside = mine[row] & (positions[row] >= 0)
    part[inside] = cuts.first_part + np.maximum(
        np.searchsorted(np.array(cuts.starts), positions[row[inside]], side="right") - 1, 0
    )
    kept = ~(mine[row] & (positions[row] == SHARED))
    return (
        np.concatenate([row[kept], np.tile(shared, len(cuts.parts))]),
        np.concatenate([part[kept], np.repeat(np.array(cuts.parts), len(shared))]),
    )


def unshared(entries: pa.Table, ranges: Ranges) -> pa.Table:
    """Return the entries of a range that are not shared with other ranges."""
    return entries.filter(pa.array(ranges.positions(entries) != SHARED))


def cut_by_process(operations: pa.Table, parts: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (part, operations of its processes). Order within a part stays."""
    process = operations.column("process").to_numpy()
    yield from _cut(operations, np.arange(len(process)), process * _PRIME % (1 << 32) % parts)


def _cut(table: pa.Table, row: Places, part: Places) -> Iterator[tuple[int, pa.Table]]:
    """Yield (part, its rows). `row`, `part`: pairs of a row and its part."""
    # Of 16 bits: numpy sorts those by their digits.
    number = np.uint16 if int(part.max(initial=0)) < _FEW else np.int64
    order = row[np.argsort(part.astype(number), kind="stable")]
    counts = np.bincount(part)
    ends = np.cumsum(counts)
    table = table.combine_chunks()
    for name in np.flatnonzero(counts).tolist():
        chosen = order[ends[name] - counts[name] : ends[name]]
        yield name, table.take(pa.array(chosen))


def pack(table: pa.Table) -> Iterator[bytes]:
    """Yield a table as blocks of bytes of limited size."""
    for start in range(0, table.num_rows, ROWS_PER_BLOCK):
        sink = pa.BufferOutputStream()
        part = table.slice(start, ROWS_PER_BLOCK)
        with pa.ipc.new_stream(sink, part.schema, options=_OPTIONS) as writer:
            writer.write_table(part)
        yield sink.getvalue().to_pybytes()


def unpack(blocks: Iterable[bytes | pa.Buffer], schema: pa.Schema) -> pa.Table:
    """Return the table of `schema` from its blocks, in their order."""
    tables = []
    for block in blocks:
        with pa.ipc.open_stream(block) as reader:
            tables.append(reader.read_all())
    if not tables:
        return schema.empty_table()
    return pa.concat_tables(tables).unify_dictionaries().cast(schema)
