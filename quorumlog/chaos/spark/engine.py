"""The check of a history on Spark: cut by process, taken apart, cut by key, checked, merged.

Both steps run the pure functions of `chaos.checkers` on whole partitions, as Arrow: there is no
second implementation that could disagree with the local one. A key is checked by one task.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from quorumlog.chaos.checkers.checker import Checker, Facts, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.registry import DEFAULT_MODEL, find_checker
from quorumlog.chaos.checkers.verdict import Partial, Verdict
from quorumlog.chaos.history.files import locate_history, read_history
from quorumlog.chaos.history.model import NEMESIS, HistoryError
from quorumlog.chaos.history.parquet import facts_in, is_format_1, open_parquet, row_group
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.history.validate import merge_facts, part_facts
from quorumlog.chaos.spark.session import cores, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MICRO_DDL: Final = (
    "array<struct<f: string, key: string, offset: bigint, value: bigint, text: string>>"
)
_TYPES: Final = {pa.int64(): "bigint", pa.int32(): "int", pa.int8(): "tinyint"}
_SHORT_ROWS: Final = 5_000_000  # below, a JVM that starts fast beats one that runs fast
_ROWS_PER_TASK: Final = 250_000  # fewer are not worth another task


def check_on_spark(
    path: str | Path,
    *,
    model: str = DEFAULT_MODEL,
    master: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the history at `path`; the verdict is that of `checkers.check_history`.

    A Parquet file is read by Spark, where it lies: with a remote master the executors must see it.
    Raises HistoryError and session.SparkUnavailable.
    """
    file, checker = locate_history(path), find_checker(model)
    table, (metadata, rows) = None, _look_at(file)
    if not rows:  # JSON lines, or not as our harness writes it: read it here
        table = read_history(file)
        metadata, rows = table.schema.metadata or {}, table.num_rows
    facts = facts_of(metadata)
    progress("starting Spark")
    with spark_session(master, is_short=rows < _SHORT_ROWS) as session:
        progress("reading the history")
        history = _read(session, file) if table is None else session.createDataFrame(table)
        nemesis = history.filter(history.process == NEMESIS).select(*OPERATIONS.names).toArrow()
        progress("checking")
        clients = history.filter(history.process != NEMESIS)
        partials = _check(clients, checker, facts, tasks=_tasks(cores(session), rows))
    return checker.conclude(partials, fault_bands(nemesis), facts)


def _look_at(file: Path) -> tuple[dict[bytes, bytes], int]:
    """Validate a Parquet file that Spark can read as it is; return what it says, and its rows.

    The number is 0 for any other: not Parquet, of format 1, or with other types. The file is read
    by row groups, so that this process holds one at a time. Raises HistoryError.
    """
    if file.suffix != ".parquet":
        return {}, 0
    try:
        with open_parquet(file) as opened:
            if is_format_1(opened) or not _is_plain(opened.schema_arrow):
                return {}, 0
            facts = facts_in(opened)
            groups = range(opened.num_row_groups)
            merge_facts(part_facts(row_group(opened, place)) for place in groups)
            return facts, opened.metadata.num_rows
    except (pa.ArrowException, OSError, ValueError, HistoryError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error


def _is_plain(schema: pa.Schema) -> bool:
    return bool(schema.remove_metadata().equals(OPERATIONS))


def _tasks(cores: int, rows: int) -> int:
    """Return into how many parts to cut: one per core, more if they would be large."""
    return max(cores, min(4 * cores, rows // _ROWS_PER_TASK))


def _read(session: "SparkSession", file: Path) -> "DataFrame":
    return session.read.schema(_ddl(OPERATIONS)).parquet(str(file))


def _check(clients: "DataFrame", checker: Checker, facts: Facts, *, tasks: int) -> list[Partial]:
    from pyspark.errors import PythonException

    def explode_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if table := _table_of(batches):
            yield from checker.explode(table).to_batches()

    def check_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if table := _table_of(batches):
            found = checker.check(table, facts)
            yield pa.RecordBatch.from_pydict({"partial": [json.dumps(found.as_json())]})

    entries = (
        clients.select(*OPERATIONS.names)
        .repartition(tasks, "process")
        .mapInArrow(explode_part, _ddl(checker.entries))
    )
    partials = entries.repartition(tasks, "key").mapInArrow(check_part, "partial string")
    try:
        rows = partials.collect()
    except PythonException as error:
        if "HistoryError: " in str(error):  # what the model has no room for is found by a task
            said = str(error).rpartition("HistoryError: ")[2].splitlines()[0]
            raise HistoryError(said) from error
        raise
    # Of no entries at all, too: the figures are there even if the history is empty.
    nothing = checker.check(checker.explode(OPERATIONS.empty_table()), facts)
    return [nothing, *(Partial.from_json(json.loads(row.partial)) for row in rows)]


def _table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    held = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(held) if held else None


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(
        f"`{field.name}` {_TYPES.get(field.type, 'string')}"
        if not pa.types.is_list(field.type)
        else f"`{field.name}` {_MICRO_DDL}"
        for field in schema
    )
