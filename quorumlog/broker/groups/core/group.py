"""One group of the classic protocol: its members, generation, protocol and timeouts.

`Group` has the state; `classic.py` has the decisions. Source: KIP-62, KIP-345, KIP-394.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from quorumlog.broker.groups.core.records import StoredGroup, StoredMember
from quorumlog.broker.groups.core.requests import Join, JoinedMember
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode


class GroupState(Enum):
    """The values are Kafka's words in DescribeGroups and ListGroups."""

    EMPTY = "Empty"  # no members; perhaps offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # members are (re)joining
    COMPLETING_REBALANCE = "CompletingRebalance"  # the leader computes the assignment
    STABLE = "Stable"  # the assignment of this generation is committed
    DEAD = "Dead"  # dropped: requests are refused as for a group that does not exist


TRANSITIONS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.DEAD: frozenset(),
}
"""From -> to. Only an empty group dies: unloading a partition drops groups without a transition."""


Protocols = tuple[tuple[str, bytes], ...]  # (name, metadata), the preferred protocol first


@dataclass(slots=True, kw_only=True)
class Member:
    """A member; `awaiting_join` and `awaiting_sync` are ids of requests not yet answered.

    A member that waits does not expire, unless it is new: a new member waits for its join only
    until `session_deadline_ms`, because its client may be gone.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    session_deadline_ms: int
    is_new: bool = False
    assignment: bytes = b""
    awaiting_join: int | None = None
    awaiting_sync: int | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty: the member does not support it."""
        return next((data for name, data in self.protocols if name == protocol_name), b"")

    def take_over(self, join: Join, request_id: int) -> None:
        """Copy the fields of a join; the member waits for the end of the rebalance."""
        self.protocols = join.protocols
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        self.client_id, self.client_host = join.client_id, join.client_host
        self.awaiting_join = request_id

    def touch(self, now_ms: int) -> None:
        """Start a new session."""
        self.session_deadline_ms = now_ms + self.session_timeout_ms

    def is_expired(self, now_ms: int) -> bool:
        """Whether the member's session is over."""
        return self._may_expire() and now_ms >= self.session_deadline_ms

    def next_deadline_ms(self) -> list[int]:
        """Return the session deadline, or an empty list if the member may not expire."""
        return [self.session_deadline_ms] if self._may_expire() else []

    def _may_expire(self) -> bool:
        return self.is_new or (self.awaiting_join is None and self.awaiting_sync is None)


class Group:
    """The members of a group, their generation and their protocol.

    Invariants (`check_invariants`, after every step that touches more than a session):
    1. The generation never decreases.
    2. A group is Empty or Dead if and only if it has no members, except in PreparingRebalance.
    3. A Completing or Stable group has a leader, which is a member, and a protocol.
    4. Joins wait only in PreparingRebalance, syncs only in CompletingRebalance.
    5. `static` has exactly the members with an instance id, one member for each.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id: Final = group_id
        self.state = GroupState.EMPTY
        self.state_since_ms = -1
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # instance id -> member id
        self.pending: dict[str, int] = {}  # member id handed out (KIP-394) -> its deadline
        self.pending_sync: set[str] = set()  # members of this generation that have not synced
        self.rebalance_deadline_ms: int | None = None
        self.sync_deadline_ms: int | None = None
        # During the initial delay: the most that can be added to it, and whether to add some.
        self.initial_delay_left_ms: int | None = None
        self.joined_during_delay = False
        self.storing_generation: int | None = None  # the generation whose record is being written
        self._checked_generation = 0

    @classmethod
    def from_stored(cls, group_id: str, stored: StoredGroup, now_ms: int) -> "Group":
        """Return the group as it was committed; every member gets a fresh session."""
        group = cls(group_id)
        group.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        group.state_since_ms = stored.state_since_ms
        group.generation_id = stored.generation_id
        group.protocol_type = stored.protocol_type or None
        group.protocol_name, group.leader = stored.protocol_name, stored.leader
        for member in stored.members:
            group.add(
                Member(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    protocols=((stored.protocol_name or "", member.subscription),),
                    session_deadline_ms=now_ms + member.session_timeout_ms,
                    assignment=member.assignment,
                )
            )
        return group

    def to_stored(self, assignments: Mapping[str, bytes], now_ms: int) -> StoredGroup:
        """Return the record of this generation with these assignments (by member id)."""
        members = [
            StoredMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(self.protocol_name),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        ]
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol_name=self.protocol_name,
            leader=self.leader,
            state_since_ms=now_ms,
            members=members,
        )

    def transition(self, to: GroupState, now_ms: int) -> None:
        """Change the state: its only writer while the group is served."""
        require(to in TRANSITIONS[self.state], f"legal change: {self.state.name} -> {to.name}")
        self.state, self.state_since_ms = to, now_ms

    def add(self, member: Member) -> None:
        """Add a member; the first member leads."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        self.leader = self.leader or member.member_id

    def remove(self, member_id: str) -> Member:
        """Remove a member; if it led, the eldest of the others leads."""
        member = self.members.pop(member_id)
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        self.pending_sync.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member its new member id; its place, role and assignment stay."""
        members = [(new_id if key == old_id else key, value) for key, value in self.members.items()]
        self.members = dict(members)
        member = self.members[new_id]
        member.member_id = new_id
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        return member

    def refusal(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return why a request may not act for this member, or NONE (KIP-345 fencing)."""
        if group_instance_id is not None:
            owner = self.static.get(group_instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether one of these protocols is supported by all members."""
        if not self.members:
            return True
        return protocol_type == self.protocol_type and not self._candidates().isdisjoint(names)

    def select_protocol(self, returning: Join | None = None) -> str:
        """Elect a protocol that all support: each votes for its first; ties go by name.

        `returning`: the join of a returning static member, whose protocols replace its old ones.
        """
        instance_id = None if returning is None else returning.group_instance_id
        known = [
            member.protocols
            if returning is None or member.group_instance_id != instance_id
            else returning.protocols
            for member in self.members.values()
        ]
        candidates = _common(known)
        votes = Counter(
            next(name for name, _ in protocols if name in candidates) for protocols in known
        )
        return min(votes, key=lambda name: (-votes[name], name))

    def _candidates(self) -> set[str]:
        return _common(member.protocols for member in self.members.values())

    def has_all_joined(self) -> bool:
        """Whether every member has joined, and every handed-out member id was used."""
        waiting = (member.awaiting_join is not None for member in self.members.values())
        return not self.pending and all(waiting)

    def max_rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """Return every member's id, instance id and metadata for the leader."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.members.values()
        )

    def next_deadline_ms(self) -> int | None:
        """Return the time at which a timeout may change the group, or None."""
        deadlines = [*self.pending.values()]
        for member in self.members.values():
            deadlines += member.next_deadline_ms()
        if self.pending_sync and self.sync_deadline_ms is not None:
            deadlines.append(self.sync_deadline_ms)
        if self.rebalance_deadline_ms is not None:
            deadlines.append(self.rebalance_deadline_ms)
        return min(deadlines, default=None)

    def shift_deadlines(self, by_ms: int) -> None:
        """Move all deadlines along with a clock that was advanced: no session ends by it."""
        for member_id in self.pending:
            self.pending[member_id] += by_ms
        for member in self.members.values():
            member.session_deadline_ms += by_ms
        if self.sync_deadline_ms is not None:
            self.sync_deadline_ms += by_ms
        if self.rebalance_deadline_ms is not None:
            self.rebalance_deadline_ms += by_ms

    def check_progress(self) -> None:
        """Raise InvariantViolation if members wait, and no deadline or write ends that."""
        if self.state is GroupState.PREPARING_REBALANCE:
            require(self.rebalance_deadline_ms is not None, "7: a rebalance ends")
        if self.state is GroupState.COMPLETING_REBALANCE:
            ends = bool(self.pending_sync) and self.sync_deadline_ms is not None
            is_stored = self.storing_generation is not None
            require(ends or is_stored, "7: a generation without an assignment ends")

    def check_invariants(self) -> None:
        """Raise InvariantViolation with the number of a violated invariant."""
        state, members = self.state, self.members
        rising = self.generation_id >= self._checked_generation
        require(rising, "1: the generation never decreases")
        self._checked_generation = self.generation_id
        if state is not GroupState.PREPARING_REBALANCE:
            is_empty = state in {GroupState.EMPTY, GroupState.DEAD}
            require(bool(members) != is_empty, f"2: {state.name} with {len(members)} members")
        if state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}:
            require(
                self.leader in members and self.protocol_name is not None,
                "3: a leader and a protocol",
            )
        joining = any(member.awaiting_join is not None for member in members.values())
        syncing = any(member.awaiting_sync is not None for member in members.values())
        require(not joining or state is GroupState.PREPARING_REBALANCE, f"4: joins in {state.name}")
        completing = state is GroupState.COMPLETING_REBALANCE
        require(not syncing or completing, f"4: syncs in {state.name}")
        named = {
            member.group_instance_id: member_id
            for member_id, member in members.items()
            if member.group_instance_id is not None
        }
        require(named == self.static, "5: static members")


def _common(known: Iterable[Protocols]) -> set[str]:
    return set.intersection(*({name for name, _ in protocols} for protocols in known))
