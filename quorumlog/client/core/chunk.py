"""One partition's bytes of one fetch response, and the records in them for the user.

Batches are checked and decoded one at a time, when `poll` reads them. Control batches are skipped,
and with read_committed also the batches of aborted transactions: the fetch response lists the
aborted transactions that overlap its records (KIP-98, Fetch v4). A fetch may begin anywhere in such
a transaction, also at its marker. So a listed transaction begins, at the latest, with the batch of
its marker, before the marker ends it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from quorumlog.client.records import ConsumerRecord
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader, decode_batch, decode_fields, iterate_headers

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
        self._decoded: list[ConsumerRecord] = []
        self._given = 0
        self._end_of_decoded = start_offset

    @property
    def is_empty(self) -> bool:
        """True when all records were read."""
        return not self._batches and self._given >= len(self._decoded)

    def read(self, max_records: int) -> list[ConsumerRecord]:
        """Return up to `max_records` of the next batch that has visible records; [] at the end.

        Raises CorruptBatch; earlier calls have returned the records before the corrupt batch.
        """
        while self._given >= len(self._decoded):
            if not self._batches:
                return []
            position, header = self._batches[0]
            self._decode(position, header)
            self._batches.popleft()
        end = self._given + max_records
        records = self._decoded[self._given : end]
        self._given += len(records)
        if self._given < len(self._decoded):
            self.next_offset = records[-1].offset + 1
        else:
            self.next_offset = max(self.next_offset, self._end_of_decoded)
        return records

    def _decode(self, position: int, header: BatchHeader) -> None:
        self._decoded, self._given = [], 0
        self._end_of_decoded = header.next_offset
        self.leader_epoch = header.leader_epoch
        if header.next_offset <= self.next_offset:
            return
        if self._read_committed:
            # Transactions begin whose first offset is at or before the batch's last.
            while self._aborted and self._aborted[0].first_offset <= header.last_offset:
                self._aborting.add(self._aborted.popleft().producer_id)
        if header.is_control:
            self._handle_control(position, header)
        elif not (header.is_transactional and header.producer_id in self._aborting):
            self._decoded = self._visible(position, header)
        if not self._decoded:
            self.next_offset = header.next_offset

    def _visible(self, position: int, header: BatchHeader) -> list[ConsumerRecord]:
        topic, partition = self._topic_partition
        epoch, kind = header.leader_epoch, int(header.has_log_append_time)
        records = decode_fields(self._records, position, header)
        if header.base_offset < self.next_offset:
            records = [record for record in records if record[0] >= self.next_offset]
        new, kept = tuple.__new__, ConsumerRecord  # two thirds of the time of ConsumerRecord._make
        return [
            new(kept, (topic, partition, offset, timestamp_ms, key, value, headers, epoch, kind))
            for offset, timestamp_ms, key, value, headers in records
        ]

    def _handle_control(self, position: int, header: BatchHeader) -> None:
        if self._read_committed:
            records = decode_batch(self._records, position)
            if records and (records[0].key or b"")[2:4] == _ABORT:
                self._aborting.discard(header.producer_id)
