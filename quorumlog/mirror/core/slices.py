"""Cuts the records of a poll into slices that the producer sends as one batch each."""

from collections.abc import Sequence

from quorumlog.client.core.batch import BATCH_OVERHEAD_BYTES, checked_record_size
from quorumlog.client.records import ConsumerRecord


def slice_end(records: Sequence[ConsumerRecord], begin: int, batch_bytes: int) -> int:
    """Return the end of the records from `begin` on that fit one batch; at least one record."""
    size = BATCH_OVERHEAD_BYTES
    for index in range(begin, len(records)):
        record = records[index]
        size += checked_record_size(record.key, record.value, record.headers)
        if size > batch_bytes and index > begin:
            return index
    return len(records)
