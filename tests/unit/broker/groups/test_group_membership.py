"""Joining, rebalancing, leaving, and the sessions of members, told as small stories."""

from dataclasses import replace

import pytest

from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.requests import (
    DeleteOffsets,
    JoinResult,
    LeaveResult,
    Request,
    SyncResult,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.coordination.groups_begun import stable as stable_group
from tests.support.groups.coordination import (
    SETTINGS,
    T0,
    Coordination,
    beat,
    commit,
    join,
    leave,
    sync,
)


def joined(group: Coordination, request_id: int) -> JoinResult:
    result = group.replies[request_id]
    assert isinstance(result, JoinResult)
    return result


def test_a_member_id_that_is_never_used_lapses() -> None:
    group = Coordination()
    group.ask(join(new_member_id="a", requires_known_member_id=True))
    group.tick(1000)
    assert group.coordinator.groups == {}
    refused = joined(group, group.ask(join("a")))
    assert refused.error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_group_waits_for_more_members_but_not_for_ever() -> None:
    group = Coordination()
    first = group.ask(join(new_member_id="a", rebalance_timeout_ms=250))
    for name in "bcd":
        group.tick(90)
        group.ask(join(new_member_id=name, rebalance_timeout_ms=250))
    assert first in group.replies, "the delay is prolonged up to the rebalance timeout"
    assert {member.member_id for member in joined(group, first).members} == {"a", "b", "c"}


def test_the_protocol_that_most_members_want_is_chosen_among_those_that_all_know() -> None:
    group = Coordination()
    wishes = [("range", "sticky"), ("sticky", "range"), ("sticky", "range", "other")]
    for name, wish in zip("abc", wishes, strict=True):
        group.ask(join(new_member_id=name, protocols=tuple((word, b"") for word in wish)))
    group.tick(200)
    assert joined(group, 1).protocol_name == "sticky"
    stranger = group.ask(join(new_member_id="d", protocols=(("other", b""),)))
    assert joined(group, stranger).error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_rebalance_during_the_write_makes_its_outcome_old_news() -> None:
    group = stable_group("a", "b")
    group.ask(join("a"))
    group.ask(join("b"))
    late = group.ask(sync("a", 2, a=b"A2", b=b"B2"))
    newcomer = group.ask(join(new_member_id="c"))
    assert group.replies[late] == SyncResult(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    group.commit_writes()
    assert group.coordinator.groups["g"].state is GroupState.PREPARING_REBALANCE
    group.ask(join("a"))
    group.ask(join("b"))
    assert joined(group, newcomer).generation_id == 3


def test_who_does_not_rejoin_in_time_is_left_behind() -> None:
    group = stable_group("a", "b")
    group.ask(join(new_member_id="c"))
    a = group.ask(join("a"))
    for _ in range(4):  # b is alive, but does not join
        group.tick(500)
        group.ask(beat("b", 1))
    assert [member.member_id for member in joined(group, a).members] == ["a", "c"]
    assert group.answer(beat("b", 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_does_not_sync_in_time_is_left_behind() -> None:
    group = Coordination()
    group.ask(join(new_member_id="a"))
    group.ask(join(new_member_id="b"))
    group.tick(200)
    group.ask(sync("a", 1, a=b"A", b=b"B"))
    group.commit_writes()
    for _ in range(5):
        group.tick(400)
        group.ask(beat("a", 1))
        group.ask(beat("b", 1))
    assert group.answer(beat("b", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.answer(beat("a", 1)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_rebalance_waits_for_those_who_were_just_told_their_member_id() -> None:
    """KIP-394: otherwise each newcomer would start a rebalance of its own."""
    group = stable_group("a")
    group.ask(join(new_member_id="b", requires_known_member_id=True))
    leading = group.ask(join("a"))
    assert leading not in group.replies
    group.ask(join("b"))
    assert [member.member_id for member in joined(group, leading).members] == ["a", "b"]


def test_a_lost_join_answer_is_said_again() -> None:
    group = Coordination()
    group.ask(join(new_member_id="a"))
    group.ask(join(new_member_id="b"))
    group.tick(200)
    again = joined(group, group.ask(join("b")))
    assert (again.generation_id, again.leader) == (1, "a")
    group.ask(sync("a", 1, a=b"A", b=b"B"))
    group.commit_writes()
    again = joined(group, group.ask(join("b")))
    assert again.generation_id == 1
    assert group.coordinator.groups["g"].state is GroupState.STABLE


def test_a_newer_join_of_a_member_answers_the_older_one() -> None:
    group = stable_group("a", "b")
    old = group.ask(join("a"))
    new = group.ask(join("a"))
    assert joined(group, old).error_code is ErrorCode.REBALANCE_IN_PROGRESS
    group.ask(join("b"))
    assert joined(group, new).generation_id == 2


def test_leaving_says_the_outcome_for_each_member() -> None:
    group = stable_group("a", "b")
    result = group.answer(leave("a", "nobody"))
    outcomes = (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    assert result == LeaveResult(error_code=ErrorCode.NONE, members=outcomes)
    group.answer(leave("b"))
    state = group.coordinator.groups["g"]
    assert (state.state, state.generation_id) == (GroupState.EMPTY, 2)
    again = LeaveResult(error_code=ErrorCode.NONE, members=outcomes[1:])
    assert group.answer(leave("b")) == again


def test_a_member_that_leaves_while_it_joins_is_answered() -> None:
    group = Coordination()
    waiting = group.ask(join(new_member_id="a"))
    group.answer(leave("a"))
    assert joined(group, waiting).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_requests_that_make_no_sense_are_refused() -> None:
    group = Coordination(replace(SETTINGS, group_max_size=1, group_min_session_timeout_ms=500))
    refused = {
        ErrorCode.INVALID_GROUP_ID: [join(group_id=""), join(group_id="x" * 32_768)],
        ErrorCode.INVALID_SESSION_TIMEOUT: [join(session_timeout_ms=499)],
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: [join(protocols=()), join(protocol_type="")],
        ErrorCode.INVALID_REQUEST: [
            join(group_instance_id="x" * 32_768),
            join(new_member_id="x" * 32_768),  # of a client with a very long id
            join(protocol_type="x" * 32_768),
            join(protocols=(("x" * 32_768, b""),)),
        ],
        ErrorCode.UNKNOWN_MEMBER_ID: [join("stranger")],
    }
    for error_code, requests in refused.items():
        for request in requests:
            assert joined(group, group.ask(request)).error_code is error_code
    assert group.coordinator.groups == {}
    assert group.answer(beat("stranger", 0)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.answer(sync("stranger", 0)) == SyncResult(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    deletion = DeleteOffsets(group_id="g", partitions=(T0,))
    others: tuple[Request, ...] = (beat("a", 0), sync("a", 0), leave("a"), deletion)
    for other in others:
        nameless = replace(other, group_id="")
        assert group.answer(nameless) == nameless.refuse(ErrorCode.INVALID_GROUP_ID)


def test_the_longest_names_fit_into_a_record() -> None:
    longest = "x" * 32_767
    group = Coordination()
    protocols = ((longest, b""),)
    ids = {"new_member_id": longest, "group_instance_id": longest, "group_id": longest}
    group.ask(join(protocol_type=longest, protocols=protocols, **ids))
    group.tick(200)
    group.answer(replace(sync(longest, 1), group_id=longest))
    assert group.reloaded().coordinator.groups[longest].state is GroupState.STABLE


def test_a_group_never_has_more_members_than_it_may() -> None:
    group = Coordination(replace(SETTINGS, group_max_size=2))
    group.stable("a", "b")
    refused = group.ask(join(new_member_id="c"))
    assert joined(group, refused).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    group.ask(join("a"))  # it leads: all must join again
    fast = group.ask(join(new_member_id="c"))
    slow = group.ask(join("b"))
    assert joined(group, slow).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(group, fast).error_code is ErrorCode.NONE
    assert [*group.coordinator.groups["g"].members] == ["a", "c"]


def test_a_loaded_group_with_more_members_than_it_may_have_rebalances() -> None:
    """KIP-389: the limit may have been lowered before the coordinator took over."""
    group = stable_group("a", "b")
    limited = Coordination(replace(SETTINGS, group_max_size=1), batches=group.batches)
    assert limited.answer(beat("a", 1)) is ErrorCode.REBALANCE_IN_PROGRESS
    first, second = limited.ask(join("b")), limited.ask(join("a"))
    assert joined(limited, second).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(limited, first).error_code is ErrorCode.NONE
    same_limit = Coordination(replace(SETTINGS, group_max_size=2), batches=group.batches)
    assert same_limit.answer(beat("a", 1)) is ErrorCode.NONE


def test_sync_is_for_this_generation_and_protocol() -> None:
    group = stable_group("a")
    wrong = replace(sync("a", 1), protocol_name="sticky")
    assert group.answer(wrong) == SyncResult(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    wrong = replace(sync("a", 1), protocol_type="connect")
    assert group.answer(wrong) == SyncResult(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assert group.answer(sync("a", 2)) == SyncResult(error_code=ErrorCode.ILLEGAL_GENERATION)
    right = group.answer(replace(sync("a", 1), protocol_name="range", protocol_type="consumer"))
    assert right == SyncResult(
        error_code=ErrorCode.NONE, protocol_type="consumer", protocol_name="range", assignment=b"a"
    )


def members(group: Coordination) -> list[str]:
    return [*group.coordinator.groups["g"].members]


@pytest.mark.parametrize("sign", [beat("b", 1), commit(1, "b", 1), sync("b", 1), join("b")])
def test_whatever_a_member_asks_is_a_sign_of_life(sign: Request) -> None:
    group = stable_group("a", "b")
    group.tick(600)
    group.answer(sign)
    group.tick(600)
    assert members(group) == ["b"]
    group.tick(600)
    assert "g" not in group.coordinator.groups or members(group) == []


def test_a_new_session_begins_when_the_assignment_is_told() -> None:
    group = Coordination()
    for name in ("a", "b"):
        group.ask(join(new_member_id=name))
    group.tick(200)
    waiting = group.ask(sync("b", 1))
    group.tick(900)
    group.answer(beat("a", 1))
    group.tick(900)  # who waits does not beat: it is alive all the same
    group.answer(sync("a", 1, a=b"1", b=b"2"))
    assert waiting in group.replies
    group.tick(900)
    assert group.answer(beat("b", 1)) is ErrorCode.NONE


def test_who_waited_for_an_assignment_has_a_session_to_join_again() -> None:
    group = Coordination()
    for name in ("a", "b"):
        group.ask(join(new_member_id=name))
    group.tick(200)
    group.ask(sync("b", 1))
    group.tick(900)
    group.ask(join(new_member_id="c"))
    group.tick(900)
    assert "b" in members(group)


def test_a_new_member_whose_client_may_be_gone_waits_five_minutes_at_most() -> None:
    group = stable_group("a")
    slow: dict[str, object] = {"rebalance_timeout_ms": 1_000_000, "session_timeout_ms": 1_800_000}
    group.ask(join("a", **slow))
    group.tick(0)
    group.ask(sync("a", 2, a=b""))
    group.commit_writes()
    waiting = group.ask(join("", new_member_id="b", **slow))
    group.tick(299_999)
    assert waiting not in group.replies
    group.tick(1)
    answer = group.replies[waiting]
    assert isinstance(answer, JoinResult)
    assert answer.error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert members(group) == ["a"]


def test_a_member_that_wants_something_else_starts_a_rebalance() -> None:
    group = stable_group("a", "b")
    again = group.ask(join("b"))
    assert again in group.replies, "nothing new: the same generation is told again"
    group.ask(join("b", protocols=(("range", b"another subscription"),)))
    assert group.coordinator.groups["g"].state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_syncs_again_writes_nothing_more() -> None:
    """Its client lost the connection; a second record would be another assignment than is told."""
    group = Coordination()
    group.ask(join(new_member_id="a"))
    group.tick(100)
    first = group.ask(sync("a", 1, a=b"first"))
    second = group.ask(sync("a", 1, a=b"second"))
    assert group.replies[first] == SyncResult(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(group.writes) == 1
    group.commit_writes()
    told = group.replies[second]
    assert isinstance(told, SyncResult)
    assert told.assignment == b"first"
    assert group.reloaded().answer(sync("a", 1)) == told
