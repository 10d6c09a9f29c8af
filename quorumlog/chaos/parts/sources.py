"""Where the parts of a history come from: row groups of a Parquet file, read where needed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from quorumlog.chaos.engines import messages_in
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.history.parquet import facts_in, is_format_1, open_parquet, row_group

ROWS_PER_CHUNK = 500_000
Chunk = tuple[int, int]  # row groups [first, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """A file of one row per operation, and what its footer says: no column is read for that."""

    file: Path
    metadata: Mapping[bytes, bytes]
    rows: int
    micro: int
    chunks: tuple[Chunk, ...]


def find_row_groups(file: Path) -> RowGroups | None:
    """Return what the footer says; None: not Parquet, or of format 1. Raises HistoryError."""
    if file.suffix != ".parquet":
        return None
    try:
        with open_parquet(file) as opened:
            if is_format_1(opened):
                return None
            footer = opened.metadata
            groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
            return RowGroups(
                file=file,
                metadata=facts_in(opened),
                rows=footer.num_rows,
                micro=messages_in(file),
                chunks=tuple(_chunks([group.num_rows for group in groups])),
            )
    except (pa.ArrowException, OSError, ValueError, HistoryError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error


def read_groups(file: Path, chunk: Chunk) -> Iterator[pa.Table]:
    """Yield the operations of row groups. Raises HistoryError."""
    try:
        with open_parquet(file) as opened:
            for place in range(*chunk):
                yield row_group(opened, place)
    except (pa.ArrowException, OSError, ValueError, HistoryError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error


def _chunks(rows: list[int]) -> Iterator[Chunk]:
    """Put row groups together, as many as have ROWS_PER_CHUNK rows at most, or one."""
    first, held = 0, 0
    for place, count in enumerate(rows):
        if place > first and held + count > ROWS_PER_CHUNK:
            yield first, place
            first, held = place, 0
        held += count
    if rows:
        yield first, len(rows)
