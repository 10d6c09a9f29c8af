"""Which records of a compacted log stay: the newest of each key.

Sources: Kafka's `LogCleaner`, `Cleaner`; KIP-58 (a log is cleaned up to an offset), KIP-354 (the
longest lag), KIP-534 (the delete horizon of tombstones).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from operator import attrgetter
from typing import Final, NamedTuple

from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.storage.core.retention import SegmentFacts
from quorumlog.storage.core.segment_index import NO_TIMESTAMP
from quorumlog.wire.codec.filtered_batches import (
    DELETE_HORIZON_BIT,
    RawRecord,
    raw_records,
    with_records,
)
from quorumlog.wire.codec.inspection import unfold
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import DECOMPRESSED_BYTES_MAX, BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker

KEYS_MAX: Final = 200_000  # about 150 bytes of memory for each


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()


@dataclass(slots=True)
class NewestOffsets:
    """The newest offset of each key in the dirty part of a log: at most `keys_max` keys.

    Keys are compared by a digest of 16 bytes. `end_offset`: every record below it is included.
    """

    end_offset: int
    keys_max: int = KEYS_MAX
    _offsets: dict[bytes, int] = field(default_factory=dict)

    def take(self, batch: Buffer, header: BatchHeader, *, is_aborted: bool = False) -> bool:
        """Add the next batch; False, and no change, if its keys may exceed `keys_max`.

        An aborted record replaces no older record.
        """
        is_full = len(self._offsets) + header.record_count > self.keys_max
        if is_full and self._offsets:
            return False
        if not (header.is_control or is_aborted):
            data = unfold(batch, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            for record in raw_records(data, header):
                if record.key is not None:
                    self._offsets[_digest(record.key)] = header.base_offset + record.offset_delta
        self.end_offset = header.next_offset
        return True

    def is_replaced(self, key: bytes, offset: int) -> bool:
        """Whether a newer record has this key."""
        newest = self._offsets.get(_digest(key))
        return newest is not None and newest > offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRules:
    """Decides which records of a batch stay. Times are wall-clock ms."""

    first_dirty_offset: int  # records below it have been cleaned
    end_offset: int  # exclusive: records from here on are left alone
    wall_ms: int
    delete_retention_ms: int
    producers_since_ms: int  # the last batch of a producer stays if it is not older

    def is_kept(
        self, record: RawRecord, offset: int, newest: NewestOffsets, horizon_ms: int | None
    ) -> bool:
        """Whether a record stays. horizon_ms: the delete horizon of its batch, or None.

        A record without a key was written before the topic was compacted: it goes.
        """
        if record.key is None or newest.is_replaced(record.key, offset):
            return False
        return not (record.is_tombstone and horizon_ms is not None and horizon_ms <= self.wall_ms)

    def cleaned(
        self,
        batch: Buffer,
        header: BatchHeader,
        newest: NewestOffsets,
        *,
        is_last: bool,
        is_aborted: bool = False,
    ) -> Buffer | None:
        """Return the cleaned batch: the same object if all records stay, None if the batch goes.

        is_last: the last batch of its producer. It stays, even without records, so that a
        duplicate is recognized. A tombstone that stays gives its batch a delete horizon: earlier
        readers have until then to read it. An aborted batch loses all records. Raises CorruptBatch.
        """
        is_unknown = header.next_offset > newest.end_offset
        if header.is_control or is_unknown:
            return batch
        if is_aborted:
            return with_records(header, b"", (), horizon_ms=None) if is_last else None
        data = unfold(batch, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        horizon_ms = header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None
        kept = [
            one
            for one in raw_records(data, header)
            if self.is_kept(one, header.base_offset + one.offset_delta, newest, horizon_ms)
        ]
        if not kept and not is_last:
            return None
        has_new_horizon = horizon_ms is None and any(one.is_tombstone for one in kept)
        if len(kept) == header.record_count and not has_new_horizon:
            return batch
        new_horizon_ms = self.wall_ms + self.delete_retention_ms if has_new_horizon else None
        return with_records(header, data, kept, horizon_ms=new_horizon_ms)

    def cleaned_marker(
        self, batch: Buffer, header: BatchHeader, *, is_last: bool, is_needed: bool
    ) -> Buffer | None:
        """Return the cleaned control batch: the same object if it stays as it is, None if it goes.

        is_needed: batches of its transaction are left. Otherwise the marker gets a delete horizon,
        like a tombstone, for readers that began before (KIP-534). Raises CorruptBatch.
        """
        if is_needed or not header.record_count:
            return batch if is_needed or is_last else None
        if not header.attributes & DELETE_HORIZON_BIT:
            data = unfold(batch, header, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            horizon_ms = self.wall_ms + self.delete_retention_ms
            return with_records(header, data, [*raw_records(data, header)], horizon_ms=horizon_ms)
        if header.base_timestamp > self.wall_ms:
            return batch
        return with_records(header, b"", (), horizon_ms=None) if is_last else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """The clean and the dirty part of a log, in bytes; `end_offset` (exclusive) ends the dirty."""

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int

    @property
    def ratio(self) -> float:
        """The dirty bytes as a fraction of the clean and dirty bytes."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    def is_due(
        self, *, min_ratio: float, max_lag_ms: int, first_dirty_ms: int, wall_ms: int
    ) -> bool:
        """Whether the dirty ratio suffices, or the first dirty record is too old (KIP-354).

        first_dirty_ms: its timestamp, or NO_TIMESTAMP; then the ratio decides alone.
        """
        is_overdue = first_dirty_ms > NO_TIMESTAMP and wall_ms - first_dirty_ms > max_lag_ms
        return self.dirty_bytes > 0 and (self.ratio >= min_ratio or is_overdue)


class CleanableRange:
    """Decides how far a log may be cleaned. A mutant replaces a rule."""

    def dirtiness(
        self,
        segments: Sequence[SegmentFacts],
        *,
        first_dirty_offset: int,
        high_watermark: int,
        last_stable_offset: int,
        min_lag_ms: int,
        wall_ms: int,
    ) -> Dirtiness:
        """Return the dirty part that may be cleaned: full segments, stable and old enough.

        `segments`: all of them, oldest first; the last is the active one. Source: Kafka's
        `LogCleanerManager.cleanableOffsets`.
        """
        decided_end = self.decided_end(high_watermark, last_stable_offset)
        end_offset = first_dirty_offset
        clean_bytes = dirty_bytes = 0
        for segment, following in pairwise(segments):
            is_young = min_lag_ms > 0 and wall_ms - segment.newest_ms < min_lag_ms
            if following.base_offset > decided_end or is_young:
                break
            if following.base_offset <= first_dirty_offset:
                clean_bytes += segment.size
            else:
                dirty_bytes += segment.size
                end_offset = following.base_offset
        return Dirtiness(
            first_dirty_offset=first_dirty_offset,
            end_offset=end_offset,
            clean_bytes=clean_bytes,
            dirty_bytes=dirty_bytes,
        )

    def decided_end(self, high_watermark: int, last_stable_offset: int) -> int:
        """Return the offset (exclusive) below which a record may replace an older one.

        A record of an open transaction must not: its transaction may be aborted.
        """
        return min(high_watermark, last_stable_offset)


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


class CleanedTransactions:
    """The transactions that span the current batch; feed it every batch of the log, in order.

    Aborted records go; a marker goes after all its records. Source: Kafka's
    `CleanedTransactionMetadata`; KAFKA-8351, 13727, 14055.

    `kept_aborted`: aborted transactions of which the log had a batch before this cleaning; readers
    may still need their index entries.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self.kept_aborted: Final[list[AbortedTransaction]] = []
        by_first = sorted(aborted, key=attrgetter("first_offset"), reverse=True)
        self._to_come: Final = by_first  # the next transaction is last
        self._aborted: Final[dict[int, AbortedTransaction]] = {}  # by producer id
        self._has_batch: Final[set[int]] = set()  # producer ids with a batch since their marker

    def is_aborted(self, header: BatchHeader) -> bool:
        """Pass a batch of records; return whether its transaction was aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        self._has_batch.add(header.producer_id)
        return header.producer_id in self._aborted

    def is_last_of_its_transaction(
        self, header: BatchHeader, marker: TransactionMarker | None
    ) -> bool:
        """Pass a control batch; return whether no other batch of its transaction is left."""
        self._advance(header.last_offset)
        if marker is None:
            return True
        aborted = self._aborted.pop(header.producer_id, None)
        has_batch = header.producer_id in self._has_batch
        self._has_batch.discard(header.producer_id)
        if has_batch and aborted is not None:
            self.kept_aborted.append(aborted)
        return not has_batch

    def _advance(self, last_offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= last_offset:
            aborted = self._to_come.pop()
            self._aborted[aborted.producer_id] = aborted
