"""Committed offsets: who may write and delete them, when they count, how long they stay."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.requests import (
    CommitResult,
    CommittedOffset,
    DeleteGroup,
    DeleteOffsets,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from quorumlog.wire.codec.schemas import encode_message
from tests.support.coordination.groups_begun import committed as with_offset
from tests.support.coordination.groups_begun import stable as stable_group
from tests.support.groups.coordination import (
    SETTINGS,
    T0,
    T1,
    Coordination,
    beat,
    commit,
    join,
    leave,
    sync,
)


def offset(group: Coordination) -> int | None:
    committed = group.coordinator.fetch_offsets("g", [T0])[T0]
    return None if committed is None else committed.offset


def outcome(group: Coordination, request_id: int) -> ErrorCode:
    result = group.replies[request_id]
    assert isinstance(result, CommitResult)
    return result.partitions.get(T0, result.error_code)


def test_a_commit_that_cannot_be_written_changes_nothing() -> None:
    group = with_offset(5)
    request_id = group.ask(commit(6))
    group.fail_write()
    assert outcome(group, request_id) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert offset(group) == 5


def test_only_a_member_of_this_generation_commits() -> None:
    group = stable_group("a")
    assert group.answer(commit(1)) == commit(1).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert group.answer(commit(1, "b", 1)) == commit(1).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert group.answer(commit(1, "a", 0)) == commit(1).refuse(ErrorCode.ILLEGAL_GENERATION)
    fenced = replace(commit(1, "b", 1), group_instance_id="i")
    assert group.answer(fenced) == commit(1).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert outcome(group, group.last_request_id) is ErrorCode.UNKNOWN_MEMBER_ID
    assert offset(group) is None
    group.answer(commit(1, "a", 1))
    assert offset(group) == 1


def test_a_group_of_offsets_alone_has_no_members_and_these_expire_by_their_own_age() -> None:
    group = Coordination()
    assert group.answer(commit(1, "a", 1)) == commit(1).refuse(ErrorCode.ILLEGAL_GENERATION)
    group.answer(commit(5))
    assert group.answer(commit(6, "x", 3)) == commit(6).refuse(ErrorCode.UNKNOWN_MEMBER_ID)
    assert offset(group) == 5
    group.tick(40_000)
    group.answer(replace(commit(7), offsets={T1: CommittedOffset(offset=7)}))
    group.tick(30_000)
    group.commit_writes()
    assert [*group.coordinator.fetch_offsets("g", None)] == [T1]


def test_the_empty_group_keeps_offsets_and_is_deleted() -> None:
    """Of clients that are older than groups: Kafka has kept taking these."""
    group = Coordination()
    group.answer(replace(commit(5), group_id=""))
    for known in (group, group.reloaded()):
        assert known.coordinator.fetch_offsets("", [T0])[T0] is not None
    assert group.answer(DeleteGroup(group_id="")) is ErrorCode.NONE
    assert group.coordinator.known_groups() == []


def test_metadata_has_a_limit_for_each_partition() -> None:
    group = Coordination(replace(SETTINGS, offset_metadata_max_bytes=3))
    long = CommittedOffset(offset=1, metadata="long")
    both = {T0: long, T1: CommittedOffset(offset=2, metadata="fit")}
    codes = {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE, T1: ErrorCode.NONE}
    result = group.answer(replace(commit(1), offsets=both))
    assert result == CommitResult(error_code=ErrorCode.NONE, partitions=codes)
    alone = replace(commit(1), offsets={T0: long})
    group.ask(alone)
    assert group.writes == []
    assert outcome(group, group.last_request_id) is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_all_offsets_are_those_that_are_committed() -> None:
    group = with_offset(5)
    assert [*group.coordinator.fetch_offsets("g", None)] == [T0]
    assert group.coordinator.fetch_offsets("g", [T1]) == {T1: None}
    assert group.coordinator.fetch_offsets("other", None) == {}
    request_id = group.ask(commit(6))
    assert (offset(group), request_id in group.replies) == (5, False)
    group.commit_writes()
    assert (offset(group), outcome(group, request_id)) == (6, ErrorCode.NONE)


def test_offsets_age_from_when_the_group_lost_its_last_member() -> None:
    """KIP-211: not from a commit that may be older than that, while the group was at work."""
    group = stable_group("a")
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
    assert group.coordinator.groups == group.reloaded().coordinator.groups == {}
    assert group.log[-1].group_id == "g", "by a tombstone"


def test_a_group_is_kept_as_long_as_one_of_its_offsets() -> None:
    group = stable_group("a")
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


def test_a_group_that_emptied_without_offsets_is_forgotten() -> None:
    group = stable_group("a")
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
    group = stable_group("a")
    group.answer(leave("a"))
    group.ask(DeleteGroup(group_id="g"))
    group.ask(join(new_member_id="b"))
    group.commit_writes()
    group.tick(200)
    assert group.coordinator.groups["g"].generation_id == 3


def test_offsets_of_a_deleted_topic_are_forgotten() -> None:
    """Also one that is being written."""
    for is_written in (True, False):
        group = Coordination()
        group.ask(commit(5))
        if is_written:
            group.commit_writes()
            group.step(events.TopicsDeleted(topics=("other",)))
            assert group.writes == []
        group.step(events.TopicsDeleted(topics=("t",)))
        group.commit_writes()
        assert offset(group) is None


DELETE = DeleteOffsets(group_id="g", partitions=(T0,))


def subscription(*topics: str, version: int = 3) -> bytes:
    message = ConsumerProtocolSubscription(topics=[*topics], rack_id="r")
    body = b"".join(encode_message(message, version))
    return version.to_bytes(2, "big") + body


def stable_of(metadata: Sequence[bytes], protocol_type: str = "consumer") -> Coordination:
    """Return a group with an offset in `t`, and a member for each of these."""
    group = with_offset(5)
    names = [f"m{number}" for number, _ in enumerate(metadata)]
    for name, data in zip(names, metadata, strict=True):
        protocols = (("range", data),)
        group.ask(join(new_member_id=name, protocol_type=protocol_type, protocols=protocols))
    group.tick(200)
    for name in names:
        group.ask(sync(name, 1))
    group.commit_writes()
    return group


def deleted(group: Coordination) -> ErrorCode:
    group.answer(DELETE)
    return outcome(group, group.last_request_id)


def test_an_offset_of_nobody_is_deleted_once_that_is_committed() -> None:
    group = with_offset(5)
    request_id = group.ask(DELETE)
    assert (request_id in group.replies, offset(group)) == (False, 5)
    group.commit_writes()
    expected = CommitResult(error_code=ErrorCode.NONE, partitions={T0: ErrorCode.NONE})
    assert group.replies[request_id] == expected
    assert offset(group) is None
    assert offset(group.reloaded()) is None


def test_a_deletion_that_cannot_be_written_deletes_nothing() -> None:
    group = with_offset(5)
    request_id = group.ask(DELETE)
    group.fail_write()
    assert group.replies[request_id] == DELETE.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert offset(group) == 5


def test_where_there_is_no_offset_nothing_is_written() -> None:
    unknown = Coordination()
    assert unknown.answer(DELETE) == DELETE.refuse(ErrorCode.GROUP_ID_NOT_FOUND)
    group = stable_of([subscription("other")])
    assert deleted(group) is ErrorCode.NONE
    request_id = group.ask(DELETE)
    assert (group.writes, request_id in group.replies) == ([], True)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_an_offset_that_a_member_goes_by_stays(version: int) -> None:
    group = stable_of([subscription("other", version=version), subscription("x", "t")])
    assert deleted(group) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert offset(group) == 5
    group.answer(leave("m1"))
    group.tick(3000)  # members that do not come back are removed
    assert deleted(group) is ErrorCode.NONE
    assert offset(group) is None


def test_a_subscription_that_names_a_newer_version_than_it_has_is_read() -> None:
    group = stable_of([b"\0\1" + subscription("other", version=0)[2:]])
    assert deleted(group) is ErrorCode.NONE


@pytest.mark.parametrize("metadata", [b"", b"\0", b"\0\0\0\0\0\5", b"\0\0\0\0\0\1\0\1\xff"])
def test_of_a_member_that_cannot_be_read_every_offset_stays(metadata: bytes) -> None:
    group = stable_of([subscription("other"), metadata])
    assert deleted(group) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert offset(group) == 5


def test_of_a_group_that_has_no_generation_yet_every_offset_stays() -> None:
    group = with_offset(5)
    group.ask(join(protocols=(("range", subscription("other")),)))
    assert deleted(group) is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_of_a_group_of_another_protocol_type_nothing_is_deleted_while_it_has_members() -> None:
    group = stable_of([subscription("other")], protocol_type="connect")
    assert group.answer(DELETE) == DELETE.refuse(ErrorCode.NON_EMPTY_GROUP)
    group.answer(leave("m0"))
    assert deleted(group) is ErrorCode.NONE


def test_a_group_stays_when_its_last_offset_goes() -> None:
    group = stable_of([subscription("other")])
    group.answer(leave("m0"))
    assert deleted(group) is ErrorCode.NONE
    assert group.reloaded().coordinator.groups["g"].generation_id == 2
