"""What a job reads: row groups that the tasks open themselves, or a DataFrame that Spark reads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from quorumlog.chaos.history.files import PARQUET
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.history.validate import check_columns
from quorumlog.chaos.parts.sources import ROWS_PER_CHUNK, RowGroups, read_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MICRO_MICRO_PER_ROW: Final = 3  # of a Kafka history, about
_MICRO_DDL: Final = (
    "array<struct<f: string, key: string, offset: bigint, value: bigint, text: string>>"
)
_MICRO_PER_ROW: Final = 3  # of a Kafka history, about
_DDL: Final = ", ".join(
    f"`{field.name}` " + {pa.int64(): "bigint", pa.string(): "string"}.get(field.type, _MICRO_DDL)
    for field in OPERATIONS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What the tasks of a job read.

    frame: a row of it tells a task what to read, or is an operation. micro: about how many
    micro-operations there are. tables: from the batches of a task to runs of whole operations.
    """

    frame: "DataFrame"
    micro: int
    tables: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.Table]]


def files(session: "SparkSession", groups: RowGroups) -> Input:
    """Return row groups that each task opens by itself: the file must be there for all of them."""
    file, chunks = groups.file.absolute(), groups.chunks

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.concat_tables(read_groups(file, chunks[number]))

    count = max(1, len(chunks))
    frame = session.range(0, len(chunks), 1, numPartitions=count)
    return Input(frame=frame, micro=groups.micro, tables=tables)


def frame_of(session: "SparkSession", table: pa.Table) -> Input:
    """Return a table of this process, for what has no row groups of operations."""
    return Input(
        frame=session.createDataFrame(table), micro=_MICRO_PER_ROW * table.num_rows, tables=_runs
    )


def remote(session: "SparkSession", path: str) -> Input:
    """Return a file that only Spark can reach, as hdfs://. Raises HistoryError."""
    from pyspark.errors import AnalysisException

    try:
        found = session.read.parquet(_file(path))
        if missing := [name for name in OPERATIONS.names if name not in found.columns]:
            raise HistoryError(f"{path}: it has no column {', '.join(missing)}")
        frame, rows = session.read.schema(_DDL).parquet(_file(path)), found.count()
    except AnalysisException as error:
        raise HistoryError(f"{path}: {str(error).splitlines()[0]}") from error
    return Input(frame=frame, micro=_MICRO_PER_ROW * rows, tables=_runs)


def remote_metadata(session: "SparkSession", path: str) -> dict[bytes, bytes]:
    """Return the metadata of a file that only Spark can reach."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - PySpark has no look at footers
    place = jvm.org.apache.hadoop.fs.Path(_file(path))
    conf = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
    opened = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(place, conf)
    reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(opened)
    try:
        found = dict(reader.getFileMetaData().getKeyValueMetaData())
    finally:
        reader.close()
    return {name.encode(): text.encode() for name, text in found.items()}


def _file(path: str) -> str:
    return path if path.endswith(".parquet") else f"{path.rstrip('/')}/{PARQUET}"


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put the batches of a task together, as many as make a chunk."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if held and sum(one.num_rows for one in held) + batch.num_rows > ROWS_PER_CHUNK:
            yield _checked(held)
            held = []
        held.append(batch)
    if held:
        yield _checked(held)


def _checked(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches).select(OPERATIONS.names)
    table = table.replace_schema_metadata(None).cast(OPERATIONS)
    check_columns(table)
    return table
