"""The end of the whole part of a segment: decided batch by batch, from its bytes alone.

A batch is valid if it is entire, its CRC holds, its offsets follow the batch before it, and its
leader epoch is neither older than that batch's nor newer than the last leader's. The CRC does not
suffice: it covers neither the base offset nor the leader epoch, and remnants of an older tail have
a valid CRC.
Source: Kafka's `LogSegment.recover`.
"""

from collections import deque
from typing import Final

from quorumlog.storage.core.segment_index import SegmentIndex
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import NO_EPOCH
from quorumlog.wire.codec.records import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
    validate_batch,
)

BATCHES_MAX: Final = 5  # of one producer: as many as a broker remembers
PRODUCERS_MAX: Final = 10_000  # with more, the log is read a second time


class RecentBatches:
    """The last batches of each producer among the checked batches from `from_offset` on.

    They yield the same producer state as all batches, so that a start reads the log only once.

    They suffice only in a log without transactions: the first batch of a transaction may be older
    than the last batches, and its outcome is inside a record. `since` then returns None.
    """

    def __init__(self, from_offset: int) -> None:
        self.from_offset: Final = from_offset
        self._is_whole = True
        self.has_transactions = False
        self._by_producer: Final[dict[int, deque[BatchHeader]]] = {}

    def take(self, header: BatchHeader) -> None:
        """Add the next batch; it has a producer id."""
        if header.is_transactional or header.is_control:
            self.has_transactions, self._is_whole = True, False
        recent = self._by_producer.get(header.producer_id)
        if recent is None:
            recent = self._by_producer[header.producer_id] = deque(maxlen=BATCHES_MAX)
            if len(self._by_producer) > PRODUCERS_MAX:
                self._is_whole = False
                self._by_producer.clear()
                return
        recent.append(header)

    def with_later(self, later: "RecentBatches") -> "RecentBatches":
        """Add the batches of the next segment; return this object."""
        self.has_transactions = self.has_transactions or later.has_transactions
        noted = later.since(later.from_offset)
        if noted is None:
            self._is_whole = False
        for header in noted or ():
            self.take(header)
        return self

    def since(self, offset: int) -> list[BatchHeader] | None:
        """Return the last batches from `offset` on, in order; None if some may be missing."""
        if offset < self.from_offset or not self._is_whole:
            return None
        noted = [header for recent in self._by_producer.values() for header in recent]
        found = [header for header in noted if header.base_offset >= offset]
        return sorted(found, key=lambda header: header.base_offset)


MAX_EPOCH: Final = 2**31 - 1


class SegmentScan:
    """Feed it a segment's bytes in order; it builds the index and finds the torn tail.

    Invariant: `index` describes exactly the whole batches so far, `index.size` bytes.
    """

    def __init__(
        self,
        base_offset: int,
        settings: LogSettings,
        *,
        size: int,
        previous_epoch: int = NO_EPOCH,
        newest_epoch: int = MAX_EPOCH,
    ) -> None:
        """`newest_epoch`: the newest leader epoch in which a record can have been written."""
        self.index: Final = SegmentIndex(base_offset, settings)
        self.epoch_starts: Final[list[tuple[int, int]]] = []  # (leader epoch, first offset)
        self.recent: Final = RecentBatches(base_offset)
        self.fault: str | None = None  # why the bytes from index.size on are invalid
        self.is_torn = False  # those bytes are the beginning of a batch, as a kill may leave it
        self.bytes_wanted = 0  # the minimum size of the next chunk
        self._size = size
        self._may_have_gaps = settings.may_have_gaps
        self.last_epoch = previous_epoch  # of the last valid batch, or of the segment before
        self._newest_epoch: Final = newest_epoch

    @property
    def is_over(self) -> bool:
        """Whether the segment is read to its end or to its first invalid byte."""
        return self.fault is not None or self.index.size == self._size

    def feed(self, chunk: memoryview) -> None:
        """Check the bytes from `index.size` on: any number of them, at least bytes_wanted."""
        left = self._size - self.index.size
        position = 0
        while position < len(chunk):
            if left < HEADER_BYTES:
                self.fault = f"{left} bytes are less than a batch header"
                self.is_torn = True
                return
            if len(chunk) - position < HEADER_BYTES:
                self.bytes_wanted = HEADER_BYTES
                return
            try:
                header = read_header(chunk, position)
                size = header.size_in_bytes
                self.fault = self._fault_of(header, size, left)
                if self.fault is not None:
                    self.is_torn = header.magic == MAGIC and size > left
                    return
                if len(chunk) - position < size:
                    self.bytes_wanted = size
                    return
                self._require_valid(chunk, position, header)
            except CorruptBatch as error:
                self.fault = str(error)
                return
            self._accept(header, size)
            position += size
            left -= size

    def _fault_of(self, header: BatchHeader, size: int, left: int) -> str | None:
        expected, offset = self.index.next_offset, header.base_offset
        if header.magic != MAGIC:
            return f"magic {header.magic} is not {MAGIC}"
        if size > left:
            return f"a batch of {size} bytes where {left} are left"
        if offset > expected and not self._may_have_gaps:
            return f"base offset {offset} where {expected} is due"
        if header.leader_epoch < self.last_epoch:
            return f"leader epoch {header.leader_epoch} after {self.last_epoch}"
        if header.leader_epoch > self._newest_epoch:
            return f"leader epoch {header.leader_epoch}, and {self._newest_epoch} is the newest"
        return self.index.refusal_of(offset, header.last_offset)

    def _require_valid(self, chunk: memoryview, position: int, header: BatchHeader) -> None:
        validate_batch(chunk, position, header)

    def _accept(self, header: BatchHeader, size: int) -> None:
        if header.leader_epoch > self.last_epoch:
            self.last_epoch = header.leader_epoch
            self.epoch_starts.append((header.leader_epoch, header.base_offset))
        if header.producer_id >= 0:
            self.recent.take(header)
        self.index.add(header.last_offset, size, header.max_timestamp)
