"""Committed offsets: who may write them, when they count, how long they stay."""

from dataclasses import replace

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.requests import CommitResult, CommittedOffset, DeleteGroup
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.coordination import (
    SETTINGS,
    T0,
    T1,
    Coordination,
    beat,
    commit,
    join,
    leave,
)


def offset(group: Coordination) -> int | None:
    committed = group.coordinator.fetch_offsets("g", [T0])[T0]
    return None if committed is None else committed.offset


def outcome(group: Coordination, request_id: int) -> ErrorCode:
    result = group.replies[request_id]
    assert isinstance(result, CommitResult)
    return result.partitions.get(T0, result.error_code)


def test_an_offset_counts_once_it_is_committed_and_not_before() -> None:
    group = Coordination()
    group.answer(commit(5))
    request_id = group.ask(commit(6))
    assert (offset(group), request_id in group.replies) == (5, False)
    group.commit_writes()
    assert (offset(group), outcome(group, request_id)) == (6, ErrorCode.NONE)


def test_a_commit_that_cannot_be_written_changes_nothing() -> None:
    group = Coordination()
    group.answer(commit(5))
    request_id = group.ask(commit(6))
    group.fail_write()
    assert outcome(group, request_id) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert offset(group) == 5


def test_an_older_commit_that_ends_after_a_newer_one_began_does_not_win() -> None:
    group = Coordination()
    group.ask(commit(5))
    group.ask(commit(6))
    group.commit_write()
    assert offset(group) == 5
    group.commit_write()
    assert offset(group) == 6


def test_only_a_member_of_this_generation_commits() -> None:
    group = Coordination()
    group.stable("a")
    assert group.answer(commit(1)) == commit(1).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert group.answer(commit(1, "b", 1)) == commit(1).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert group.answer(commit(1, "a", 0)) == commit(1).refuse(ErrorCode.ILLEGAL_GENERATION)
    fenced = replace(commit(1, "b", 1), group_instance_id="i")
    assert group.answer(fenced) == commit(1).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert outcome(group, group.last_request_id) is ErrorCode.UNKNOWN_MEMBER_ID
    assert offset(group) is None
    group.answer(commit(1, "a", 1))
    assert offset(group) == 1


def test_without_a_group_a_generation_makes_no_sense() -> None:
    group = Coordination()
    assert group.answer(commit(1, "a", 1)) == commit(1).refuse(ErrorCode.ILLEGAL_GENERATION)


def test_a_group_of_offsets_alone_has_no_members() -> None:
    group = Coordination()
    group.answer(commit(5))
    assert group.answer(commit(6, "x", 3)) == commit(6).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert offset(group) == 5


def test_the_empty_group_keeps_offsets_and_is_deleted() -> None:
    """Of clients that are older than groups: Kafka has kept taking these."""
    group = Coordination()
    group.answer(replace(commit(5), group_id=""))
    for known in (group, group.reloaded()):
        assert known.coordinator.fetch_offsets("", [T0])[T0] is not None
    assert group.answer(DeleteGroup(group_id="")) is ErrorCode.NONE
    assert group.coordinator.known_groups() == []


def test_a_tool_commits_for_a_group_only_while_nobody_is_there() -> None:
    group = Coordination()
    group.stable("a")
    refused = group.answer(commit(5))
    assert refused == commit(5).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    group.answer(leave("a"))
    accepted = group.answer(commit(5))
    assert isinstance(accepted, CommitResult)
    assert accepted.partitions == {T0: ErrorCode.NONE}


def test_metadata_has_a_limit_for_each_partition() -> None:
    group = Coordination(replace(SETTINGS, offset_metadata_max_bytes=3))
    request = replace(
        commit(1),
        offsets={
            T0: CommittedOffset(offset=1, metadata="long"),
            T1: CommittedOffset(offset=2, metadata="fit"),
        },
    )
    assert group.answer(request) == CommitResult(
        error_code=ErrorCode.NONE,
        partitions={T0: ErrorCode.OFFSET_METADATA_TOO_LARGE, T1: ErrorCode.NONE},
    )
    alone = replace(request, offsets={T0: CommittedOffset(offset=1, metadata="long")})
    group.ask(alone)
    assert group.writes == []
    assert outcome(group, group.last_request_id) is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_all_offsets_are_those_that_are_committed() -> None:
    group = Coordination()
    group.answer(commit(5))
    assert [*group.coordinator.fetch_offsets("g", None)] == [T0]
    assert group.coordinator.fetch_offsets("g", [T1]) == {T1: None}
    assert group.coordinator.fetch_offsets("other", None) == {}


def test_offsets_of_a_group_with_members_never_expire() -> None:
    group = Coordination()
    group.stable("a")
    group.answer(commit(5, "a", 1))
    for _ in range(100):
        group.tick(900)
        group.ask(beat("a", 1))
    assert group.writes == []
    assert offset(group) == 5


def test_offsets_expire_some_time_after_the_last_member_left() -> None:
    group = Coordination()
    group.stable("a")
    group.answer(commit(5, "a", 1))
    group.answer(leave("a"))
    group.tick(50_000)
    group.commit_writes()
    assert offset(group) == 5
    group.tick(30_000)
    group.commit_writes()
    assert offset(group) is None
    assert group.coordinator.groups == {}
    assert group.reloaded().coordinator.groups == {}
    assert group.log[-1].group_id == "g", "by a tombstone"


def test_offsets_age_from_when_the_group_lost_its_last_member() -> None:
    """KIP-211: not from a commit that may be older than that, while the group was at work."""
    group = Coordination()
    group.stable("a")
    group.answer(commit(5, "a", 1))
    for _ in range(60):
        group.tick(900)
        group.answer(beat("a", 1))
    group.answer(leave("a"))
    group.tick(50_000)
    group.commit_writes()
    assert offset(group) == 5, "committed more than a minute ago, but left 50 s ago"
    group.tick(30_000)
    group.commit_writes()
    assert offset(group) is None


def test_a_group_is_kept_as_long_as_one_of_its_offsets() -> None:
    group = Coordination()
    group.stable("a")
    group.answer(commit(5, "a", 1))
    group.answer(leave("a"))
    group.tick(40_000)
    group.answer(replace(commit(7), offsets={T1: CommittedOffset(offset=7)}))
    group.tick(30_000)
    group.commit_writes()
    assert [*group.coordinator.fetch_offsets("g", None)] == [T1]
    assert group.reloaded().coordinator.groups["g"].generation_id == 2


def test_a_group_that_somebody_is_about_to_join_is_not_forgotten() -> None:
    group = Coordination()
    group.ask(join(new_member_id="p", requires_known_member_id=True, session_timeout_ms=20_000))
    group.ask(join(new_member_id="q", requires_known_member_id=True, session_timeout_ms=5_000))
    group.tick(15_000)
    assert [*group.coordinator.groups["g"].pending] == ["p"]


def test_a_group_that_somebody_is_about_to_join_is_deleted_all_the_same() -> None:
    """Kafka: a client that has only been given a member id is no member."""
    with_offset, bare = Coordination(), Coordination()
    with_offset.answer(commit(5))
    for group in (with_offset, bare):
        group.ask(join(new_member_id="p", requires_known_member_id=True))
        assert group.answer(DeleteGroup(group_id="g")) is ErrorCode.NONE
        assert (offset(group), group.coordinator.known_groups()) == (None, [])
        joining = group.ask(join("p"))
        assert group.replies[joining] == join("p").refuse(ErrorCode.UNKNOWN_MEMBER_ID)


def test_a_group_whose_only_record_is_being_written_is_deleted_after_it() -> None:
    group = Coordination()
    group.ask(join(new_member_id="a"))
    group.ask(leave("a"))
    group.tick(200)
    assert group.coordinator.groups["g"].state is GroupState.EMPTY
    assert len(group.writes) == 1
    deleting = group.ask(DeleteGroup(group_id="g"))
    assert (len(group.writes), deleting in group.replies) == (2, False)
    group.commit_writes()
    assert group.replies[deleting] is ErrorCode.NONE
    assert group.coordinator.groups == {}
    assert group.reloaded().coordinator.known_groups() == []


def test_offsets_without_a_group_expire_by_their_own_age() -> None:
    group = Coordination()
    group.answer(commit(5))
    group.tick(40_000)
    group.answer(replace(commit(7), offsets={T1: CommittedOffset(offset=7)}))
    group.tick(30_000)
    group.commit_writes()
    assert [*group.coordinator.fetch_offsets("g", None)] == [T1]


def test_a_group_that_emptied_without_offsets_is_forgotten() -> None:
    group = Coordination()
    group.stable("a")
    group.answer(leave("a"))
    group.tick(10_000)
    group.commit_writes()
    assert (group.coordinator.groups, group.coordinator.committed.groups) == ({}, {})


def test_a_group_is_deleted_only_when_it_is_empty() -> None:
    group = Coordination()
    delete = DeleteGroup(group_id="g")
    assert group.answer(delete) is ErrorCode.GROUP_ID_NOT_FOUND
    group.stable("a")
    group.answer(commit(5, "a", 1))
    assert group.answer(delete) is ErrorCode.NON_EMPTY_GROUP
    group.answer(leave("a"))
    request_id = group.ask(delete)
    assert request_id not in group.replies
    group.commit_writes()
    assert group.replies[request_id] is ErrorCode.NONE
    assert group.coordinator.known_groups() == []
    assert group.reloaded().coordinator.known_groups() == []


def test_a_group_that_gets_a_member_while_it_is_deleted_lives_on() -> None:
    group = Coordination()
    group.stable("a")
    group.answer(leave("a"))
    group.ask(DeleteGroup(group_id="g"))
    group.ask(join(new_member_id="b"))
    group.commit_writes()
    group.tick(200)
    assert group.coordinator.groups["g"].generation_id == 3


def test_offsets_of_a_deleted_topic_are_forgotten() -> None:
    group = Coordination()
    group.answer(commit(5))
    group.step(events.TopicsDeleted(topics=("other",)))
    assert group.writes == []
    group.step(events.TopicsDeleted(topics=("t",)))
    group.commit_writes()
    assert offset(group) is None


def test_an_offset_that_is_written_while_its_topic_is_deleted_is_forgotten() -> None:
    group = Coordination()
    group.ask(commit(5))
    group.step(events.TopicsDeleted(topics=("t",)))
    group.commit_writes()
    assert offset(group) is None


def test_a_reloaded_coordinator_knows_members_generation_and_offsets() -> None:
    group = Coordination()
    group.stable("a", "b")
    group.answer(commit(5, "b", 1))
    successor = group.reloaded()
    assert successor.coordinator.committed == group.coordinator.committed
    assert offset(successor) == 5
    assert successor.answer(commit(6, "b", 1)) is not None
    assert offset(successor) == 6
