"""Members with an instance id (KIP-345) come back without a rebalance, and fence who they were."""

from dataclasses import replace

import pytest

from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.requests import CommitResult, JoinResult, LeaveResult, SyncResult
from quorumlog.client.assignor import Subscription
from quorumlog.client.core.group_protocol import encode_assignment, encode_subscription
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.coordination.groups_begun import stable as stable_group
from tests.support.groups.coordination import T0, T1, Coordination, beat, commit, join, leave, sync

KNOWN = encode_subscription(Subscription(topics=("t",)))


def rejoin(group: Coordination, instance: str, new_id: str, **changes: object) -> int:
    values = {"new_member_id": new_id, "group_instance_id": instance, **changes}
    return group.ask(join("", **values))


def result(group: Coordination, request_id: int) -> JoinResult:
    answer = group.replies[request_id]
    assert isinstance(answer, JoinResult)
    return answer


def test_a_return_that_could_not_be_written_does_not_hold_up_a_newer_generation() -> None:
    """Its failure came while the newer generation's assignment was being written."""
    group = stable_group("a", instances=True)
    first = rejoin(group, "i-a", "a2")
    second = rejoin(group, "i-a", "a3")  # the client did not wait: this one starts a rebalance
    joined = result(group, second)
    assert (joined.error_code, joined.generation_id) == (ErrorCode.NONE, 2)
    syncing = group.ask(sync("a3", 2, a3=b"all"))
    group.fail_write()
    assert result(group, first).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    group.commit_writes()
    answer = group.replies[syncing]
    assert isinstance(answer, SyncResult)
    assert (answer.error_code, answer.assignment) == (ErrorCode.NONE, b"all")
    assert group.coordinator.groups["g"].state is GroupState.STABLE


def test_a_leader_comes_back_as_leader_with_nothing_to_assign() -> None:
    group = stable_group("a", "b", instances=True)
    request_id = rejoin(group, "i-a", "a2")
    group.commit_writes()
    answer = result(group, request_id)
    assert (answer.leader, answer.skip_assignment, len(answer.members)) == ("a2", True, 2)
    group = stable_group("a", "b", instances=True)  # an old client is not told that it leads
    request_id = rejoin(group, "i-a", "a2", supports_skipping_assignment=False)
    group.commit_writes()
    assert (result(group, request_id).leader, result(group, request_id).members) == ("a", ())


def test_the_next_coordinator_knows_the_new_member_id() -> None:
    group = stable_group("a", "b", instances=True)
    rejoin(group, "i-b", "b2")
    group.commit_writes()
    successor = group.reloaded()
    assert successor.answer(beat("b2", 1, "i-b")) is ErrorCode.NONE
    again = rejoin(successor, "i-b", "b3")
    successor.commit_writes()
    assert result(successor, again).generation_id == 1, "a failover is no reason to rebalance"


def test_the_old_member_id_is_fenced_while_the_new_one_is_being_written() -> None:
    """A commit of the former process would follow the record that replaces it in the log."""
    group = stable_group("a", "b", instances=True)
    rejoin(group, "i-b", "b2")
    assert group.answer(beat("b", 1, "i-b")) is ErrorCode.FENCED_INSTANCE_ID
    unnamed = commit(5, "b", 1)
    for request, error_code in (
        (unnamed, ErrorCode.UNKNOWN_MEMBER_ID),
        (replace(unnamed, group_instance_id="i-b"), ErrorCode.FENCED_INSTANCE_ID),
    ):
        answer = group.answer(request)
        assert isinstance(answer, CommitResult)
        assert {answer.error_code, *answer.partitions.values()} == {error_code}
    group.commit_writes()
    assert group.answer(beat("b2", 1, "i-b")) is ErrorCode.NONE


def test_if_the_new_member_id_cannot_be_written_the_old_one_is_back() -> None:
    group = stable_group("a", "b", instances=True)
    before = replace(group.coordinator.groups["g"].members["b"])
    request_id = rejoin(group, "i-b", "b2", rebalance_timeout_ms=5000, client_host="/other")
    group.fail_write()
    assert result(group, request_id).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group.answer(beat("b", 1, "i-b")) is ErrorCode.NONE
    state = group.coordinator.groups["g"]
    assert [*state.members] == ["a", "b"]
    assert replace(state.members["b"], session_deadline_ms=before.session_deadline_ms) == before


def test_a_member_that_leaves_before_its_new_id_is_written_has_no_place() -> None:
    group = stable_group("a", "b", instances=True)
    request_id = rejoin(group, "i-b", "b2")
    left = group.answer(leave("", instance="i-b"))
    assert left == LeaveResult(error_code=ErrorCode.NONE, members=(ErrorCode.NONE,))
    group.commit_writes()
    assert result(group, request_id).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_during_that_write_makes_the_member_ask_again() -> None:
    group = stable_group("a", "b", instances=True)
    request_id = rejoin(group, "i-b", "b2")
    group.ask(join("a", group_instance_id="i-a"))
    group.commit_writes()
    assert result(group, request_id).error_code is ErrorCode.REBALANCE_IN_PROGRESS
    again = rejoin(group, "i-b", "b3")
    assert result(group, again).generation_id == 2


def test_two_who_come_back_at_once_rebalance() -> None:
    group = stable_group("a", "b", instances=True)
    first, second = rejoin(group, "i-a", "a2"), rejoin(group, "i-b", "b2")
    group.commit_writes()
    assert result(group, first).error_code is ErrorCode.REBALANCE_IN_PROGRESS
    rejoin(group, "i-a", "a3")
    assert result(group, second).generation_id == 2


def test_what_a_static_member_owned_is_no_reason_to_rebalance() -> None:
    """A client that starts again owns nothing, and its subscription says so."""
    known = Subscription(topics=("t", "u"), owned=(T0,), generation_id=4)
    group = stable_group(
        "a", "b", instances=True, protocols=(("range", encode_subscription(known)),)
    )
    again = encode_subscription(Subscription(topics=("u", "t")))
    request_id = rejoin(group, "i-b", "b2", protocols=(("range", again),))
    group.commit_writes()
    assert result(group, request_id).generation_id == 1
    members = group.reloaded().coordinator.groups["g"].joined_members()
    assert [one.metadata for one in members if one.member_id == "b2"] == [again]


@pytest.mark.parametrize(
    "protocols",
    [
        (("range", encode_subscription(Subscription(topics=("u",)))),),
        (("range", b"no subscription"),),
        (("sticky", KNOWN), ("range", KNOWN)),
        (("sticky", KNOWN),),
    ],
    ids=["other topics", "unreadable", "another favourite", "another protocol"],
)
def test_a_static_member_that_wants_something_else_makes_the_group_rebalance(
    protocols: tuple[tuple[str, bytes], ...],
) -> None:
    group = stable_group("a", instances=True, protocols=(("range", KNOWN), ("sticky", KNOWN)))
    request_id = rejoin(group, "i-a", "a2", protocols=protocols)
    assert result(group, request_id).generation_id == 2


def test_a_member_that_comes_back_before_it_gave_up_partitions_makes_others_join() -> None:
    """Its former process would have joined again (KIP-429), and freed that partition."""
    owned = encode_subscription(Subscription(topics=("t",), owned=(T0, T1), generation_id=1))
    for assigned, generation_id in (((T0,), 2), ((T0, T1), 1)):
        group = Coordination()
        joined = rejoin(group, "i-a", "a", protocols=(("cooperative-sticky", owned),))
        group.tick(200)
        group.ask(sync("a", result(group, joined).generation_id, a=encode_assignment(assigned)))
        group.commit_writes()
        request_id = rejoin(group, "i-a", "a2", protocols=(("cooperative-sticky", KNOWN),))
        group.commit_writes()
        assert result(group, request_id).generation_id == generation_id


def test_in_a_rebalance_who_comes_back_fences_who_waits() -> None:
    group = stable_group("a", "b", instances=True)
    waiting = group.ask(join("a", group_instance_id="i-a"))
    rejoin(group, "i-a", "a2")
    assert result(group, waiting).error_code is ErrorCode.FENCED_INSTANCE_ID


def test_while_the_leader_assigns_coming_back_starts_over() -> None:
    group = Coordination()
    for name in "ab":
        rejoin(group, f"i-{name}", name)
    group.tick(200)
    waiting = group.ask(sync("b", 1))
    rejoin(group, "i-b", "b2")
    assert group.replies[waiting] == SyncResult(error_code=ErrorCode.FENCED_INSTANCE_ID)
    assert group.coordinator.groups["g"].state is GroupState.PREPARING_REBALANCE


def test_a_rebalance_keeps_static_members_that_are_away_until_their_session_ends() -> None:
    group = stable_group("a", "b", instances=True)
    request_id = group.ask(join("a", group_instance_id="i-a", rebalance_timeout_ms=500))
    group.ask(join("b", group_instance_id="i-b", session_timeout_ms=5000, rebalance_timeout_ms=500))
    assert len(result(group, request_id).members) == 2
    group.ask(join(new_member_id="c", rebalance_timeout_ms=500))
    a = group.ask(join("a", group_instance_id="i-a", rebalance_timeout_ms=500))
    group.tick(2000)
    assert {member.member_id for member in result(group, a).members} == {"a", "b", "c"}


def test_a_leader_that_is_away_leads_no_longer() -> None:
    """A static one stays a member, but nobody else could hand in the assignment."""
    group = stable_group("a", "b", instances=True)
    group.ask(join("b", group_instance_id="i-b", protocols=(("range", b"another"),)))
    group.tick(900)
    group.answer(beat("a", 1, "i-a"))
    group.tick(900)
    group.answer(beat("a", 1, "i-a"))
    group.tick(200)
    state = group.coordinator.groups["g"]
    assert ([*state.members], state.leader) == (["a", "b"], "b")
    assert group.answer(sync("b", 2, b=b"all")) != SyncResult(error_code=ErrorCode.NONE)
    assert state.state is GroupState.STABLE


def test_a_member_id_of_a_dynamic_member_is_of_no_use_to_a_static_one() -> None:
    """Otherwise one instance id would have two members."""
    group = stable_group("a", instances=True)
    group.ask(join(new_member_id="p", requires_known_member_id=True))
    replacing = group.ask(join("p", group_instance_id="i-a"))
    assert result(group, replacing).error_code is ErrorCode.FENCED_INSTANCE_ID
    new = group.ask(join("p", group_instance_id="i-p"))
    assert result(group, new).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert [*group.coordinator.groups["g"].members] == ["a"]
    for instance, error_code in (
        ("i-a", ErrorCode.FENCED_INSTANCE_ID),
        ("i-p", ErrorCode.UNKNOWN_MEMBER_ID),
        (None, ErrorCode.NONE),
    ):
        left = group.answer(leave("p", instance=instance))
        assert left == LeaveResult(error_code=ErrorCode.NONE, members=(error_code,))


def test_an_administrator_removes_an_instance() -> None:
    group = stable_group("a", "b", instances=True)
    wrong = group.answer(leave("a", instance="i-b"))
    right = group.answer(leave("", instance="i-b"))
    nobody = group.answer(leave("", instance="i-z"))
    codes = (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
    for answer, code in zip((wrong, right, nobody), codes, strict=True):
        assert answer == LeaveResult(error_code=ErrorCode.NONE, members=(code,))
