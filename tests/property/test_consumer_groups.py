"""One group of the consumer protocol under any schedule; planted bugs that must be found.

The model knows KIP-848 and what clients are told. A client *has* a partition from when it is told
to have it until it says that it has it no longer, or until the coordinator may take it away: when
its session or its rebalance is over by the model's own clock. What must hold:
  a. No client is told to have what another one has.
  b. The epoch that a client is told never falls; that of the group rises in the log.
  c. What is served is what a replay of the log gives, whenever nothing is under way.
  d. A quiet group comes to rest within a bounded number of heartbeats: all that is subscribed to is
     had by one client each, and nothing is written any more.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.groups.core.consumer import (
    admission,
    awaited_targets,
    events,
    reconciliation,
    targets,
)
from quorumlog.broker.groups.core.consumer import assignors as assignors_module
from quorumlog.broker.groups.core.consumer.coordinator import ConsumerGroupCoordinator
from quorumlog.broker.groups.core.consumer.deadlines import Deadlines
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.heartbeats import Heartbeats
from quorumlog.broker.groups.core.consumer.member_deadlines import MemberDeadlines
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.records import RecordKind, Value
from quorumlog.broker.groups.core.consumer.requests import HeartbeatResult
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.consumer.coordination import SETTINGS
from tests.support.groups.consumer.machine import REBALANCE_MS, OneConsumerGroup
from tests.support.sizes import examples

EXAMPLES = examples(60, stateful_step_count=40)
UNTIL_FOUND = settings(EXAMPLES, max_examples=1000, phases=[Phase.generate])


def test_the_promises_hold_under_any_schedule() -> None:
    run_machine(OneConsumerGroup, settings=EXAMPLES)


class WithLargeTargets(OneConsumerGroup):
    """Every target is made outside of the step, some time later, and taken over in small slices."""

    @precondition(lambda self: self.groups.own)
    @rule()
    def target_is_made(self) -> None:
        self.groups.give_target()
        self.hear()

    @precondition(lambda self: self.groups.is_taking_over)
    @rule()
    def target_is_taken_over(self) -> None:
        self.groups.step(events.Ticked())
        self.hear()


def test_the_promises_hold_while_targets_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "AT_ONCE_MAX", -1)
    monkeypatch.setattr(awaited_targets, "SLICE_MAX", 1)
    run_machine(WithLargeTargets, settings=EXAMPLES)


# --- Planted bugs ---

ENQUEUE = ConsumerGroupCoordinator._enqueue
REBUILD = ConsumerGroupCoordinator.rebuild
WRITE = Changes.write
REMOVE = Membership.remove
UNIFORM = assignors_module.assign_uniform
Patch = Callable[[pytest.MonkeyPatch], None]


def _silence_acknowledges(patch: pytest.MonkeyPatch) -> None:
    def may_have(reported: Partitions | None, revoked: Partitions) -> bool:
        return reported is not None and not reported.isdisjoint(revoked)

    patch.setattr(reconciliation, "_may_have", may_have)


def _revokes_without_being_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconciliation, "_may_have", lambda reported, revoked: False)


def _believes_any_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_check_member_epoch", lambda member, request: None)


def _answers_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    def enqueue(self: ConsumerGroupCoordinator, changes: Changes, answer: Any) -> None:
        if answer is not None:
            self._reply(answer.request_id, answer.result)
        ENQUEUE(self, changes, None)

    patch.setattr(ConsumerGroupCoordinator, "_enqueue", enqueue)


def _keeps_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    def rebuild(self: ConsumerGroupCoordinator, group_id: str, now_ms: int) -> None:
        if group_id not in self.groups:
            REBUILD(self, group_id, now_ms)

    patch.setattr(ConsumerGroupCoordinator, "rebuild", rebuild)


def _drops_what_waits_behind_a_write(patch: pytest.MonkeyPatch) -> None:
    def write_on(self: ConsumerGroupCoordinator, group_id: str, writes: Any) -> None:
        if writes.under_way is not None:
            writes.waiting[-1].records.clear()
        WRITE_ON(self, group_id, writes)

    patch.setattr(ConsumerGroupCoordinator, "_write_on", write_on)


WRITE_ON = ConsumerGroupCoordinator._write_on


def _writes_no_target(patch: pytest.MonkeyPatch) -> None:
    def write(self: Changes, kind: RecordKind, value: Value | None, name: str = "") -> None:
        WRITE(self, kind, value, name)
        if kind is RecordKind.TARGET_MEMBER:
            self.records.pop()

    patch.setattr(Changes, "write", write)


def _gives_no_session_when_it_loads(patch: pytest.MonkeyPatch) -> None:
    def rebuild(self: ConsumerGroupCoordinator, group_id: str, now_ms: int) -> None:
        REBUILD(self, group_id, now_ms - SETTINGS.session_timeout_ms + 1)

    patch.setattr(ConsumerGroupCoordinator, "rebuild", rebuild)


def _sessions_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deadlines, "pop_due", lambda self, now_ms: None)
    patch.setattr(ConsumerGroupCoordinator, "next_deadline_ms", 1 << 62)


def _rebalances_never_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberDeadlines, "begin_rebalance", lambda self, group, member_id, now_ms: None)


def _rebalances_end_at_once(patch: pytest.MonkeyPatch) -> None:
    def begin(self: MemberDeadlines, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        BEGIN_REBALANCE(self, group, member_id, now_ms - REBALANCE_MS + 10)

    patch.setattr(MemberDeadlines, "begin_rebalance", begin)


BEGIN_REBALANCE = MemberDeadlines.begin_rebalance


def _does_not_look_at_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroupCoordinator, "_handle_topics_changed", lambda self, names: None)


def _sees_no_growth(patch: pytest.MonkeyPatch) -> None:
    def metadata_hash(self: Topics, names: Any) -> int:
        return sum(len(name) for name in {*names} & self.by_name.keys())

    patch.setattr(Topics, "metadata_hash", metadata_hash)


def _a_departure_begins_no_epoch(patch: pytest.MonkeyPatch) -> None:
    def remove(self: Membership, changes: Changes, member_ids: Any, now_ms: int) -> None:
        for member_id in member_ids:
            self._erase(changes, member_id)

    patch.setattr(Membership, "remove", remove)


def _a_place_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    def leave(self: Membership, changes: Changes, member: ConsumerMember) -> None:
        REMOVE(self, changes, (member.member_id,), 0)

    patch.setattr(Membership, "leave_for_a_while", leave)


def _assigns_twice(patch: pytest.MonkeyPatch) -> None:
    def assign(members: Any, counts: Any) -> assignors_module.Assignment:
        found = UNIFORM(members, counts)
        names = sorted(found)
        return {**found, names[0]: found[names[0]] | found[names[-1]]}

    patch.setitem(assignors_module.ASSIGNORS, "uniform", assign)


def _tells_nothing_again(patch: pytest.MonkeyPatch) -> None:
    def answer(
        self: Heartbeats, group: ConsumerGroup, member_id: str, request: Any, told: Any
    ) -> HeartbeatResult:
        current = group.members[member_id].current
        is_new = told is None or told.assigned != current.assigned
        return HeartbeatResult(
            error_code=ErrorCode.NONE,
            member_id=member_id,
            member_epoch=current.member_epoch,
            assignment=current.assigned if is_new else None,
        )

    patch.setattr(Heartbeats, "_answer", answer)


MUTANTS: dict[str, Patch] = {
    "silence acknowledges a revocation": _silence_acknowledges,
    "revokes without being told": _revokes_without_being_told,
    "believes any epoch": _believes_any_epoch,
    "answers before the commit": _answers_before_the_commit,
    "keeps what was refused": _keeps_what_was_refused,
    "drops what waits behind a write": _drops_what_waits_behind_a_write,
    "writes no target": _writes_no_target,
    "gives no session when it loads": _gives_no_session_when_it_loads,
    "sessions never end": _sessions_never_end,
    "rebalances never end": _rebalances_never_end,
    "rebalances end at once": _rebalances_end_at_once,
    "does not look at topics": _does_not_look_at_topics,
    "sees no growth": _sees_no_growth,
    "a departure begins no epoch": _a_departure_begins_no_epoch,
    "a place is not kept": _a_place_is_not_kept,
    "assigns twice": _assigns_twice,
    "tells nothing again": _tells_nothing_again,
}


@pytest.mark.planted
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(OneConsumerGroup, settings=UNTIL_FOUND)
