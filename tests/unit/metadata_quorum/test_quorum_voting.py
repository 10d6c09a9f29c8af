"""Rules of elections that the papers leave to the implementation, and those of rare moments."""

from typing import Any

import pytest

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import (
    Candidate,
    Follower,
    Prospective,
    Resigned,
    Unattached,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    only,
    sent,
    started,
    vote_request,
    vote_response,
)


def reply(node: Quorum, request: VoteRequest, now_ms: int = 1) -> VoteResponse:
    response = only(effects.SendResponse, node.step(now_ms, asked(request))).response
    assert isinstance(response, VoteResponse)
    return response


def prospective(now_ms: int = 1000, **started_with: Any) -> Quorum:
    node = started(**started_with)
    node.step(now_ms, events.Ticked())
    assert isinstance(node.role, Prospective)
    return node


# --- being asked ---


def test_an_observer_has_no_vote() -> None:
    node = started(9, leader_epoch=4)
    for is_pre_vote in (True, False):
        response = reply(node, vote_request(epoch=6, voter=9, pre=is_pre_vote))
        assert response.error_code is ErrorCode.INCONSISTENT_VOTER_SET
    assert node.leader_epoch == 4


def test_a_leader_refuses_every_pre_vote_of_its_epoch() -> None:
    node = started(voters=(1, 2))
    orders = node.step(1000, events.Ticked())
    for epoch in (0, 1):
        (vote,) = sent(orders, VoteRequest)
        orders = node.step(1000, answered(vote, vote_response(epoch, granted=True)))
    assert node.is_leader
    assert not reply(node, vote_request(epoch=1, log=(1, 9), pre=True), 1001).vote_granted
    assert node.is_leader


def test_one_that_stands_though_it_knows_the_leader_votes_for_nobody() -> None:
    node = prospective(2000, leader_epoch=4, leader_id=3)
    assert not reply(node, vote_request(epoch=4, log=(3, 9)), 2001).vote_granted
    assert node._state.voted_id == -1


@pytest.mark.parametrize("stands", [False, True])
def test_a_vote_starts_the_election_timeout_anew(stands: bool) -> None:
    node = prospective(leader_epoch=4) if stands else started(leader_epoch=4)
    now_ms = 1700 if stands else 700
    response = reply(node, vote_request(epoch=4, log=(3, 9)), now_ms)
    assert response.vote_granted
    assert isinstance(node.role, Unattached | Prospective)
    assert node.role.election_deadline_ms == now_ms + 1000


def test_one_that_stands_gives_one_vote_too() -> None:
    node = prospective(leader_epoch=4)
    orders = node.step(1001, asked(vote_request(2, epoch=4, log=(3, 9))))
    assert only(effects.PersistElection, orders).voted_id == 2
    assert isinstance(node.role, Prospective)
    assert not reply(node, vote_request(3, epoch=4, log=(3, 9)), 1002).vote_granted


@pytest.mark.parametrize(
    ("on_disk", "role", "left_ms"),
    [
        ({}, Unattached, 1000),
        ({"voted_id": 1}, Candidate, 1000),
        ({"leader_id": 1}, Resigned, 1000),
        ({"leader_id": 3}, Follower, 1600),  # a timer of its own: a new one
    ],
)
def test_a_mere_newer_epoch_does_not_restart_the_election_timeout(
    on_disk: dict[str, Any], role: type, left_ms: int
) -> None:
    node = started(leader_epoch=4, log_end_offset=4, epoch_starts=((1, 0),), **on_disk)
    assert isinstance(node.role, role)
    assert not reply(node, vote_request(epoch=6, log=(1, 0)), 600).vote_granted
    assert isinstance(node.role, Unattached)
    assert node.role.election_deadline_ms == left_ms


def test_one_that_stands_keeps_its_timeout_over_a_newer_epoch_too() -> None:
    node = prospective(leader_epoch=4, log_end_offset=4, epoch_starts=((1, 0),))
    assert not reply(node, vote_request(epoch=6, log=(1, 0)), 1600).vote_granted
    assert isinstance(node.role, Unattached)
    assert node.role.election_deadline_ms == 2000


# --- asking ---


def test_who_is_asked_again_is_not_yet_counted() -> None:
    """A refusal that is asked about again must not end the round before it is answered."""
    node = started(leader_epoch=4, log_end_offset=4, epoch_starts=((1, 0),))
    votes = sent(node.step(1000, events.Ticked()), VoteRequest)
    node.step(1001, answered(votes[0], vote_response(4, granted=False)))
    orders = node.step(1002, asked(vote_request(2, epoch=4, log=(1, 3), pre=True)))
    assert len(sent(orders, VoteRequest)) == 1
    node.step(1003, answered(votes[1], vote_response(4, granted=False)))
    assert isinstance(node.role, Prospective)


def test_two_that_refuse_each_other_do_not_ask_for_ever() -> None:
    node = started(leader_epoch=4, log_end_offset=4, epoch_starts=((1, 0),))
    vote, _ = sent(node.step(1000, events.Ticked()), VoteRequest)
    asked_again = []
    for _ in range(3):
        node.step(1001, answered(vote, vote_response(4, granted=False)))
        orders = node.step(1001, asked(vote_request(2, epoch=4, log=(1, 3), pre=True)))
        asked_again += sent(orders, VoteRequest)
        vote = asked_again[0]
    assert len(asked_again) == 1


def test_a_granted_vote_with_an_error_does_not_count() -> None:
    node = started(leader_epoch=4)
    votes = sent(node.step(1000, events.Ticked()), VoteRequest)
    response = VoteResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        leader_id=BrokerId(-1),
        leader_epoch=Epoch(4),
        vote_granted=True,
    )
    node.step(1001, answered(votes[0], response))
    assert isinstance(node.role, Prospective)


def test_a_notice_does_not_put_off_the_fetch_timeout() -> None:
    node = started(3, leader_epoch=4, leader_id=1)
    node.step(1990, events.PeerProcessDied(node_id=BrokerId(1)))
    assert node.next_deadline_ms() == 2000  # not 2030


def test_no_epoch_is_beyond_what_a_batch_can_hold() -> None:
    node, epoch = started(leader_epoch=4), 1 << 31
    assert reply(node, vote_request(epoch=epoch)).error_code is ErrorCode.INVALID_REQUEST
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(2), leader_epoch=Epoch(epoch))
    response = only(effects.SendResponse, node.step(1, asked(begin))).response
    assert response.error_code is ErrorCode.INVALID_REQUEST
    vote = sent(node.step(1000, events.Ticked()), VoteRequest)[0]
    node.step(1001, answered(vote, vote_response(epoch, granted=False)))
    assert node.leader_epoch == 4
