"""The assignors give every partition to one member that wants it, evenly, stickily and nearby."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client.assignor import Members, Partitions, Subscription
from quorumlog.client.core.assignors import ASSIGNORS, Assignment, assign
from quorumlog.client.core.group_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.client.assigning import NO_RACKS, placed
from tests.support.sizes import examples

KAFKA: Final = Path(__file__).parents[1] / "data/kafka_assignments.txt"
"""Assignments by the clients of Apache Kafka 4.3.1; tools/Assignments.java makes them again."""
TOPICS = ("a", "b", "c")
RACKS = ("x", "y", "z")
EXAMPLES = examples(150)
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7))
partitions = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8))
racks = st.frozensets(st.sampled_from(RACKS), max_size=3)
places = st.dictionaries(partitions, racks)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(st.sampled_from(TOPICS), unique=True).map(tuple),
    instance_id=st.none() | st.sampled_from("xyz"),
    owned=st.lists(partitions, unique=True, max_size=6).map(tuple),
    generation_id=st.integers(-1, 3),
    rack=st.none() | st.sampled_from(RACKS),
)
groups = st.dictionaries(st.sampled_from(["m1", "m2", "m3", "m4"]), subscriptions, min_size=1)


def subscribed(
    members: Members,
    partition_counts: dict[str, int],
    of_racks: dict[TopicPartition, frozenset[str]] | None = None,
) -> Partitions:
    """Return the partitions that a leader assigns."""
    wanted = {topic for member in members.values() for topic in member.topics}
    known = {topic: count for topic, count in partition_counts.items() if topic in wanted}
    return placed(known, of_racks)


def loads(assignment: Assignment) -> list[int]:
    return sorted(len(assigned) for assigned in assignment.values())


def squares(assignment: Assignment) -> int:
    """Return the smaller number for more even loads."""
    return sum(len(assigned) ** 2 for assigned in assignment.values())


def far(assignment: Assignment, members: Members, where: Partitions) -> int:
    """Return how many partitions are read in a rack without a replica, though there are racks."""
    return sum(
        bool(where[one]) and members[name].rack is not None and members[name].rack not in where[one]
        for name, assigned in assignment.items()
        for one in assigned
    )


def settle(members: Members, where: Partitions, name: str = "cooperative-sticky") -> Assignment:
    """Rebalance until nobody has to give anything up."""
    for generation in range(4, 20):
        assignment = assign(ASSIGNORS[name], members, where)
        if all({*assignment[one]} == {*members[one].owned} for one in members):
            return assignment
        members = {
            one: replace(member, owned=tuple(assignment[one]), generation_id=generation)
            for one, member in members.items()
        }
    raise AssertionError("the group never settles")


@EXAMPLES
@given(
    members=groups,
    partition_counts=counts,
    of_racks=places,
    name=st.sampled_from(sorted(ASSIGNORS)),
)
def test_everybody_gets_what_it_wants_and_nothing_twice(
    members: dict[str, Subscription],
    partition_counts: dict[str, int],
    of_racks: dict[TopicPartition, frozenset[str]],
    name: str,
) -> None:
    where = subscribed(members, partition_counts, of_racks)
    assignment = settle(members, where, name) if "sticky" in name else {}
    assignment = assignment or assign(ASSIGNORS[name], members, where)
    given_out = [partition for assigned in assignment.values() for partition in assigned]
    assert len(given_out) == len(set(given_out))
    assert {*given_out} == {*where}
    for member, own in assignment.items():
        assert {partition.topic for partition in own} <= {*members[member].topics}


@EXAMPLES
@given(members=groups, partition_counts=counts, of_racks=places)
def test_equal_subscriptions_get_equal_loads(
    members: dict[str, Subscription],
    partition_counts: dict[str, int],
    of_racks: dict[TopicPartition, frozenset[str]],
) -> None:
    equal = {name: replace(member, topics=TOPICS) for name, member in members.items()}
    where = subscribed(equal, partition_counts, of_racks)
    robin = loads(assign(ASSIGNORS["roundrobin"], equal, where))
    assert robin[-1] - robin[0] <= 1
    sticky = loads(settle(equal, where))
    assert sticky[-1] - sticky[0] <= 1


@EXAMPLES
@given(members=groups, partition_counts=counts, of_racks=places)
def test_racks_bring_readers_near_and_change_no_load(
    members: dict[str, Subscription],
    partition_counts: dict[str, int],
    of_racks: dict[TopicPartition, frozenset[str]],
) -> None:
    equal = {name: replace(member, topics=TOPICS) for name, member in members.items()}
    where = subscribed(equal, partition_counts, of_racks)
    nowhere = dict.fromkeys(where, NO_RACKS)
    for name in ("range", "sticky"):
        near = assign(ASSIGNORS[name], equal, where)
        blind = assign(ASSIGNORS[name], equal, nowhere)
        assert loads(near) == loads(blind)
        if name == "sticky":
            assert far(near, equal, where) <= far(blind, equal, where)
            owned = {m: replace(one, owned=tuple(near[m])) for m, one in equal.items()}
            assert assign(ASSIGNORS[name], owned, where) == near


@EXAMPLES
@given(members=groups, partition_counts=counts, of_racks=places)
def test_no_move_of_one_partition_would_make_loads_more_even(
    members: dict[str, Subscription],
    partition_counts: dict[str, int],
    of_racks: dict[TopicPartition, frozenset[str]],
) -> None:
    assignment = assign(
        ASSIGNORS["sticky"], members, subscribed(members, partition_counts, of_racks)
    )
    for assigned in assignment.values():
        for topic in {one.topic for one in assigned}:
            readers = [name for name, member in members.items() if topic in member.topics]
            assert len(assigned) - min(len(assignment[name]) for name in readers) <= 1


@EXAMPLES
@given(members=groups, partition_counts=counts)
def test_sticky_hands_nothing_over_that_its_owner_still_reads(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    where = subscribed(members, partition_counts)
    assignment = assign(ASSIGNORS["cooperative-sticky"], members, where)
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

    def names(assignor: str) -> dict[str, list[str]]:
        assignment = assign(ASSIGNORS[assignor], members, placed({"t0": 3, "t1": 3}))
        return {member: [str(one) for one in own] for member, own in assignment.items()}

    assert names("range") == {"C0": ["t0-0", "t0-1", "t1-0", "t1-1"], "C1": ["t0-2", "t1-2"]}
    assert names("roundrobin") == {"C0": ["t0-0", "t0-2", "t1-1"], "C1": ["t0-1", "t1-0", "t1-2"]}


@EXAMPLES
@given(subscription=subscriptions, assignor=st.sampled_from(["sticky", "range"]))
def test_the_groups_bytes_come_back(subscription: Subscription, assignor: str) -> None:
    data = encode_subscription(subscription, assignor)
    back = decode_subscription(data, subscription.instance_id, assignor)
    assert {*back.topics} == {*subscription.topics}
    assert {*back.owned} == {*subscription.owned}
    assert (back.generation_id, back.rack) == (subscription.generation_id, subscription.rack)
    assert decode_assignment(encode_assignment(subscription.owned)) == tuple(
        sorted(subscription.owned)
    )


def test_sticky_members_of_any_version_own_what_their_user_data_says() -> None:
    subscription = Subscription(topics=("t",), owned=(TopicPartition("t", 0),), generation_id=7)
    data = encode_subscription(subscription, "sticky")
    user_data = "00000001000174000000010000000000000007"
    assert bytes.fromhex(user_data) in data
    assert decode_subscription(data).owned == ()  # eager: it owns nothing now
    older = data.replace(
        bytes.fromhex("00000013" + user_data), bytes.fromhex("0000000f" + user_data[:-8])
    )
    assert decode_subscription(older, None, "sticky").owned == subscription.owned
    assert decode_subscription(older, None, "sticky").generation_id == -1
    broken = data.replace(bytes.fromhex(user_data), bytes.fromhex("ff" * 19))
    assert decode_subscription(broken, None, "sticky").owned == ()


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
    assignment = assign(ASSIGNORS["cooperative-sticky"], members, placed({"a": 4}))
    assert (len(assignment["m1"]), assignment["m2"]) == (2, [])
    assert loads(settle(members, placed({"a": 4}))) == [2, 2]


# --- beside Apache Kafka's clients ---


@dataclass
class Case:
    """The result of a leader; `data`: the user data of sticky members, `gets`: the assignment."""

    assignor: str
    members: dict[str, Subscription] = field(default_factory=dict)
    where: dict[TopicPartition, frozenset[str]] = field(default_factory=dict)
    data: dict[str, bytes] = field(default_factory=dict)
    gets: Assignment = field(default_factory=dict)


def named(text: str) -> list[TopicPartition]:
    pairs = [one.split(":") for one in text.split(",") if one != "-"]
    return [TopicPartition(topic, int(index)) for topic, index in pairs]


def cases() -> Iterator[Case]:
    case = Case("")
    for line in KAFKA.read_text().splitlines():
        match line.split(" "):
            case ["case", assignor]:
                case = Case(assignor)
            case ["topic", topic, of_partitions]:
                for index, listed in enumerate(of_partitions.split(";")):
                    where = frozenset(one for one in listed.split(",") if one != "-")
                    case.where[TopicPartition(topic, index)] = where
            case ["member", name, instance_id, rack, generation_id, topics, owned]:
                case.members[name] = Subscription(
                    topics=tuple(one for one in topics.split(",") if one != "-"),
                    instance_id=None if instance_id == "-" else instance_id,
                    rack=None if rack == "-" else rack,
                    owned=tuple(named(owned)),
                    generation_id=int(generation_id),
                )
            case ["data", name, data]:
                case.data[name] = bytes.fromhex(data)
            case ["gets", name, partitions]:
                case.gets[name] = named(partitions)
            case ["end"]:
                yield case
            case words:
                raise AssertionError(words)


def test_range_and_roundrobin_compute_what_kafkas_clients_compute() -> None:
    compared = [case for case in cases() if case.assignor != "sticky"]
    assert len(compared) == 24
    for case in compared:
        assert assign(ASSIGNORS[case.assignor], case.members, case.where) == case.gets


def test_sticky_is_as_even_and_as_near_as_kafkas_and_reads_its_user_data() -> None:
    compared = [case for case in cases() if case.assignor == "sticky"]
    assert len(compared) == 28
    kept = kept_by_kafka = 0
    for case in compared:
        assignment = assign(ASSIGNORS["sticky"], case.members, case.where)
        assert squares(assignment) <= squares(case.gets)
        assert far(assignment, case.members, case.where) <= far(case.gets, case.members, case.where)
        for name, member in case.members.items():
            kept += len({*member.owned} & {*assignment[name]})
            kept_by_kafka += len({*member.owned} & {*case.gets[name]})
        for name, data in case.data.items():
            assert data in encode_subscription(case.members[name], "sticky")
    assert kept >= kept_by_kafka
