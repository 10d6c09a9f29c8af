"""The deadlines of each member, as the records of its group require."""

from enum import IntEnum
from typing import Final, NamedTuple

from quorumlog.broker.coordination.core.deadlines import Deadlines
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup
from quorumlog.broker.groups.core.consumer.records import RecordKind
from quorumlog.broker.groups.core.consumer.settings import GroupTimes
from quorumlog.broker.groups.core.consumer.states import MemberState
from quorumlog.invariants import require


class DeadlineKind(IntEnum):
    """The kind of a deadline, by the action that the member must take before it."""

    SESSION = 0  # send a heartbeat
    REBALANCE = 1  # revoke partitions
    JOIN = 2  # join again (a classic member)
    SYNC = 3  # send SyncGroup (a classic member that has joined)


class DeadlineKey(NamedTuple):
    """A member has one deadline of each kind, at most."""

    group_id: str
    member_id: str
    kind: DeadlineKind


class MemberDeadlines:
    """The deadlines of all members.

    Invariants (`check_progress`, in tests and simulations):
    1. Every member has the deadline of its session.
    2. A member that has partitions to revoke has the deadline of its rebalance; a classic member
       that must join or sync has a deadline for that.
    """

    def __init__(self, times: GroupTimes) -> None:
        self._times: Final = times
        self._deadlines: Final = Deadlines[DeadlineKey]()

    @property
    def first_ms(self) -> int | None:
        """The earliest deadline; None: there is no deadline."""
        return self._deadlines.first_ms

    def pop_due(self, now_ms: int) -> DeadlineKey | None:
        """Return the key of the earliest due deadline, and drop all deadlines of its member."""
        key = self._deadlines.pop_due(now_ms)
        if key is not None:
            self.drop_all(key.group_id, key.member_id)
        return key

    def shift(self, by_ms: int) -> None:
        """Move all deadlines along with a clock that was advanced."""
        self._deadlines.shift(by_ms)

    def follow(self, changes: Changes, now_ms: int) -> None:
        """Set and drop deadlines as the changed records require."""
        group = changes.group
        for kind, _, member_id in (record.subject for record in changes.records):
            if kind is RecordKind.MEMBER and member_id not in group.members:
                self.drop_all(group.group_id, member_id)
            elif kind is RecordKind.MEMBER:
                self.begin_session(group, member_id, now_ms)
            elif kind is RecordKind.CURRENT_ASSIGNMENT and member_id in group.members:
                if group.members[member_id].current.state is MemberState.UNREVOKED_PARTITIONS:
                    self.begin_rebalance(group, member_id, now_ms)
                else:
                    self._deadlines.set(_key(group, member_id, DeadlineKind.REBALANCE), None)

    def begin_all(self, group: ConsumerGroup, now_ms: int) -> None:
        """Give each member a whole session, and a whole rebalance timeout if it must revoke."""
        for member_id in group.members:
            self.begin_session(group, member_id, now_ms)
        for member in group.unrevoked():
            self.begin_rebalance(group, member.member_id, now_ms)

    def begin_session(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Give a member a whole session from now on."""
        classic = group.members[member_id].metadata.classic
        if classic is None:
            timeout_ms = self._times.session_timeout_ms(group.group_id)
        else:
            timeout_ms = classic.session_timeout_ms
        self._deadlines.set(_key(group, member_id, DeadlineKind.SESSION), now_ms + timeout_ms)

    def begin_rebalance(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Give a member that has partitions to revoke a whole rebalance timeout."""
        self._set(group, member_id, DeadlineKind.REBALANCE, now_ms)

    def await_join(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Give a classic member its rebalance timeout to join again, unless it runs already."""
        if _key(group, member_id, DeadlineKind.JOIN) not in self._deadlines:
            self._set(group, member_id, DeadlineKind.JOIN, now_ms)

    def await_sync(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Give a classic member that has joined its rebalance timeout to sync."""
        self._deadlines.set(_key(group, member_id, DeadlineKind.JOIN), None)
        self._set(group, member_id, DeadlineKind.SYNC, now_ms)
        self.begin_session(group, member_id, now_ms)

    def note_sync(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Drop the sync deadline of a classic member that has synced; start a new session."""
        self._deadlines.set(_key(group, member_id, DeadlineKind.SYNC), None)
        self.begin_session(group, member_id, now_ms)

    def note_heartbeat(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """Start a new session; drop join and sync deadlines of a member that was classic before."""
        self._deadlines.set(_key(group, member_id, DeadlineKind.JOIN), None)
        self._deadlines.set(_key(group, member_id, DeadlineKind.SYNC), None)
        self.begin_session(group, member_id, now_ms)

    def drop_all(self, group_id: str, member_id: str) -> None:
        """Drop all deadlines of a member."""
        for kind in DeadlineKind:
            self._deadlines.set(DeadlineKey(group_id, member_id, kind), None)

    def check_progress(self, group: ConsumerGroup) -> None:
        """Raise InvariantViolation if a member may stay, or hold partitions, without an end."""
        for member_id, member in group.members.items():
            session = _key(group, member_id, DeadlineKind.SESSION)
            require(session in self._deadlines, f"1: {member_id} has a session")
            must_revoke = member.current.state is MemberState.UNREVOKED_PARTITIONS
            rebalance = _key(group, member_id, DeadlineKind.REBALANCE) in self._deadlines
            text = f"{member_id}: {member.current.state.name}, rebalance deadline: {rebalance}"
            require(rebalance == must_revoke, f"2: {text}")

    def _set(self, group: ConsumerGroup, member_id: str, kind: DeadlineKind, now_ms: int) -> None:
        timeout_ms = group.members[member_id].metadata.rebalance_timeout_ms
        self._deadlines.set(_key(group, member_id, kind), now_ms + timeout_ms)


def _key(group: ConsumerGroup, member_id: str, kind: DeadlineKind) -> DeadlineKey:
    return DeadlineKey(group.group_id, member_id, kind)
