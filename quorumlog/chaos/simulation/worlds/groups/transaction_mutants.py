"""Mutants of the rules of transactional offsets: the world must find them."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.pending_offsets import PendingOffset
from quorumlog.broker.groups.core.replay import Replay
from quorumlog.broker.groups.core.requests import CommitTransactionalOffsets, CompleteTransaction
from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
from quorumlog.chaos.simulation.worlds.groups.mutants import GROUP_MUTANTS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import BatchHeader, Record

TRANSACTION_MUTANTS: Final = Mutants(partial(with_broken, GROUP_RULES))


@TRANSACTION_MUTANTS.breaks(
    "an offset with a pending transactional commit is returned as stable (KIP-447)"
)
class _ShowsUnstableOffsets(TransactionalOffsets):
    def unstable(self, group_id: str) -> frozenset[TopicPartition]:
        del group_id
        return frozenset()


@TRANSACTION_MUTANTS.breaks("no transaction is verified (KIP-890)")
class _VerifiesNothing(TransactionalOffsets):
    def _handle_commit(
        self, now_ms: int, request_id: int, request: CommitTransactionalOffsets
    ) -> None:
        self._begun[request.producer_id] = request.producer_epoch
        super()._handle_commit(now_ms, request_id, request)


@TRANSACTION_MUTANTS.breaks("a new coordinator does not load open transactions")
class _ForgetsOpenTransactions(Replay):
    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        pass


@TRANSACTION_MUTANTS.breaks("a new coordinator counts pending transactional offsets as committed")
class _LoadsPendingAsCommitted(Replay):
    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        for record in () if header.is_control else records:
            self.replay_encoded(record.key or b"", record.value)


@TRANSACTION_MUTANTS.breaks("the offsets of an aborted transaction count as committed")
class _CountsWhatIsAborted(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        del commits
        return super().end_transaction(producer_id, commits=True)


@TRANSACTION_MUTANTS.breaks(
    "a marker is acknowledged before its offsets are committed (KAFKA-17507)"
)
class _AcknowledgesMarkersEarly(TransactionalOffsets):
    def _handle_complete(self, request_id: int, request: CompleteTransaction) -> None:
        self._begun.pop(request.marker.producer_id, None)
        self._outbox.reply(request_id, ErrorCode.NONE)
        self._outbox.write_marker(
            request.marker,
            apply=lambda _next_offset: self._end(request.marker),
            done=lambda _now_ms, _error_code: None,
        )


@TRANSACTION_MUTANTS.breaks("a marker ends a transaction, but its offsets are not committed")
class _CountsNothing(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        return self.pending.end(producer_id, commits=commits)


ALL_RULES: Final = GROUP_MUTANTS.rules | TRANSACTION_MUTANTS.rules
ALL_MADE: Final = GROUP_MUTANTS.made | TRANSACTION_MUTANTS.made
