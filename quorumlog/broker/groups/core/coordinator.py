"""The groups of one partition of `__consumer_offsets`, while this broker leads it.

A request is decided on the live group, its records are written, and it is answered once they are
committed. Only then does the durable state (`CommittedState`) change: a failed write needs no
rollback, and no member reads an offset that could be lost (a bug like KAFKA-17507).
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, assert_never, cast

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.classic_side import ClassicSide
from quorumlog.broker.groups.core.commits import (
    DecidedCommit,
    decide_commit,
    is_group_name,
    stranger_refusal,
)
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.broker.groups.core.consumer_side import OWN_REQUEST, ConsumerSide
from quorumlog.broker.groups.core.deadlines import GroupDeadlines
from quorumlog.broker.groups.core.effects import Effect
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.group_outbox import WriteDone
from quorumlog.broker.groups.core.removal import OffsetRemoval, topics_read
from quorumlog.broker.groups.core.replayed_groups import ReplayedGroups
from quorumlog.broker.groups.core.requests import (
    NOT_WRITTEN,
    CommitOffsets,
    CommittedOffset,
    CommitTransactionalOffsets,
    CompleteTransaction,
    DeleteGroup,
    DeleteOffsets,
    Heartbeat,
    Join,
    Leave,
    Request,
    Sync,
)
from quorumlog.broker.groups.core.rewrite import DEFAULT_LIMITS, RewriteLimits
from quorumlog.broker.groups.core.states import GroupState
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

CLEANED_AT_ONCE: Final = 5_000  # groups and offsets in one step: some ms


class GroupCoordinator(ReplayedGroups):
    """Load: `replay` each committed record, then `loaded`; `step` from then on.

    Invariants (with those of `Group`, after every step):
      6. A Stable group has the generation and the members of its last committed record.
      7. Every group with a timeout has a deadline at or before it.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        rewrite_limits: RewriteLimits = DEFAULT_LIMITS,
        topics: Topics | None = None,
    ) -> None:
        """`topics`: the topics that consumer groups may subscribe to; None: no topics."""
        super().__init__(settings, rewrite_limits, refusal=self._transactional_refusal)
        self.not_written: Final = NOT_WRITTEN
        self._settings: Final = settings
        self._classic: Final = ClassicProtocol(settings, self._outbox)
        self._removal: Final = OffsetRemoval(self.committed, self.transactional, self._outbox)
        self.groups: Final[dict[str, Group]] = {}
        self.consumer_side: Final = ConsumerSide(
            settings,
            topics,
            self._outbox,
            self.committed,
            offsets_of=self.transactional.partitions,
            classic=ClassicSide(
                self.groups, self._classic, self._handle_join, settings.group_max_size
            ),
        )
        self._deadlines: Final = GroupDeadlines()
        self._next_cleanup_ms = 0
        self._to_clean: list[str] = []  # groups left in this clean-up, the next group last

    def loaded(self, now_ms: int, log_start_offset: int = 0, log_end_offset: int = 0) -> None:
        """Start to serve: every member has a whole session to find this coordinator.

        The replayed records were in the log at [log_start_offset, log_end_offset).
        """
        self.rewrite.note_loaded(log_start_offset, log_end_offset)
        self.transactional.loaded()
        self.consumer_side.coordinator.loaded(now_ms)
        for group_id, stored in self.committed.groups.items():
            group = self.groups[group_id] = Group.from_stored(group_id, stored, now_ms)
            self._classic.joining.maybe_shrink(group, now_ms)
            self._settle(group_id)
        self._next_cleanup_ms = now_ms + self._settings.offsets_retention_check_interval_ms

    @property
    def next_deadline_ms(self) -> int:
        """The time of the next tick, if no other event comes first."""
        first_ms = min(self._next_cleanup_ms, self.consumer_side.next_deadline_ms)
        next_ms = self._deadlines.next_ms
        return first_ms if next_ms is None else min(first_ms, next_ms)

    def step(self, now_ms: int, event: events.Event) -> list[Effect]:
        """Handle one event; return the effects, in order. Raises InvariantViolation: our bug."""
        match event:
            case events.RequestReceived(request_id=request_id, request=request):
                if isinstance(request, CommitTransactionalOffsets | CompleteTransaction):
                    self.transactional.handle_request(now_ms, request_id, request)
                else:
                    self._handle_request(now_ms, request_id, request)
            case events.WriteEnded():
                self._handle_written(now_ms, event)
            case events.TopicsDeleted(topics=topics):
                self._removal.handle_topics_deleted(self.known_groups(), topics)
            case events.TransactionVerified():
                self.transactional.handle_verified(now_ms, event)
            case events.TopicsChanged() | events.TargetMade():
                self.consumer_side.feed(now_ms, event)
            case events.TopicsMatched(expression=expression):
                self.consumer_side.handle_matched(now_ms, expression)
            case events.Ticked():
                self._handle_tick(now_ms)
            case events.BecameLeader():  # group records and responses carry no leader epoch
                pass
            case _:
                assert_never(event)
        return self._outbox.drain()

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset | None]:
        """Return the committed offset of each partition; `partitions` None: all offsets."""
        offsets = self.committed.offsets.get(group_id, {})
        if partitions is None:
            return dict(sorted(offsets.items()))
        return {where: offsets.get(where) for where in partitions}

    def known_groups(self) -> list[str]:
        """Return the groups with members, a generation, or offsets (committed or pending)."""
        owned = self.consumer_side.coordinator.groups
        with_offsets = *self.committed.offsets, *self.committed.pending.groups()
        return sorted({*self.groups, *with_offsets, *owned})

    def _handle_request(
        self, now_ms: int, request_id: int, request: Request | ConsumerHeartbeat
    ) -> None:
        # As in Kafka, clients older than groups may commit offsets to the group with an empty id.
        may_be_nameless = isinstance(request, CommitOffsets | DeleteGroup | ConsumerHeartbeat)
        if not is_group_name(request.group_id, may_be_empty=may_be_nameless):
            self._outbox.reply(request_id, request.refuse(ErrorCode.INVALID_GROUP_ID))
        elif isinstance(request, Join) and (
            refusal := self._classic.joining.field_refusal(request)
        ):
            self._outbox.reply(request_id, request.refuse(refusal))
        elif not self.consumer_side.take(now_ms, request_id, request):
            self._handle_classic(now_ms, request_id, cast("Request", request))

    def _handle_classic(self, now_ms: int, request_id: int, request: Request) -> None:
        group = self.groups.get(request.group_id)
        match request:
            case Join():
                self._handle_join(now_ms, request_id, request)
            case CommitOffsets():
                return self._handle_commit(group, now_ms, request_id, request)
            case DeleteOffsets():
                subscribed = self.consumer_side.subscribed_topics(request.group_id)
                return self._removal.handle_delete(group, request_id, request, subscribed)
            case DeleteGroup():
                self._handle_delete(group, now_ms, request_id, request)
            case Leave():
                self._classic.handle_leave(group, now_ms, request_id, request)
            case Sync() | Heartbeat() if group is None:
                self._outbox.reply(request_id, request.refuse(ErrorCode.UNKNOWN_MEMBER_ID))
            case Sync():
                self._classic.handle_sync(group, now_ms, request_id, request)
            case Heartbeat():
                return self._classic.handle_heartbeat(group, now_ms, request_id, request)
            case _:
                assert_never(request)
        return self._settle(request.group_id)

    def _handle_join(self, now_ms: int, request_id: int, join: Join) -> None:
        group = self.groups.get(join.group_id) or Group(join.group_id)
        self._classic.joining.handle_join(group, now_ms, request_id, join)
        if group.members or group.pending:
            self.groups[join.group_id] = group

    # Offsets.

    def _handle_commit(
        self, group: Group | None, now_ms: int, request_id: int, request: CommitOffsets
    ) -> None:
        error_code = self._commit_refusal(group, now_ms, request)
        if error_code is not ErrorCode.NONE:
            self._outbox.reply(request_id, request.refuse(error_code))
            return
        commit = decide_commit(request, self._settings, now_ms)
        if commit.records:
            self._outbox.append(commit.records, self._answer_commit(request_id, commit))
        else:
            self._outbox.reply(request_id, commit.result())

    def _commit_refusal(
        self, group: Group | None, now_ms: int, request: CommitOffsets
    ) -> ErrorCode:
        refusal = self.consumer_side.commit_refusal(request)
        if refusal is not None:
            return refusal
        if group is None:
            has_offsets = bool(self.transactional.partitions(request.group_id))
            return stranger_refusal(request.generation_id, has_offsets=has_offsets)
        if request.generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.NONE
        return self._classic.commit_refusal(group, now_ms, request)

    def _transactional_refusal(self, request: CommitTransactionalOffsets) -> ErrorCode:
        refusal = self.consumer_side.transactional_refusal(request)
        if refusal is not None:
            return refusal
        return self.transactional.member_refusal(self.groups.get(request.group_id), request)

    def _answer_commit(self, request_id: int, commit: DecidedCommit) -> WriteDone:
        def done(_now_ms: int, error_code: ErrorCode) -> None:
            self._outbox.reply(request_id, commit.result(error_code))

        return done

    # Removal.

    def _handle_delete(
        self, group: Group | None, now_ms: int, request_id: int, request: DeleteGroup
    ) -> None:
        group_id = request.group_id
        partitions = self.transactional.partitions(group_id)
        if not partitions and group is None:
            self._outbox.reply(request_id, ErrorCode.GROUP_ID_NOT_FOUND)
        elif group is not None and group.state is not GroupState.EMPTY:
            self._outbox.reply(request_id, ErrorCode.NON_EMPTY_GROUP)
        else:
            self._forget(group_id, now_ms, partitions, request_id)

    def _forget(
        self,
        group_id: str,
        now_ms: int,
        partitions: Iterable[TopicPartition],
        request_id: int | None,
    ) -> None:
        """Delete the group's records; `request_id`: an administrator's request; None: expiry."""

        def done(now_ms: int, error_code: ErrorCode) -> None:
            if error_code is ErrorCode.NONE:
                self._drop_if_unused(group_id, now_ms, even_if_awaited=request_id is not None)
            if request_id is not None:
                self._outbox.reply(request_id, error_code)

        records = self._removal.tombstones(group_id, partitions, is_asked=request_id is not None)
        if records:
            self._outbox.append(records, done)
        else:  # the group has no record to delete
            done(now_ms, ErrorCode.NONE)

    def _drop_if_unused(self, group_id: str, now_ms: int, *, even_if_awaited: bool = False) -> None:
        """Drop a group without members, offsets or records.

        A group is kept while a client with a new member id has yet to join with it, unless
        `even_if_awaited`.
        """
        group = self.groups.get(group_id)
        is_unused = group_id not in self.committed.groups and not self.transactional.partitions(
            group_id
        )
        if (
            group is not None
            and group.state is GroupState.EMPTY
            and (even_if_awaited or not group.pending)
            and is_unused
            and not self._outbox.is_writing(group_id)  # else a record would outlive the group
        ):
            group.transition(GroupState.DEAD, now_ms)
            del self.groups[group_id]
            self._deadlines.note(group_id, None)

    def _clean_up(self, now_ms: int) -> None:
        """Delete expired offsets and unused groups, some groups per tick."""
        if not self._to_clean:
            self._to_clean = self.known_groups()
            self._to_clean.reverse()
        before_ms = now_ms - self._settings.offsets_retention_minutes * 60_000
        under_way, changing = self._outbox.keys_under_way(), self._outbox.groups_under_way()
        examined = 0
        while self._to_clean and examined < CLEANED_AT_ONCE:
            group_id = self._to_clean.pop()
            examined += 1 + len(self.committed.offsets.get(group_id, ()))
            if self.consumer_side.is_replacing(group_id):
                continue
            if self._has_members(group_id):
                subscribed = partial(self._topics_read, group_id)
                self._removal.expire_unsubscribed(group_id, before_ms, under_way, subscribed)
            elif group_id not in changing:
                self._clean_up_empty(group_id, now_ms, before_ms)
        interval_ms = self._settings.offsets_retention_check_interval_ms
        self._next_cleanup_ms = now_ms if self._to_clean else now_ms + interval_ms

    def _has_members(self, group_id: str) -> bool:
        group = self.groups.get(group_id)
        if group is not None and (group.state is not GroupState.EMPTY or group.pending):
            return True
        return self.consumer_side.is_in_use(group_id)

    def _topics_read(self, group_id: str) -> frozenset[str] | None:
        group = self.groups.get(group_id)
        return self.consumer_side.topics_read(group_id) if group is None else topics_read(group)

    def _clean_up_empty(self, group_id: str, now_ms: int, before_ms: int) -> None:
        expired, is_last = self._removal.expired(group_id, before_ms)
        if is_last and self.consumer_side.owns(group_id):
            self.consumer_side.delete(now_ms, group_id, OWN_REQUEST)
        elif expired or (is_last and group_id in self.committed.groups):
            self._forget(group_id, now_ms, expired, None)
        else:
            self._drop_if_unused(group_id, now_ms)

    # Writes and time.

    def _handle_written(self, now_ms: int, event: events.WriteEnded) -> None:
        write = self._outbox.finish(event.write_id)
        if event.error_code is ErrorCode.NONE and write.apply is not None:
            write.apply(event.next_offset)
            self.rewrite.note_applied((), event.next_offset)
        elif event.error_code is ErrorCode.NONE:
            for record in write.records:
                self.committed.apply(record)
            self.rewrite.note_applied(write.records, event.next_offset)
        write.done(now_ms, event.error_code)
        for group_id in sorted({record.group_id for record in write.records}):
            self._settle(group_id)
        self.rewrite.go_on()

    def _handle_tick(self, now_ms: int) -> None:
        while (group_id := self._deadlines.pop_due(now_ms)) is not None:
            self._handle_deadlines(now_ms, group_id)
        if now_ms >= self.consumer_side.next_deadline_ms:
            self.consumer_side.feed(now_ms, events.Ticked())
        if now_ms >= self._next_cleanup_ms:
            self._clean_up(now_ms)
        self.rewrite.go_on()

    def _handle_deadlines(self, now_ms: int, group_id: str) -> None:
        if group_id in self.groups and not self.consumer_side.is_replacing(group_id):
            self._classic.handle_deadlines(self.groups[group_id], now_ms)
            self._drop_if_unused(group_id, now_ms)
            self._settle(group_id)

    def _settle(self, group_id: str) -> None:
        """Check the invariants of a changed group, and set its deadline."""
        group = self.groups.get(group_id)
        if group is None:
            return
        group.check_invariants()
        if group.state is GroupState.STABLE:
            stored = self.committed.groups.get(group_id)
            is_stored = stored is not None and stored.generation_id == group.generation_id
            members = [member.member_id for member in stored.members] if stored else []
            require(is_stored and members == [*group.members], "6: Stable means committed")
        self._deadlines.note(group_id, group.next_deadline_ms())
