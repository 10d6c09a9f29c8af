"""Coordinators that break one rule of offsets in transactions each: the world must find them."""

from collections.abc import Sequence
from typing import Final

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.pending_offsets import PendingOffset
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


@TRANSACTION_MUTANTS.breaks(
    "an offset with a pending transactional commit is returned as stable (KIP-447)"
)
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


@TRANSACTION_MUTANTS.breaks("a new coordinator does not load open transactions")
class _ForgetsOpenTransactions(GroupCoordinator):
    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        pass


@TRANSACTION_MUTANTS.breaks("a new coordinator counts pending transactional offsets as committed")
class _LoadsPendingAsCommitted(GroupCoordinator):
    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        for record in () if header.is_control else records:
            self.replay_encoded(record.key or b"", record.value)


class _CommitsAll(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        del commits
        return super().end_transaction(producer_id, commits=True)


@TRANSACTION_MUTANTS.breaks("the offsets of an aborted transaction count as committed")
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


@TRANSACTION_MUTANTS.breaks(
    "a marker is acknowledged before its offsets are committed (KAFKA-17507)"
)
class _AcknowledgesMarkersEarly(BrokenParts):
    part_classes = (_RepliesEarly,)


class _Idle(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        return self.pending.end(producer_id, commits=commits)


@TRANSACTION_MUTANTS.breaks("a marker ends a transaction, but its offsets are not committed")
class _CountsNothing(BrokenParts):
    part_classes = (_Idle,)


ALL_RULES: Final = GROUP_MUTANTS.rules | TRANSACTION_MUTANTS.rules
ALL_MADE: Final = GROUP_MUTANTS.made | TRANSACTION_MUTANTS.made
