"""The requests of the source to a cluster: partitions, offsets and records."""

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from quorumlog.client.errors import KafkaError
from quorumlog.client.records import ConsumerRecord, TopicPartition
from quorumlog.client.settings import ConsumerOptions
from quorumlog.client.sync import SyncConsumer
from quorumlog.spark.options import SourceOptions
from quorumlog.spark.ranges import OffsetRange, Offsets
from quorumlog.wire.codec.error_codes import ErrorCode

_logger: Final = logging.getLogger(__name__)
_POLL_MS: Final = 500
_RECORDS_PER_BATCH: Final = 10_000
_FETCH_BYTES: Final = 4 << 20  # per task; a task reads one partition

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_COLUMNS: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
}
_US_PER_MS: Final = 1000


class DataLost(Exception):
    """Offsets of the query have been removed."""


def open_consumer(options: SourceOptions) -> SyncConsumer:
    """Return a consumer without a group: Spark stores the offsets. Raises KafkaError."""
    client: ConsumerOptions = {
        "max_partition_fetch_bytes": _FETCH_BYTES,
        "client_id": "quorumlog-spark",
        **options.client,
        "auto_offset_reset": "none",
        "enable_auto_commit": False,
    }
    return SyncConsumer(options.bootstrap, **client)


def partitions_of(consumer: SyncConsumer, options: SourceOptions) -> list[TopicPartition]:
    """Return the partitions to read. Raises KafkaError for a missing topic."""
    wanted = options.partitions or {
        topic: consumer.partitions_for(topic) for topic in options.topics
    }
    return [TopicPartition(topic, number) for topic in sorted(wanted) for number in wanted[topic]]


def ends_of(
    consumer: SyncConsumer, partitions: Iterable[TopicPartition]
) -> tuple[Offsets, Offsets]:
    """Return the beginning and the end offset of each partition."""
    names = list(partitions)
    return consumer.beginning_offsets(names), consumer.end_offsets(names)


def read_range(options: SourceOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range. Offsets without a record (markers, compaction) are skipped.

    Raises KafkaError, TimeoutError after `poll_timeout_ms` without progress, and DataLost if
    records were removed, unless the options allow that.
    """
    name, start, end = wanted
    with open_consumer(options) as consumer:
        consumer.assign([name])
        consumer.seek(name, start)
        heard_s = time.monotonic()
        while (position := consumer.position(name)) < end:
            try:
                records = consumer.poll(_POLL_MS, _RECORDS_PER_BATCH).get(name, [])
            except KafkaError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                if (beginning := _after_loss(consumer, options, wanted, position)) is None:
                    return
                consumer.seek(name, beginning)
                continue
            if records:
                if records[-1].offset >= end:
                    records = [record for record in records if record.offset < end]
                if records:
                    yield _batch(records, has_headers=options.has_headers)
            if records or consumer.position(name) > position:
                heard_s = time.monotonic()
            elif (time.monotonic() - heard_s) * 1000 >= options.poll_timeout_ms:
                waited = f"no records arrived for {options.poll_timeout_ms} ms (pollTimeoutMs)"
                raise TimeoutError(f"{name.topic}-{name.partition} at offset {position}: {waited}")


def _after_loss(
    consumer: SyncConsumer, options: SourceOptions, wanted: OffsetRange, position: int
) -> int | None:
    """Return the next offset to read; None if no record of the range is left. Raises DataLost."""
    name = wanted.partition
    (beginning,), (log_end,) = (found.values() for found in ends_of(consumer, [name]))
    said = (
        f"{name.topic}-{name.partition} has the offsets [{beginning}, {log_end}) and no longer "
        f"{position}"
    )
    if options.fail_on_data_loss:
        raise DataLost(f"{said}: failOnDataLoss=false reads the remaining records")
    _logger.warning("%s", said)
    return beginning if position < beginning < wanted.end else None


def _batch(records: list[ConsumerRecord], *, has_headers: bool) -> pa.RecordBatch:
    topics, partitions, offsets, times, keys, values, headers, _, kinds = zip(*records, strict=True)
    columns = [keys, values, topics, partitions, offsets, [_US_PER_MS * ms for ms in times], kinds]
    arrays = [pa.array(c, kind) for c, kind in zip(columns, _COLUMNS.values(), strict=True)]
    names = [*_COLUMNS]
    if has_headers:
        found = [
            [{"key": key, "value": value} for key, value in one] if one else None for one in headers
        ]
        arrays.append(pa.array(found, pa.list_(_HEADER)))
        names.append("headers")
    return pa.RecordBatch.from_arrays(arrays, names)
