"""Coordinators that break one rule of offsets in transactions each: the world must find them."""

from collections.abc import Sequence
from typing import Any, Final

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.pending_offsets import PendingOffset, PendingOffsets
from quorumlog.broker.groups.core.records import OffsetRecord
from quorumlog.broker.groups.core.requests import CommitTransactionalOffsets, CompleteTransaction
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.groups.mutants import (
    GROUP_MUTANTS,
    BrokenParts,
    shards_of,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import BatchHeader, Record

__all__ = ["ALL_MADE", "ALL_RULES", "TRANSACTION_MUTANTS", "shards_of"]

TRANSACTION_MUTANTS: Final = Mutants(shards_of)


class _AlwaysStable(TransactionalOffsets):
    def unstable(self, group_id: str) -> frozenset[TopicPartition]:
        del group_id
        return frozenset()


@TRANSACTION_MUTANTS.breaks("an offset that a transaction may change is shown as stable (KIP-447)")
class _ShowsUnstableOffsets(BrokenParts):
    part_classes = (_AlwaysStable,)


class _NeverAsks(TransactionalOffsets):
    def _handle_commit(
        self, now_ms: int, request_id: int, request: CommitTransactionalOffsets
    ) -> None:
        self._begun[request.producer_id] = request.producer_epoch
        super()._handle_commit(now_ms, request_id, request)


@TRANSACTION_MUTANTS.breaks("no transaction is verified (KIP-890)")
class _VerifiesNothing(BrokenParts):
    part_classes = (_NeverAsks,)


@TRANSACTION_MUTANTS.breaks("a coordinator that takes over forgets the transactions that are open")
class _ForgetsOpenTransactions(GroupCoordinator):
    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        pass


@TRANSACTION_MUTANTS.breaks("a coordinator that takes over counts what is pending")
class _LoadsPendingAsCommitted(GroupCoordinator):
    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        for record in () if header.is_control else records:
            self.replay_encoded(record.key or b"", record.value)


class _CommitsAll(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        del commits
        return super().end_transaction(producer_id, commits=True)


@TRANSACTION_MUTANTS.breaks("the offsets of an aborted transaction count")
class _CountsWhatIsAborted(BrokenParts):
    part_classes = (_CommitsAll,)


class _RepliesEarly(TransactionalOffsets):
    def _handle_complete(self, request_id: int, request: CompleteTransaction) -> None:
        self._begun.pop(request.marker.producer_id, None)
        self._outbox.reply(request_id, ErrorCode.NONE)
        self._outbox.write_marker(
            request.marker,
            apply=lambda _next_offset: self._end(request.marker),
            done=lambda _now_ms, _error_code: None,
        )


@TRANSACTION_MUTANTS.breaks("a marker is acknowledged before its offsets count (KAFKA-17507)")
class _AcknowledgesMarkersEarly(BrokenParts):
    part_classes = (_RepliesEarly,)


class _StableWhileWritten(TransactionalOffsets):
    def unstable(self, group_id: str) -> frozenset[TopicPartition]:
        return frozenset(self._pending.partitions(group_id))


@TRANSACTION_MUTANTS.breaks("an offset that a transaction is writing is shown as stable (KIP-447)")
class _ShowsWhatIsBeingReplaced(BrokenParts):
    part_classes = (_StableWhileWritten,)


class _Patient(TransactionalOffsets):
    def _end_wait(self, producer_id: int, group_id: str) -> None:
        pass


@TRANSACTION_MUTANTS.breaks(
    "a commit is written although its transaction has ended meanwhile (KAFKA-14884)"
)
class _WritesBehindTheMarker(BrokenParts):
    part_classes = (_Patient,)


class _Trusting(TransactionalOffsets):
    def _handle_complete(self, request_id: int, request: CompleteTransaction) -> None:
        begun = dict(self._begun)
        super()._handle_complete(request_id, request)
        self._begun.update(begun)


@TRANSACTION_MUTANTS.breaks("a transaction that was verified once is never verified again")
class _VerifiesOnce(BrokenParts):
    part_classes = (_Trusting,)


class _Idle(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        return self.pending.end(producer_id, commits=commits)


@TRANSACTION_MUTANTS.breaks("a marker ends a transaction, and its offsets do not count")
class _CountsNothing(BrokenParts):
    part_classes = (_Idle,)


class _OlderWins(PendingOffsets):
    def _supersede(self, *arguments: Any) -> None:
        pass


@TRANSACTION_MUTANTS.breaks("an older commit wins because its transaction ends later")
class _GoesByTheMarkers(BrokenParts):
    part_classes = (_OlderWins,)


class _LeftByTombstones(PendingOffsets):
    def note_plain(self, record: OffsetRecord) -> None:
        if record.committed is not None:
            super().note_plain(record)


@TRANSACTION_MUTANTS.breaks("a deleted offset comes back with its transaction")
class _RevivesWhatIsDeleted(BrokenParts):
    part_classes = (_LeftByTombstones,)


ALL_RULES: Final = GROUP_MUTANTS.rules | TRANSACTION_MUTANTS.rules
ALL_MADE: Final = GROUP_MUTANTS.made | TRANSACTION_MUTANTS.made
