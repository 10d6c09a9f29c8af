"""The offsets of open transactions: exactly the result of replaying the log.

A transactional commit is pending until the marker of its transaction, which commits or drops it.
Records and markers of all producers are applied in log order.
Sources: KIP-98; KIP-447 (a reader may require stable offsets).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.broker.groups.core.records import Key, OffsetRecord
from quorumlog.wire.codec.identifiers import TopicPartition


class PendingOffset(NamedTuple):
    """An offset that waits for its marker; `log_offset`: the place of its record in the log.

    `is_superseded`: a later commit in the log has taken effect, so this offset never will.
    """

    record: OffsetRecord
    log_offset: int
    is_superseded: bool = False


@dataclass(slots=True)
class OpenTransaction:
    """The pending offsets of one producer's open transaction in this partition."""

    producer_epoch: int
    first_log_offset: int
    offsets: dict[Key, PendingOffset] = field(default_factory=dict)


class PendingOffsets:
    """The transactions that are open in one partition of `__consumer_offsets`.

    Invariants:
      1. `_producers[key]` are the producers (at least one) whose transactions have an offset of
         that key; `_partitions` has the same keys by group.
      2. Transactions are in the order of their first records.
    """

    def __init__(self) -> None:
        self._transactions: dict[int, OpenTransaction] = {}  # by producer id
        self._producers: dict[Key, list[int]] = {}
        self._partitions: dict[str, set[TopicPartition]] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PendingOffsets):
            return NotImplemented
        return (self._transactions, self._producers) == (other._transactions, other._producers)

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def first_log_offset(self) -> int | None:
        """The log offset where the oldest open transaction begins; None: no open transaction."""
        oldest = next(iter(self._transactions.values()), None)
        return None if oldest is None else oldest.first_log_offset

    def epochs(self) -> dict[int, int]:
        """Return the producer epoch of each open transaction, by producer id."""
        return {key: one.producer_epoch for key, one in self._transactions.items()}

    def groups(self) -> Collection[str]:
        """Return the groups that have pending offsets."""
        return self._partitions.keys()

    def partitions(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions in which the group has pending offsets."""
        return self._partitions.get(group_id, ())

    def has(self, key: Key) -> bool:
        """Whether an offset of this key is pending."""
        return key in self._producers

    def add(
        self, producer_id: int, producer_epoch: int, record: OffsetRecord, log_offset: int
    ) -> None:
        """Apply a record of a transaction."""
        transaction = self._transactions.get(producer_id)
        if transaction is None:
            transaction = OpenTransaction(producer_epoch, log_offset)
            self._transactions[producer_id] = transaction
        transaction.producer_epoch = producer_epoch
        transaction.offsets[record.subject] = PendingOffset(record, log_offset)
        producers = self._producers.setdefault(record.subject, [])
        if producer_id not in producers:
            producers.append(producer_id)
        self._partitions.setdefault(record.group_id, set()).add(record.topic_partition)

    def end(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        """Apply a marker; return the offsets it commits. A repeated marker changes nothing."""
        transaction = self._transactions.pop(producer_id, None)
        if transaction is None:
            return []
        for pending in transaction.offsets.values():
            self._forget(pending.record, producer_id)
        if not commits:
            return []
        counting = [one for one in transaction.offsets.values() if not one.is_superseded]
        for one in counting:
            self._supersede(one.record, one.log_offset)
        return counting

    def note_plain(self, record: OffsetRecord) -> None:
        """Apply a record outside of transactions, which takes effect at once.

        It supersedes the pending offsets of its key. A tombstone deletes them from their
        transactions, which stay open, as in Kafka.
        """
        if record.committed is not None:
            self._supersede(record, None)
            return
        for producer_id in [*self._producers.get(record.subject, ())]:
            del self._transactions[producer_id].offsets[record.subject]
            self._forget(record, producer_id)

    def _supersede(self, record: OffsetRecord, log_offset: int | None) -> None:
        """Mark the pending offsets that an effective record supersedes.

        `log_offset`: of the record; None: it is the last record of the log. Kafka compares the log
        offsets of records when it applies a marker, to the same effect.
        """
        key = record.subject
        for producer_id in self._producers.get(key, ()):
            offsets = self._transactions[producer_id].offsets
            if log_offset is None or offsets[key].log_offset < log_offset:
                offsets[key] = offsets[key]._replace(is_superseded=True)

    def _forget(self, record: OffsetRecord, producer_id: int) -> None:
        producers = self._producers[record.subject]
        producers.remove(producer_id)
        if producers:
            return
        del self._producers[record.subject]
        partitions = self._partitions[record.group_id]
        partitions.remove(record.topic_partition)
        if not partitions:
            del self._partitions[record.group_id]
