"""Static members of a consumer group: they go for a while, come back, and are replaced."""

from quorumlog.broker.groups.core.consumer.states import ConsumerGroupState
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.consumer.coordination import ConsumerCoordination, heartbeat, join


def shared() -> ConsumerCoordination:
    """Static members a (instance i) and b (instance j), two partitions each, at epoch 2."""
    groups = ConsumerCoordination()
    groups.beat(join("a", instance_id="i"))
    groups.beat(join("b", instance_id="j"))
    groups.beat(heartbeat("a", 1, instance_id="i", owned=groups.topics.some("t", 0, 1)))
    groups.beat(heartbeat("b", 2, instance_id="j"))
    assert groups.group.state is ConsumerGroupState.STABLE
    return groups


def test_a_static_member_that_comes_back_has_its_partitions_and_disturbs_nobody() -> None:
    groups = shared()
    left = groups.beat(heartbeat("a", -2, instance_id="i"))
    assert left.member_epoch == -2
    assert groups.group.group_epoch == 2
    groups.check_replayed()
    back = groups.beat(join("a2", instance_id="i"))
    assert (back.member_epoch, back.assignment) == (2, groups.topics.some("t", 0, 1))
    assert groups.group.group_epoch == 2
    assert [*groups.group.members] == ["b", "a2"]
    assert groups.group.static == {"i": "a2", "j": "b"}
    groups.check_replayed()


def test_it_comes_back_under_its_own_id_as_well() -> None:
    groups = shared()
    groups.beat(heartbeat("a", -2, instance_id="i"))
    assert groups.refused(heartbeat("a", 2, instance_id="i")) is ErrorCode.FENCED_MEMBER_EPOCH
    back = groups.beat(join("a", instance_id="i"))
    assert (back.member_epoch, back.assignment) == (2, groups.topics.some("t", 0, 1))
    groups.check_replayed()


def test_a_static_member_that_comes_back_with_other_topics_begins_an_epoch() -> None:
    groups = shared()
    groups.beat(heartbeat("a", -2, instance_id="i"))
    back = groups.beat(join("a2", "u", instance_id="i"))
    assert (back.member_epoch, back.assignment) == (3, frozenset())
    assert groups.beat(heartbeat("b", 2, instance_id="j")).assignment == groups.topics.some(
        "t", 0, 1, 2, 3
    )


def test_the_instance_id_of_a_member_that_is_there_is_not_free() -> None:
    groups = shared()
    refused = groups.refused(join("a2", instance_id="i"))
    assert refused is ErrorCode.UNRELEASED_INSTANCE_ID
    assert groups.beat(join("a", instance_id="i")).member_epoch == 2  # its owner may join again


def test_a_member_that_was_replaced_is_fenced() -> None:
    groups = shared()
    groups.beat(heartbeat("a", -2, instance_id="i"))
    groups.beat(join("a2", instance_id="i"))
    for epoch in (2, -1, -2):
        request = heartbeat("a", epoch, instance_id="i")
        assert groups.refused(request) is ErrorCode.FENCED_INSTANCE_ID
    assert groups.refused(heartbeat("a", 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    unknown = heartbeat("a", 2, instance_id="k")
    assert groups.refused(unknown) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_is_removed_with_its_session() -> None:
    groups = shared()
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


def test_a_static_member_may_leave_for_good() -> None:
    groups = shared()
    groups.beat(heartbeat("a", -1, instance_id="i"))
    assert groups.group.static == {"j": "b"}
    groups.beat(join("c", instance_id="i"))
    groups.check_replayed()


def test_a_member_that_takes_the_place_of_a_static_one_starts_anew() -> None:
    groups = shared()
    groups.beat(join("c"))
    groups.beat(heartbeat("a", 2, instance_id="i", owned=groups.topics.some("t", 0)))
    groups.beat(heartbeat("a", -2, instance_id="i"))
    back = groups.beat(join("c", instance_id="i"))
    assert back.member_epoch == groups.group.group_epoch
    assert groups.group.static["i"] == "c"
    assert "a" not in groups.group.members
    groups.check_replayed()


def test_a_member_may_change_its_instance_id_when_it_joins_again() -> None:
    groups = shared()
    groups.beat(join("a", instance_id="k"))
    assert groups.group.static == {"j": "b", "k": "a"}
    groups.check_replayed()
