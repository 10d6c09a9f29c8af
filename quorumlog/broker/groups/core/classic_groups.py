"""The classic groups of one partition of `__consumer_offsets`, and the deadline of each group."""

from typing import Final, assert_never

from quorumlog.broker.coordination.core.deadlines import Deadlines
from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.group import Group, GroupState
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.joins import Joins
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.requests import Heartbeat, Join, Leave, Sync
from quorumlog.invariants import require
from quorumlog.wire.codec.error_codes import ErrorCode


class ClassicGroups:
    """Routes requests about classic groups to the protocol.

    Invariants (with those of `Group`, whenever a changed group is settled):
      6. A Stable group has the generation and the members of its last record; the record is
         committed, unless it is being written for a static member that was replaced.
      7. Every group with a timeout has a deadline at or before it.
    """

    def __init__(
        self,
        committed: CommittedState,
        outbox: GroupOutbox,
        protocol: ClassicProtocol,
        joining: Joins,
    ) -> None:
        self.groups: Final[dict[str, Group]] = {}
        self.protocol: Final = protocol
        self._joining: Final = joining
        self.field_refusal: Final = joining.field_refusal
        self._committed: Final = committed
        self._outbox: Final = outbox
        self._deadlines: Final = Deadlines[str]()  # a heartbeat moves none: it may come early

    def loaded(self, now_ms: int) -> None:
        """Start to serve: every member has a whole session to find this coordinator."""
        for group_id, stored in self._committed.groups.items():
            group = self.groups[group_id] = Group.from_stored(group_id, stored, now_ms)
            self._joining.maybe_shrink(group, now_ms)
            self.settle(group_id)

    def handle(
        self, now_ms: int, request_id: int, request: Join | Sync | Heartbeat | Leave
    ) -> None:
        """Answer a request of a member, now or in a later step."""
        group = self.groups.get(request.group_id)
        match request:
            case Join():
                self.handle_join(now_ms, request_id, request)
            case Leave():
                self.protocol.handle_leave(group, now_ms, request_id, request)
            case Sync() | Heartbeat() if group is None:
                self._outbox.reply(request_id, request.refuse(ErrorCode.UNKNOWN_MEMBER_ID))
            case Sync():
                self.protocol.handle_sync(group, now_ms, request_id, request)
            case Heartbeat():  # it only extends a session: the deadline may be too early
                return self.protocol.handle_heartbeat(group, now_ms, request_id, request)
            case _:
                assert_never(request)
        return self.settle(request.group_id)

    def handle_join(self, now_ms: int, request_id: int, join: Join) -> None:
        """Admit a member; the first member creates the group."""
        group = self.groups.get(join.group_id) or Group(join.group_id)
        self._joining.handle_join(group, now_ms, request_id, join)
        if group.members or group.pending:
            self.groups[join.group_id] = group

    # Groups that change their protocol.

    def interrupt(self, group: Group, now_ms: int) -> None:
        """Answer waiting joins and syncs: members must join again, in either protocol."""
        if group.members:
            self.protocol.interrupt(group, now_ms)

    def continue_with(self, group: Group, now_ms: int) -> None:
        """Serve a former consumer group, whose members must join again."""
        self.groups[group.group_id] = group
        self.protocol.interrupt(group, now_ms)

    def continue_stable(self, group: Group, request_id: int) -> None:
        """Serve a former consumer group in its generation; answer the join of its leader."""
        self.groups[group.group_id] = group
        self._joining.answer_returning_leader(group, request_id)

    # Time.

    @property
    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of a group; None: no group has a deadline."""
        return self._deadlines.first_ms

    def shift_deadlines(self, by_ms: int) -> None:
        """Move the deadlines of all groups along with a clock that was advanced."""
        for group in self.groups.values():
            group.shift_deadlines(by_ms)
        self._deadlines.shift(by_ms)

    def pop_due(self, now_ms: int) -> Group | None:
        """Return the group with the earliest due deadline, and remove the deadline."""
        while (group_id := self._deadlines.pop_due(now_ms)) is not None:
            if group_id in self.groups:
                return self.groups[group_id]
        return None

    def settle(self, group_id: str) -> None:
        """Check the invariants of a changed group, and set its deadline."""
        group = self.groups.get(group_id)
        if group is None:
            return
        group.check_invariants()
        if group.state is GroupState.STABLE and group.storing_generation is None:
            stored = self._committed.groups.get(group_id)
            is_stored = stored is not None and stored.generation_id == group.generation_id
            members = [member.member_id for member in stored.members] if stored else []
            require(is_stored and members == [*group.members], "6: Stable means committed")
        self._deadlines.set(group_id, group.next_deadline_ms())

    def check_progress(self, group: Group) -> None:
        """Raise InvariantViolation if the group waits, and neither a write nor a tick will come."""
        group.check_progress()
        known_ms, due_ms = self._deadlines.of(group.group_id), group.next_deadline_ms()
        is_early = due_ms is None or (known_ms is not None and known_ms <= due_ms)
        require(is_early, f"7: {group.group_id}: a tick at {known_ms}, due at {due_ms}")

    def drop(self, group: Group, now_ms: int) -> None:
        """Drop an empty group, which has no records."""
        group.transition(GroupState.DEAD, now_ms)
        del self.groups[group.group_id]
        self._deadlines.set(group.group_id, None)
