"""The input of a job: row groups that the tasks open themselves, or blocks of operations."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from quorumlog.chaos.checking.parts.row_groups import ROWS_PER_CHUNK, RowGroups, read_groups
from quorumlog.chaos.checking.parts.table_cuts import pack, unpack
from quorumlog.chaos.checking.spark.context import cores
from quorumlog.chaos.history.files import PARQUET
from quorumlog.chaos.history.model import HistoryError
from quorumlog.chaos.history.parquet import with_checksums
from quorumlog.chaos.history.schema import OPERATIONS
from quorumlog.chaos.history.validate import check_columns

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import Row

_MICRO_DDL: Final = (
    "array<struct<f: string, key: string, offset: bigint, value: bigint, text: string, "
    "checksum: bigint>>"
)
_MICRO_PER_ROW: Final = 3  # of a Kafka history, about
_DDL: Final = ", ".join(
    f"`{field.name}` " + {pa.int64(): "bigint", pa.string(): "string"}.get(field.type, _MICRO_DDL)
    for field in OPERATIONS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The input of a job's tasks.

    rows: each is the index of a chunk of row groups, or a block of operations. micro: the
    approximate number of micro-operations. tables: from the rows of a task to runs of whole
    operations.
    """

    rows: "RDD[Any]"
    micro: int
    tables: Callable[[Iterable[Any]], Iterator[pa.Table]]


def files(context: "SparkContext", groups: RowGroups) -> Input:
    """Return row groups that each task opens by itself: all tasks must have access to the file."""
    file, chunks = groups.file.absolute(), groups.chunks

    def tables(numbers: Iterable[int]) -> Iterator[pa.Table]:
        for number in numbers:
            yield pa.concat_tables(read_groups(file, chunks[number]))

    numbers = context.parallelize(range(len(chunks)), max(1, len(chunks)))
    return Input(rows=numbers, micro=groups.micro, tables=tables)


def table_of(context: "SparkContext", table: pa.Table) -> Input:
    """Return a table of this process, for a history without row groups of operations."""
    table = table.replace_schema_metadata(None)
    step = max(1, min(ROWS_PER_CHUNK, -(-table.num_rows // cores(context))))
    runs = [table.slice(start, step) for start in range(0, table.num_rows, step)]
    blocks = [[*pack(run)] for run in runs]
    rows = context.parallelize(blocks, max(1, len(blocks)))
    return Input(rows=rows, micro=_MICRO_PER_ROW * table.num_rows, tables=_unpacked)


def _unpacked(runs: Iterable[list[bytes]]) -> Iterator[pa.Table]:
    for blocks in runs:
        yield unpack(blocks, OPERATIONS)


def remote(context: "SparkContext", path: str) -> Input:
    """Return a file that only Spark can reach, as hdfs://. Raises HistoryError."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    session = SparkSession(context)
    try:
        found = session.read.parquet(_file(path))
        if missing := [name for name in OPERATIONS.names if name not in found.columns]:
            raise HistoryError(f"{path}: it has no column {', '.join(missing)}")
        frame, rows = session.read.schema(_DDL).parquet(_file(path)), found.count()
    except AnalysisException as error:
        raise HistoryError(f"{path}: {str(error).splitlines()[0]}") from error
    blocks = frame.mapInArrow(_packed, "block binary").rdd
    return Input(rows=blocks, micro=_MICRO_PER_ROW * rows, tables=_checked)


def remote_metadata(context: "SparkContext", path: str) -> dict[bytes, bytes]:
    """Return the metadata of a file that only Spark can reach."""
    jvm: Any = context._jvm  # noqa: SLF001 - PySpark has no look at footers
    place = jvm.org.apache.hadoop.fs.Path(_file(path))
    conf = context._jsc.hadoopConfiguration()  # noqa: SLF001 - as above
    opened = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(place, conf)
    reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(opened)
    try:
        found = dict(reader.getFileMetaData().getKeyValueMetaData())
    finally:
        reader.close()
    return {name.encode(): text.encode() for name, text in found.items()}


def _file(path: str) -> str:
    return path if path.endswith(".parquet") else f"{path.rstrip('/')}/{PARQUET}"


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for run in _runs(batches):
        yield pa.RecordBatch.from_pydict({"block": [pickle.dumps(run)]})


def _runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join the batches of a task into tables of at most one chunk."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if held and sum(one.num_rows for one in held) + batch.num_rows > ROWS_PER_CHUNK:
            yield pa.Table.from_batches(held)
            held = []
        held.append(batch)
    if held:
        yield pa.Table.from_batches(held)


def _checked(rows: Iterable["Row"]) -> Iterator[pa.Table]:
    for row in rows:
        run: pa.Table = pickle.loads(row.block)  # noqa: S301 - of our own tasks
        table = with_checksums(run.select(OPERATIONS.names))
        table = table.replace_schema_metadata(None).cast(OPERATIONS)
        check_columns(table)
        yield table
