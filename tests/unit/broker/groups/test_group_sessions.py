"""What keeps a member in its group, and what a retry does: sessions last 1000 ms here."""

import pytest

from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.groups.core.requests import JoinResult, Request, SyncResult
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.groups.coordination import Coordination, beat, commit, join, sync


def members(group: Coordination) -> list[str]:
    return [*group.coordinator.groups["g"].members]


@pytest.mark.parametrize("sign", [beat("b", 1), commit(1, "b", 1), sync("b", 1), join("b")])
def test_whatever_a_member_asks_is_a_sign_of_life(sign: Request) -> None:
    group = Coordination()
    group.stable("a", "b")
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
    group = Coordination()
    group.stable("a")
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
    group = Coordination()
    group.stable("a", "b")
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
