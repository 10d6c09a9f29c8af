"""Coordinators and shards that break one rule each: the world must find them."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.commits import DecidedCommit
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import AppendRecords, Effect
from quorumlog.broker.groups.core.events import Event
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.group_outbox import WriteDone
from quorumlog.broker.groups.core.records import OffsetRecord
from quorumlog.broker.groups.core.requests import CommitOffsets, SyncResult
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import GroupShard
from quorumlog.chaos.simulation.worlds.groups.member_process import SESSION_MS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch

SETTINGS: Final = BrokerSettings(
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=200,
    group_consumer_session_timeout_ms=SESSION_MS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParts:
    """What shards are made of: the coordinator, or the shard, with a broken rule."""

    coordinator: type[GroupCoordinator] = GroupCoordinator
    shard: type[GroupShard] = CoordinatorShard

    def new_shard(self, now_ms: int, topics: Topics) -> GroupShard:
        """Make a shard that begins to load."""
        return self.shard(partial(self.coordinator, SETTINGS, topics=topics), now_ms)


def shards_of(*broken: type[Any]) -> ShardParts:
    """Return the parts in which `broken` replaces the coordinator, or the shard itself."""
    parts = ShardParts()
    for one in broken:
        is_coordinator = issubclass(one, GroupCoordinator)
        parts = replace(parts, **{"coordinator" if is_coordinator else "shard": one})
    return parts


class BrokenParts(GroupCoordinator):
    """Each of `part_classes` takes the place of the class that it inherits, at any depth."""

    part_classes: tuple[type[Any], ...] = ()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for part in _parts(self, {}).values():
            for broken in self.part_classes:
                if issubclass(broken, type(part)):
                    part.__class__ = broken


def _parts(of: object, found: dict[int, Any]) -> dict[int, Any]:
    """Collect the objects that one is made of, those of groups."""
    for part in getattr(of, "__dict__", {}).values():
        is_ours = type(part).__module__.startswith(_OF_GROUPS)
        if is_ours and id(part) not in found:
            found[id(part)] = part
            _parts(part, found)
    return found


_OF_GROUPS: Final = GroupCoordinator.__module__.rpartition(".")[0]
GROUP_MUTANTS: Final = Mutants(shards_of)


@GROUP_MUTANTS.breaks("a commit is acknowledged before its record is committed")
class _AnswersCommitsEarly(GroupCoordinator):
    def _answer_commit(self, request_id: int, commit: DecidedCommit) -> WriteDone:
        self._outbox.reply(request_id, commit.result())
        return lambda _now_ms, _error_code: None


@GROUP_MUTANTS.breaks("an offset is returned before its record is committed (KAFKA-17507)")
class _ShowsUncommittedOffsets(GroupCoordinator):
    def step(self, now_ms: int, event: Event) -> list[Effect]:
        effects = super().step(now_ms, event)
        for effect in effects:
            for record in effect.records if isinstance(effect, AppendRecords) else ():
                if isinstance(record, OffsetRecord):
                    self.committed.apply(record)
        return effects


@GROUP_MUTANTS.breaks("a member commits with an old generation")
class _TakesAnyGeneration(GroupCoordinator):
    def _commit_refusal(
        self, group: Group | None, now_ms: int, request: CommitOffsets
    ) -> ErrorCode:
        error_code = super()._commit_refusal(group, now_ms, request)
        return ErrorCode.NONE if error_code is ErrorCode.ILLEGAL_GENERATION else error_code


@GROUP_MUTANTS.breaks("a member with an expired session still commits")
class _TakesFormerMembers(GroupCoordinator):
    def _commit_refusal(
        self, group: Group | None, now_ms: int, request: CommitOffsets
    ) -> ErrorCode:
        error_code = super()._commit_refusal(group, now_ms, request)
        return ErrorCode.NONE if error_code is ErrorCode.UNKNOWN_MEMBER_ID else error_code


@GROUP_MUTANTS.breaks("a new coordinator does not load the group's generation")
class _ForgetsGenerations(GroupCoordinator):
    def loaded(self, now_ms: int, log_start_offset: int = 0, log_end_offset: int = 0) -> None:
        super().loaded(now_ms, log_start_offset, log_end_offset)
        self.groups.clear()


class _EarlyAssignments(ClassicProtocol):
    def _store_assignment(self, group: Group, now_ms: int, assigned: dict[str, bytes]) -> None:
        for member in group.members.values():
            if member.awaiting_sync is not None:
                self._outbox.reply(
                    member.awaiting_sync,
                    SyncResult(error_code=ErrorCode.NONE, assignment=assigned[member.member_id]),
                )
                member.awaiting_sync = None
        super()._store_assignment(group, now_ms, assigned)


@GROUP_MUTANTS.breaks("members receive an assignment that is not committed (KAFKA-13614)")
class _AssignsBeforeItIsStored(BrokenParts):
    part_classes = (_EarlyAssignments,)


@GROUP_MUTANTS.breaks("a new coordinator loads the first record of an offset, not the last")
class _LoadsTheOldestOffsets(GroupCoordinator):
    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        before = {name: dict(offsets) for name, offsets in self.committed.offsets.items()}
        super().replay_encoded(key, value)
        for group_id, offsets in before.items():  # the first record of a key wins, not the last
            self.committed.offsets[group_id].update(offsets)


@GROUP_MUTANTS.breaks("a new coordinator does not wait until its whole log is committed")
class _ServesBeforeAllIsCommitted(CoordinatorShard[GroupCoordinator]):
    def _is_whole(self, read: LocalRead) -> bool:
        del read
        return True


@GROUP_MUTANTS.breaks("a broker serves groups after it has lost the leadership")
class _ServesAfterItResigned(CoordinatorShard[GroupCoordinator]):
    def _handle_resigned(self, leader_epoch: Epoch) -> None:
        pass
