"""The check of a history in this process: the whole table, or in parts if it is large.

In parts its memory does not grow with the history: row groups are read one chunk after another, and
the rows of each part are kept in a file until all have been read. So does Spark.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from quorumlog.chaos.checkers.checker import Checker, Doubt, Facts, Ranges, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.fault_phase import fault_phase
from quorumlog.chaos.checkers.registry import check_history, judges_of
from quorumlog.chaos.checkers.verdict import Partial, Verdict, joined
from quorumlog.chaos.checking.parts.plan import Plan, plan_of
from quorumlog.chaos.checking.parts.row_groups import RowGroups, find_row_groups, read_groups
from quorumlog.chaos.checking.parts.survey import Survey, look, survey_of
from quorumlog.chaos.checking.parts.table_cuts import (
    Cuts,
    cut_by_key,
    cut_by_process,
    pack,
    unpack,
    unshared,
)
from quorumlog.chaos.history.files import HistorySource
from quorumlog.chaos.history.schema import OPERATIONS

BYTES_PER_MESSAGE: Final = 500  # peak memory of a check of a whole table, rounded up
MEMORY_SHARE: Final = 0.25  # of the machine; the rest is for other processes
MESSAGES_OF_A_TABLE: Final = 1_500_000  # beyond, the check in parts is faster and uses less memory
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
MICRO_PER_PART: Final = 1_000_000
PARTS_MAX: Final = 512
Parts = Iterable[tuple[int, pa.Table]]
_LENGTH_BYTES: Final = 8


def check_here(
    source: HistorySource, model: str, *, progress: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Check a history of this machine. Raises HistoryError, ValueError for an unknown model."""
    is_large = not is_one_table(source.messages, machine_memory())
    if is_large and (groups := find_row_groups(source)) is not None:
        judges = judges_of(model, facts_of(groups.metadata))
        return joined([check_in_parts(groups, one, progress=progress) for one in judges])
    progress("checking")
    return check_history(source.table, model)


def is_one_table(messages: int, memory_bytes: int) -> bool:
    """Return whether a history of so many messages is checked as one table."""
    fits = messages * BYTES_PER_MESSAGE <= memory_bytes * MEMORY_SHARE
    return fits and messages <= MESSAGES_OF_A_TABLE


def machine_memory(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """Return the bytes of memory of this machine, or of the container that we run in."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory_bytes, int(cgroup_limit.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return memory_bytes


def check_in_parts(
    groups: RowGroups, checker: Checker, *, progress: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Check a file; the verdict equals that of `checkers.check_history`. Raises HistoryError."""
    progress("reading the history")
    looks = (
        look(one, checker) for chunk in groups.chunks for one in read_groups(groups.file, chunk)
    )
    survey = survey_of(looks, checker)
    progress("checking")
    facts = facts_of(groups.metadata)
    plan = plan_of(
        survey.extents,
        groups.micro,
        checker,
        parts_for=lambda micro: max(1, min(PARTS_MAX, micro // MICRO_PER_PART)),
    )
    chunks = (pa.concat_tables(read_groups(groups.file, chunk)) for chunk in groups.chunks)
    with tempfile.TemporaryDirectory(prefix="quorumlog-parts-") as directory:
        partials = _check(chunks, checker, facts, survey, _Room(Path(directory), plan))
    bands = fault_bands(survey.nemesis)
    phase = fault_phase(survey.nemesis, bands, survey.acks)
    return checker.conclude(partials, bands, facts).with_fault_phase(phase)


def _check(
    chunks: Iterable[pa.Table], checker: Checker, facts: Facts, survey: Survey, room: "_Room"
) -> list[Partial]:
    shelf = _Shelf(room.directory / "by-key", checker.entries)
    plan, ranges = room.plan, checker.ranges
    for entries in _taken_apart(chunks, checker, survey, room):
        shelf.put(cut_by_key(entries, plan.parts, plan.places, cuts=plan.cuts, ranges=ranges))
    # Of an empty table, too: the figures exist even if the history is empty.
    found = [checker.check(checker.explode(OPERATIONS.empty_table()), facts)]
    found += [checker.check(shelf.take(part), facts) for part in range(plan.parts)]
    if ranges is not None:
        found += [_check_cut(cuts, shelf, checker, ranges, facts) for cuts in plan.cuts.values()]
    return found


def _check_cut(
    cuts: Cuts, shelf: "_Shelf", checker: Checker, ranges: Ranges, facts: Facts
) -> Partial:
    """Check a key range by range; the whole key if that does not prove it clean."""
    evidence = []
    for part in cuts.parts:
        evidence.append(ranges.examine(shelf.read(part), facts))
        if isinstance(evidence[-1], Doubt):
            break
    if (proved := ranges.stitch(evidence, facts)) is not None:
        return proved
    first, *others = (shelf.take(part) for part in cuts.parts)
    whole = pa.concat_tables([first, *(unshared(one, ranges) for one in others)])
    return checker.check(whole, facts)


def _taken_apart(
    chunks: Iterable[pa.Table], checker: Checker, survey: Survey, room: "_Room"
) -> Iterator[pa.Table]:
    """Yield all entries: of the chunks one after another, or if needed of whole processes."""
    if checker.runs is not None:
        yield checker.runs.explode_context(survey.context)
        yield from (checker.runs.explode(chunk, survey.context) for chunk in chunks)
        return
    moved = _Shelf(room.directory / "by-process", OPERATIONS)
    for chunk in chunks:
        moved.put(cut_by_process(chunk, room.plan.parts))
    yield from (checker.explode(moved.take(part)) for part in range(room.plan.parts))


class _Room(NamedTuple):
    """The directory of the files, and the plan of the parts."""

    directory: Path
    plan: Plan


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
        """Return all tables of a part, in the order in which they were put; delete its file."""
        table = self.read(part)
        self._file(part).unlink(missing_ok=True)
        return table

    def read(self, part: int) -> pa.Table:
        """Return the same; the file stays."""
        blocks: list[bytes] = []
        if self._file(part).exists():
            with self._file(part).open("rb") as file:
                while length := file.read(_LENGTH_BYTES):
                    blocks.append(file.read(int.from_bytes(length)))
        return unpack(blocks, self._schema)

    def _file(self, part: int) -> Path:
        return self._directory / str(part)
