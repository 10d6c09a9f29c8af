"""The assignors of the coordinator: who gets what, what moves, and how much work that is."""

import sys
from collections import Counter
from itertools import product
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.groups.core.consumer.assignors import (
    ASSIGNORS,
    Assignment,
    MemberSubscription,
    assign_range,
    assign_uniform,
    assignors,
)
from quorumlog.broker.groups.core.consumer.partitions import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from quorumlog.wire.codec.identifiers import TopicId
from tests.support.sizes import examples

A, B, C = (TopicId(bytes([number]) * 16) for number in (1, 2, 3))
Members = dict[str, MemberSubscription]


def wants(
    *topic_ids: TopicId, target: Partitions = NO_PARTITIONS, instance_id: str | None = None
) -> MemberSubscription:
    return MemberSubscription(
        topic_ids=frozenset(topic_ids), instance_id=instance_id, target=target
    )


def some(topic_id: TopicId, *indexes: int) -> Partitions:
    return frozenset(TopicIdPartition(topic_id, index) for index in indexes)


def loads(assignment: Assignment) -> list[int]:
    return sorted(len(partitions) for partitions in assignment.values())


def again(members: Members, assignment: Assignment, **others: MemberSubscription) -> Members:
    """The members, with what they were given as their target."""
    return {
        member_id: wants(
            *member.topic_ids,
            target=assignment.get(member_id, NO_PARTITIONS),
            instance_id=member.instance_id,
        )
        for member_id, member in {**members, **others}.items()
    }


def check_complete(members: Members, counts: dict[TopicId, int], assignment: Assignment) -> None:
    """Every subscribed partition is given once, to a subscriber, and nothing else is."""
    assert assignment.keys() == members.keys()
    given_out = Counter(one for partitions in assignment.values() for one in partitions)
    subscribed = {topic_id for member in members.values() for topic_id in member.topic_ids}
    wanted = {
        TopicIdPartition(topic_id, index)
        for topic_id in subscribed & counts.keys()
        for index in range(counts[topic_id])
    }
    assert given_out == Counter(wanted)
    for member_id, partitions in assignment.items():
        assert {topic_id for topic_id, _ in partitions} <= members[member_id].topic_ids


def check_even(members: Members, assignment: Assignment) -> None:
    """No partition could go to a member that has two fewer."""
    for rich, poor in product(members, repeat=2):
        movable = {one.topic_id for one in assignment[rich]} & members[poor].topic_ids
        assert not movable or len(assignment[rich]) - len(assignment[poor]) <= 1


topics = st.dictionaries(st.sampled_from((A, B, C)), st.integers(1, 7))
subscribed_topics = st.frozensets(st.sampled_from((A, B, C)), max_size=3)
names = st.sampled_from([f"m{number}" for number in range(8)])
targets = st.frozensets(st.builds(TopicIdPartition, st.sampled_from((A, B, C)), st.integers(0, 8)))
groups = st.dictionaries(
    names,
    st.builds(
        MemberSubscription, topic_ids=subscribed_topics, target=targets, instance_id=st.none()
    ),
    max_size=8,
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=groups, counts=topics)
@examples(200)
def test_every_subscribed_partition_is_given_once(
    name: str, members: Members, counts: dict[TopicId, int]
) -> None:
    check_complete(members, counts, ASSIGNORS[name](members, counts))


@given(members=groups, counts=topics)
@examples(300)
def test_uniform_is_as_even_as_moving_single_partitions_can_make_it(
    members: Members, counts: dict[TopicId, int]
) -> None:
    check_even(members, assign_uniform(members, counts))


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=groups, counts=topics)
@examples(150)
def test_no_change_moves_nothing(name: str, members: Members, counts: dict[TopicId, int]) -> None:
    before = ASSIGNORS[name](members, counts)
    assert ASSIGNORS[name](again(members, before), counts) == before
    shuffled = dict(reversed(again(members, before).items()))
    assert ASSIGNORS[name](shuffled, dict(reversed(counts.items()))) == before


@given(count=st.integers(1, 9), counts=topics.filter(bool))
@examples(100)
def test_one_member_more_moves_its_share_alone(count: int, counts: dict[TopicId, int]) -> None:
    members = {f"m{number}": wants(*counts) for number in range(count)}
    before = assign_uniform(members, counts)
    assert loads(before)[-1] - loads(before)[0] <= 1
    after = assign_uniform(again(members, before, new=wants(*counts)), counts)
    assert loads(after)[-1] - loads(after)[0] <= 1
    for member_id in members:
        assert after[member_id] <= before[member_id]
    assert len(after["new"]) <= -(-sum(counts.values()) // (count + 1))


@given(count=st.integers(2, 9), counts=topics.filter(bool))
@examples(100)
def test_a_member_leaves_and_others_keep_theirs(count: int, counts: dict[TopicId, int]) -> None:
    members = {f"m{number}": wants(*counts) for number in range(count)}
    before = assign_uniform(members, counts)
    del members["m0"]
    after = assign_uniform(again(members, before), counts)
    assert loads(after)[-1] - loads(after)[0] <= 1
    for member_id in members:
        assert before[member_id] <= after[member_id]


def test_of_two_claims_to_a_partition_one_counts() -> None:
    members = {"a": wants(A, target=some(A, 0)), "b": wants(A, target=some(A, 0, 1))}
    assert assign_uniform(members, {A: 2}) == {"a": some(A, 0), "b": some(A, 1)}


def test_few_subscribers_are_served_first() -> None:
    members = {"a": wants(A), "b": wants(A, B)}
    assert assign_uniform(members, {A: 2, B: 2}) == {"a": some(A, 0, 1), "b": some(B, 0, 1)}


def test_loads_may_differ_by_two_where_only_a_chain_of_moves_would_help() -> None:
    members = {
        "a": wants(A, target=some(A, 0, 1, 2)),
        "b": wants(A, B, target=some(B, 0, 1, 2)),
        "c": wants(B),
    }
    assignment = assign_uniform(members, {A: 3, B: 3})
    assert [len(assignment[member_id]) for member_id in "abc"] == [3, 2, 1]


def test_range_gives_neighbours_and_partitions_equal_topics_alike() -> None:
    members = {"z": wants(A, B, instance_id="1"), "a": wants(A, B), "b": wants(A, B, C)}
    assert assign_range(members, {A: 5, B: 5, C: 1}) == {
        "z": some(A, 0, 1) | some(B, 0, 1),  # a static member comes first
        "a": some(A, 2, 3) | some(B, 2, 3),
        "b": some(A, 4) | some(B, 4) | some(C, 0),
    }


@given(count=st.integers(1, 9), partitions=st.integers(1, 12))
@examples(60)
def test_range_is_copartitioned(count: int, partitions: int) -> None:
    members = {f"m{number}": wants(A, B) for number in range(count)}
    for given_out in assign_range(members, {A: partitions, B: partitions}).values():
        of_a = {index for topic, index in given_out if topic == A}
        assert of_a == {index for topic, index in given_out if topic == B}


def test_the_first_assignor_named_is_the_default_and_others_are_refused() -> None:
    assert [*assignors(("range", "uniform"))] == ["range", "uniform"]
    with pytest.raises(KeyError):
        assignors(("cooperative-sticky",))


def calls_of(work: Any) -> int:
    """How many functions are called, those of the interpreter too."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("topic_count", [1, 100])
@pytest.mark.parametrize("classes", [1, 10])
def test_five_hundred_members_of_five_thousand_partitions_cost_some_calls_for_each(
    name: str, topic_count: int, classes: int
) -> None:
    """More where subscriptions differ: each kind of subscription is looked at."""
    most = (50 + 10 * classes) * (5000 + 500)
    ids = [TopicId(number.to_bytes(16, "big")) for number in range(1, topic_count + 1)]
    counts = dict.fromkeys(ids, 5000 // topic_count)
    members = {f"m{number:04}": wants(*(ids[number % classes :] or ids)) for number in range(500)}
    assign = ASSIGNORS[name]
    before: Assignment = {}

    def first() -> None:
        before.update(assign(members, counts))

    assert calls_of(first) < most
    check_complete(members, counts, before)
    joined = again(members, before, new=wants(*ids))
    assert calls_of(lambda: assign(joined, counts)) < most
