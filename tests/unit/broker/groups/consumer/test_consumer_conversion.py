"""A classic group as a consumer group, and back: who has what stays, or nothing is converted."""

from collections.abc import Sequence

import pytest

from quorumlog.broker.groups.core.consumer.conversion import (
    NotConvertible,
    to_classic_group,
    to_consumer_records,
)
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.records import encode
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState, MemberState
from quorumlog.broker.groups.core.group import Group
from quorumlog.broker.groups.core.records import StoredGroup, StoredMember
from quorumlog.wire.codec.message import Message
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
from tests.support.groups.consumer.coordination import (
    ConsumerCoordination,
    TopicsOfTest,
    heartbeat,
    join,
)

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


def shared() -> Group:
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
    group = converted(shared(), topics)
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
    assert group.metadata_hash == topics.metadata_hash(["t"])


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
        for record in to_consumer_records(shared(), topics, max_size=MAX_SIZE)
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
    group = shared()
    stored = to_classic_group(converted(group, topics), topics.names, now_ms=3)
    assert stored == group.to_stored(
        {name: one.assignment for name, one in group.members.items()}, 3
    )


def test_what_is_gone_is_left_out_on_either_way() -> None:
    topics = topics_of_test()
    gone = classic(member("a", assignment("gone", 0)), member("b", b""))
    group = converted(gone, topics)
    assert not group.owners
    group = converted(shared(), topics)
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
    group = converted(shared(), topics)
    group.members["a"].metadata.classic = None
    with pytest.raises(NotConvertible):
        to_classic_group(group, topics.names, now_ms=3)
    with pytest.raises(NotConvertible):
        to_classic_group(ConsumerGroup("g"), topics.names, now_ms=3)


def test_members_that_share_no_protocol_stay_in_a_consumer_group() -> None:
    topics = topics_of_test()
    group = converted(shared(), topics)
    metadata = group.members["b"].metadata.classic
    assert metadata is not None
    metadata.supported_protocols[0].name = "other"
    with pytest.raises(NotConvertible):
        to_classic_group(group, topics.names, now_ms=3)
