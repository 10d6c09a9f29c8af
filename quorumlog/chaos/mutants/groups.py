"""Group coordinators with one broken rule each: classic groups, and offsets of all groups."""

from collections.abc import Sequence
from typing import Final

from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.groups.core.commits import DecidedCommit
from quorumlog.broker.groups.core.committed_offsets import CommittedOffsets
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.pending_offsets import PendingOffset
from quorumlog.broker.groups.core.replay import Replay
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitTransactionalOffsets,
    CompleteTransaction,
    SyncResult,
)
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.records import BatchHeader, Record

GROUPS: Final = Mutants("groups")
TRANSACTIONAL_OFFSETS: Final = Mutants("groups")


@GROUPS.breaks("a commit is acknowledged before its record is committed")
class _AnswersCommitsEarly(CommittedOffsets):
    def _write(self, request_id: int, commit: DecidedCommit) -> None:
        self._outbox.reply(request_id, commit.result())
        self._outbox.append(commit.records, lambda _now_ms, _error_code: None)


@GROUPS.breaks("an offset is returned before its record is committed (KAFKA-17507)")
class _ShowsUncommittedOffsets(CommittedOffsets):
    def _write(self, request_id: int, commit: DecidedCommit) -> None:
        super()._write(request_id, commit)
        for record in commit.records:
            self._committed.apply(record)


@GROUPS.breaks("a member commits with an old generation")
class _TakesAnyGeneration(CommittedOffsets):
    def _refusal(self, now_ms: int, request: CommitOffsets) -> ErrorCode:
        error_code = super()._refusal(now_ms, request)
        return ErrorCode.NONE if error_code is ErrorCode.ILLEGAL_GENERATION else error_code


@GROUPS.breaks("a member with an expired session still commits")
class _TakesFormerMembers(CommittedOffsets):
    def _refusal(self, now_ms: int, request: CommitOffsets) -> ErrorCode:
        error_code = super()._refusal(now_ms, request)
        return ErrorCode.NONE if error_code is ErrorCode.UNKNOWN_MEMBER_ID else error_code


@GROUPS.breaks("a new coordinator does not load the group's generation")
class _ForgetsGenerations(ClassicGroups):
    def loaded(self, now_ms: int) -> None:
        super().loaded(now_ms)
        self.groups.clear()


@GROUPS.breaks("a new coordinator sets no deadline for the members that it loads")
class _AwaitsLoadedMembersForEver(ClassicGroups):
    def loaded(self, now_ms: int) -> None:
        super().loaded(now_ms)
        for group_id in self.groups:
            self._deadlines.set(group_id, None)


@GROUPS.breaks("members receive an assignment that is not committed (KAFKA-13614)")
class _AssignsBeforeItIsStored(ClassicProtocol):
    def _store_assignment(self, group: Group, now_ms: int, assigned: dict[str, bytes]) -> None:
        for member in group.members.values():
            if member.awaiting_sync is not None:
                self._outbox.reply(
                    member.awaiting_sync,
                    SyncResult(error_code=ErrorCode.NONE, assignment=assigned[member.member_id]),
                )
                member.awaiting_sync = None
        super()._store_assignment(group, now_ms, assigned)


@GROUPS.breaks("a new coordinator loads the first record of an offset, not the last")
class _LoadsTheOldestOffsets(Replay):
    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        before = {name: dict(offsets) for name, offsets in self._committed.offsets.items()}
        super().replay_encoded(key, value)
        for group_id, offsets in before.items():  # the first record of a key wins, not the last
            self._committed.offsets[group_id].update(offsets)


@GROUPS.breaks("a new coordinator does not wait until its whole log is committed")
class _ServesBeforeAllIsCommitted(CoordinatorShard[GroupCoordinator]):
    def _is_whole(self, read: LocalRead) -> bool:
        del read
        return True


@GROUPS.breaks("a broker serves groups after it has lost the leadership")
class _ServesAfterItResigned(CoordinatorShard[GroupCoordinator]):
    def _handle_resigned(self, leader_epoch: Epoch) -> None:
        pass


# --- transactional offsets ---


@TRANSACTIONAL_OFFSETS.breaks(
    "an offset with a pending transactional commit is returned as stable (KIP-447)"
)
class _ShowsUnstableOffsets(TransactionalOffsets):
    def unstable(self, group_id: str) -> frozenset[TopicPartition]:
        del group_id
        return frozenset()


@TRANSACTIONAL_OFFSETS.breaks("no transaction is verified (KIP-890)")
class _VerifiesNothing(TransactionalOffsets):
    def _handle_commit(
        self, now_ms: int, request_id: int, request: CommitTransactionalOffsets
    ) -> None:
        self._begun[request.producer_id] = request.producer_epoch
        super()._handle_commit(now_ms, request_id, request)


@TRANSACTIONAL_OFFSETS.breaks("a new coordinator does not load open transactions")
class _ForgetsOpenTransactions(Replay):
    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        pass


@TRANSACTIONAL_OFFSETS.breaks("a new coordinator counts pending transactional offsets as committed")
class _LoadsPendingAsCommitted(Replay):
    def replay_transactional(self, header: BatchHeader, records: Sequence[Record]) -> None:
        for record in () if header.is_control else records:
            self.replay_encoded(record.key or b"", record.value)


@TRANSACTIONAL_OFFSETS.breaks("the offsets of an aborted transaction count as committed")
class _CountsWhatIsAborted(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        del commits
        return super().end_transaction(producer_id, commits=True)


@TRANSACTIONAL_OFFSETS.breaks(
    "a marker is acknowledged before its offsets are committed (KAFKA-17507)"
)
class _AcknowledgesMarkersEarly(TransactionalOffsets):
    def _handle_complete(self, request_id: int, request: CompleteTransaction) -> None:
        self._begun.pop(request.marker.producer_id, None)
        self._outbox.reply(request_id, ErrorCode.NONE)
        self._outbox.write_marker(
            request.marker,
            transaction_version=request.transaction_version,
            apply=lambda _next_offset: self._end(request.marker),
            done=lambda _now_ms, _error_code: None,
        )


@TRANSACTIONAL_OFFSETS.breaks("a marker ends a transaction, but its offsets are not committed")
class _CountsNothing(CommittedState):
    def end_transaction(self, producer_id: int, *, commits: bool) -> list[PendingOffset]:
        return self.pending.end(producer_id, commits=commits)
