"""The last batch of each producer in a log: the cleaner keeps it to recognize duplicates."""

from typing import Final, NamedTuple

from quorumlog.wire.codec.records import BatchHeader


class _Last(NamedTuple):
    epoch: int
    base_offset: int
    has_records: bool  # False for a marker: no batch of records of this epoch came before it


class LastBatches:
    """Per producer: the last batch of records in its newest epoch, or else its last marker.

    Kafka's `lastRecordsOfActiveProducers`.
    """

    def __init__(self) -> None:
        self._last: Final[dict[int, _Last]] = {}

    def take(self, header: BatchHeader) -> None:
        """Record the next batch of the log."""
        if header.producer_id < 0:
            return
        known = self._last.get(header.producer_id)
        is_same = known is not None and known.epoch == header.producer_epoch
        if header.is_control and is_same and known is not None and known.has_records:
            return
        last = _Last(header.producer_epoch, header.base_offset, not header.is_control)
        self._last[header.producer_id] = last

    def has(self, header: BatchHeader) -> bool:
        """Whether this is the last batch of its producer."""
        known = self._last.get(header.producer_id)
        return known is not None and known.base_offset == header.base_offset
