"""One partition's bytes of one fetch response, and the records in them for the user.

Batches are checked and decoded one at a time, when `poll` reads them. Control batches are skipped,
and with read_committed also the batches of aborted transactions: the fetch response lists the
aborted transactions that overlap its records (KIP-98, Fetch v4). A fetch may begin anywhere in such
a transaction, also at its marker. So a listed transaction begins, at the latest, with the batch of
its marker, before the marker ends it.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from quorumlog.client.records import ConsumerRecord
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import (
    BatchHeader,
    body_of,
    decode_as,
    decode_batch,
    iterate_headers,
)

if TYPE_CHECKING:
    import pyarrow as pa

_ABORT: Final = b"\0\0"  # the type in a marker's key, after its int16 version; 1 is COMMIT


class Aborted(NamedTuple):
    """An aborted transaction: its producer id, and its first offset in the partition."""

    first_offset: int
    producer_id: int


class Chunk:
    """Fetched batches, read from the front; a batch is decoded when its first record is read.

    `next_offset` follows the last offset that was read or skipped; `leader_epoch` is the leader
    epoch of the current batch.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        *,
        start_offset: int,
        aborted: Iterable[Aborted] = (),
        read_committed: bool = False,
    ) -> None:
        self.size_in_bytes: Final = len(records)
        self.next_offset = start_offset
        self.leader_epoch = -1
        headers = list(iterate_headers(records))
        self.end_offset: Final = headers[-1][1].next_offset if headers else start_offset
        self.end_epoch: Final = headers[-1][1].leader_epoch if headers else -1
        self._topic_partition: Final = topic_partition
        self._records: Final = records
        self._batches: Final = deque(headers)
        self._read_committed: Final = read_committed
        self._aborted: Final = deque(sorted(aborted))
        self._aborting: Final[set[int]] = set()
        self._current: tuple[int, BatchHeader] | None = None  # the batch of the next two
        self._decoded: list[ConsumerRecord] = []  # by `read`, which has returned `_given` of them
        self._given = 0
        self._table: pa.Table | None = None  # the decoded records that `read_table` has left
        self._corrupt: CorruptBatch | None = None  # for the next call
        self._end_of_decoded = start_offset

    @property
    def is_empty(self) -> bool:
        """True when all records were read."""
        return not (self._batches or self._has_records or self._table is not None or self._corrupt)

    @property
    def _has_records(self) -> bool:
        return self._given < len(self._decoded)

    def read(self, max_records: int) -> list[ConsumerRecord]:
        """Return up to `max_records` of the next batch that has visible records; [] at the end.

        Raises CorruptBatch; earlier calls have returned the records before the corrupt batch.
        """
        if self._table is not None and self._current is not None:
            self._table, self._decoded, self._given = None, self._visible(*self._current), 0
        while not self._has_records:
            self._raise_corrupt()
            if not self._batches:
                return []
            position, header = self._batches[0]
            self._decoded, self._given = [], 0
            if self._is_visible(position, header):
                self._decoded, self._current = self._visible(position, header), (position, header)
            self._leave(header)
            if not self._decoded:
                self.next_offset = max(self.next_offset, header.next_offset)
        end = self._given + max_records
        records = self._decoded[self._given : end]
        self._given += len(records)
        if self._has_records:
            self.next_offset = records[-1].offset + 1
        else:
            self.next_offset = max(self.next_offset, self._end_of_decoded)
        return records

    def unread(self, records: Sequence[ConsumerRecord]) -> None:
        """Undo `read` of its last records: the next call begins with them."""
        self._given -= len(records)
        self.next_offset = records[0].offset

    def read_table(self, max_records: int) -> "pa.Table":
        """Return up to `max_records` of the next batches as a table; without rows at the end.

        Raises CorruptBatch as `read` does.
        """
        self._raise_corrupt()
        table, self._table = self._table, None
        if table is None:
            table = self._next_table(max_records)
        if table.num_rows > max_records:
            table, self._table = table[:max_records], table[max_records:]
            self.next_offset = table["offset"][-1].as_py() + 1
        else:
            self.next_offset = max(self.next_offset, self._end_of_decoded)
        return table

    def _next_table(self, max_records: int) -> "pa.Table":
        """Decode the next visible batches, until they have `max_records`.

        A corrupt batch is left for the next call if there are records before it.
        """
        from quorumlog.client.core.columns import table_of  # loads Arrow

        found: list[tuple[BatchHeader, bytes]] = []
        if self._has_records and self._current is not None:  # `read` has left them
            position, header = self._current
            found.append((header, body_of(self._records, position, header)))
            self._decoded = []
        count = sum(header.record_count for header, _ in found)
        while self._batches and count < max_records:
            position, header = self._batches[0]
            try:
                if self._is_visible(position, header):
                    body = body_of(self._records, position, header)
                    found.append((header, body))
                    self._current = position, header
                    count += header.record_count
            except CorruptBatch as error:
                if not found:
                    raise
                self._corrupt = error
                break
            self._leave(header)
        try:
            return table_of(found, self.next_offset)
        except CorruptBatch:
            if len(found) == 1:
                raise
            return self._sound_part(found)

    def _sound_part(self, batches: list[tuple[BatchHeader, bytes]]) -> "pa.Table":
        """Return the records before the first batch that cannot be decoded."""
        from quorumlog.client.core.columns import concatenated, table_of

        tables: list[pa.Table] = []
        for header, body in batches:
            try:
                tables.append(table_of([(header, body)], self.next_offset))
            except CorruptBatch as error:
                if not tables:
                    raise
                self._corrupt = error
                break
            self._end_of_decoded, self.leader_epoch = header.next_offset, header.leader_epoch
        return concatenated(tables)

    def _raise_corrupt(self) -> None:
        error, self._corrupt = self._corrupt, None
        if error is not None:
            raise error

    def _leave(self, header: BatchHeader) -> None:
        """Go on to the next batch, after this one was decoded or skipped."""
        self._end_of_decoded, self.leader_epoch = header.next_offset, header.leader_epoch
        self._batches.popleft()

    def _is_visible(self, position: int, header: BatchHeader) -> bool:
        """Return whether the next batch has records for the user."""
        if header.next_offset <= self.next_offset:
            return False
        if self._read_committed:
            # Transactions begin whose first offset is at or before the batch's last.
            while self._aborted and self._aborted[0].first_offset <= header.last_offset:
                self._aborting.add(self._aborted.popleft().producer_id)
        if header.is_control:
            self._handle_control(position, header)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)

    def _visible(self, position: int, header: BatchHeader) -> list[ConsumerRecord]:
        return decode_as(
            ConsumerRecord,
            body_of(self._records, position, header),
            header,
            first_offset=self.next_offset,
            before=self._topic_partition,
            behind=(header.leader_epoch, int(header.has_log_append_time)),
        )

    def _handle_control(self, position: int, header: BatchHeader) -> None:
        if self._read_committed:
            records = decode_batch(self._records, position)
            if records and (records[0].key or b"")[2:4] == _ABORT:
                self._aborting.discard(header.producer_id)
