"""The check of a history in this process, in parts: what it holds does not grow with the history.

Row groups are read one chunk after another, and what belongs to a part is kept in a file until all
has been read: first by process, to be taken apart, then by key, to be checked. So does Spark.
"""

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from quorumlog.chaos.checkers.checker import Checker, Facts, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.verdict import Partial, Verdict
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.parts.cutting import cut_by_key, cut_by_process, pack, unpack
from quorumlog.chaos.parts.sources import RowGroups, read_groups
from quorumlog.chaos.parts.survey import look, nemesis_of

MICRO_PER_PART: Final = 1_000_000
PARTS_MAX: Final = 512
Parts = Iterable[tuple[int, pa.Table]]
_LENGTH_BYTES: Final = 8


def check_in_parts(
    groups: RowGroups, checker: Checker, *, progress: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Check a file; the verdict is that of `checkers.check_history`. Raises HistoryError."""
    progress("reading the history")
    looks = (look(one) for chunk in groups.chunks for one in read_groups(groups.file, chunk))
    nemesis = nemesis_of(looks)
    progress("checking")
    facts = facts_of(groups.metadata)
    parts = max(1, min(PARTS_MAX, groups.micro // MICRO_PER_PART))
    chunks = (pa.concat_tables(read_groups(groups.file, chunk)) for chunk in groups.chunks)
    with tempfile.TemporaryDirectory(prefix="quorumlog-parts-") as directory:
        partials = _check(chunks, checker, facts, _Room(Path(directory), parts))
    return checker.conclude(partials, fault_bands(nemesis), facts)


def _check(
    chunks: Iterable[pa.Table],
    checker: Checker,
    facts: Facts,
    room: "_Room",
) -> list[Partial]:
    parts = room.parts
    moved = _Shelf(room.directory / "by-process", OPERATIONS)
    for chunk in chunks:
        moved.put(cut_by_process(chunk, parts))
    shelf = _Shelf(room.directory / "by-key", checker.entries)
    for part in range(parts):
        shelf.put(cut_by_key(checker.explode(moved.take(part)), parts))
    # Of no entries at all, too: the figures are there even if the history is empty.
    nothing = checker.check(checker.explode(OPERATIONS.empty_table()), facts)
    return [nothing, *(checker.check(shelf.take(part), facts) for part in range(parts))]


class _Room(NamedTuple):
    """Where files are kept, and of how many parts."""

    directory: Path
    parts: int


class _Shelf:
    """Keeps the tables of each part in a file of its own: blocks, each after its length."""

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self._directory: Final = directory
        self._schema: Final = schema
        directory.mkdir()

    def put(self, tables: Parts) -> None:
        for part, table in tables:
            with self._file(part).open("ab") as file:
                for block in pack(table):
                    file.write(len(block).to_bytes(_LENGTH_BYTES) + block)

    def take(self, part: int) -> pa.Table:
        """Return all of a part, in the order in which it was put; its file goes."""
        blocks: list[bytes] = []
        if self._file(part).exists():
            with self._file(part).open("rb") as file:
                while length := file.read(_LENGTH_BYTES):
                    blocks.append(file.read(int.from_bytes(length)))
            self._file(part).unlink()
        return unpack(blocks, self._schema)

    def _file(self, part: int) -> Path:
        return self._directory / str(part)
