"""The groups of one partition of `__consumer_offsets`, while this broker leads it.

A request is decided on the live group, its records are written, and it is answered once they are
committed. Only then does the durable state (`CommittedState`) change: a failed write needs no
rollback, and no member reads an offset that could be lost (a bug like KAFKA-17507).
"""

from typing import Final, assert_never

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.commits import is_group_name
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.consumer.topics import NoExpressions, Topics
from quorumlog.broker.groups.core.effects import Effect
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.records import LogRecord, encode
from quorumlog.broker.groups.core.removal import GroupRemoval, OffsetRemoval
from quorumlog.broker.groups.core.requests import (
    NOT_WRITTEN,
    CommitOffsets,
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
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode


class GroupCoordinator:
    """Load: `replay` each committed record, then `loaded`; `step` from then on.

    It owns the durable state and one object for each subject, and routes requests to them. An
    object refers only to objects that were made before it. Invariants: those of `ClassicGroups` and
    `ConsumerGroups`, after every step.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        rewrite_limits: RewriteLimits = DEFAULT_LIMITS,
        topics: Topics | None = None,
        rules: GroupRules = GROUP_RULES,
    ) -> None:
        """`topics`: the topics that consumer groups may subscribe to; None: no topics."""
        self.not_written: Final = NOT_WRITTEN
        topics = Topics(NoExpressions()) if topics is None else topics
        outbox = self._outbox = GroupOutbox()
        committed = self.committed = rules.committed_state()
        self.rewrite: Final = rules.rewrite(committed, outbox, rewrite_limits)
        rebalance = rules.rebalance(settings, outbox)
        joining = rules.joining(settings, outbox, rebalance)
        protocol = rules.classic_protocol(outbox, rebalance)
        classic = self._classic = rules.classic_groups(committed, outbox, protocol, joining)
        self.groups: Final = classic.groups
        coordinator = rules.consumer_coordinator(settings, topics, committed.consumer, rules)
        consumer = self.consumer_groups = rules.consumer_groups(
            settings, topics, outbox, committed, coordinator=coordinator, classic=classic
        )
        transactional = self.transactional = rules.transactional(
            settings, outbox, committed, self.rewrite, classic=classic, consumer=consumer
        )
        self._offsets: Final = rules.committed_offsets(
            settings, outbox, committed, transactional, classic, consumer
        )
        self.fetch_offsets: Final = self._offsets.fetch
        self._offset_removal: Final = OffsetRemoval(committed, transactional, outbox)
        self._removal: Final = GroupRemoval(
            settings, outbox, committed, transactional, self._offset_removal, classic, consumer
        )
        self._replay: Final = rules.replay(committed, self.rewrite, transactional)
        self.replay: Final = self._replay.replay
        self.replay_encoded: Final = self._replay.replay_encoded
        self.replay_transactional: Final = self._replay.replay_transactional

    def encode(self, record: LogRecord) -> tuple[bytes, bytes | None]:
        """Return the key and the value of a record."""
        return encode(record)

    def loaded(self, now_ms: int, log_start_offset: int = 0, log_end_offset: int = 0) -> None:
        """Start to serve: every member has a whole session to find this coordinator.

        The replayed records were in the log at [log_start_offset, log_end_offset).
        """
        self.rewrite.note_loaded(log_start_offset, log_end_offset)
        self.transactional.loaded()
        self.consumer_groups.coordinator.loaded(now_ms)
        self._classic.loaded(now_ms)
        self._removal.loaded(now_ms)

    @property
    def next_deadline_ms(self) -> int:
        """The time of the next tick, if no other event comes first."""
        first_ms = min(self._removal.next_cleanup_ms, self.consumer_groups.next_deadline_ms)
        next_ms = self._classic.next_deadline_ms
        return first_ms if next_ms is None else min(first_ms, next_ms)

    def known_groups(self) -> list[str]:
        """Return the groups with members, a generation, or offsets (committed or pending)."""
        owned = self.consumer_groups.coordinator.groups
        with_offsets = *self.committed.offsets, *self.committed.pending.groups()
        return sorted({*self.groups, *with_offsets, *owned})

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
                self._offset_removal.handle_topics_deleted(self.known_groups(), topics)
            case events.TransactionVerified():
                self.transactional.handle_verified(now_ms, event)
            case events.TopicsChanged() | events.TargetMade():
                self.consumer_groups.feed(now_ms, event)
            case events.TopicsMatched(expression=expression):
                self.consumer_groups.handle_matched(now_ms, expression)
            case events.Ticked() | events.ClockAdvanced():
                self._handle_time(now_ms, event)
            case events.BecameLeader():  # group records and responses carry no leader epoch
                pass
            case _:
                assert_never(event)
        return self._outbox.drain()

    def check_progress(self) -> None:
        """Raise InvariantViolation if a group waits, and no event or tick will come.

        It walks over all groups: tests and simulations call it, after a step.
        """
        for group_id, group in self.groups.items():
            if not self.consumer_groups.is_replacing(group_id):
                self._classic.check_progress(group)
        consumer = self.consumer_groups.coordinator
        for group_id in consumer.groups:
            if not self.consumer_groups.is_replacing(group_id):
                consumer.check_progress(group_id)

    def _handle_request(
        self, now_ms: int, request_id: int, request: Request | ConsumerHeartbeat
    ) -> None:
        # As in Kafka, clients older than groups may commit offsets to the group with an empty id.
        may_be_nameless = isinstance(request, CommitOffsets | DeleteGroup | ConsumerHeartbeat)
        if not is_group_name(request.group_id, may_be_empty=may_be_nameless):
            self._outbox.reply(request_id, request.refuse(ErrorCode.INVALID_GROUP_ID))
        elif isinstance(request, Join) and (refusal := self._classic.field_refusal(request)):
            self._outbox.reply(request_id, request.refuse(refusal))
        elif other := self.consumer_groups.handle(now_ms, request_id, request):
            self._handle_other(now_ms, request_id, other)

    def _handle_other(self, now_ms: int, request_id: int, request: Request) -> None:
        """Handle a request about offsets, about a whole group, or about a classic group."""
        match request:
            case CommitOffsets():
                self._offsets.handle(now_ms, request_id, request)
            case DeleteOffsets():
                group = self.groups.get(request.group_id)
                subscribed = self.consumer_groups.subscribed_topics(request.group_id)
                self._offset_removal.handle_delete(group, request_id, request, subscribed)
            case DeleteGroup():
                self._removal.handle_delete(now_ms, request_id, request)
            case Join() | Sync() | Heartbeat() | Leave():
                self._classic.handle(now_ms, request_id, request)
            case _:
                assert_never(request)

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
            self._classic.settle(group_id)
        self.rewrite.resume()

    @property
    def is_expiring(self) -> bool:
        """Whether a clean-up is under way, or a tombstone is being written."""
        return self._removal.is_cleaning or self._outbox.is_deleting

    def _handle_time(self, now_ms: int, event: events.Ticked | events.ClockAdvanced) -> None:
        if isinstance(event, events.ClockAdvanced):  # offsets have become older, sessions have not
            self._classic.shift_deadlines(event.by_ms)
            self.consumer_groups.coordinator.shift_deadlines(event.by_ms)
            self._removal.begin_cleanup(self.known_groups())
            self._removal.clean_up(now_ms)
        while (group := self._classic.pop_due(now_ms)) is not None:
            if not self.consumer_groups.is_replacing(group.group_id):
                self._classic.protocol.handle_deadlines(group, now_ms)
                self._removal.drop_if_unused(group.group_id, now_ms)
                self._classic.settle(group.group_id)
        if now_ms >= self.consumer_groups.next_deadline_ms:
            self.consumer_groups.feed(now_ms, events.Ticked())
        if now_ms >= self._removal.next_cleanup_ms:
            if not self._removal.is_cleaning:
                self._removal.begin_cleanup(self.known_groups())
            self._removal.clean_up(now_ms)
        self.rewrite.resume()
