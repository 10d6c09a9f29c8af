"""Which members of a consumer group commit and fetch offsets, and how the group is described."""

from collections.abc import Iterable

import pytest

from quorumlog.broker.groups.core.consumer.descriptions import (
    CLASSIC_MEMBER,
    CONSUMER_MEMBER,
    GroupListing,
    describe,
    list_groups,
)
from quorumlog.broker.groups.core.consumer.group import ConsumerGroup
from quorumlog.broker.groups.core.consumer.offsets import commit_refusal, fetch_refusal
from quorumlog.broker.groups.core.consumer.partitions import TopicIdPartition
from quorumlog.broker.groups.core.consumer.records import ClassicMemberMetadata
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.consumer.coordination import (
    SETTINGS,
    ConsumerCoordination,
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


def test_a_transaction_commits_with_the_epoch_in_any_version() -> None:
    group = shared().group
    allowed = commit_refusal(group, "a", 1, (), api_version=3, is_transactional=True)
    assert allowed is ErrorCode.NONE
    stale = commit_refusal(group, "a", 2, (), api_version=3, is_transactional=True)
    assert stale is ErrorCode.STALE_MEMBER_EPOCH


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
def test_a_member_fetches_with_its_epoch(
    member_id: str | None, epoch: int, refusal: ErrorCode
) -> None:
    assert fetch_refusal(shared().group, member_id, epoch) is refusal


def test_a_classic_member_fetches_with_its_generation() -> None:
    group = shared(classic=True).group
    assert fetch_refusal(group, "a", 2) is ErrorCode.ILLEGAL_GENERATION


def test_a_group_is_described() -> None:
    groups = shared(classic=True)
    topic_id = groups.topics.id_of("t")
    shown = describe(groups.group, "uniform", groups.topics.names)
    assert (shown.group_id, shown.state, shown.assignor_name) == ("g", "Reconciling", "uniform")
    assert (shown.group_epoch, shown.assignment_epoch) == (2, 2)
    first, second = shown.members
    assert (first.member_id, first.member_epoch, first.rack_id) == ("a", 1, "r")
    assert (first.client_id, first.client_host, first.instance_id) == ("c", "h", None)
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (("t",), None)
    assert first.assignment == ((topic_id, "t", (0, 1, 2, 3)),)
    assert first.target == ((topic_id, "t", (0, 1)),)
    assert (first.member_type, second.member_type) == (CLASSIC_MEMBER, CONSUMER_MEMBER)
    assert (second.member_epoch, second.assignment) == (2, ())
    groups.topics.set("t", 0)
    assert describe(groups.group, "uniform", groups.topics.names).members[0].assignment == ()


def test_a_description_shows_what_is_committed_only() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a"))
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
    assert SETTINGS.assignors == ("uniform", "range")


def test_groups_are_listed_by_state_and_type() -> None:
    groups = ConsumerCoordination()
    groups.beat(join("a", group_id="stable"))
    groups.beat(join("a", group_id="empty"))
    groups.beat(heartbeat("a", -1, group_id="empty"))
    everything = groups.consumer.groups.values()
    empty = GroupListing(group_id="empty", state="Empty")
    stable = GroupListing(group_id="stable", state="Stable")
    assert list_groups(everything) == [empty, stable]
    assert list_groups(everything, states=["STABLE", "x"]) == [stable]
    assert list_groups(everything, types=["Consumer"]) == [empty, stable]
    assert list_groups(everything, types=["classic"]) == []
    assert (stable.protocol_type, stable.group_type) == ("consumer", "consumer")
