"""The consumer groups of one partition of `__consumer_offsets`, while this broker leads it.

A heartbeat changes the live group at once; its response waits until the records are committed. A
group has at most one write under way; records decided meanwhile are written next, in few batches.
If a write is refused, the group is rebuilt from its committed records, and all waiting requests are
refused.
docs/decisions/0028-group-commits.md
"""

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final, assert_never

from quorumlog.broker.groups.core.consumer import events, targets
from quorumlog.broker.groups.core.consumer.admission import check_fields
from quorumlog.broker.groups.core.consumer.awaited_targets import AwaitedTargets, WaitingRequest
from quorumlog.broker.groups.core.consumer.classic_members import ClassicMembers
from quorumlog.broker.groups.core.consumer.committed import CommittedGroups
from quorumlog.broker.groups.core.consumer.effects import (
    AnswerRequest,
    AppendRecords,
    Effect,
    MakeTarget,
)
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup
from quorumlog.broker.groups.core.consumer.heartbeats import Admitted, Heartbeats
from quorumlog.broker.groups.core.consumer.member_deadlines import MemberDeadlines
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.records import (
    ConsumerGroupRecord,
    RecordKey,
    RecordKind,
    estimated_size,
)
from quorumlog.broker.groups.core.consumer.requests import (
    ClassicRequest,
    ConsumerGroupRequest,
    ConsumerGroupResult,
    ConsumerHeartbeat,
    RequestRefused,
)
from quorumlog.broker.groups.core.consumer.settings import GroupTimes
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.broker.groups.core.consumer.targets import Targets
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.broker.groups.core.requests import DeleteGroup, Heartbeat, Join, Leave, Sync
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import require, some
from quorumlog.settings.groups import group_limits
from quorumlog.wire.codec.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRules:
    """The class of each rule."""

    membership: type[Membership] = Membership
    heartbeats: type[Heartbeats] = Heartbeats
    classic_members: type[ClassicMembers] = ClassicMembers
    targets: type[Targets] = Targets
    member_deadlines: type[MemberDeadlines] = MemberDeadlines


CONSUMER_GROUP_RULES: Final = ConsumerGroupRules()


BATCH_BYTES_MAX: Final = 256 << 10  # of a waiting batch: a log refuses a large batch as a whole


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """A response that waits until all records decided before it are committed."""

    request_id: int
    request: ConsumerGroupRequest
    result: ConsumerGroupResult


@dataclass(slots=True)
class WriteBatch:
    """Records, and the responses to send once they are committed."""

    records: list[ConsumerGroupRecord] = field(default_factory=list)
    answers: list[PendingAnswer] = field(default_factory=list)
    size: int = 0  # estimated bytes of the records


@dataclass(slots=True)
class GroupWrites:
    """The writes of one group: at most one is under way, the others wait in order."""

    under_way: WriteBatch | None = None
    waiting: deque[WriteBatch] = field(default_factory=deque)

    def add(self, records: list[ConsumerGroupRecord], answer: PendingAnswer | None) -> None:
        """Queue records and their response, in the last batch if it has room for them."""
        size = sum(estimated_size(record) for record in records)
        last = self.waiting[-1] if self.waiting else None
        if last is None or (last.records and last.size + size > BATCH_BYTES_MAX):
            self.waiting.append(WriteBatch())
        batch = self.waiting[-1]
        batch.records += records
        batch.size += size
        if answer is not None:
            batch.answers.append(answer)


NEVER_MS: Final = 1 << 62


class ConsumerGroupCoordinator:
    """Load: let `committed` apply each committed record, then `loaded`; `step` from then on.

    Invariants:
      1. A group without writes equals the group rebuilt from its committed records.
      2. A response is sent once all records decided before it in its group are committed.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        topics: Topics,
        committed: CommittedGroups | None = None,
        rules: ConsumerGroupRules = CONSUMER_GROUP_RULES,
    ) -> None:
        """Serve no group yet. Records are applied to `committed` once they are committed."""
        self.committed: Final = CommittedGroups() if committed is None else committed
        self.groups: Final[dict[str, ConsumerGroup]] = {}
        self._settings: Final = settings
        times = GroupTimes(group_limits(settings), topics.group_configs)
        self._heartbeats: Final = rules.heartbeats(
            settings, topics, times, rules.membership(topics)
        )
        self.targets: Final = rules.targets(settings, topics)
        self._awaited: Final = AwaitedTargets(self.targets)
        self._classic: Final = rules.classic_members(settings, topics, self._heartbeats)
        self._deadlines: Final = rules.member_deadlines(times)
        self._writes: Final[dict[str, GroupWrites]] = {}
        self._group_of_write: Final[dict[int, str]] = {}
        self._last_write_id = 0
        self._effects: list[Effect] = []
        self._now_ms = 0  # of the last step

    # --- Loading ---

    def loaded(self, now_ms: int) -> None:
        """Start to serve: every member has a whole session to find this coordinator."""
        for group_id in sorted(self.committed.values):
            self.rebuild(group_id, now_ms)

    # --- Groups that change their protocol (`ConsumerGroups`) ---

    def is_writing(self, group_id: str) -> bool:
        """Whether records of the group are being written, or its target is being computed."""
        return group_id in self._writes or group_id in self._awaited

    def hold(self, group_id: str) -> None:
        """Drop the deadlines of members until `rebuild`. The group must have no writes."""
        for member_id in self.groups[group_id].members if group_id in self.groups else ():
            self._deadlines.drop_all(group_id, member_id)

    def rebuild(self, group_id: str, now_ms: int) -> None:
        """Replace the group by its committed state; its members get whole sessions."""
        self.hold(group_id)
        self.groups.pop(group_id, None)
        values = self.committed.of(group_id)
        if values:
            group = self.groups[group_id] = ConsumerGroup.from_values(group_id, values)
            self._deadlines.begin_all(group, now_ms)

    def check_progress(self, group_id: str) -> None:
        """Raise InvariantViolation if a member may stay, or hold partitions, without an end."""
        if (group := self.groups.get(group_id)) is not None:
            self._deadlines.check_progress(group)

    # --- Events ---

    @property
    def next_deadline_ms(self) -> int:
        """The time of the next tick, if no other event comes first."""
        if self._awaited.has_made:
            return self._now_ms  # at once: the next slice
        first_ms = self._deadlines.first_ms
        return NEVER_MS if first_ms is None else first_ms

    def shift_deadlines(self, by_ms: int) -> None:
        """Move all deadlines along with a clock that was advanced."""
        self._deadlines.shift(by_ms)

    def step(self, now_ms: int, event: events.Event) -> list[Effect]:
        """Handle one event; return the effects, in order. Raises InvariantViolation: our bug."""
        self._now_ms = now_ms
        match event:
            case events.RequestReceived(request_id=request_id, request=request):
                self._handle_request(now_ms, request_id, request)
            case events.WriteEnded(write_id=write_id, error_code=error_code):
                self._handle_written(now_ms, write_id, error_code)
            case events.TargetMade(job=job, target=target):
                self._awaited.note_made(job, target)
                self._take_over(now_ms)
            case events.TopicsChanged(names=names):
                self._handle_topics_changed(names)
            case events.Ticked():
                self._handle_tick(now_ms)
            case _:
                assert_never(event)
        effects, self._effects = self._effects, []
        return effects

    def _handle_request(self, now_ms: int, request_id: int, request: ConsumerGroupRequest) -> None:
        try:
            match request:
                case ConsumerHeartbeat():
                    self._handle_heartbeat(now_ms, request_id, request)
                case DeleteGroup():
                    self._handle_delete(request_id, request)
                case Join() | Sync() | Heartbeat() | Leave():
                    self._handle_classic(now_ms, request_id, request)
                case _:
                    assert_never(request)
        except RequestRefused as refusal:
            result: ConsumerGroupResult = request.refuse(refusal.error_code)
            if isinstance(request, ConsumerHeartbeat):
                result = request.refuse(refusal.error_code, refusal.message)
            self._reply(request_id, result)

    def _handle_heartbeat(self, now_ms: int, request_id: int, request: ConsumerHeartbeat) -> None:
        check_fields(request, self._settings)
        group_id = request.group_id
        group = self.groups.get(group_id)
        if group is None:
            if request.member_epoch != 0:
                raise RequestRefused(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}: join again"
                )
            group = ConsumerGroup(group_id)
        changes = Changes(group)
        begun = self._heartbeats.begin(changes, now_ms, request)
        self.groups[group_id] = group
        if isinstance(begun, Admitted):
            self._resume(changes, now_ms, request_id, request, begun)
            return
        self._deadlines.follow(changes, now_ms)
        if begun.member_id in group.members and request.member_epoch >= 0:
            self._deadlines.begin_session(group, begun.member_id, now_ms)
        self._settle(changes, PendingAnswer(request_id, request, begun))

    # --- Targets ---

    def _resume(
        self,
        changes: Changes,
        now_ms: int,
        request_id: int,
        request: ConsumerHeartbeat | Join,
        admitted: Admitted,
    ) -> None:
        """Answer once there is a target of the group's epoch; compute the target if necessary."""
        group = changes.group
        waiting = WaitingRequest(
            request_id=request_id, request=request, admitted=admitted, epoch=group.group_epoch
        )
        if group.group_epoch > group.assignment_epoch and group.group_id not in self._awaited:
            job = self.targets.job(group)
            if job.size <= targets.AT_ONCE_MAX:
                self.targets.write(changes, job, job.run())
            else:
                self._awaited.add(job)
                self._effects.append(MakeTarget(job=job))
        if group.group_id in self._awaited:
            self._awaited.wait(group.group_id, waiting)
            self._deadlines.follow(changes, now_ms)
            self._deadlines.begin_session(group, admitted.member_id, now_ms)
            self._settle(changes, None)
        else:
            self._finish(changes, now_ms, waiting)
            changes.settle_state()

    def _finish(self, changes: Changes, now_ms: int, waiting: WaitingRequest) -> None:
        group, request = changes.group, waiting.request
        member_id = waiting.admitted.member_id
        result: ConsumerGroupResult
        if isinstance(request, Join):
            result = self._classic.finish_join(changes, request, member_id)
            self._deadlines.follow(changes, now_ms)
            self._deadlines.await_sync(group, member_id, now_ms)
        else:
            result = self._heartbeats.finish(changes, request, waiting.admitted)
            self._deadlines.follow(changes, now_ms)
            self._deadlines.note_heartbeat(group, member_id, now_ms)
        self._enqueue(changes, PendingAnswer(waiting.request_id, request, result))

    def _take_over(self, now_ms: int) -> None:
        """Write a slice of a computed target, if there is one; a tick writes the next slice."""
        if not self._awaited.has_made:
            return
        taken = self._awaited.take_slice(self.groups)
        group = taken.changes.group
        self._settle(taken.changes, None)
        for one in taken.ready:
            if one.admitted.member_id in group.members:
                self._finish(Changes(group), now_ms, one)
            else:
                self._reply(one.request_id, one.request.refuse(ErrorCode.UNKNOWN_MEMBER_ID))
        group.settle_state()
        if taken.next_job is not None:
            self._effects.append(MakeTarget(job=taken.next_job))

    def _refuse_waiting(self, group_id: str, error_code: ErrorCode) -> None:
        for one in self._awaited.drop(group_id):
            self._reply(one.request_id, one.request.refuse(error_code))

    # --- Requests of classic members and of administrators ---

    def _handle_classic(self, now_ms: int, request_id: int, request: ClassicRequest) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, "there is no such group")
        changes = Changes(group)
        result: ConsumerGroupResult
        match request:
            case Join():
                begun = self._classic.begin_join(changes, now_ms, request)
                if isinstance(begun, Admitted):
                    self._resume(changes, now_ms, request_id, request, begun)
                    return
                result = begun
            case Sync():
                result = self._classic.sync(group, request)
                self._deadlines.note_sync(group, request.member_id, now_ms)
            case Heartbeat():
                result = self._classic.heartbeat(changes, now_ms, request)
                self._deadlines.begin_session(group, request.member_id, now_ms)
                if result is ErrorCode.REBALANCE_IN_PROGRESS:
                    self._deadlines.await_join(group, request.member_id, now_ms)
            case Leave():
                result = self._classic.leave(changes, now_ms, request)
                self._deadlines.follow(changes, now_ms)
            case _:
                assert_never(request)
        self._settle(changes, PendingAnswer(request_id, request, result))

    def _handle_delete(self, request_id: int, request: DeleteGroup) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            raise RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, "there is no such group")
        if group.state is not ConsumerGroupState.EMPTY:
            raise RequestRefused(ErrorCode.NON_EMPTY_GROUP, "the group has members")
        self._refuse_waiting(request.group_id, ErrorCode.UNKNOWN_MEMBER_ID)  # of former members
        changes = Changes(group)
        keys = {RecordKey(RecordKind.GROUP, request.group_id), *group.live_keys()}
        for kind, _, name in sorted(keys.union(self.committed.keys_of(request.group_id))):
            changes.write(kind, None, name)
        group.transition(ConsumerGroupState.DEAD)
        del self.groups[request.group_id]
        self._enqueue(changes, PendingAnswer(request_id, request, ErrorCode.NONE))

    def _handle_topics_changed(self, names: Set[str]) -> None:
        """Mark the groups whose topics the next heartbeat of a member must refresh."""
        for group in self.groups.values():
            if group.expressions or not group.subscribed_names.isdisjoint(names):
                group.is_metadata_due = True

    def _handle_tick(self, now_ms: int) -> None:
        self._take_over(now_ms)
        overdue: dict[str, list[str]] = {}
        while (key := self._deadlines.pop_due(now_ms)) is not None:
            overdue.setdefault(key.group_id, []).append(key.member_id)
        for group_id, member_ids in overdue.items():
            changes = Changes(self.groups[group_id])
            self._heartbeats.membership.remove(changes, member_ids, now_ms)
            self._settle(changes, None)

    # --- For reading ---

    def committed_group(self, group_id: str) -> ConsumerGroup | None:
        """Return the committed group, for descriptions; None: it does not exist."""
        if group_id not in self._writes:
            return self.groups.get(group_id)
        values = self.committed.of(group_id)
        return ConsumerGroup.from_values(group_id, values) if values else None

    # --- Writes ---

    def _settle(self, changes: Changes, answer: PendingAnswer | None) -> None:
        changes.settle_state()
        self._enqueue(changes, answer)

    def _enqueue(self, changes: Changes, answer: PendingAnswer | None) -> None:
        group_id = changes.group.group_id
        writes = self._writes.setdefault(group_id, GroupWrites())
        writes.add(changes.records, answer)
        self._write_on(group_id, writes)

    def _write_on(self, group_id: str, writes: GroupWrites) -> None:
        """Write the next batch if no write is under way; answer batches without records."""
        while writes.under_way is None and writes.waiting:
            batch = writes.waiting.popleft()
            if batch.records:
                writes.under_way = batch
                self._last_write_id += 1
                self._group_of_write[self._last_write_id] = group_id
                self._effects.append(
                    AppendRecords(write_id=self._last_write_id, records=tuple(batch.records))
                )
            else:
                self._answer(batch)
        if writes.under_way is None:
            del self._writes[group_id]

    def _handle_written(self, now_ms: int, write_id: int, error_code: ErrorCode) -> None:
        require(write_id in self._group_of_write, f"write {write_id} is under way")
        group_id = self._group_of_write.pop(write_id)
        writes = self._writes[group_id]
        batch = some(writes.under_way, "a write that ends was under way")
        writes.under_way = None
        if error_code is ErrorCode.NONE:
            for record in batch.records:
                self.committed.apply(record)
            self._answer(batch)
            self._write_on(group_id, writes)
        else:
            del self._writes[group_id]
            self.rebuild(group_id, now_ms)
            for refused in (batch, *writes.waiting):
                self._refuse(refused, error_code)
            self._refuse_waiting(group_id, error_code)

    def _answer(self, batch: WriteBatch) -> None:
        for answer in batch.answers:
            self._reply(answer.request_id, answer.result)

    def _refuse(self, batch: WriteBatch, error_code: ErrorCode) -> None:
        for answer in batch.answers:
            self._reply(answer.request_id, answer.request.refuse(error_code))

    def _reply(self, request_id: int, result: ConsumerGroupResult) -> None:
        self._effects.append(AnswerRequest(request_id=request_id, result=result))
