"""The check of a history on Spark: looked at, cut by process, taken apart, cut by key, checked.

All steps run the pure functions of `chaos.parts` and `chaos.checkers` on Arrow tables in Python:
there is no second implementation that could disagree with the local one. Tasks read row groups of
the file themselves; what the JVM moves between them are few large blocks of bytes. A process is
taken apart by one task, and a key is checked by one.
docs/decisions/0069-spark-moves-blocks-of-bytes.md
"""

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from quorumlog.chaos.checkers.checker import Checker, Facts, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.registry import DEFAULT_MODEL, find_checker
from quorumlog.chaos.checkers.verdict import Partial, Verdict
from quorumlog.chaos.history.files import locate_history, read_history
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.parts.cutting import cut_by_key, cut_by_process, pack, unpack
from quorumlog.chaos.parts.sources import find_row_groups
from quorumlog.chaos.parts.survey import Look, look, nemesis_of
from quorumlog.chaos.spark.executors import executors_expected
from quorumlog.chaos.spark.inputs import Input, files, frame_of, remote, remote_metadata
from quorumlog.chaos.spark.paths import is_remote, local_path
from quorumlog.chaos.spark.session import cores, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHORT_ROWS: Final = 5_000_000  # below, a JVM that starts fast beats one that runs fast
_MICRO_PER_PART: Final = 1_000_000
_PARTS_MAX: Final = 512
_BLOCKS_DDL: Final = "part int, block binary"
# A batch that goes to Python holds a few blocks, or as many rows as it has bytes for.
_BATCHES: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
}
Batches = Iterator[pa.RecordBatch]


def check_on_spark(
    path: str | Path,
    *,
    model: str = DEFAULT_MODEL,
    master: str | None = None,
    conf: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the history at `path`; the verdict is that of `checkers.check_history`.

    A Parquet file is read by the tasks, where it lies: with a remote master the executors must see
    it. A path with a scheme (hdfs://, s3a://) is a Parquet file for Spark to find. `conf`:
    session.py. Raises HistoryError and session.SparkUnavailable.
    """
    checker, groups, table, rows = find_checker(model), None, None, _SHORT_ROWS
    if not is_remote(path):
        file = locate_history(local_path(path))
        groups = find_row_groups(file)
        table = None if groups is not None else read_history(file)  # JSON lines, format 1
        rows = groups.rows if groups is not None else table.num_rows if table is not None else 0
    progress("starting Spark")
    with (
        spark_session(master, conf=conf, is_short=rows < _SHORT_ROWS) as session,
        executors_expected(session),
        _settings(session),
    ):
        if groups is not None:
            given, metadata = files(session, groups), groups.metadata
        elif table is not None:
            given, metadata = frame_of(session, table), table.schema.metadata or {}
        else:
            given, metadata = remote(session, str(path)), remote_metadata(session, str(path))
        return check_input(session, given, checker, facts_of(metadata), progress=progress)


def check_input(
    session: "SparkSession",
    given: Input,
    checker: Checker,
    facts: Facts,
    *,
    parts: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check what `given` reads, cut into `parts`. Raises HistoryError."""
    progress("reading the history")
    nemesis = _survey(given)
    progress("checking")
    wanted = min(_PARTS_MAX, max(4 * cores(session), given.micro // _MICRO_PER_PART))
    partials = _check(given, checker, facts, parts=parts or wanted)
    return checker.conclude(partials, fault_bands(nemesis), facts)


def _survey(given: Input) -> pa.Table:
    tables = given.tables

    def look_at(batches: Batches) -> Batches:
        for part in tables(batches):
            yield _row(part=0, block=pickle.dumps(look(part)))

    rows = _collect(given.frame.mapInArrow(look_at, _BLOCKS_DDL))
    looks: list[Look] = [pickle.loads(row.block) for row in rows]  # noqa: S301 - of our own tasks
    looks.sort(key=lambda one: -1 if one.facts is None else one.facts.first_index)
    return nemesis_of(looks)


def _check(given: Input, checker: Checker, facts: Facts, *, parts: int) -> list[Partial]:
    tables = given.tables

    def by_process(batches: Batches) -> Batches:
        for part in tables(batches):
            yield from _blocks(cut_by_process(part, parts))

    def explode(batches: Batches) -> Batches:
        if (part := _whole(batches, OPERATIONS)) is not None:
            yield from _blocks(cut_by_key(checker.explode(part.sort_by("index")), parts))

    def check(batches: Batches) -> Batches:
        if (entries := _whole(batches, checker.entries)) is not None:
            found = checker.check(entries, facts)
            yield pa.RecordBatch.from_pydict({"partial": [json.dumps(found.as_json())]})

    moved = _shuffled(given.frame.mapInArrow(by_process, _BLOCKS_DDL), parts)
    entries = moved.mapInArrow(explode, _BLOCKS_DDL)
    rows = _collect(_shuffled(entries, parts).mapInArrow(check, "partial string"))
    # Of no entries at all, too: the figures are there even if the history is empty.
    nothing = checker.check(checker.explode(OPERATIONS.empty_table()), facts)
    return [nothing, *(Partial.from_json(json.loads(row.partial)) for row in rows)]


def _shuffled(blocks: "DataFrame", parts: int) -> "DataFrame":
    """Bring the blocks of each part to one task."""
    from pyspark.sql.functions import col

    return blocks.repartitionById(parts, col("part"))


def _blocks(parts: Iterable[tuple[int, pa.Table]]) -> Batches:
    for part, table in parts:
        for block in pack(table):
            yield _row(part=part, block=block)


def _row(*, part: int, block: bytes) -> pa.RecordBatch:
    columns = [pa.array([part], pa.int32()), pa.array([block], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["part", "block"])


def _whole(batches: Batches, schema: pa.Schema) -> pa.Table | None:
    """Return the table of all blocks of a task; None if it has none."""
    blocks = [block.as_buffer() for batch in batches for block in batch.column("block")]
    return unpack(blocks, schema) if blocks else None


def _collect(frame: "DataFrame") -> list[Any]:
    """Run a job. Raises HistoryError for one of a task."""
    from pyspark.errors import PythonException

    try:
        return list(frame.collect())
    except PythonException as error:
        if "HistoryError: " in str(error):
            said = str(error).rpartition("HistoryError: ")[2].splitlines()[0]
            raise HistoryError(said) from error
        raise


@contextmanager
def _settings(session: "SparkSession") -> Iterator[None]:
    """Have the settings of these jobs, also in a session of others, and give theirs back."""
    before = {name: session.conf.get(name) for name in _BATCHES}
    for name, value in _BATCHES.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            session.conf.set(name, known or "")
