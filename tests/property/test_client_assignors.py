"""The assignors give every partition to one member that wants it, evenly and stickily."""

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client.core.assignors import ASSIGNORS, Assignment, Subscription, assign_sticky
from quorumlog.client.core.group_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.sizes import examples

TOPICS = ("a", "b", "c")
EXAMPLES = examples(150)
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7))
partitions = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8))
subscriptions = st.builds(
    Subscription,
    topics=st.lists(st.sampled_from(TOPICS), unique=True).map(tuple),
    instance_id=st.none() | st.sampled_from("xyz"),
    owned=st.lists(partitions, unique=True, max_size=6).map(tuple),
    generation_id=st.integers(-1, 3),
)
groups = st.dictionaries(st.sampled_from(["m1", "m2", "m3", "m4"]), subscriptions, min_size=1)


def loads(assignment: Assignment) -> list[int]:
    return sorted(len(partitions) for partitions in assignment.values())


def settle(members: dict[str, Subscription], partition_counts: dict[str, int]) -> Assignment:
    """Rebalance until nobody has to give anything up."""
    for generation in range(4, 20):
        assignment = assign_sticky(members, partition_counts)
        is_same = all({*assignment[name]} == {*members[name].owned} for name in members)
        if is_same:
            return assignment
        members = {
            name: Subscription(
                topics=member.topics, owned=tuple(assignment[name]), generation_id=generation
            )
            for name, member in members.items()
        }
    raise AssertionError("the group never settles")


@EXAMPLES
@given(members=groups, partition_counts=counts, name=st.sampled_from(sorted(ASSIGNORS)))
def test_everybody_gets_what_it_wants_and_nothing_twice(
    members: dict[str, Subscription], partition_counts: dict[str, int], name: str
) -> None:
    assignment = ASSIGNORS[name](members, partition_counts)
    if name == "cooperative-sticky":
        assignment = settle(members, partition_counts)
    given_out = [partition for partitions in assignment.values() for partition in partitions]
    wanted = {topic for member in members.values() for topic in member.topics}
    there = {
        TopicPartition(topic, index)
        for topic, count in partition_counts.items()
        if topic in wanted
        for index in range(count)
    }
    assert len(given_out) == len(set(given_out))
    assert {*given_out} == there
    for member, own in assignment.items():
        assert {partition.topic for partition in own} <= {*members[member].topics}


@EXAMPLES
@given(members=groups, partition_counts=counts)
def test_equal_subscriptions_get_equal_loads(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    equal = {
        name: Subscription(topics=TOPICS, owned=member.owned, generation_id=member.generation_id)
        for name, member in members.items()
    }
    robin = loads(ASSIGNORS["roundrobin"](equal, partition_counts))
    assert robin[-1] - robin[0] <= 1
    sticky = loads(settle(equal, partition_counts))
    assert sticky[-1] - sticky[0] <= 1


@EXAMPLES
@given(members=groups, partition_counts=counts)
def test_sticky_hands_nothing_over_that_its_owner_still_reads(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    assignment = assign_sticky(members, partition_counts)
    newest = max(member.generation_id for member in members.values())
    for name, member in members.items():
        claims = [one.owned for one in members.values() if one is not member]
        for partition in member.owned:
            is_mine = member.generation_id == newest and partition.topic in member.topics
            if is_mine and not any(partition in claim for claim in claims):
                others = [own for other, own in assignment.items() if other != name]
                assert not any(partition in own for own in others)


def test_range_and_roundrobin_by_example() -> None:
    """The examples of Kafka's own documentation: two members, two topics of three partitions."""
    members = {name: Subscription(topics=("t0", "t1")) for name in ("C0", "C1")}
    three = {"t0": 3, "t1": 3}

    def names(assignment: Assignment) -> dict[str, list[str]]:
        return {member: [str(one) for one in own] for member, own in assignment.items()}

    assert names(ASSIGNORS["range"](members, three)) == {
        "C0": ["t0-0", "t0-1", "t1-0", "t1-1"],
        "C1": ["t0-2", "t1-2"],
    }
    assert names(ASSIGNORS["roundrobin"](members, three)) == {
        "C0": ["t0-0", "t0-2", "t1-1"],
        "C1": ["t0-1", "t1-0", "t1-2"],
    }


@EXAMPLES
@given(subscription=subscriptions)
def test_the_groups_bytes_come_back(subscription: Subscription) -> None:
    back = decode_subscription(encode_subscription(subscription), subscription.instance_id)
    assert {*back.topics} == {*subscription.topics}
    assert {*back.owned} == {*subscription.owned}
    assert back.generation_id == subscription.generation_id
    assert decode_assignment(encode_assignment(subscription.owned)) == tuple(
        sorted(subscription.owned)
    )


def test_bytes_of_a_newer_version_are_understood() -> None:
    newer = b"\0\x09" + encode_subscription(Subscription(topics=("t",)))[2:] + b"\xff\xffmore"
    assert decode_subscription(newer, None).topics == ("t",)
    assert decode_assignment(b"") == ()


def test_a_member_that_joins_gets_half_and_nobody_has_more_meanwhile() -> None:
    all_of_a = tuple(TopicPartition("a", index) for index in range(4))
    members = {
        "m1": Subscription(topics=("a",), owned=all_of_a, generation_id=3),
        "m2": Subscription(topics=("a",)),
    }
    assignment = assign_sticky(members, {"a": 4})
    assert (len(assignment["m1"]), assignment["m2"]) == (2, [])
    assert loads(settle(members, {"a": 4})) == [2, 2]
