"""The parts of a history: row groups of a Parquet file, read where needed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from quorumlog.chaos.history.files import HistorySource
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.history.parquet import facts_in, is_format_1, open_parquet, row_group

ROWS_PER_CHUNK = 200_000  # entries of a larger chunk do not stay in the caches
MICRO_PER_CHUNK = 600_000  # a larger row group is a chunk of its own
Chunk = tuple[int, int]  # row groups [first, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """A file of one row per operation, and the contents of its footer, read without any column."""

    file: Path
    metadata: Mapping[bytes, bytes]
    rows: int
    micro: int
    chunks: tuple[Chunk, ...]


def find_row_groups(source: HistorySource) -> RowGroups | None:
    """Return the row groups; None: not Parquet, or of format 1. Raises HistoryError."""
    footer = source.footer
    try:
        if footer is None or is_format_1(footer):
            return None
        metadata = facts_in(footer)  # it comes first: columns of a damaged file end the process
        groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
        return RowGroups(
            file=source.file,
            metadata=metadata,
            rows=footer.num_rows,
            micro=source.messages,
            chunks=tuple(_chunks([(group.num_rows, _micro_in(group)) for group in groups])),
        )
    except (pa.ArrowException, OSError, ValueError, HistoryError) as error:
        raise HistoryError(f"{source.file}: not a history: {error}") from error


def read_groups(file: Path, chunk: Chunk) -> Iterator[pa.Table]:
    """Yield the operations of row groups. Raises HistoryError."""
    try:
        with open_parquet(file) as opened:
            for place in range(*chunk):
                yield row_group(opened, place)
    except (pa.ArrowException, OSError, ValueError, HistoryError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error


def _micro_in(group: pq.RowGroupMetaData) -> int:
    """Return about how many micro-operations a row group has: an empty list counts as one."""
    return max((group.column(place).num_values for place in range(group.num_columns)), default=0)


def _chunks(groups: list[tuple[int, int]]) -> Iterator[Chunk]:
    """Join row groups (rows, micro-operations) into chunks of limited size, one at least."""
    first, rows, micro = 0, 0, 0
    for place, (rows_in, micro_in) in enumerate(groups):
        too_large = rows + rows_in > ROWS_PER_CHUNK or micro + micro_in > MICRO_PER_CHUNK
        if place > first and too_large:
            yield first, place
            first, rows, micro = place, 0, 0
        rows, micro = rows + rows_in, micro + micro_in
    if groups:
        yield first, len(groups)
