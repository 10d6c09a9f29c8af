"""Whatever is asked of a consumer group, with whoever's ids: no rule of the group is broken.

The rules are the invariants of `ConsumerGroup`, which are checked as records are applied, and that
what is served is what a replay gives. Every request gets exactly one answer.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from quorumlog.broker.groups.core.consumer import heartbeats, reconciliation
from quorumlog.broker.groups.core.consumer.group import Changes, ConsumerGroup
from quorumlog.broker.groups.core.consumer.membership import Membership
from quorumlog.broker.groups.core.consumer.partitions import Partitions
from quorumlog.broker.groups.core.requests import DeleteGroup
from quorumlog.invariants import InvariantViolation
from tests.support.groups.consumer.coordination import (
    ConsumerCoordination,
    TopicsOfTest,
    describe_all,
    heartbeat,
)
from tests.support.sizes import tries

STEPS = 250
NAMES = ("t", "u", "v")
MEMBERS = ("", "a", "b", "c", "d")
INSTANCES = (None, None, None, "i", "j", "")
EXPRESSIONS = (None, None, "", "[tu]", "v.*", "(")


class Strangers:
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


@pytest.mark.parametrize("seed", range(tries(40)))
def test_whatever_strangers_ask_the_rules_hold(seed: int) -> None:
    strangers = Strangers(seed)
    for _ in range(STEPS):
        strangers.step()


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


ERASE, REPLACE, RECONCILE = Membership._erase, Membership.replace, reconciliation.reconcile
MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "replaces over a member": _replaces_over_a_member,
    "keeps an instance id that was given up": lambda patch: patch.setattr(
        ConsumerGroup, "_forget_instance", lambda self, member: None
    ),
    "takes what it reports": _takes_what_it_reports,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation)):  # noqa: PT012 - many lives
        for seed in range(40):
            strangers = Strangers(seed)
            for _ in range(STEPS):
                strangers.step()
