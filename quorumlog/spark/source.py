"""The classes that Spark calls: in the driver to plan, in a task to read.

Columns, options and the offsets in checkpoints are as in Spark's own Kafka source.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from quorumlog.client.errors import KafkaError
from quorumlog.spark.cluster_reads import (
    DataLost,
    ends_of,
    open_consumer,
    partitions_of,
    read_range,
)
from quorumlog.spark.options import SourceOptions, has_headers, parse_options
from quorumlog.spark.ranges import (
    Document,
    OffsetRange,
    Offsets,
    between,
    document_of,
    limited,
    offsets_of,
    resolve,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS: Final = ", headers array<struct<key: string, value: binary>>"


class QuorumlogSource(DataSource):
    """`format("quorumlog")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "quorumlog"

    def schema(self) -> str:
        """Return the columns of Spark's own Kafka source."""
        return SCHEMA + (HEADERS if has_headers(self.options) else "")

    def reader(self, schema: "StructType") -> "BatchReader":
        """Return the reader of a batch. Raises ValueError."""
        del schema
        return BatchReader(parse_options(self.options, is_stream=False))

    def streamReader(self, schema: "StructType") -> "StreamReader":  # noqa: N802 - Spark's name
        """Return the reader of a stream. Raises ValueError."""
        del schema
        return StreamReader(parse_options(self.options, is_stream=True))


class BatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, resolved when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options: Final = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises KafkaError, and ValueError for offsets of other partitions."""
        options = self._options
        with open_consumer(options) as consumer:
            beginnings, ends = ends_of(consumer, partitions_of(consumer, options))
        start = resolve(options.starting, beginnings, ends)
        end = resolve(options.ending, beginnings, ends)
        return [
            InputPartition(tuple(part))
            for part in between(start, end, rows_per_task=options.rows_per_task)
        ]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a task."""
        return read_range(self._options, OffsetRange(*partition.value))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records since the last batch, at most `maxOffsetsPerTrigger` rows.

    Partitions that are added to a topic are read from their beginning.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options: Final = options
        self._target: Offsets | None = None

    def initialOffset(self) -> Document:  # noqa: N802 - Spark's name
        """Return the start offsets of a new query. Raises KafkaError and ValueError."""
        beginnings, ends = self._ask()
        return document_of(resolve(self._options.starting, beginnings, ends))

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802 - Spark's
        """Return the end offsets of the next batch. Raises KafkaError and DataLost."""
        beginnings, ends = self._ask()
        if self._target is not None:
            ends = {**ends, **self._target}
        begin = {**beginnings, **offsets_of(start)}
        for name in sorted(begin.keys() - ends.keys()):
            self._lost(f"{name.topic}-{name.partition} is no longer there")
        for name, end in ends.items():
            if end < begin[name]:
                self._lost(f"{name.topic}-{name.partition} ends at {end}, before {begin[name]}")
        if isinstance(limit, ReadMaxRows):
            ends = limited(begin, ends, limit.max_rows)
        return document_of(ends)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the option maxOffsetsPerTrigger."""
        rows = self._options.rows_per_trigger
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def reportLatestOffset(self) -> Document | None:  # noqa: N802 - Spark's name
        """Return the end offsets of the partitions, for the progress of the query."""
        try:
            return document_of(self._ask()[1])
        except KafkaError:
            return None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Store the current end offsets: such a query reads up to them, and then ends."""
        self._target = self._ask()[1]

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        """Return the tasks between two offsets. Raises KafkaError."""
        known, until = offsets_of(start), offsets_of(end)
        if new := [name for name in sorted(until) if name not in known]:
            with open_consumer(self._options) as consumer:
                known |= ends_of(consumer, new)[0]
        parts = between(known, until, rows_per_task=self._options.rows_per_task)
        return [InputPartition(tuple(part)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of a task."""
        return read_range(self._options, OffsetRange(*partition.value))

    def _ask(self) -> tuple[Offsets, Offsets]:
        with open_consumer(self._options) as consumer:
            return ends_of(consumer, partitions_of(consumer, self._options))

    def _lost(self, said: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{said}: failOnDataLoss=false continues with the remaining records")
