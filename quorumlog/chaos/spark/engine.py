"""The check of a history on Spark: cut by process, taken apart, cut by key, checked, merged.

Both steps run the pure functions of `chaos.checkers` on whole partitions, as Arrow: there is no
second implementation that could disagree with the local one. A key is checked by one task.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from quorumlog.chaos.checkers.checker import Checker, Facts, facts_of
from quorumlog.chaos.checkers.fault_bands import fault_bands
from quorumlog.chaos.checkers.registry import DEFAULT_MODEL, find_checker
from quorumlog.chaos.checkers.verdict import Partial, Verdict
from quorumlog.chaos.history.files import check_order, check_rows, locate_history, read_history
from quorumlog.chaos.history.model import NEMESIS, HistoryError
from quorumlog.chaos.history.schema import SCHEMA
from quorumlog.chaos.spark.executors import executors_expected
from quorumlog.chaos.spark.paths import local_path
from quorumlog.chaos.spark.session import cores, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ: Final = ("index", "time_ns", "process", "type", "f", "messages", "details")
_MESSAGES_DDL: Final = "array<struct<key: string, offset: bigint, value: bigint>>"
_TYPES: Final = {pa.int64(): "bigint", pa.int32(): "int", pa.int8(): "tinyint"}
_SHORT_ROWS: Final = 5_000_000  # below, a JVM that starts fast beats one that runs fast
_ROWS_PER_TASK: Final = 250_000  # fewer are not worth another task


def check_on_spark(
    path: str | Path,
    *,
    model: str = DEFAULT_MODEL,
    master: str | None = None,
    conf: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the history at `path`; the verdict is that of `checkers.check_history`.

    A Parquet file is read by Spark, where it lies: with a remote master the executors must see it.
    A path with a scheme (hdfs://, s3a://) is a Parquet file for Spark to find. `conf`: session.py.
    Raises HistoryError and session.SparkUnavailable.
    """
    file, checker = locate_history(local_path(path)), find_checker(model)
    table, (metadata, rows) = None, _look_at(file)
    if not rows:  # JSON lines, or not as our harness writes it: read it here, with care
        table = read_history(file)
        metadata, rows = table.schema.metadata or {}, table.num_rows
    facts = facts_of(metadata)
    progress("starting Spark")
    is_short = rows < _SHORT_ROWS
    with (
        spark_session(master, conf=conf, is_short=is_short) as session,
        executors_expected(session),
    ):
        progress("reading the history")
        history = _read(session, file) if table is None else session.createDataFrame(table)
        nemesis = history.filter(history.process == NEMESIS).select(*SCHEMA.names).toArrow()
        progress("checking")
        clients = history.filter(history.process != NEMESIS)
        partials = _check(clients, checker, facts, tasks=_tasks(cores(session), rows))
    return checker.conclude(partials, fault_bands(nemesis), facts)


def _look_at(file: Path) -> tuple[dict[bytes, bytes], int]:
    """Return the metadata and the number of rows of a Parquet file that Spark can read as it is.

    The number is 0 for any other: not Parquet, or with other types or with nulls, which Spark would
    read as something else than `read_history` does. Raises HistoryError.
    """
    if file.suffix != ".parquet":
        return {}, 0
    try:
        footer = pq.read_metadata(file)
        schema = footer.schema.to_arrow_schema()
        is_plain = schema.remove_metadata().equals(SCHEMA) and not _may_hold_nulls(footer)
        if is_plain:
            check_order(pq.read_table(file, columns=["index"]).column("index"))
    except (pa.ArrowException, OSError) as error:
        raise HistoryError(f"{file}: not a history: {error}") from error
    except HistoryError as error:
        raise HistoryError(f"{file}: {error}") from error
    return schema.metadata or {}, footer.num_rows if is_plain else 0


def _may_hold_nulls(footer: pq.FileMetaData) -> bool:
    """Tell whether a column may hold nulls. Those of messages are looked at by the tasks."""
    groups = (footer.row_group(place) for place in range(footer.num_row_groups))
    columns = (group.column(place) for group in groups for place in range(group.num_columns))
    return any(
        (known := column.statistics) is None or known.null_count != 0
        for column in columns
        if not column.path_in_schema.startswith("messages.")
    )


def _tasks(cores: int, rows: int) -> int:
    """Return into how many parts to cut: one per core, more if they would be large."""
    return max(cores, min(4 * cores, rows // _ROWS_PER_TASK))


def _read(session: "SparkSession", file: Path) -> "DataFrame":
    return session.read.schema(_ddl(SCHEMA)).parquet(str(file))


def _check(clients: "DataFrame", checker: Checker, facts: Facts, *, tasks: int) -> list[Partial]:
    from pyspark.errors import PythonException

    def explode_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if table := _table_of(batches):
            yield from checker.explode(check_rows(table)).to_batches()

    def check_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if table := _table_of(batches):
            found = checker.check(table, facts)
            yield pa.RecordBatch.from_pydict({"partial": [json.dumps(found.as_json())]})

    entries = (
        clients.select(*_READ)
        .repartition(tasks, "process")
        .mapInArrow(explode_part, _ddl(checker.entries))
    )
    partials = entries.repartition(tasks, "key").mapInArrow(check_part, "partial string")
    try:
        rows = partials.collect()
    except PythonException as error:
        if "HistoryError" in str(error):
            said = str(error).rpartition("HistoryError: ")[2].splitlines()[0]
            raise HistoryError(said) from error
        raise
    # Of no entries at all, too: the figures are there even if the history is empty.
    nothing = checker.check(checker.explode(SCHEMA.empty_table()), facts)
    return [nothing, *(Partial.from_json(json.loads(row.partial)) for row in rows)]


def _table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table | None:
    held = [batch for batch in batches if batch.num_rows]
    return pa.Table.from_batches(held) if held else None


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(
        f"`{field.name}` {_TYPES.get(field.type, 'string')}"
        if not pa.types.is_list(field.type)
        else f"`{field.name}` {_MESSAGES_DDL}"
        for field in schema
    )
