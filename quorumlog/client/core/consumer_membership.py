"""A member of a consumer group of KIP-848: its heartbeats, revocations and assignments.

The coordinator assigns. A heartbeat response carries the member's target assignment; the member
revokes all other partitions first, and its next heartbeat carries the partitions that it owns then.
Partitions change only while the user is in `poll`, as in a classic group. A member whose id or
epoch the coordinator refuses has lost its partitions and joins again with epoch 0. The member
chooses its own id.
Sources: KIP-848 (the client's side), KIP-1082 (member ids), Kafka's AbstractMembershipManager.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, assert_never

from quorumlog.client.core import membership_events as facts
from quorumlog.client.core.member import Member
from quorumlog.client.core.membership_events import COORDINATOR_LOST, AssignedTopics, Effect, Event
from quorumlog.client.errors import FATAL
from quorumlog.client.settings import ConsumerSettings
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

LEFT_EPOCH: Final = -1
STATIC_LEFT_EPOCH: Final = -2  # a static member that may come back
NO_EPOCH: Final = 0


class State(Enum):
    """UNJOINED; JOINING (epoch 0 is sent); MEMBER; REVOKING (a revocation is in progress)."""

    UNJOINED = auto()
    JOINING = auto()
    MEMBER = auto()
    REVOKING = auto()


S = State
CONSUMER_TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    S.UNJOINED: frozenset({S.JOINING, S.UNJOINED}),
    S.JOINING: frozenset({S.MEMBER, S.UNJOINED}),
    S.MEMBER: frozenset({S.REVOKING, S.UNJOINED}),
    S.REVOKING: frozenset({S.MEMBER, S.UNJOINED}),
}

_FENCED: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_IN_GROUP: Final = frozenset({State.MEMBER, State.REVOKING})


class ConsumerMembership(Member):
    """One member of one group.

    Invariants (`check_invariants`, after every step):
      1. The member epoch is above 0 in MEMBER and REVOKING, and only there.
      2. A member that joins owns no partitions.
      3. At most one heartbeat's response is awaited (by construction).
    """

    is_leader: Final = False  # the coordinator assigns
    counts: Final[Mapping[str, int]] = {}  # the partition counts that a classic leader watches

    def __init__(self, settings: ConsumerSettings, member_id: str) -> None:
        super().__init__(settings)
        self.state = State.UNJOINED
        self.member_id: Final = member_id
        self.member_epoch = NO_EPOCH
        self.owned: AssignedTopics = {}
        self._target: AssignedTopics | None = None  # the last assignment received
        self._names: dict[bytes, str] = {}
        self._unnamed: frozenset[bytes] = frozenset()  # topic ids without a name yet
        self._revocations = 0  # in progress
        self._interval_ms = float(settings.heartbeat_interval_ms)
        self._attempt = 0
        self._is_pending = False
        self._tells_all = self._tells_topics = self._tells_owned = False

    @property
    def generation_id(self) -> int:
        """The member epoch for commits; -1 outside the group."""
        return self.member_epoch if self.state in _IN_GROUP else -1

    def next_tick_ms(self, now_ms: float) -> float:
        """Return when `Ticked` is due next; `inf` if only other events can have an effect."""
        del now_ms
        if not self.is_subscribed:
            return float("inf")
        due_ms = float("inf")
        if self.state is State.MEMBER:
            due_ms = self._poll_deadline_ms()
        if not self.coordinator_known:
            return due_ms if self.is_finding else min(due_ms, self._find_ms)
        if self._is_pending or (self.state is State.UNJOINED and not self.in_poll):
            return due_ms
        return min(due_ms, self._heartbeat_ms)

    def _become(self, state: State) -> None:
        is_legal = state in CONSUMER_TRANSITIONS[self.state]
        require(is_legal, f"a member may go {self.state} -> {state}")
        self.state = state

    # --- events ---

    def _handle(self, now_ms: float, event: Event) -> list[Effect]:  # noqa: C901, PLR0912 - one flat case per kind of fact
        match event:
            case facts.Subscribed():
                return self._handle_subscribed(now_ms, event)
            case facts.PollBegan():
                self.in_poll, self._polled_ms = True, now_ms
                self._unnamed = frozenset()
            case facts.PollEnded():
                self.in_poll, self._polled_ms = False, now_ms
            case facts.CoordinatorFound():
                self.coordinator_known, self.is_finding = True, False
            case facts.CoordinatorRefused():
                self.is_finding = False
                self._back_off(now_ms)
                self._find_ms = self._heartbeat_ms
            case facts.CoordinatorLost():
                self._lose_coordinator()
            case facts.ConsumerHeartbeatAnswered():
                return self._handle_answered(now_ms, event)
            case facts.TopicsNamed(names=names):
                self._names.update(names)
            case facts.RevocationDone():
                self._revocations -= 1
                self._handle_revocation_done()
            case facts.Ticked() | facts.CountsChanged() | facts.TopicsLookedUp():
                pass
            case facts.JoinAnswered() | facts.SyncAnswered() | facts.HeartbeatAnswered():
                pass  # of the classic protocol
            case facts.GroupDescribed() | facts.TopicsListed():
                pass  # of the classic protocol
            case facts.AssignmentComputed() | facts.AssignmentFailed():
                pass  # of the classic protocol
            case _:
                assert_never(event)
        return []

    def _handle_subscribed(self, now_ms: float, event: facts.Subscribed) -> list[Effect]:
        self.topics, self.pattern = event.topics, event.pattern
        self._polled_ms, self._heartbeat_ms = now_ms, now_ms
        self._tells_topics = True
        return [] if self.is_subscribed else self._leave()

    def _leave(self) -> list[Effect]:
        """Leave the group now, without waiting for the response."""
        effects: list[Effect] = []
        if self.state is not State.UNJOINED:
            is_static = self.settings.group_instance_id is not None
            epoch = STATIC_LEFT_EPOCH if is_static else LEFT_EPOCH
            self._attempt += 1
            effects.append(
                facts.SendConsumerHeartbeat(
                    attempt=self._attempt, member_id=self.member_id, member_epoch=epoch
                )
            )
        return effects + self._lose_all()

    def _lose_all(self) -> list[Effect]:
        """End the membership: other members may own its partitions already."""
        owned, self.owned = self.owned, {}
        self.member_epoch, self._target = NO_EPOCH, None
        self._attempt += 1  # the outstanding response is stale
        self._is_pending = False
        self._become(State.UNJOINED)
        return [self._revoke(self._named(owned), lost=True)] if owned else []

    def _revoke(self, partitions: tuple[TopicPartition, ...], *, lost: bool) -> Effect:
        self._revocations += 1
        return facts.Revoke(partitions=partitions, lost=lost)

    def _lose_coordinator(self) -> None:
        """Find the coordinator again; the next heartbeat is full, as the last may be lost."""
        self.coordinator_known = self._is_pending = False
        self._attempt += 1
        self._tells_all = True
        if self.state is State.JOINING:
            self._become(State.UNJOINED)

    def _handle_answered(
        self, now_ms: float, event: facts.ConsumerHeartbeatAnswered
    ) -> list[Effect]:
        if event.attempt != self._attempt:
            return []
        self._is_pending, self._unnamed = False, frozenset()
        if event.error_code != ErrorCode.NONE or event.member_epoch <= NO_EPOCH:
            return self._handle_refused(now_ms, event)
        self._failures, self._tells_all = 0, False
        self._interval_ms = event.heartbeat_interval_ms or self._interval_ms
        self._heartbeat_ms = now_ms + self._interval_ms
        self.member_epoch = event.member_epoch
        if self.state is State.JOINING:
            self._become(State.MEMBER)
        if event.assignment is not None:
            self._target = event.assignment
        return []

    def _handle_refused(
        self, now_ms: float, event: facts.ConsumerHeartbeatAnswered
    ) -> list[Effect]:
        code = event.error_code
        self._tells_all = True
        self._back_off(now_ms)
        if code in COORDINATOR_LOST:
            self._lose_coordinator()
            return []
        if code in _FENCED:
            return self._lose_all()
        if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            if self.state is State.JOINING:
                self._become(State.UNJOINED)
            return []
        effects = self._lose_all()
        if code in FATAL:
            self.topics, self.pattern = (), None  # until the user subscribes again
        return [*effects, facts.Fail(error_code=code, message=event.error_message)]

    def _handle_revocation_done(self) -> None:
        if self.state is State.REVOKING and self._revocations == 0:
            self.owned = _common(self.owned, self._target or {})
            self._tells_owned = True
            self._become(State.MEMBER)

    def _back_off(self, now_ms: float) -> None:
        self._failures += 1
        self._heartbeat_ms = now_ms + self._backoff.delay_ms(self._failures, 0.5)

    # --- effects that are due ---

    def _advance(self, now_ms: float) -> list[Effect]:
        if not self.is_subscribed:
            return []
        if self.state is State.MEMBER and now_ms >= self._poll_deadline_ms():
            return self._leave()  # max.poll.interval.ms passed without a poll
        effects = self._maybe_change() if self.state is State.MEMBER else []
        if not self.coordinator_known:
            return effects + self._find_coordinator(now_ms)
        return effects + self._maybe_heartbeat(now_ms)

    def _maybe_change(self) -> list[Effect]:
        """Take the next step to the target assignment: revoke first, then assign."""
        # DEVIATION: Kafka's client compares names, and calls no listener for a re-created topic.
        # docs/decisions/0043-consumer-positions.md
        target = self._target
        if target is None or target == self.owned or not self.in_poll:
            return []
        unknown = frozenset(target.keys() - self._names.keys())
        if unknown:
            if unknown <= self._unnamed:
                return []
            self._unnamed = unknown
            return [facts.NameTopics(topic_ids=tuple(sorted(unknown)))]
        revoked = _without(self.owned, target)
        if revoked:
            self._become(State.REVOKING)
            return [self._revoke(self._named(revoked), lost=False)]
        added = _without(target, self.owned)
        self.owned = target
        self._tells_owned = True
        assign = facts.Assign(
            partitions=self._named(target),
            added=self._named(added),
            topic_ids={self._names[topic_id]: topic_id for topic_id in target},
        )
        return [assign]

    def _named(self, partitions: AssignedTopics) -> tuple[TopicPartition, ...]:
        return tuple(
            sorted(
                TopicPartition(self._names[topic_id], index)
                for topic_id, indexes in partitions.items()
                for index in indexes
            )
        )

    def _maybe_heartbeat(self, now_ms: float) -> list[Effect]:
        if self._is_pending:
            return []
        joins = self.state is State.UNJOINED
        has_news = self.state in _IN_GROUP and (self._tells_topics or self._tells_owned)
        is_backing_off = self._failures > 0 and now_ms < self._heartbeat_ms
        if is_backing_off or (joins and not self.in_poll):
            return []
        if not (joins or has_news or now_ms >= self._heartbeat_ms):
            return []
        if joins:
            self._become(State.JOINING)
        tells_all = joins or self._tells_all
        owned = dict(self.owned) if tells_all or self._tells_owned else None
        self._attempt += 1
        effect = facts.SendConsumerHeartbeat(
            attempt=self._attempt,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            topics=self.topics if tells_all or self._tells_topics else None,
            pattern=(self.pattern or "") if tells_all or self._tells_topics else None,
            owned=owned,
            is_full=tells_all,
        )
        self._is_pending, self._tells_topics, self._tells_owned = True, False, False
        self._heartbeat_ms = now_ms + self._interval_ms
        return [effect]

    def check_invariants(self) -> None:
        """Raise InvariantViolation with the number of the rule that does not hold."""
        is_member = self.state in _IN_GROUP
        require(is_member == (self.member_epoch > 0), "1: a member has an epoch")
        require(is_member or not self.owned, "2: a joining member has no partitions")


def _common(one: AssignedTopics, other: AssignedTopics) -> AssignedTopics:
    return _without(one, _without(one, other))


def _without(one: AssignedTopics, other: AssignedTopics) -> AssignedTopics:
    """Return the partitions of `one` that are not in `other`."""
    found = {
        topic_id: tuple(index for index in indexes if index not in other.get(topic_id, ()))
        for topic_id, indexes in one.items()
    }
    return {topic_id: indexes for topic_id, indexes in found.items() if indexes}
