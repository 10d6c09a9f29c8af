"""A member of a classic consumer group: its joins, heartbeats, revocations and assignments.

Partitions are revoked only while the user is in `poll`, never while it processes records: a
heartbeat response announces the rebalance, the next `poll` begins it, and the rest runs in the
background. Eager members revoke all partitions before they join (KIP-54). Cooperative members keep
their partitions, revoke only the moved ones after the new assignment, and join again (KIP-429).
Responses of another generation are ignored. A member with a pattern joins when it has a list of the
cluster's topics, and joins again when other topics match. `consumer_membership.py` has the protocol
of KIP-848.
Sources: Kafka's AbstractCoordinator and ConsumerCoordinator; KIP-62 (max.poll.interval.ms), KIP-345
(static members), KIP-394 (MEMBER_ID_REQUIRED).
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, assert_never

from quorumlog.client.assignor import Subscription
from quorumlog.client.core import group_protocol
from quorumlog.client.core import membership_events as facts
from quorumlog.client.core.assignors import assignors_of, partitions_of
from quorumlog.client.core.member import Member
from quorumlog.client.core.membership_events import COORDINATOR_LOST, Effect, Event
from quorumlog.client.errors import FATAL, KafkaError
from quorumlog.client.settings import ConsumerSettings
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition


class State(Enum):
    """UNJOINED; REVOKING (before a join); JOINING; LEADING (assigns); SYNCING; STABLE.

    YIELDING: a cooperative member revokes the partitions that its new assignment leaves out.
    """

    UNJOINED = auto()
    REVOKING = auto()
    JOINING = auto()
    LEADING = auto()
    SYNCING = auto()
    YIELDING = auto()
    STABLE = auto()


S = State
TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    S.UNJOINED: frozenset({S.REVOKING, S.JOINING, S.UNJOINED}),
    S.REVOKING: frozenset({S.JOINING, S.UNJOINED}),
    S.JOINING: frozenset({S.LEADING, S.SYNCING, S.UNJOINED}),
    S.LEADING: frozenset({S.SYNCING, S.UNJOINED}),
    S.SYNCING: frozenset({S.YIELDING, S.STABLE, S.UNJOINED}),
    S.YIELDING: frozenset({S.STABLE, S.UNJOINED}),
    S.STABLE: frozenset({S.REVOKING, S.JOINING, S.UNJOINED}),
}

_USERS_TURN: Final = frozenset({State.REVOKING, State.LEADING, State.YIELDING})
"""States in which the user's listener or assignor runs, and heartbeats keep the membership."""
_EXPELLED: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
_TRY_AGAIN: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS}
)


class Membership(Member):
    """One member of one group.

    Invariants (`check_invariants`, after every step):
      1. From LEADING or SYNCING on, a member has a member id and a generation.
      2. An eager member that joins owns nothing.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        super().__init__(settings)
        self.state = State.UNJOINED
        self.member_id, self.generation_id, self.protocol = "", -1, ""
        self._owned_generation_id = -1
        self.is_leader = self._skips_assignment = False
        self.owned: tuple[TopicPartition, ...] = ()
        self.rejoin_wanted = False
        self._last_answer_ms = 0.0
        self._retry_ms = 0.0  # when to join
        self._heartbeat_pending = False
        self._asked_topics: tuple[str, ...] = ()
        self._assigned: tuple[TopicPartition, ...] = ()
        self._members: dict[str, Subscription] = {}
        self.counts: Mapping[str, int] = {}
        self._listed: frozenset[str] | None = None  # the cluster's topics; None: no list yet
        self._named: tuple[str, ...] = ()  # the subscribed topics without those of the pattern
        self._last_assignment = Subscription(topics=())  # for the assignor "sticky"
        self._assignors: Final = assignors_of(settings)
        protocols = {one.protocol for one in self._assignors.values()}
        self.is_cooperative: Final = protocols == {"cooperative"}

    def next_tick_ms(self, now_ms: float) -> float:
        """Return when `Ticked` is due next; `inf` if only other events can have an effect."""
        if not self.is_subscribed:
            return float("inf")
        if not self.coordinator_known:
            return float("inf") if self.is_finding else self._find_ms
        if self.state in _USERS_TURN:
            return float("inf") if self._heartbeat_pending else self._heartbeat_ms
        if self.state is State.STABLE:
            session_end_ms = self._last_answer_ms + self.settings.session_timeout_ms
            due_ms = session_end_ms if self._heartbeat_pending else self._heartbeat_ms
            return min(due_ms, session_end_ms, self._poll_deadline_ms())
        if self.state is State.UNJOINED and self._retry_ms > now_ms:
            return self._retry_ms
        return float("inf")

    def _become(self, state: State) -> None:
        require(state in TRANSITIONS[self.state], f"a member may go {self.state} -> {state}")
        self.state = state

    # --- events ---

    def _handle(self, now_ms: float, event: Event) -> list[Effect]:  # noqa: C901, PLR0911, PLR0912 - one flat case per kind of fact
        match event:
            case facts.Subscribed():
                return self._handle_subscribed(now_ms, event)
            case facts.TopicsListed(names=names):
                self._listed = names
                self._match_topics()
            case facts.PollBegan():
                self.in_poll, self._polled_ms = True, now_ms
            case facts.PollEnded():
                self.in_poll, self._polled_ms = False, now_ms
            case facts.CountsChanged(counts=counts, racks_changed=racks_changed):
                old = self.counts
                changed = any(counts[topic] != old[topic] for topic in old if topic in counts)
                has_racks = any(member.rack is not None for member in self._members.values())
                changed = changed or (racks_changed and has_racks)
                self.rejoin_wanted = self.rejoin_wanted or (self.is_leader and changed)
            case facts.CoordinatorFound():
                self.coordinator_known, self.is_finding = True, False
                self._last_answer_ms = now_ms
            case facts.CoordinatorRefused():
                self.is_finding = False
                self._back_off(now_ms)
                self._find_ms = self._retry_ms
            case facts.CoordinatorLost():
                self.coordinator_known = self._heartbeat_pending = False
            case facts.JoinAnswered():
                return self._handle_join_answered(now_ms, event)
            case facts.TopicsLookedUp(counts=counts):
                return self._lead(counts)
            case facts.AssignmentComputed(generation_id=generation_id, assignments=assignments):
                return self._handle_assignment(generation_id, assignments)
            case facts.AssignmentFailed(generation_id=generation_id, error=error):
                return self._handle_no_assignment(now_ms, generation_id, error)
            case facts.SyncAnswered():
                return self._handle_sync_answered(now_ms, event)
            case facts.GroupDescribed():
                self._handle_described(event)
            case facts.HeartbeatAnswered():
                return self._handle_heartbeat_answered(now_ms, event)
            case facts.RevocationDone():
                return self._handle_revocation_done()
            case facts.Ticked():
                pass
            case facts.ConsumerHeartbeatAnswered() | facts.TopicsNamed():
                pass  # of the protocol of KIP-848
            case _:
                assert_never(event)
        return []

    def _handle_subscribed(self, now_ms: float, event: facts.Subscribed) -> list[Effect]:
        self.topics = self._named = event.topics
        self.pattern, self._listed = event.pattern, None
        self._polled_ms, self.rejoin_wanted = now_ms, True
        return [] if self.is_subscribed else self._leave("the consumer unsubscribed")

    def _match_topics(self) -> None:
        """Subscribe to the listed topics that match the pattern, and to no other unnamed topics."""
        if self.pattern is not None and self._listed is not None:
            matches = re.compile(self.pattern).fullmatch
            topics = tuple(sorted({*self._named, *filter(matches, self._listed)}))
            self.rejoin_wanted = self.rejoin_wanted or topics != self.topics
            self.topics = topics

    def _leave(self, reason: str) -> list[Effect]:
        effects: list[Effect] = []
        # A static member stays in the group until its session ends: it may come back (KIP-345).
        if self.member_id and self.settings.group_instance_id is None:
            effects.append(facts.SendLeave(member_id=self.member_id, reason=reason))
            self.member_id = ""
        return effects + self._forget_generation()

    def _forget_generation(self) -> list[Effect]:
        owned, self.owned = self.owned, ()
        self.generation_id = self._owned_generation_id = -1
        self.is_leader, self.rejoin_wanted = False, True
        self._heartbeat_pending = False
        self._become(State.UNJOINED)
        return [facts.Revoke(partitions=owned, lost=True)] if owned else []

    def _handle_join_answered(self, now_ms: float, event: facts.JoinAnswered) -> list[Effect]:
        if self.state is not State.JOINING:
            return []
        if event.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = event.member_id
            self._become(State.UNJOINED)
            return []
        if event.error_code != ErrorCode.NONE:
            return self._handle_refused(now_ms, event.error_code)
        if event.protocol not in self._assignors:
            return self._handle_refused(now_ms, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self.member_id, self.generation_id = event.member_id, event.generation_id
        self.protocol, self.is_leader = event.protocol, event.leader_id == event.member_id
        self._skips_assignment = self.is_leader and event.skip_assignment
        self._last_answer_ms, self.rejoin_wanted = now_ms, self.topics != self._asked_topics
        self._heartbeat_ms = now_ms + self.settings.heartbeat_interval_ms
        if not self.is_leader:
            self._become(State.SYNCING)
            return [self._sync()]
        self._become(State.LEADING)
        self._members = {one.member_id: _subscription(one, self.protocol) for one in event.members}
        wanted = {topic for member in self._members.values() for topic in member.topics}
        return [facts.LookUpTopics(topics=tuple(sorted(wanted)))]

    def _lead(self, counts: Mapping[str, int]) -> list[Effect]:
        if self.state is not State.LEADING:
            return []
        wanted = {topic for member in self._members.values() for topic in member.topics}
        self.counts = {topic: counts.get(topic, 0) for topic in sorted(wanted)}
        if self._skips_assignment:
            self._become(State.SYNCING)
            return [self._sync()]
        return [
            facts.ComputeAssignment(
                generation_id=self.generation_id,
                assignor=self._assignors[self.protocol],
                members=self._members,
                counts=self.counts,
            )
        ]

    def _handle_assignment(
        self, generation_id: int, assignments: tuple[tuple[str, bytes], ...]
    ) -> list[Effect]:
        if self.state is not State.LEADING or generation_id != self.generation_id:
            return []
        self._become(State.SYNCING)
        return [self._sync(assignments)]

    def _handle_no_assignment(
        self, now_ms: float, generation_id: int, error: KafkaError
    ) -> list[Effect]:
        """Keep the partitions, let `poll` raise, and join again: the assignor may recover."""
        if self.state is not State.LEADING or generation_id != self.generation_id:
            return []
        self.rejoin_wanted = True
        self._back_off(now_ms)
        self._become(State.UNJOINED)
        return [facts.Fail(error_code=error.code, error=error)]

    def _sync(self, assignments: tuple[tuple[str, bytes], ...] = ()) -> Effect:
        return facts.SendSync(
            member_id=self.member_id,
            generation_id=self.generation_id,
            protocol=self.protocol,
            assignments=assignments,
        )

    def _handle_sync_answered(self, now_ms: float, event: facts.SyncAnswered) -> list[Effect]:
        if self.state is not State.SYNCING:
            return []
        if event.error_code != ErrorCode.NONE:
            return self._handle_refused(now_ms, event.error_code)
        self._last_answer_ms, self._heartbeat_ms = (
            now_ms,
            now_ms + self.settings.heartbeat_interval_ms,
        )
        self._failures = 0
        try:
            self._assigned = group_protocol.decode_assignment(event.assignment)
        except MalformedFrame:
            return self._handle_refused(now_ms, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        taken = tuple(sorted({*self.owned} - {*self._assigned}))
        if taken:
            self._become(State.YIELDING)
            self.rejoin_wanted = True
            return [facts.Revoke(partitions=taken, lost=False)]
        accepted = self._accept_assignment()
        if self._skips_assignment:
            accepted.append(facts.DescribeGroup(generation_id=self.generation_id))
        return accepted

    def _handle_described(self, event: facts.GroupDescribed) -> None:
        """Join again if a topic has a partition that is assigned to no member.

        A static leader that comes back must keep the old assignment (KIP-814), but topics may have
        got more partitions while it was away.
        """
        if event.generation_id == self.generation_id:
            assigned = group_protocol.decode_assignments(event.assignments)
            if not assigned.issuperset(partitions_of(self.counts, self.counts)):
                self.rejoin_wanted = True

    def _accept_assignment(self) -> list[Effect]:
        added = tuple(sorted({*self._assigned} - {*self.owned}))
        self.owned, self._owned_generation_id = self._assigned, self.generation_id
        self._last_assignment = Subscription(
            topics=(), owned=self.owned, generation_id=self.generation_id
        )
        self._become(State.STABLE)
        return [facts.Assign(partitions=self.owned, added=added)]

    def _handle_revocation_done(self) -> list[Effect]:
        if self.state is State.YIELDING:
            return self._accept_assignment()
        if self.state is State.REVOKING:
            self.owned = ()
            return self._join()
        return []

    def _handle_heartbeat_answered(
        self, now_ms: float, event: facts.HeartbeatAnswered
    ) -> list[Effect]:
        self._heartbeat_pending = False
        is_ours = event.generation_id == self.generation_id
        if not is_ours or self.state not in {State.STABLE, *_USERS_TURN}:
            return []
        if event.error_code in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}:
            self._last_answer_ms = now_ms
            is_rebalance = event.error_code == ErrorCode.REBALANCE_IN_PROGRESS
            self.rejoin_wanted = self.rejoin_wanted or is_rebalance
            return []
        if self.state in _USERS_TURN:
            return []  # the next join gets the error
        if event.error_code in COORDINATOR_LOST:
            self.coordinator_known = False
            return []
        return self._handle_refused(now_ms, event.error_code)

    def _handle_refused(self, now_ms: float, error_code: int) -> list[Effect]:
        """Handle a failed join or sync, or a heartbeat refused for a lost membership."""
        self.rejoin_wanted = True
        self._back_off(now_ms)
        if error_code in COORDINATOR_LOST or error_code in _TRY_AGAIN:
            self._become(State.UNJOINED)
            self.coordinator_known = self.coordinator_known and error_code in _TRY_AGAIN
            return []
        if error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        effects = self._forget_generation()
        if error_code not in _EXPELLED:
            if error_code in FATAL:
                self.topics, self.pattern = (), None  # until the user subscribes again
            effects.append(facts.Fail(error_code=error_code))
        return effects

    def _back_off(self, now_ms: float) -> None:
        self._failures += 1
        self._retry_ms = now_ms + self._backoff.delay_ms(self._failures, 0.5)

    # --- effects that are due ---

    def _advance(self, now_ms: float) -> list[Effect]:
        if not self.is_subscribed:
            return []
        is_stable = self.state is State.STABLE
        if is_stable and now_ms >= self._poll_deadline_ms():
            return self._leave("max.poll.interval.ms passed without a poll")
        if not self.coordinator_known:
            return self._find_coordinator(now_ms)
        if self.state in _USERS_TURN:
            return self._maybe_heartbeat(now_ms)
        is_idle = is_stable or self.state is State.UNJOINED
        if is_idle and self.rejoin_wanted and self.in_poll:
            return self._prepare_join(now_ms)
        return self._maybe_heartbeat(now_ms) if is_stable else []

    def _prepare_join(self, now_ms: float) -> list[Effect]:
        if self.state is State.UNJOINED and now_ms < self._retry_ms:
            return []
        if self.pattern is not None and self._listed is None:
            return []
        if self.owned and not self.is_cooperative:
            self._become(State.REVOKING)
            return [facts.Revoke(partitions=self.owned, lost=False)]
        return self._join()

    def _join(self) -> list[Effect]:
        if not self.is_subscribed:
            self._become(State.UNJOINED)
            return []
        self._become(State.JOINING)
        self._asked_topics = self.topics
        protocols = tuple(
            (name, group_protocol.encode_subscription(self._subscription_for(name), name))
            for name in self._assignors
        )
        return [facts.SendJoin(member_id=self.member_id, protocols=protocols)]

    def _subscription_for(self, assignor: str) -> Subscription:
        """Return this member's subscription, with the partitions that it may keep.

        Of two claims to own a partition the newer generation wins: a claim has the generation of
        its assignment (KAFKA-13891).
        """
        owned, generation_id = self.owned, self._owned_generation_id
        if assignor == group_protocol.STICKY:
            owned, generation_id = self._last_assignment.owned, self._last_assignment.generation_id
        return Subscription(
            topics=self.topics,
            owned=owned,
            generation_id=generation_id,
            rack=self.settings.client_rack or None,
        )

    def _maybe_heartbeat(self, now_ms: float) -> list[Effect]:
        is_silent = now_ms - self._last_answer_ms >= self.settings.session_timeout_ms
        if is_silent and self.state is State.STABLE:
            self.coordinator_known = self._heartbeat_pending = False
            return self._find_coordinator(now_ms)
        if self._heartbeat_pending or now_ms < self._heartbeat_ms:
            return []
        self._heartbeat_ms = now_ms + self.settings.heartbeat_interval_ms
        self._heartbeat_pending = True
        return [facts.SendHeartbeat(member_id=self.member_id, generation_id=self.generation_id)]

    def check_invariants(self) -> None:
        """Raise InvariantViolation with the number of the rule that does not hold."""
        if self.state in {State.LEADING, State.SYNCING, State.YIELDING, State.STABLE}:
            has_generation = bool(self.member_id) and self.generation_id >= 0
            require(has_generation, "1: from SYNCING on a member id and a generation")
        if self.state is State.JOINING and not self.is_cooperative:
            require(not self.owned, "2: a joining eager member owns no partitions")


def _subscription(member: facts.JoinedMember, assignor: str) -> Subscription:
    """Decode a member's subscription; a malformed subscription has no topics."""
    try:
        return group_protocol.decode_subscription(member.metadata, member.instance_id, assignor)
    except MalformedFrame:
        return Subscription(topics=(), instance_id=member.instance_id)
