"""Offsets of topics that a group with members reads no more expire, and no others (KIP-211)."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from quorumlog.broker.coordination.core import events
from quorumlog.broker.groups.core import removal
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.requests import CommitOffsets, CommittedOffset
from quorumlog.client.assignor import Subscription
from quorumlog.client.core.group_protocol import encode_subscription
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
    TopicsOfTest,
    join,
)
from tests.support.groups.coordination import Coordination, beat
from tests.support.groups.coordination import join as classic_join
from tests.support.groups.transactions import end, txn_commit, write

DAY_MS = 86_400_000
MINUTE_MS = 60_000
READ, LEFT = TopicPartition("read", 0), TopicPartition("left", 0)


def reading(*topics: str) -> dict[str, Any]:
    return {"protocols": (("range", encode_subscription(Subscription(topics=topics))),)}


def commit(*partitions: TopicPartition, epoch: int = -1, member_id: str = "") -> CommitOffsets:
    offsets = {where: CommittedOffset(offset=5) for where in partitions}
    return CommitOffsets(group_id="g", member_id=member_id, generation_id=epoch, offsets=offsets)


def kept(groups: Coordination | ConsumerCoordination) -> list[TopicPartition]:
    return [*groups.coordinator.fetch_offsets("g", None)]


def let_pass(groups: Coordination, elapsed_ms: int) -> None:
    """Let time pass for a member that sends its heartbeats."""
    for _ in range(elapsed_ms // 900 + 1):
        groups.tick(900)
        groups.ask(beat("a", groups.coordinator.groups["g"].generation_id))
        groups.commit_writes()


def live(**changes: Any) -> Coordination:
    """A Stable group whose member a has committed READ and LEFT, and reads READ alone."""
    groups = Coordination()
    generation_id = groups.stable("a", **{**reading("read"), **changes})
    groups.answer(commit(READ, LEFT, member_id="a", epoch=generation_id))
    return groups


def test_the_offsets_of_a_topic_that_was_left_expire_from_their_commit() -> None:
    groups = live()
    let_pass(groups, 45_000)
    assert kept(groups) == [LEFT, READ]
    let_pass(groups, 30_000)
    assert kept(groups) == [READ]
    assert kept(groups.reloaded()) == [READ]
    assert groups.reloaded().coordinator.groups["g"].state is GroupState.STABLE


def test_a_group_stays_when_all_of_its_offsets_have_expired() -> None:
    groups = Coordination()
    generation_id = groups.stable("a", **reading("read"))
    groups.answer(commit(LEFT, member_id="a", epoch=generation_id))
    let_pass(groups, 75_000)
    assert kept(groups) == []
    assert groups.reloaded().coordinator.groups["g"].state is GroupState.STABLE


@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": (("range", b"?"),)}],
    ids=["another protocol type", "unreadable subscription"],
)
def test_all_offsets_stay_where_the_subscriptions_are_not_known(changes: dict[str, Any]) -> None:
    groups = live(**changes)
    let_pass(groups, 75_000)
    assert kept(groups) == [LEFT, READ]


def test_all_offsets_stay_while_the_group_rebalances() -> None:
    groups = live()
    let_pass(groups, 45_000)
    groups.ask(classic_join("", new_member_id="b", rebalance_timeout_ms=100_000, **reading("left")))
    assert groups.coordinator.groups["g"].state is GroupState.PREPARING_REBALANCE
    let_pass(groups, 30_000)
    assert kept(groups) == [LEFT, READ]


def test_an_offset_that_is_being_written_stays() -> None:
    groups = live()
    let_pass(groups, 50_000)
    generation_id = groups.coordinator.groups["g"].generation_id
    groups.ask(commit(LEFT, member_id="a", epoch=generation_id))
    for _ in range(30):
        groups.tick(900)
        groups.ask(beat("a", generation_id))
    groups.commit_writes()
    assert kept(groups) == [LEFT, READ]


def test_an_offset_that_a_transaction_may_change_stays() -> None:
    groups = live()
    write(groups, txn_commit(9, where=LEFT))
    let_pass(groups, 75_000)
    assert kept(groups) == [LEFT, READ]
    groups.ask(end(commits=False))
    groups.commit_writes()
    let_pass(groups, 15_000)
    assert kept(groups) == [READ]


def test_many_groups_are_cleaned_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "CLEANED_AT_ONCE", 4)
    groups = Coordination()
    for index in range(7):
        groups.answer(replace(commit(READ, LEFT), group_id=f"g{index}"))
    groups.now_ms += 2 * MINUTE_MS
    steps = 0
    while groups.coordinator.next_deadline_ms <= groups.now_ms:
        groups.step(events.Ticked())
        steps += 1
    groups.commit_writes()
    assert groups.coordinator.known_groups() == []
    assert steps == 4  # two groups of two offsets in each: 1 + 2 for each group


def test_a_batch_of_tombstones_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "EXPIRED_MAX", 3)
    for groups in (Coordination(), live()):
        epoch, member_id = (1, "a") if "g" in groups.coordinator.groups else (-1, "")
        many = [TopicPartition("left", index) for index in range(1, 8)]
        groups.answer(commit(*many, member_id=member_id, epoch=epoch))
        left = []
        for _ in range(120):
            groups.tick(900)
            if member_id:
                groups.ask(beat("a", epoch))
            groups.commit_writes()
            left.append(len(kept(groups)))
        assert max(before - after for before, after in pairwise(left)) == 3
        assert left[-1] == (1 if member_id else 0)


# --- Groups of the consumer protocol ---


def consumer_group(**changes: Any) -> ConsumerCoordination:
    """Member a reads `read` unless it says otherwise, and has committed READ and LEFT."""
    topics = TopicsOfTest()
    for name in ("read", "left"):
        topics.set(name, 1)
    for expression in ("r.*", "l.*"):
        topics.matching(expression)
    topics.run_jobs()
    settings = replace(SETTINGS, group_consumer_session_timeout_ms=30 * DAY_MS)
    groups = ConsumerCoordination(topics, settings)
    values: dict[str, Any] = {"subscribed_topic_names": ("read",), **changes}
    epoch = groups.beat(join("a", **values)).member_epoch
    groups.answer(commit(READ, LEFT, member_id="a", epoch=epoch))
    return groups


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [READ]),
        ({"subscribed_topic_names": ("left",)}, [LEFT]),
        ({"subscribed_topic_names": (), "subscribed_topic_regex": "r.*"}, [READ]),
        ({"subscribed_topic_regex": "l.*"}, [LEFT, READ]),
    ],
)
def test_a_consumer_group_keeps_the_offsets_of_its_topics(
    changes: dict[str, Any], expected: list[TopicPartition]
) -> None:
    groups = consumer_group(**changes)
    groups.tick(8 * DAY_MS)
    groups.commit_writes()
    assert kept(groups) == expected
    assert {*groups.group.members} == {"a"}
    assert kept(groups.reloaded()) == expected


def test_a_consumer_group_that_changes_keeps_all_offsets() -> None:
    groups = consumer_group()
    groups.ask(join("a", subscribed_topic_names=("other",), member_epoch=1))
    groups.tick(8 * DAY_MS)
    assert len(groups.writes) == 1  # the new subscription, which may be refused
    groups.commit_writes()
    assert kept(groups) == [LEFT, READ]
    groups.tick(DAY_MS)
    groups.commit_writes()
    assert kept(groups) == []


def test_a_consumer_group_whose_expression_is_not_resolved_keeps_all_offsets() -> None:
    groups = consumer_group(subscribed_topic_regex="r.*")
    del groups.group.expressions["r.*"]
    groups.tick(8 * DAY_MS)
    assert not groups.writes
    assert kept(groups) == [LEFT, READ]
