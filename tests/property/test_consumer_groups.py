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
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.groups.core.consumer import (
    admission,
    awaited_targets,
    events,
    heartbeats,
    reconciliation,
    targets,
)
from quorumlog.broker.groups.core.consumer import assignors as assignors_module
from quorumlog.broker.groups.core.consumer.changes import Changes
from quorumlog.broker.groups.core.consumer.coordinator import ConsumerGroupCoordinator
from quorumlog.broker.groups.core.consumer.deadlines import Deadlines
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup, ConsumerMember
from quorumlog.broker.groups.core.consumer.heartbeats import Heartbeats
from quorumlog.broker.groups.core.consumer.member_deadlines import MemberDeadlines
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.consumer.records import RecordKind, Value
from quorumlog.broker.groups.core.consumer.requests import HeartbeatResult
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.broker.groups.core.requests import DeleteGroup
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
    TopicsOfTest,
    describe_all,
    heartbeat,
)
from tests.support.groups.consumer.machine import REBALANCE_MS, OneConsumerGroup
from tests.support.sizes import examples, tries

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


# --- Strangers ---

STEPS = 250
NAMES = ("t", "u", "v")
MEMBERS = ("", "a", "b", "c", "d")
INSTANCES = (None, None, None, "i", "j", "")
EXPRESSIONS = (None, None, "", "[tu]", "v.*", "(")


class Strangers:
    """Any request, with anybody's ids: each gets one answer, and what is served is replayed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        topics = TopicsOfTest()
        for name in NAMES:
            topics.set(name, 3)
        self.groups = ConsumerCoordination(topics)
        self.asked = 0

    def some_partitions(self) -> Partitions | None:
        group = self.groups.consumer.groups.get("g")
        known = sorted(group.owners) if group is not None else []
        count = self.random.randint(0, len(known))
        return self.random.choice((None, frozenset(), frozenset(self.random.sample(known, count))))

    def ask(self) -> None:
        choice = self.random.choice
        group = self.groups.consumer.groups.get("g")
        member_id = choice(MEMBERS)
        member = None if group is None else group.members.get(member_id)
        near = 1 if member is None else member.current.member_epoch
        names = tuple(self.random.sample(NAMES, self.random.randint(0, 2)))
        fields: dict[str, Any] = {
            "instance_id": choice(INSTANCES),
            "subscribed_topic_names": choice((None, names, names)),
            "subscribed_topic_regex": choice(EXPRESSIONS),
            "rebalance_timeout_ms": choice((-1, 0, 500, 500)),
            "owned": self.some_partitions(),
            "server_assignor": choice((None, None, "range", "uniform", "x")),
            "api_version": choice((0, 1)),
            "new_member_id": "new",
        }
        epoch = choice((0, 0, -1, -2, -3, near, near, near, near - 1, near + 1))
        if epoch == 0 and self.random.random() < 0.7:  # a join that makes sense
            fields |= {"owned": frozenset(), "rebalance_timeout_ms": 500}
            fields |= {"subscribed_topic_names": names, "server_assignor": None}
        self.asked += 1
        self.groups.ask(heartbeat(member_id, epoch, **fields))

    def step(self) -> None:
        match self.random.randint(0, 19):
            case 0:
                self.groups.tick(self.random.choice((100, 600)))
            case 1:
                self.groups.set_topic(self.random.choice(NAMES), self.random.choice((0, 3, 4)))
            case 2 if self.groups.writes:
                self.groups.fail_write()
            case 3:
                self.groups.commit_writes()
                self.groups = self.groups.reloaded()
                self.asked = 0
            case 4:
                self.asked += 1
                self.groups.ask(DeleteGroup(group_id="g"))
            case _:
                self.ask()
                if self.random.random() < 0.7:
                    self.groups.commit_writes()
        self.check()

    def live(self) -> None:
        for _ in range(STEPS):
            self.step()

    def check(self) -> None:
        if self.groups.writes:
            return
        assert len(self.groups.replies) == self.asked
        group = self.groups.consumer.groups.get("g")
        values = self.groups.consumer.committed.of("g")
        assert (group is None) == (not values)
        if group is not None:
            replayed = ConsumerGroup.from_values("g", values)
            assert describe_all(group) == describe_all(replayed)


@pytest.mark.parametrize("first", range(0, tries(40), 10))
def test_whatever_strangers_ask_the_rules_hold(first: int) -> None:
    for seed in range(first, first + 10):
        Strangers(seed).live()


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


def _replaces_over_a_member(patch: pytest.MonkeyPatch) -> None:
    """As if the new id were never that of a member."""

    def replaces(self: Membership, changes: Changes, old_id: str, new_id: str) -> None:
        def erase(_self: Membership, changes: Changes, member_id: str) -> None:
            if member_id != new_id:
                ERASE(self, changes, member_id)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Membership, "_erase", erase)
            REPLACE(self, changes, old_id, new_id)

    patch.setattr(Membership, "replace", replaces)


def _takes_what_it_reports(patch: pytest.MonkeyPatch) -> None:
    def reconcile(current: Any, aim: Any, **others: Any) -> Any:
        after = RECONCILE(current, aim, **others)
        reported = others["reported"] or frozenset()
        if after is current:
            return after
        assigned_at = dict.fromkeys(reported, after.member_epoch) | {**after.assigned_at}
        return replace(after, assigned=after.assigned | reported, assigned_at=assigned_at)

    patch.setattr(heartbeats, "reconcile", reconcile)


def _keeps_an_instance_id_that_was_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "_forget_instance", lambda self, member: None)


ERASE, REPLACE, RECONCILE = Membership._erase, Membership.replace, reconciliation.reconcile
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


OF_STRANGERS: dict[str, Patch] = {
    "replaces over a member": _replaces_over_a_member,
    "keeps an instance id that was given up": _keeps_an_instance_id_that_was_given_up,
    "takes what it reports": _takes_what_it_reports,
}


@pytest.mark.planted
@pytest.mark.parametrize("name", OF_STRANGERS)
def test_strangers_find_a_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    OF_STRANGERS[name](monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation)):  # noqa: PT012 - many lives
        for seed in range(40):
            Strangers(seed).live()
