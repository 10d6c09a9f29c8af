"""Mutants of the group rules, one broken rule in each class: the world must find them."""

from functools import partial
from typing import Final

from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.groups.core.commits import DecidedCommit
from quorumlog.broker.groups.core.committed_offsets import CommittedOffsets
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.replay import Replay
from quorumlog.broker.groups.core.requests import CommitOffsets, SyncResult
from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch

GROUP_MUTANTS: Final = Mutants(partial(with_broken, GROUP_RULES))


@GROUP_MUTANTS.breaks("a commit is acknowledged before its record is committed")
class _AnswersCommitsEarly(CommittedOffsets):
    def _write(self, request_id: int, commit: DecidedCommit) -> None:
        self._outbox.reply(request_id, commit.result())
        self._outbox.append(commit.records, lambda _now_ms, _error_code: None)


@GROUP_MUTANTS.breaks("an offset is returned before its record is committed (KAFKA-17507)")
class _ShowsUncommittedOffsets(CommittedOffsets):
    def _write(self, request_id: int, commit: DecidedCommit) -> None:
        super()._write(request_id, commit)
        for record in commit.records:
            self._committed.apply(record)


@GROUP_MUTANTS.breaks("a member commits with an old generation")
class _TakesAnyGeneration(CommittedOffsets):
    def _refusal(self, now_ms: int, request: CommitOffsets) -> ErrorCode:
        error_code = super()._refusal(now_ms, request)
        return ErrorCode.NONE if error_code is ErrorCode.ILLEGAL_GENERATION else error_code


@GROUP_MUTANTS.breaks("a member with an expired session still commits")
class _TakesFormerMembers(CommittedOffsets):
    def _refusal(self, now_ms: int, request: CommitOffsets) -> ErrorCode:
        error_code = super()._refusal(now_ms, request)
        return ErrorCode.NONE if error_code is ErrorCode.UNKNOWN_MEMBER_ID else error_code


@GROUP_MUTANTS.breaks("a new coordinator does not load the group's generation")
class _ForgetsGenerations(ClassicGroups):
    def loaded(self, now_ms: int) -> None:
        super().loaded(now_ms)
        self.groups.clear()


@GROUP_MUTANTS.breaks("members receive an assignment that is not committed (KAFKA-13614)")
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


@GROUP_MUTANTS.breaks("a new coordinator loads the first record of an offset, not the last")
class _LoadsTheOldestOffsets(Replay):
    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        before = {name: dict(offsets) for name, offsets in self._committed.offsets.items()}
        super().replay_encoded(key, value)
        for group_id, offsets in before.items():  # the first record of a key wins, not the last
            self._committed.offsets[group_id].update(offsets)


@GROUP_MUTANTS.breaks("a new coordinator does not wait until its whole log is committed")
class _ServesBeforeAllIsCommitted(CoordinatorShard[GroupCoordinator]):
    def _is_whole(self, read: LocalRead) -> bool:
        del read
        return True


@GROUP_MUTANTS.breaks("a broker serves groups after it has lost the leadership")
class _ServesAfterItResigned(CoordinatorShard[GroupCoordinator]):
    def _handle_resigned(self, leader_epoch: Epoch) -> None:
        pass
