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
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from quorumlog.broker.groups.core.consumer import awaited_targets, events, targets
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.requests import DeleteGroup
from quorumlog.chaos.mutants.consumer_groups import CONSUMER_GROUPS, MIXED_GROUPS
from quorumlog.invariants import InvariantViolation
from tests.support.groups.consumer.coordination import (
    ConsumerCoordination,
    TopicsOfTest,
    describe_all,
    heartbeat,
)
from tests.support.groups.consumer.machine import OneConsumerGroup
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

Patch = Callable[[pytest.MonkeyPatch], None]
ERASE, REPLACE = Membership._erase, Membership.replace


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


def _keeps_an_instance_id_that_was_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "_forget_instance", lambda self, member: None)


OF_COMMITS = ("takes_commits_of_any_epoch", "takes_commits_of_the_removed", "takes_any_transaction")
MUTANTS = CONSUMER_GROUPS | {name: MIXED_GROUPS[name] for name in OF_COMMITS}


@pytest.mark.planted
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    broken = type("Broken", (OneConsumerGroup,), {"obeyed": MUTANTS[name].parts.groups})
    with pytest.raises((AssertionError, InvariantViolation)):
        run_machine(broken, settings=UNTIL_FOUND)


OF_STRANGERS: dict[str, Patch] = {
    "replaces over a member": _replaces_over_a_member,
    "keeps an instance id that was given up": _keeps_an_instance_id_that_was_given_up,
}


@pytest.mark.planted
@pytest.mark.parametrize("name", OF_STRANGERS)
def test_strangers_find_a_planted_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    OF_STRANGERS[name](monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation)):  # noqa: PT012 - many lives
        for seed in range(40):
            Strangers(seed).live()
