"""Members of a consumer group: they join, share, give up, leave, come back, and are refused."""

from dataclasses import replace

import pytest

from quorumlog.broker.groups.core.consumer.partitions import NO_PARTITIONS, TopicIdPartition
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat
from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.broker.groups.core.requests import DeleteGroup
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
    TopicsOfTest,
    heartbeat,
    join,
)


def shared() -> ConsumerCoordination:
    """Members a and b, each with two partitions of t, stable at epoch 2."""
    groups = ConsumerCoordination()
    some = groups.topics.some
    groups.beat(join("a"))
    groups.beat(join("b"))
    groups.beat(heartbeat("a", 1, owned=some("t", 0, 1, 2, 3)))
    groups.beat(heartbeat("a", 1, owned=some("t", 0, 1)))
    groups.beat(heartbeat("b", 2))
    assert groups.group.state is ConsumerGroupState.STABLE
    return groups


def test_a_partial_heartbeat_changes_nothing_and_is_told_nothing_twice() -> None:
    groups = shared()
    request_id = groups.ask(heartbeat("a", 2))
    assert not groups.writes
    assert groups.replies[request_id].assignment is None
    full = groups.beat(join("a", member_epoch=2, owned=groups.topics.some("t", 0, 1)))
    assert full.assignment == groups.topics.some("t", 0, 1)


def test_a_member_that_leaves_frees_its_partitions() -> None:
    groups = shared()
    left = groups.beat(heartbeat("a", -1))
    assert (left.member_id, left.member_epoch) == ("a", -1)
    assert groups.group.state.value == "Assigning"
    assert groups.beat(heartbeat("b", 2)).assignment == groups.topics.some("t", 0, 1, 2, 3)
    groups.check_replayed()
    groups.beat(heartbeat("b", -1))
    assert groups.group.state is ConsumerGroupState.EMPTY
    groups.check_replayed()


def test_a_lost_answer_is_told_again() -> None:
    groups = shared()
    groups.beat(heartbeat("b", -1))
    some = groups.topics.some
    groups.beat(heartbeat("a", 2))  # its answer, of epoch 3, is lost
    again = groups.beat(heartbeat("a", 2, owned=some("t", 0, 1)))
    assert (again.member_epoch, again.assignment) == (3, some("t", 0, 1, 2, 3))
    assert groups.refused(heartbeat("a", 2)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_with_more_than_it_was_told_is_fenced() -> None:
    groups = ConsumerCoordination()
    some = groups.topics.some
    groups.beat(join("a"))
    groups.beat(join("b"))
    groups.beat(heartbeat("a", 1, owned=some("t", 0, 1)))  # epoch 2: it has given up the rest
    fenced = heartbeat("a", 1, owned=some("t", 0, 1, 2))
    assert groups.refused(fenced) is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize("epoch", [1, 3, 9])
def test_a_member_of_another_epoch_is_fenced(epoch: int) -> None:
    groups = shared()
    assert groups.refused(heartbeat("a", epoch)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_fenced_member_joins_again_with_nothing() -> None:
    groups = shared()
    again = groups.beat(join("a"))
    assert (again.member_epoch, again.assignment) == (2, groups.topics.some("t", 0, 1))
    assert groups.group.group_epoch == 2  # nothing has changed for the others


def test_members_and_groups_that_are_not_known_are_told_to_join() -> None:
    groups = shared()
    assert groups.refused(heartbeat("x", 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert groups.refused(heartbeat("x", -1)) is ErrorCode.UNKNOWN_MEMBER_ID
    other = heartbeat("a", 2, group_id="other")
    assert groups.refused(other) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_has_room_for_so_many_members() -> None:
    groups = ConsumerCoordination(settings=replace(SETTINGS, group_consumer_max_size=1))
    groups.beat(join("a", instance_id="i"))
    assert groups.refused(join("b")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    groups.beat(join("a"))  # it is there already
    groups.beat(heartbeat("a", -2, instance_id="i"))
    groups.beat(join("b", instance_id="i"))  # and this one takes its place


ID = TopicId(bytes(16))


@pytest.mark.parametrize(
    ("request_", "error_code"),
    [
        (join("a", group_id=""), ErrorCode.INVALID_REQUEST),
        (join(""), ErrorCode.INVALID_REQUEST),
        (heartbeat("", 1, api_version=0), ErrorCode.INVALID_REQUEST),
        (heartbeat("", -1, api_version=0), ErrorCode.INVALID_REQUEST),
        (join("a", instance_id=""), ErrorCode.INVALID_REQUEST),
        (join("a", rack_id=""), ErrorCode.INVALID_REQUEST),
        (join("a", rebalance_timeout_ms=-1), ErrorCode.INVALID_REQUEST),
        (join("a", owned=None), ErrorCode.INVALID_REQUEST),
        (join("a", owned=frozenset({TopicIdPartition(ID, 0)})), ErrorCode.INVALID_REQUEST),
        (join("a", subscribed_topic_names=None), ErrorCode.INVALID_REQUEST),
        (heartbeat("a", -2), ErrorCode.INVALID_REQUEST),
        (heartbeat("a", -3), ErrorCode.INVALID_REQUEST),
        (join("a" * 32_768), ErrorCode.INVALID_REQUEST),
        (join("a", "t" * 32_768), ErrorCode.INVALID_REQUEST),
        (join("a", server_assignor="sticky"), ErrorCode.UNSUPPORTED_ASSIGNOR),
        (join("a", subscribed_topic_regex="("), ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
)
def test_a_senseless_field_is_refused(request_: ConsumerHeartbeat, error_code: ErrorCode) -> None:
    groups = ConsumerCoordination()
    assert groups.refused(request_) is error_code
    assert groups.consumer.groups == {}


def test_a_member_of_version_0_is_named_by_the_coordinator() -> None:
    groups = ConsumerCoordination()
    result = groups.beat(join("", new_member_id="new", api_version=0))
    assert result.member_id == "new"


def test_the_assignor_that_most_members_want_assigns() -> None:
    topics = TopicsOfTest()
    topics.set("t", 1)
    topics.set("u", 1)
    groups = ConsumerCoordination(topics)
    groups.beat(join("a", "t", "u", server_assignor="range"))
    groups.beat(join("b", "t", "u", server_assignor="range"))
    assert groups.group.target_of("a") == topics.some("t", 0) | topics.some("u", 0)
    groups.beat(join("c", "t", "u"))
    assert len(groups.group.target_of("a")) == 2
    groups.beat(heartbeat("a", -1))
    groups.beat(join("d", "t", "u", server_assignor="uniform"))
    groups.beat(join("e", "t", "u", server_assignor="uniform"))
    assert max(map(len, groups.group.targets.values())) == 1


def test_what_a_member_does_not_say_stays() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a", "t", rack_id="r", client_id="c", client_host="h"))
    before = groups.group.members["a"].metadata
    groups.beat(heartbeat("a", 1, client_id="c", client_host="h"))
    assert groups.group.members["a"].metadata == before
    groups.beat(heartbeat("a", 1, client_id="c2", rebalance_timeout_ms=7))
    after = groups.group.members["a"].metadata
    assert (after.client_id, after.rebalance_timeout_ms, after.rack_id) == ("c2", 7, "r")
    assert groups.group.group_epoch == 1  # its subscription is the same
    groups.check_replayed()


def test_a_member_that_unsubscribes_is_not_told_the_topic_again() -> None:
    """Not even while it has to give up others."""
    topics = TopicsOfTest()
    topics.set("t", 2)
    topics.set("u", 2)
    groups = ConsumerCoordination(topics)
    groups.beat(join("a", "t", "u"))
    groups.beat(join("b", "t"))
    told = groups.beat(heartbeat("a", 1))
    assert told.assignment == topics.some("u", 0, 1)
    told = groups.beat(heartbeat("a", 1, subscribed_topic_names=("t",)))
    assert told.assignment == NO_PARTITIONS
    done = groups.beat(heartbeat("a", 1, owned=NO_PARTITIONS))
    assert done.member_epoch == groups.group.group_epoch
    groups.check_replayed()


@pytest.mark.parametrize("ends_with", ["commit", "refusal"])
def test_an_empty_group_is_deleted(ends_with: str) -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a", subscribed_topic_regex="t.*"))
    assert groups.answer(DeleteGroup(group_id="g")) is ErrorCode.NON_EMPTY_GROUP
    assert groups.answer(DeleteGroup(group_id="x")) is ErrorCode.GROUP_ID_NOT_FOUND
    groups.beat(heartbeat("a", -1))
    request_id = groups.ask(DeleteGroup(group_id="g"))
    if ends_with == "commit":
        groups.commit_writes()
        assert groups.replies[request_id] is ErrorCode.NONE
        assert groups.consumer.committed.values == {}
        assert groups.beat(join("a")).member_epoch == 1
    else:
        groups.fail_write()
        assert groups.replies[request_id] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert groups.group.state is ConsumerGroupState.EMPTY
    groups.check_replayed()


def static_pair() -> ConsumerCoordination:
    """Static members a (instance i) and b (instance j), two partitions each, at epoch 2."""
    groups = ConsumerCoordination()
    groups.beat(join("a", instance_id="i"))
    groups.beat(join("b", instance_id="j"))
    groups.beat(heartbeat("a", 1, instance_id="i", owned=groups.topics.some("t", 0, 1)))
    groups.beat(heartbeat("b", 2, instance_id="j"))
    assert groups.group.state is ConsumerGroupState.STABLE
    return groups


def test_the_instance_id_of_a_member_that_leaves_for_good_is_free() -> None:
    groups = static_pair()
    groups.beat(heartbeat("a", -1, instance_id="i"))
    assert groups.group.static == {"j": "b"}
    groups.beat(join("c", instance_id="i"))
    groups.check_replayed()


def test_it_comes_back_under_its_own_id_as_well() -> None:
    groups = static_pair()
    groups.beat(heartbeat("a", -2, instance_id="i"))
    assert groups.refused(heartbeat("a", 2, instance_id="i")) is ErrorCode.FENCED_MEMBER_EPOCH
    back = groups.beat(join("a", instance_id="i"))
    assert (back.member_epoch, back.assignment) == (2, groups.topics.some("t", 0, 1))
    groups.check_replayed()


def test_a_static_member_that_comes_back_with_other_topics_begins_an_epoch() -> None:
    groups = static_pair()
    groups.beat(heartbeat("a", -2, instance_id="i"))
    back = groups.beat(join("a2", "u", instance_id="i"))
    assert (back.member_epoch, back.assignment) == (3, frozenset())
    told = groups.beat(heartbeat("b", 2, instance_id="j"))
    assert told.assignment == groups.topics.some("t", 0, 1, 2, 3)


def test_the_instance_id_of_a_member_that_is_there_is_not_free() -> None:
    groups = static_pair()
    refused = groups.refused(join("a2", instance_id="i"))
    assert refused is ErrorCode.UNRELEASED_INSTANCE_ID
    assert groups.beat(join("a", instance_id="i")).member_epoch == 2  # its owner may join again
    groups.beat(join("a", instance_id="k"))
    assert groups.group.static == {"j": "b", "k": "a"}
    groups.check_replayed()


def test_a_member_that_was_replaced_is_fenced() -> None:
    groups = static_pair()
    groups.beat(heartbeat("a", -2, instance_id="i"))
    groups.beat(join("a2", instance_id="i"))
    for epoch in (2, -1, -2):
        request = heartbeat("a", epoch, instance_id="i")
        assert groups.refused(request) is ErrorCode.FENCED_INSTANCE_ID
    assert groups.refused(heartbeat("a", 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    unknown = heartbeat("a", 2, instance_id="k")
    assert groups.refused(unknown) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_is_removed_with_its_session() -> None:
    groups = static_pair()
    groups.beat(heartbeat("a", -2, instance_id="i"))
    groups.tick(500)
    assert groups.beat(heartbeat("b", 2, instance_id="j")).assignment is None
    groups.tick(500)
    groups.commit_writes()
    told = groups.beat(heartbeat("b", 2, instance_id="j"))
    assert told.assignment == groups.topics.some("t", 0, 1, 2, 3)
    assert groups.group.static == {"j": "b"}
    groups.check_replayed()


def test_what_a_static_member_had_to_give_up_is_free_when_it_goes() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a", instance_id="i"))
    groups.beat(join("b"))
    groups.beat(heartbeat("a", 1, instance_id="i"))
    groups.beat(heartbeat("a", -2, instance_id="i"))
    assert groups.beat(heartbeat("b", 2)).assignment == groups.topics.some("t", 2, 3)
    assert groups.beat(join("a2", instance_id="i")).assignment == groups.topics.some("t", 0, 1)


def test_a_member_that_takes_the_place_of_a_static_one_starts_anew() -> None:
    groups = static_pair()
    groups.beat(join("c"))
    groups.beat(heartbeat("a", 2, instance_id="i", owned=groups.topics.some("t", 0)))
    groups.beat(heartbeat("a", -2, instance_id="i"))
    back = groups.beat(join("c", instance_id="i"))
    assert back.member_epoch == groups.group.group_epoch
    assert groups.group.static["i"] == "c"
    assert "a" not in groups.group.members
    groups.check_replayed()
