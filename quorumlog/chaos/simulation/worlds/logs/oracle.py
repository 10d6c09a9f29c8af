"""The expected content of one log: a model of every record, and the rules of the log.

The model has records and offsets, and no segments. The owner of the log reports each of its
operations; the model compares them with the records that can be read.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.storage.core.retention import UNLIMITED, RetentionLimits
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import decode_batch, iterate_headers


class TransactionBatch(NamedTuple):
    """Records of a transaction; or its marker, which commits it or aborts it."""

    producer_id: int
    base_offset: int
    next_offset: int
    commits: bool | None = None  # None: no marker


class TransactionModel:
    """The transactions in one log: open, committed or aborted.

    Its input is the batches that the owner of the log has appended, and the cuts of the log.

    `valueless`: offsets of markers, and of records of open and aborted transactions. They are the
    value of no key.
    """

    def __init__(self) -> None:
        self.valueless: Final[set[int]] = set()
        self._batches: Final[list[TransactionBatch]] = []
        self._open: Final[dict[int, list[int]]] = {}  # by producer: the offsets of its records
        self._firsts: Final[dict[int, int]] = {}  # by the marker's offset: the first offset

    @property
    def markers(self) -> Collection[int]:
        """The offsets of the markers."""
        return self._firsts.keys()

    def is_open(self, producer_id: int) -> bool:
        """Whether the producer's transaction has no marker."""
        return producer_id in self._open

    def note(self, batch: TransactionBatch) -> None:
        """Note the batch that follows in the log."""
        self._batches.append(batch)
        offsets = range(batch.base_offset, batch.next_offset)
        self.valueless.update(offsets)
        if batch.commits is None:
            self._open.setdefault(batch.producer_id, []).extend(offsets)
            return
        ended = self._open.pop(batch.producer_id)
        self._firsts[batch.base_offset] = ended[0]
        if batch.commits:
            self.valueless.difference_update(ended)

    def cut(self, end_offset: int) -> None:
        """Forget the batches from `end_offset` on."""
        kept = [one for one in self._batches if one.next_offset <= end_offset]
        for known in (self._batches, self._open, self._firsts, self.valueless):
            known.clear()
        for batch in kept:
            self.note(batch)

    def decided_end(self, committed: int) -> int:
        """Return where the first transaction begins without a committed marker, or `committed`."""
        firsts = [offsets[0] for offsets in self._open.values()]
        firsts += [first for marker, first in self._firsts.items() if marker >= committed]
        return min([committed, *firsts])


NO_PRODUCER: Final = -1


class Said(NamedTuple):
    """One record as it was written; its offset is its place in the model.

    A marker has no producer: its producer's sequence goes on without it.
    """

    epoch: int
    key: bytes
    value: bytes | None
    timestamp_ms: int
    producer_id: int


class Written(NamedTuple):
    """One batch as it was written."""

    base_offset: int
    next_offset: int
    size: int


class Seen(NamedTuple):
    """The view of a reader: records by offset, and the last offset of each producer."""

    records: dict[int, Said]
    last_of: dict[int, int]


class LogOracle:
    """Of one log; it outlives the process. Raises Violation.

    `records`: all that may be there, dense from 0. Those below `log_start_offset` may be gone.
    """

    def __init__(self, *, is_compacted: bool, delete_retention_ms: int, min_lag_ms: int) -> None:
        self.records: Final[list[Said]] = []
        self.batches: Final[list[Written]] = []
        self.transactions: Final = TransactionModel()
        self.committed = 0
        self._flushed = 0
        self._start = self._start_kept = 0
        self._is_compacted: Final = is_compacted
        self._delete_retention_ms: Final = delete_retention_ms
        self._min_lag_ms: Final = min_lag_ms
        self._cleanable_end = 0
        self._pass_ms = 0
        self._may_go: Final[set[int]] = set()  # tombstones that were there for long enough
        self._first_pass_ms: Final[dict[int, int]] = {}  # of tombstones: when a pass met them
        self._marked_ms: Final[dict[int, int]] = {}  # the same, of passes that ended
        self._epoch_starts: Final[list[int]] = []  # the first offsets of epochs, in order
        self._newest: Final[dict[bytes, int]] = {}  # the newest offset of each key below
        self._newest_end = 0
        self._last_of: Final[dict[int, int]] = {}  # the last offset of each producer

    # --- operations of the owner ---

    def appending(self, said: Sequence[Said], size: int) -> None:
        """Take note of a batch that may be in the log from now on."""
        base_offset = len(self.records)
        for offset, one in enumerate(said, start=base_offset):
            if not self.records or self.records[-1].epoch != one.epoch:
                self._epoch_starts.append(offset)
            if one.producer_id >= 0:
                self._last_of[one.producer_id] = offset
            self.records.append(one)
        self.batches.append(Written(base_offset, len(self.records), size))

    def flushed(self, offset: int) -> None:
        """Note the records that survive a loss of power."""
        self._flushed = max(self._flushed, offset)

    def commit(self, offset: int) -> None:
        """Note the records that must not be cut or cleaned away."""
        self.committed = max(self.committed, offset)

    def batch_ends(self, first: int, last: int) -> list[int]:
        """Return where batches end in [first, last]; `first` is one of them."""
        ends = [one.next_offset for one in self.batches]
        return [first, *(end for end in ends if first < end <= last)]

    def cutting(self, offset: int) -> None:
        """Note that records from `offset` on may be gone."""
        check(offset >= self.committed, f"committed-kept: cut at {offset} of {self.committed}")
        whole = (one.base_offset for one in self.batches if one.next_offset > offset)
        self._flushed = min(self._flushed, next(whole, offset))

    def cut(self, log: Log) -> None:
        """Take note that it is gone."""
        self._end_at(int(log.log_end_offset))

    def start_moved(self, offset: int) -> None:
        """Take note of where the log may start."""
        check(offset <= self.committed, f"committed-kept: the log starts at {offset}")
        self._start = max(self._start, offset)

    def start_kept(self, offset: int) -> None:
        """Take note of where it starts after any crash."""
        self._start_kept = max(self._start_kept, offset)

    @property
    def was_flushed(self) -> bool:
        """Whether any record was flushed: then a start can identify the topic of the log."""
        return self._flushed > 0

    def recovered(self, log: Log, *, has_lost_power: bool, on_disk: int = 0) -> None:
        """Compare a log with the records that the previous process has left.

        on_disk: the number of records at the beginning of the disk, if the log was never flushed.
        """
        end, start = int(log.log_end_offset), int(log.log_start_offset)
        least = self._flushed if has_lost_power else len(self.records)
        check(end >= least, f"durability: the log ends at {end}, and {least} was there")
        check(end <= len(self.records), f"recovery: the log ends at {end}: never written")
        check(end >= on_disk, f"set-aside: the log ends at {end}, and {on_disk} are on the disk")
        check(
            self._start_kept <= start <= self._start,
            f"start-kept: the log starts at {start}, not in [{self._start_kept}, {self._start}]",
        )
        self._start = start
        self._flushed = max(int(log.flushed_offset), min(self._flushed, end))
        self._end_at(end)
        self.look(log)

    def _end_at(self, end: int) -> None:
        check(end >= self.committed, f"committed-kept: the log ends at {end}")
        if end < len(self.records):
            del self.records[end:]
            self.transactions.cut(end)
            del self._epoch_starts[bisect_left(self._epoch_starts, end) :]
            self._last_of.clear()
            self._last_of.update(self.last_of_producers(end))
        while self.batches and self.batches[-1].next_offset > end:
            self.batches.pop()

    # --- retention ---

    def retained(self, log: Log, limits: RetentionLimits, before: int, wall_ms: int) -> None:
        """Judge a check: the log started at `before`. Nothing goes too early, or stays too long."""
        start, bases = int(log.log_start_offset), log.segment_base_offsets
        for offset in range(before, start):
            is_surplus = limits.max_bytes >= 0 and self._bytes_behind(offset) >= limits.max_bytes
            is_old = self._has_expired(offset, limits, wall_ms)
            check(is_old or is_surplus, f"retained: {offset} of [{before}, {start}) must be kept")
        if len(bases) > 1 and bases[1] <= self.committed:  # younger ones may wait for the oldest
            oldest = range(bases[0], bases[1])
            is_old = all(self._has_expired(offset, limits, wall_ms) for offset in oldest)
            is_surplus = UNLIMITED < limits.max_bytes <= self._bytes_behind(oldest[-1])
            check(not (is_old or is_surplus), f"overdue: {oldest} stays")

    def _has_expired(self, offset: int, limits: RetentionLimits, wall_ms: int) -> bool:
        age_ms = wall_ms - self.records[offset].timestamp_ms
        return UNLIMITED < limits.max_age_ms < age_ms

    def _bytes_behind(self, offset: int) -> int:
        """Return the bytes of the batches behind the one that holds `offset`."""
        return sum(one.size for one in self.batches if one.base_offset > offset)

    # --- compaction ---

    def pass_began(self, end_offset: int, active_base_offset: int, wall_ms: int) -> None:
        """Note the records that may be cleaned: decided, old enough, and not active."""
        may_end = min(self.transactions.decided_end(self.committed), active_base_offset)
        for offset in range(self._cleanable_end, may_end) if self._min_lag_ms else ():
            if wall_ms - self.records[offset].timestamp_ms < self._min_lag_ms:
                may_end = offset
                break
        self._cleanable_end = max(self._cleanable_end, may_end)
        self._pass_ms = wall_ms
        for offset in self._tombstones(end_offset):
            first_ms = self._first_pass_ms.setdefault(offset, wall_ms)
            if first_ms + self._delete_retention_ms <= wall_ms:
                self._may_go.add(offset)

    def pass_ended(self, log: Log, end_offset: int) -> None:
        """Judge a pass: below end_offset each key has one record, and old tombstones are gone."""
        seen = self.look(log).records
        newest, markers = self._newest_below(end_offset), self.transactions.markers
        for offset in (one for one in seen if one < end_offset and one not in markers):
            found = newest.get(seen[offset].key)
            check(found == offset, f"cleaned: {offset} stays, and {found} is the newest")
        for offset in self._tombstones(end_offset):
            since_ms = self._marked_ms.setdefault(offset, self._pass_ms)
            is_due = since_ms + self._delete_retention_ms <= self._pass_ms
            check(not (is_due and offset in seen), f"cleaned: tombstone {offset} stays")

    def _tombstones(self, end_offset: int) -> Iterable[int]:
        for offset in range(self._start, min(end_offset, len(self.records))):
            if self.records[offset].value is None and offset not in self.transactions.valueless:
                yield offset

    def _newest_below(self, end_offset: int) -> dict[bytes, int]:
        end = min(end_offset, len(self.records))
        return {self.records[offset].key: offset for offset in self._values(0, end)}

    def _values(self, first: int, end: int) -> Iterable[int]:
        """Return the offsets in [first, end) of records that are values of their keys."""
        return [one for one in range(first, end) if one not in self.transactions.valueless]

    def _newest_cleanable(self) -> dict[bytes, int]:
        """Return the newest offset of each key below where a pass may clean, which never falls."""
        for offset in self._values(self._newest_end, self._cleanable_end):
            self._newest[self.records[offset].key] = offset
        self._newest_end = max(self._newest_end, self._cleanable_end)
        return self._newest

    # --- the view of a reader ---

    def look(self, log: Log) -> Seen:
        """Read all of the log and compare it with the model."""
        start, end = int(log.log_start_offset), int(log.log_end_offset)
        check(start == self._start, f"start-kept: the log starts at {start}, not {self._start}")
        check(end == len(self.records), f"read: the log ends at {end}, not {len(self.records)}")
        seen = self._look_between(log, start, end)
        self._check_producers(seen, start)
        self._check_epochs(log, start, end)
        return seen

    def look_at_segment(self, log: Log, base_offset: int) -> None:
        """Read one segment and compare it with the model."""
        bases = log.segment_base_offsets
        place = bisect_right(bases, base_offset)
        end = bases[place] if place < len(bases) else int(log.log_end_offset)
        self._look_between(log, max(base_offset, int(log.log_start_offset)), end)

    def _look_between(self, log: Log, start: int, end: int) -> Seen:
        """Compare the records of [start, end), the borders of batches, with the model."""
        seen = _read(log, start, end)
        for offset, record in seen.records.items():
            wanted = self.records[offset]
            check(record == wanted, f"read: {record} at {offset}, not {wanted}")
        newest = self._newest_cleanable()
        if len(seen.records) < end - start:
            for offset in sorted({*range(start, end)} - {*seen.records}):
                check(self._is_compacted, f"read: {offset} is not there")
                check(offset < self._cleanable_end, f"cleaned-early: {offset} is not there")
                is_valueless = offset in self.transactions.valueless
                is_replaced = is_valueless or newest[self.records[offset].key] > offset
                may_go = is_replaced or offset in self._may_go
                check(may_go, f"newest-kept: {offset} is the newest of its key, and not there")
        return seen

    def last_of_producers(self, end_offset: int | None = None) -> dict[int, int]:
        """Return the last offset of each producer below end_offset; None: of all."""
        said = self.records[:end_offset]
        return {one.producer_id: at for at, one in enumerate(said) if one.producer_id >= 0}

    def _check_producers(self, seen: Seen, start: int) -> None:
        for producer_id, last in self._last_of.items():
            found = seen.last_of.get(producer_id, -1)
            check(found == last or last < start, f"sequence-kept: {producer_id} ends at {found}")

    def _check_epochs(self, log: Log, start: int, end: int) -> None:
        for offset in self._epoch_starts[bisect_right(self._epoch_starts, start) :]:
            if offset < end:
                epoch = self.records[offset - 1].epoch
                known = log.epochs.end_offset_for(epoch, end)
                check(known == (epoch, offset), f"epochs: {epoch} ends at {offset}, not {known}")

    def check_lookup(self, log: Log, seen: Seen, timestamp_ms: int) -> None:
        """Compare a lookup by time with the view of a reader."""
        since = [
            (offset, record.timestamp_ms)
            for offset, record in seen.records.items()
            if record.timestamp_ms >= timestamp_ms
        ]
        found, wanted = log.time_lookup().first_since(timestamp_ms), min(since, default=None)
        check(found == wanted, f"by-time: {found} is the first since {timestamp_ms}, not {wanted}")


def _read(log: Log, start: int, end: int) -> Seen:
    """Read [start, end): batches must follow each other without a hole."""
    seen = Seen({}, {})
    offset = start
    while offset < end:
        result = log.read(offset, max_bytes=2_000, end_offset=end)
        check(result.next_offset > offset, f"read: no records at {offset} of {end}")
        records = bytes(result.records)
        for position, header in iterate_headers(records):
            follows = header.base_offset <= start if offset == start else True
            check(follows and header.next_offset > offset, f"read: a batch at {offset}")
            check(offset in (start, header.base_offset), f"holes: {offset} is not there")
            offset = header.next_offset
            if header.producer_id >= 0 and not header.is_control:
                seen.last_of[header.producer_id] = header.last_sequence
            for record in decode_batch(records, position) if header.record_count else ():
                if record.offset >= start:
                    said = (header.leader_epoch, record.key or b"", record.value)
                    producer_id = NO_PRODUCER if header.is_control else header.producer_id
                    seen.records[record.offset] = Said(*said, record.timestamp_ms, producer_id)
    return seen
