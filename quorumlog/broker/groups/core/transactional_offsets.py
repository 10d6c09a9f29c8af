"""Commits of offsets in transactions, and the markers that end these transactions.

TxnOffsetCommit: the transaction coordinator verifies that our partition belongs to the transaction,
or adds it; the offsets are written as a batch of the transaction, and are pending. A marker is
written in its order among the batches. Once it is committed, pending offsets take effect or are
dropped; only then is the marker acknowledged (KAFKA-17507). Refused: producers without an open
transaction, unknown members, other generations. The log refuses old producer and coordinator
epochs.
Sources: KIP-98; KIP-447 (members, stable offsets); KIP-890 (verification).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.groups.core.commits import decide_commit, is_group_name, stranger_refusal
from quorumlog.broker.groups.core.consumer_groups import ConsumerGroups
from quorumlog.broker.groups.core.effects import VerifyTransaction
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import OffsetRecord, decode
from quorumlog.broker.groups.core.requests import (
    CommitResult,
    CommitTransactionalOffsets,
    CompleteTransaction,
    TransactionalRequest,
)
from quorumlog.broker.groups.core.rewrite import Rewrite
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import BatchHeader, Record
from quorumlog.wire.codec.transaction_markers import TransactionMarker, marker_of

# Errors of a verification, each with the code for the producer, as in Kafka's group coordinator.
# All these codes but INVALID_PRODUCER_EPOCH are retriable.
_NOT_VERIFIED: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
}


class TransactionalOffsets:
    """The transactions of one partition of `__consumer_offsets`.

    Invariants:
      1. A commit that waits for its verification has no record yet. The marker of its producer
         ends the wait: the transaction to verify is over.
      2. A partition is unstable from the append of an offset until its marker is applied.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        outbox: GroupOutbox,
        committed: CommittedState,
        rewrite: Rewrite,
        *,
        classic: ClassicGroups,
        consumer: ConsumerGroups,
    ) -> None:
        self._settings: Final = settings
        self._outbox: Final = outbox
        self._committed: Final = committed
        self._pending: Final = committed.pending
        self._rewrite: Final = rewrite
        self._classic: Final = classic
        self._consumer: Final = consumer
        self._verifying: Final[dict[int, dict[str, int]]] = {}  # producer -> group -> request id
        self._begun: Final[dict[int, int]] = {}  # producer -> epoch of its open transaction here
        self._under_way: Final[dict[str, Counter[TopicPartition]]] = {}

    def loaded(self) -> None:
        """Record the producers with an open transaction in the replayed log."""
        self._begun.update(self._pending.epochs())

    def unstable(self, group_id: str) -> frozenset[TopicPartition]:
        """Return the partitions whose offset a transaction may still change.

        Offsets that are being written are included, as in Kafka: the producer may commit its
        transaction as soon as such a write is acknowledged.
        """
        return frozenset(self._pending.partitions(group_id)).union(
            self._under_way.get(group_id, ())
        )

    def handle_request(self, now_ms: int, request_id: int, request: TransactionalRequest) -> None:
        """Answer a commit or a marker, now or once it is committed."""
        match request:
            case CommitTransactionalOffsets():
                self._handle_commit(now_ms, request_id, request)
            case CompleteTransaction():
                self._handle_complete(request_id, request)
            case _:
                assert_never(request)

    def partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions in which the group has offsets, committed or pending."""
        return {*self._committed.offsets.get(group_id, ()), *self.unstable(group_id)}

    def _refusal(self, request: CommitTransactionalOffsets) -> ErrorCode:
        """Return why the group refuses the commit's member, or NONE.

        A producer may send no member. As in Kafka, a commit is accepted during a rebalance.
        """
        refusal = self._consumer.transactional_refusal(request)
        if refusal is not None:
            return refusal
        group = self._classic.groups.get(request.group_id)
        if group is None:
            has_offsets = bool(self.partitions(request.group_id))
            return stranger_refusal(request.generation_id, has_offsets=has_offsets)
        is_outside = request.generation_id < 0 and group.state is GroupState.EMPTY
        is_named = request.generation_id >= 0 or request.member_id or request.group_instance_id
        if is_outside or not is_named:
            return ErrorCode.NONE
        error_code = group.refusal(request.member_id, request.group_instance_id)
        if error_code is ErrorCode.NONE and request.generation_id != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error_code

    # Commits.

    def _handle_commit(
        self, now_ms: int, request_id: int, request: CommitTransactionalOffsets
    ) -> None:
        """Write the offsets, once their transaction is verified.

        A transaction with a batch in our log is verified already. An older commit of the producer
        that still waits is refused: the producer has abandoned it.
        """
        error_code = _malformed(request)
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, request.refuse(error_code))
            return
        self._end_wait(request.producer_id, request.group_id)
        if self._begun.get(request.producer_id) == request.producer_epoch:
            self._write(now_ms, request_id, request)
        else:
            self._verifying.setdefault(request.producer_id, {})[request.group_id] = request_id
            self._outbox.pass_on(VerifyTransaction(request_id=request_id, request=request))

    def handle_verified(self, now_ms: int, event: events.TransactionVerified) -> None:
        """Write or refuse a commit after its verification, if the commit still waits."""
        request = event.request
        waiting = self._verifying.get(request.producer_id, {})
        if waiting.get(request.group_id) != event.request_id:
            return
        self._stop_waiting(request.producer_id, request.group_id)
        if event.error_code is ErrorCode.NONE:
            self._write(now_ms, event.request_id, request)
        else:
            told = _NOT_VERIFIED.get(event.error_code, event.error_code)
            self._outbox.reply(event.request_id, request.refuse(told))

    def _write(self, now_ms: int, request_id: int, request: CommitTransactionalOffsets) -> None:
        error_code = self._refusal(request)
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, request.refuse(error_code))
            return
        commit = decide_commit(request, self._settings, now_ms)
        records = commit.records
        if not records:
            self._outbox.reply(request_id, commit.result())
            return
        producer_id, producer_epoch = request.producer_id, request.producer_epoch
        written = [record.topic_partition for record in records]

        def apply(next_offset: int) -> None:
            for log_offset, record in enumerate(records, next_offset - len(records)):
                self._pending.add(producer_id, producer_epoch, record, log_offset)

        def done(_now_ms: int, error_code: ErrorCode) -> None:
            self._written(request.group_id, written)
            if error_code is not ErrorCode.NONE:
                self._begun.pop(producer_id, None)
            self._outbox.reply(request_id, commit.result(error_code))

        self._begun[producer_id] = producer_epoch
        self._under_way.setdefault(request.group_id, Counter()).update(written)
        self._outbox.append_transactional(
            producer_id, producer_epoch, records, apply=apply, done=done
        )

    def _written(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        under_way = self._under_way[group_id]
        for where in partitions:
            under_way[where] -= 1
            if not under_way[where]:
                del under_way[where]
        if not under_way:
            del self._under_way[group_id]

    def _end_wait(self, producer_id: int, group_id: str) -> None:
        """Refuse a waiting commit, if any, with a retriable error."""
        request_id = self._verifying.get(producer_id, {}).get(group_id)
        if request_id is not None:
            self._stop_waiting(producer_id, group_id)
            refused = CommitResult(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            self._outbox.reply(request_id, refused)

    def _stop_waiting(self, producer_id: int, group_id: str) -> None:
        waiting = self._verifying[producer_id]
        del waiting[group_id]
        if not waiting:
            del self._verifying[producer_id]

    # Markers.

    def _handle_complete(self, request_id: int, request: CompleteTransaction) -> None:
        """Write the marker; answer once it is committed and applied.

        It is written even if no offset is pending: the log tracks its open transactions itself.
        """
        # DEVIATION: Kafka answers a commit that a marker overtakes with INVALID_TXN_STATE.
        # docs/decisions/0036-transaction-offsets.md
        marker = request.marker
        for group_id in [*self._verifying.get(marker.producer_id, ())]:
            self._end_wait(marker.producer_id, group_id)
        self._begun.pop(marker.producer_id, None)

        def apply(_next_offset: int) -> None:
            self._end(marker)

        def done(_now_ms: int, error_code: ErrorCode) -> None:
            is_written = error_code is ErrorCode.NONE
            self._outbox.reply(request_id, error_code if is_written else request.refuse(error_code))

        version = request.transaction_version
        self._outbox.write_marker(marker, transaction_version=version, apply=apply, done=done)

    def _end(self, marker: TransactionMarker) -> None:
        """Apply a committed marker: the pending offsets take effect or are dropped."""
        counting = self._committed.end_transaction(marker.producer_id, commits=marker.commits)
        for one in counting:
            self._rewrite.note_counted(one.record.subject, one.log_offset)

    def replay_marker(self, header: BatchHeader, records: Sequence[Record]) -> None:
        """Apply a committed control batch; compaction may have removed its record."""
        marker = marker_of(header, records)
        if marker is not None:
            self._end(marker)

    def replay(self, header: BatchHeader, record: Record) -> bool:
        """Add a transaction's record to the pending offsets; return False for other records.

        Only offsets wait for the marker: other records take effect at once, as in Kafka.
        """
        found = decode(record.key or b"", record.value)
        if not isinstance(found, OffsetRecord) or found.committed is None:
            return False
        self._pending.add(header.producer_id, header.producer_epoch, found, record.offset)
        return True


def _malformed(request: CommitTransactionalOffsets) -> ErrorCode:
    if not is_group_name(request.group_id, may_be_empty=False):
        return ErrorCode.INVALID_GROUP_ID
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if request.producer_id < 0:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.INVALID_PRODUCER_EPOCH if request.producer_epoch < 0 else ErrorCode.NONE
