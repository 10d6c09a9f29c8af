"""Offsets and descriptions of a consumer group, and its conversion from and to a classic one."""

from collections.abc import Iterable, Sequence

import pytest

from quorumlog.broker.groups.core.consumer.conversion import (
    NotConvertible,
    to_classic_group,
    to_consumer_records,
)
from quorumlog.broker.groups.core.consumer.descriptions import (
    CLASSIC_MEMBER,
    CONSUMER_MEMBER,
    describe,
    list_groups,
)
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.offsets import commit_refusal, fetch_refusal
from quorumlog.broker.groups.core.consumer.partitions import TopicIdPartition
from quorumlog.broker.groups.core.consumer.records import ClassicMemberMetadata, encode
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState, MemberState
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.records import StoredGroup, StoredMember
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Message
from quorumlog.wire.codec.messages.consumer_group_describe import Assignment
from quorumlog.wire.codec.messages.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    TopicPartition as OwnedPartitions,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.codec.schemas import encode_message
from tests.support.coordination.groups_begun import consumers
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
    TopicsOfTest,
    heartbeat,
    join,
)


def shared(*, classic: bool = False) -> ConsumerCoordination:
    """Member a, at epoch 1, and b, at epoch 2, which has nothing yet."""
    groups = ConsumerCoordination()
    groups.beat(join("a", rack_id="r", client_id="c", client_host="h"))
    groups.beat(join("b"))
    if classic:
        groups.group.members["a"].metadata.classic = ClassicMemberMetadata()
    return groups


@pytest.mark.parametrize(
    ("member_id", "epoch", "version", "refusal"),
    [
        ("a", 1, 9, ErrorCode.NONE),
        ("a", 1, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("a", 0, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 2, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", -1, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),  # an administrator, while there are members
    ],
)
def test_a_member_commits_with_its_epoch(
    member_id: str, epoch: int, version: int, refusal: ErrorCode
) -> None:
    groups = shared()
    partitions = groups.topics.some("t", 0)
    found = commit_refusal(groups.group, member_id, epoch, partitions, api_version=version)
    assert found is refusal


def test_an_older_epoch_commits_what_the_member_has_owned_since() -> None:
    """KIP-1251. Member a: 2 and 3 since epoch 1, at epoch 3; 0 and 1 were b's in epoch 2."""
    groups = shared()
    some = groups.topics.some
    told = groups.beat(heartbeat("a", 1))
    kept = told.assignment or frozenset()
    moved = some("t", 0, 1, 2, 3) - kept

    def refusal(epoch: int, partitions: Iterable[TopicIdPartition | None]) -> ErrorCode:
        return commit_refusal(groups.group, "a", epoch, partitions, api_version=9)

    assert refusal(1, kept | moved) is ErrorCode.NONE  # it has yet to give the others up
    groups.beat(heartbeat("a", 1, owned=kept))
    assert groups.group.members["a"].current.member_epoch == 2
    assert refusal(1, kept) is ErrorCode.NONE
    assert refusal(1, moved) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(1, kept | moved) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(1, [None]) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(2, moved) is ErrorCode.NONE  # its present epoch: the client knows
    assert refusal(0, kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert refusal(3, kept) is ErrorCode.STALE_MEMBER_EPOCH
    groups.beat(heartbeat("b", 2))
    groups.beat(heartbeat("b", -1))
    groups.beat(heartbeat("a", 2))
    assert groups.group.members["a"].current.assigned == kept | moved
    assert refusal(1, kept) is ErrorCode.NONE
    assert refusal(2, kept) is ErrorCode.NONE
    assert refusal(2, moved) is ErrorCode.STALE_MEMBER_EPOCH  # it has them again since epoch 3
    groups.check_replayed()


def test_a_partition_that_comes_back_before_it_was_given_up_is_assigned_anew() -> None:
    groups = shared()
    groups.beat(heartbeat("a", 1))
    [*pending] = groups.group.members["a"].current.pending_revocation
    groups.beat(heartbeat("b", -1))
    has = groups.group.members["a"].current.assigned
    groups.beat(heartbeat("a", 1, owned=has))
    current = groups.group.members["a"].current
    assert current.assigned >= {*pending}
    assert {current.assigned_at[one] for one in pending} == {3}
    assert {current.assigned_at[one] for one in has} == {1}


def test_a_static_member_that_is_back_has_all_since_the_beginning() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a", instance_id="i"))
    groups.beat(heartbeat("a", -2, instance_id="i"))
    assert {*groups.group.members["a"].current.assigned_at.values()} == {0}
    groups.beat(join("a2", instance_id="i"))
    assert {*groups.group.members["a2"].current.assigned_at.values()} == {0}
    groups.check_replayed()


def test_members_of_an_upgraded_group_own_since_its_generation() -> None:
    groups = shared(classic=True)
    partitions = groups.topics.some("t", 0)
    refusal = commit_refusal(groups.group, "a", 0, partitions, api_version=9)
    assert refusal is ErrorCode.ILLEGAL_GENERATION  # a classic member names its generation exactly


def test_a_classic_member_commits_with_its_generation() -> None:
    group = shared(classic=True).group
    assert commit_refusal(group, "a", 1, (), api_version=7) is ErrorCode.NONE
    assert commit_refusal(group, "a", 2, (), api_version=7) is ErrorCode.ILLEGAL_GENERATION


def test_anybody_commits_for_a_group_without_members() -> None:
    group = ConsumerGroup("g")
    assert commit_refusal(group, "", -1, (), api_version=2) is ErrorCode.NONE
    assert commit_refusal(group, "a", 1, (), api_version=9) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("member_id", "epoch", "refusal"),
    [
        (None, -1, ErrorCode.NONE),
        ("a", 1, ErrorCode.NONE),
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_fetch_names_the_epoch(member_id: str | None, epoch: int, refusal: ErrorCode) -> None:
    assert fetch_refusal(shared().group, member_id, epoch) is refusal


def test_a_classic_member_fetches_with_its_generation() -> None:
    group = shared(classic=True).group
    assert fetch_refusal(group, "a", 2) is ErrorCode.ILLEGAL_GENERATION


def by_topic(assignment: Assignment) -> list[tuple[bytes, str, list[int]]]:
    return [(one.topic_id, one.topic_name, one.partitions) for one in assignment.topic_partitions]


def test_a_group_is_described() -> None:
    groups = shared(classic=True)
    topic_id = groups.topics.id_of("t")
    shown = describe(groups.group, "uniform", groups.topics.names)
    assert (shown.group_id, shown.group_state, shown.assignor_name) == (
        "g",
        "Reconciling",
        "uniform",
    )
    assert (shown.group_epoch, shown.assignment_epoch) == (2, 2)
    first, second = shown.members
    assert (first.member_id, first.member_epoch, first.rack_id) == ("a", 1, "r")
    assert (first.client_id, first.client_host, first.instance_id) == ("c", "h", None)
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (["t"], None)
    assert by_topic(first.assignment) == [(topic_id, "t", [0, 1, 2, 3])]
    assert by_topic(first.target_assignment) == [(topic_id, "t", [0, 1])]
    assert (first.member_type, second.member_type) == (CLASSIC_MEMBER, CONSUMER_MEMBER)
    assert (second.member_epoch, by_topic(second.assignment)) == (2, [])
    groups.topics.set("t", 0)
    [without_topic, _] = describe(groups.group, "uniform", groups.topics.names).members
    assert by_topic(without_topic.assignment) == []


def test_a_description_shows_what_is_committed_only() -> None:
    groups = consumers("a")
    groups.ask(join("b"))
    committed = groups.consumer.committed_group("g")
    assert committed is not None
    assert [*committed.members] == ["a"]
    assert [*groups.group.members] == ["a", "b"]
    groups.commit_writes()
    assert groups.consumer.committed_group("g") is groups.group
    assert groups.consumer.committed_group("x") is None
    groups.ask(join("c", group_id="x"))
    assert groups.consumer.committed_group("x") is None


def test_the_assignor_of_the_next_target_is_named() -> None:
    groups = shared()
    assert groups.consumer.targets.assignor_name(groups.group) == "uniform"
    groups.beat(heartbeat("a", 1, server_assignor="range"))
    assert groups.consumer.targets.assignor_name(groups.group) == "range"
    assert SETTINGS.group_consumer_assignors == "uniform,range"


def test_groups_are_listed_by_state_and_type() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a", group_id="stable"))
    groups.beat(join("a", group_id="empty"))
    groups.beat(heartbeat("a", -1, group_id="empty"))
    everything = groups.consumer.groups.values()
    empty = ("empty", "Empty")
    stable = ("stable", "Stable")

    def listed(**wanted: Sequence[str]) -> list[tuple[str, str]]:
        found = list_groups(everything, **wanted)
        assert all((one.protocol_type, one.group_type) == ("consumer",) * 2 for one in found)
        return [(one.group_id, one.group_state) for one in found]

    assert listed() == [empty, stable]
    assert listed(states=["STABLE", "x"]) == [stable]
    assert listed(types=["Consumer"]) == [empty, stable]
    assert listed(types=["classic"]) == []


MAX_SIZE = 10


def bytes_of(message: Message, version: int = 0) -> bytes:
    return version.to_bytes(2, "big") + b"".join(encode_message(message, version))


def subscription(*topics: str, owned: Sequence[int] = (), generation_id: int = -1) -> bytes:
    said = ConsumerProtocolSubscription(
        topics=[*topics],
        owned_partitions=[OwnedPartitions(topic=one, partitions=[*owned]) for one in topics],
        generation_id=generation_id,
        rack_id="r",
    )
    return bytes_of(said, 3)


def assignment(topic: str, *partitions: int, user_data: bytes | None = None) -> bytes:
    assigned = [TopicPartition(topic=topic, partitions=[*partitions])]
    return bytes_of(ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=user_data))


def member(member_id: str, assigned: bytes, **changes: object) -> StoredMember:
    values: dict[str, object] = {
        "member_id": member_id,
        "client_id": "c",
        "client_host": "h",
        "rebalance_timeout_ms": 500,
        "session_timeout_ms": 700,
        "subscription": subscription("t"),
        "assignment": assigned,
    }
    return StoredMember(**{**values, **changes})  # type: ignore[arg-type]


def classic(*members: StoredMember, protocol_type: str = "consumer") -> Group:
    stored = StoredGroup(
        protocol_type=protocol_type,
        generation_id=7,
        protocol_name="range",
        leader=members[0].member_id,
        state_since_ms=3,
        members=[*members],
    )
    return Group.from_stored("g", stored, 0)


def topics_of_test() -> TopicsOfTest:
    topics = TopicsOfTest()
    topics.set("t", 4)
    return topics


def classic_pair() -> Group:
    static = member("b", assignment("t", 2, 3), group_instance_id="i")
    return classic(member("a", assignment("t", 0, 1)), static)


def converted(group: Group, topics: TopicsOfTest) -> ConsumerGroup:
    found = ConsumerGroup("g")
    for record in to_consumer_records(group, topics, max_size=MAX_SIZE):
        found.apply(record)
    found.settle_state()
    return found


def test_every_member_keeps_what_it_has() -> None:
    topics = topics_of_test()
    group = converted(classic_pair(), topics)
    assert (group.group_epoch, group.assignment_epoch) == (7, 7)
    assert group.state is ConsumerGroupState.STABLE
    assert group.static == {"i": "b"}
    for member_id, had in {"a": (0, 1), "b": (2, 3)}.items():
        found = group.members[member_id]
        assert found.is_classic
        assert found.current.member_epoch == 7
        assert found.current.assigned == topics.some("t", *had) == group.target_of(member_id)
        assert found.metadata.subscribed_topic_names == ["t"]
        assert found.metadata.rack_id == "r"
    assert group.metadata_hash == 0  # as in Kafka: the next heartbeat begins an epoch


def test_a_member_has_to_give_up_what_it_joined_with_and_was_not_assigned_again() -> None:
    """Whether it has heard of that generation is not known: until it joins without, it has it."""
    topics = topics_of_test()
    shrinks = member("a", assignment("t", 0), subscription=subscription("t", owned=(0, 1, 2)))
    grows = member("b", assignment("t", 2), subscription=subscription("t"))
    group = converted(classic(shrinks, grows), topics)
    current = group.members["a"].current
    assert current.state is MemberState.UNREVOKED_PARTITIONS
    assert current.assigned == topics.some("t", 0) == group.target_of("a")
    assert current.pending_revocation == topics.some("t", 1)  # 2 has got an owner
    assert group.members["b"].current.state is MemberState.STABLE
    assert group.state is ConsumerGroupState.RECONCILING


def test_of_two_members_that_claim_a_partition_the_newer_claim_counts() -> None:
    topics = topics_of_test()
    older = subscription("t", owned=(0, 1), generation_id=4)
    newer = subscription("t", owned=(1, 2), generation_id=5)
    claims = member("a", b"", subscription=older), member("b", b"", subscription=newer)
    group = converted(classic(*claims), topics)
    pending = {name: one.current.pending_revocation for name, one in group.members.items()}
    assert pending == {"a": topics.some("t", 0), "b": topics.some("t", 1, 2)}


def test_data_that_the_leader_sends_back_is_no_data_of_an_assignor() -> None:
    """As librdkafka does: what the member joined with is in its assignment."""
    topics = topics_of_test()
    joined_with = bytes_of(ConsumerProtocolSubscription(topics=["t"], user_data=b"x"), 3)
    echoed = member("a", assignment("t", 0, user_data=b"x"), subscription=joined_with)
    assert converted(classic(echoed), topics).target_of("a") == topics.some("t", 0)
    other = member("a", assignment("t", 0, user_data=b"y"), subscription=joined_with)
    with pytest.raises(NotConvertible, match="data of its own"):
        to_consumer_records(classic(other), topics, max_size=MAX_SIZE)


def test_a_consumer_joins_a_group_that_was_converted() -> None:
    topics = topics_of_test()
    batches = [
        encode_batch([Record(0, 0, *encode(record), ())])
        for record in to_consumer_records(classic_pair(), topics, max_size=MAX_SIZE)
    ]
    groups = ConsumerCoordination(topics, batches=batches)
    groups.check_replayed()
    result = groups.beat(join("new"))
    assert (result.member_epoch, result.assignment) == (8, frozenset())
    groups.tick(699)  # the session of a classic member is its own
    assert len(groups.group.members) == 3
    groups.tick(1)
    groups.commit_writes()
    assert [*groups.group.members] == ["new"]
    assert groups.beat(heartbeat("new", 8)).assignment == topics.some("t", 0, 1, 2, 3)


def test_there_and_back_again() -> None:
    topics = topics_of_test()
    group = classic_pair()
    stored = to_classic_group(converted(group, topics), topics.names, now_ms=3)
    assigned = {name: one.assignment for name, one in group.members.items()}
    assert stored == group.to_stored(assigned, 3)


def test_what_is_gone_is_left_out_on_either_way() -> None:
    topics = topics_of_test()
    gone = classic(member("a", assignment("gone", 0)), member("b", b""))
    group = converted(gone, topics)
    assert not group.owners
    group = converted(classic_pair(), topics)
    topics.set("t", 0)
    stored = to_classic_group(group, topics.names, now_ms=3)
    assert stored.members[0].assignment == bytes_of(ConsumerProtocolAssignment())


@pytest.mark.parametrize(
    "group",
    [
        classic(member("a", b""), protocol_type="connect"),
        classic(member("a", b"", subscription=b"")),
        classic(member("a", b"", subscription=b"\xff\xff")),
        classic(member("a", b"", subscription=b"\0\1\0\0\0\5")),
        classic(member("a", b"\0\0\0\0\0\1")),
        classic(member("a", assignment("t", 0, user_data=b"x"))),
        classic(member("a", assignment("t", 0)), member("b", assignment("t", 0))),
        classic(*(member(f"m{number}", b"") for number in range(MAX_SIZE + 1))),
    ],
    ids=["type", "empty", "version", "short", "assignment", "custom", "twice", "large"],
)
def test_a_group_that_cannot_be_read_stays_as_it_is(group: Group) -> None:
    with pytest.raises(NotConvertible):
        to_consumer_records(group, topics_of_test(), max_size=MAX_SIZE)


def test_a_newer_version_of_a_subscription_is_read_as_far_as_it_is_known() -> None:
    newer = b"\0\x09" + subscription("t")[2:] + b"more"
    group = converted(classic(member("a", b"", subscription=newer)), topics_of_test())
    assert group.members["a"].metadata.subscribed_topic_names == ["t"]


def test_a_group_with_a_member_of_the_consumer_protocol_stays_one() -> None:
    topics = topics_of_test()
    group = converted(classic_pair(), topics)
    group.members["a"].metadata.classic = None
    with pytest.raises(NotConvertible):
        to_classic_group(group, topics.names, now_ms=3)
    with pytest.raises(NotConvertible):
        to_classic_group(ConsumerGroup("g"), topics.names, now_ms=3)


def test_members_that_share_no_protocol_stay_in_a_consumer_group() -> None:
    topics = topics_of_test()
    group = converted(classic_pair(), topics)
    metadata = group.members["b"].metadata.classic
    assert metadata is not None
    metadata.supported_protocols[0].name = "other"
    with pytest.raises(NotConvertible):
        to_classic_group(group, topics.names, now_ms=3)
