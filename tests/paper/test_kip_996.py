"""KIP-996, pre-vote, by clause."""

from typing import Any

import pytest

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    VoteRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    fetch_response,
    only,
    reply,
    sent,
    started,
    vote_request,
    vote_response,
)


def in_role(role: type[Role]) -> Quorum:
    """Node 1 in epoch 4, with an empty log."""
    on_disk: dict[type[Role], dict[str, Any]] = {
        Resigned: {"leader_id": 1, "voted_id": 1},
        Candidate: {"voted_id": 1},
        Follower: {"leader_id": 3},
    }
    if role is not Leader:
        node = started(leader_epoch=4, **on_disk.get(role, {}))
        if role is Prospective:
            node.step(1000, events.Ticked())
        return node
    node = started(leader_epoch=3)
    orders = node.step(1000, events.Ticked())
    for epoch in (3, 4):
        vote = sent(orders, VoteRequest)[0]
        orders = node.step(1000, answered(vote, vote_response(epoch, granted=True)))
    return node


def has_fetched(node: Quorum) -> Quorum:
    """A follower that its leader has answered."""
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(3), leader_epoch=Epoch(5))
    (fetch,) = sent(node.step(1, asked(begin)), FetchRequest)
    node.step(2, answered(fetch, fetch_response(5, leader=3)))
    return node


@pytest.mark.parametrize(
    ("role", "pre_vote", "vote"),
    [
        (Unattached, True, True),
        (Prospective, True, True),
        (Candidate, True, False),
        (Resigned, True, False),
        (Follower, True, False),
        (Leader, False, False),
    ],
)
def test_who_grants_what_in_its_own_epoch(role: type[Role], pre_vote: bool, vote: bool) -> None:
    log = (3, 9)
    for is_pre_vote, is_granted in ((True, pre_vote), (False, vote)):
        node = in_role(role)
        assert isinstance(node.state.role, role)
        assert node.state.leader_epoch == 4
        request = vote_request(epoch=4, log=log, pre=is_pre_vote)
        assert reply(node, request, 1000).vote_granted == is_granted


def test_a_pre_vote_changes_nothing() -> None:
    node = started(leader_epoch=4)
    before = node.next_deadline_ms(), node.state.role
    orders = node.step(1, asked(vote_request(epoch=4, pre=True)))
    assert [type(order) for order in orders] == [effects.SendResponse]
    assert (node.next_deadline_ms(), node.state.role) == before
    assert node.state.voted_id == -1


def test_any_number_of_pre_votes_may_be_granted() -> None:
    node = started()
    for candidate in (2, 3, 2):
        assert reply(node, vote_request(candidate, epoch=0, pre=True)).vote_granted


def test_a_follower_that_hears_its_leader_refuses() -> None:
    node = has_fetched(started(leader_epoch=4))
    assert not reply(node, vote_request(epoch=5, pre=True, log=(4, 9)), 3).vote_granted


def test_a_follower_whose_leaders_process_died_does_not() -> None:
    node = has_fetched(started(leader_epoch=4))
    node.step(3, events.PeerProcessDied(node_id=BrokerId(3)))
    response = reply(node, vote_request(epoch=5, pre=True, log=(4, 9)), 3)
    assert response.vote_granted
    assert isinstance(node.state.role, Follower)  # it still follows
    assert not reply(node, vote_request(epoch=5, log=(4, 9)), 3).vote_granted


def test_a_newer_epoch_in_a_pre_vote_is_answered_and_not_taken_over() -> None:
    """Kafka's voters take it over: decision 4."""
    node = started(leader_epoch=4, leader_id=3)
    orders = node.step(1, asked(vote_request(epoch=6, pre=True)))
    answer = only(effects.SendResponse, orders).response
    assert answer == vote_response(4, granted=True, leader=3)
    assert (node.state.leader_epoch, node.state.leader_id) == (4, 3)
    assert not [order for order in orders if isinstance(order, effects.PersistElection)]


def test_a_pre_vote_that_is_granted_from_an_older_epoch_counts() -> None:
    node = started(leader_epoch=6)
    votes = sent(node.step(1000, events.Ticked()), VoteRequest)
    node.step(1001, answered(votes[0], vote_response(4, granted=True, leader=3)))
    assert isinstance(node.state.role, Candidate)
    assert (node.state.leader_epoch, node.state.leader_id) == (7, -1)


def test_one_ahead_of_its_leader_is_heard_when_it_answers_that_leader() -> None:
    """It is refused every pre-vote, and would never follow: the leader must come to its epoch."""
    node = started(leader_epoch=6)
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(3), leader_epoch=Epoch(5))
    answer = only(effects.SendResponse, node.step(1, asked(begin))).response
    assert (answer.error_code, answer.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 6)


def test_nobody_is_a_candidate_without_the_pre_votes_of_a_majority() -> None:
    node = started(voters=(1, 2, 3, 4, 5))
    votes = sent(node.step(1000, events.Ticked()), VoteRequest)
    assert all(isinstance(vote.request, VoteRequest) and vote.request.pre_vote for vote in votes)
    node.step(1001, answered(votes[0], vote_response(0, granted=True)))
    assert isinstance(node.state.role, Prospective)
    assert node.state.leader_epoch == 0
    node.step(1001, answered(votes[1], vote_response(0, granted=True)))
    assert isinstance(node.state.role, Candidate)
    assert node.state.leader_epoch == 1


def refuse_all(node: Quorum, epoch: int, now_ms: int) -> None:
    for vote in sent(node.step(now_ms, events.Ticked()), VoteRequest):
        node.step(now_ms, answered(vote, vote_response(epoch, granted=False)))


def test_after_refusals_it_follows_the_leader_that_it_knows() -> None:
    node = has_fetched(started(leader_epoch=4))
    refuse_all(node, 5, 2002)
    assert isinstance(node.state.role, Follower)
    assert (node.state.leader_epoch, node.state.leader_id) == (5, 3)


def test_after_refusals_without_a_leader_it_waits_in_its_epoch() -> None:
    node = started(leader_epoch=4, voted_id=3)
    refuse_all(node, 4, 1000)
    assert isinstance(node.state.role, Unattached)
    assert (node.state.leader_epoch, node.state.voted_id) == (4, 3)
    assert node.next_deadline_ms() is not None


def test_without_answers_it_gives_up_at_its_timeout() -> None:
    node = started(leader_epoch=4)
    node.step(1000, events.Ticked())
    node.step(2000, events.Ticked())
    assert isinstance(node.state.role, Unattached)


def test_a_lost_election_leads_back_to_pre_votes() -> None:
    node = in_role(Candidate)
    orders = node.step(1000, events.Ticked())
    assert isinstance(node.state.role, Prospective)
    assert (node.state.leader_epoch, node.state.voted_id) == (4, 1)
    assert not any(isinstance(order, effects.PersistElection) for order in orders)


def test_one_that_stood_too_soon_asks_again_who_asks_it_in_vain() -> None:
    node = started(leader_epoch=4, leader_id=3, log_end_offset=4, epoch_starts=((1, 0),))
    node.step(1, events.PeerProcessDied(node_id=BrokerId(3)))
    votes = sent(node.step(11, events.Ticked()), VoteRequest)
    to_two = next(vote for vote in votes if vote.destination == 2)
    node.step(12, answered(to_two, vote_response(4, granted=False)))
    orders = node.step(40, asked(vote_request(2, epoch=4, pre=True, log=(1, 3))))
    assert not getattr(only(effects.SendResponse, orders).response, "vote_granted", None)
    assert [vote.destination for vote in sent(orders, VoteRequest)] == [2]


@pytest.mark.parametrize(
    ("request_", "error_code"),
    [
        (vote_request(epoch=5, voter=3), ErrorCode.INVALID_VOTER_KEY),
        (vote_request(9, epoch=5), ErrorCode.INCONSISTENT_VOTER_SET),
        (vote_request(1, epoch=5), ErrorCode.INVALID_REQUEST),
        (vote_request(epoch=5, log=(5, 1)), ErrorCode.INVALID_REQUEST),
        (vote_request(epoch=5, log=(6, 1), pre=True), ErrorCode.INVALID_REQUEST),
        (vote_request(epoch=5, log=(-1, 1)), ErrorCode.INVALID_REQUEST),
        (vote_request(epoch=5, log=(1, -1)), ErrorCode.INVALID_REQUEST),
        (vote_request(epoch=3), ErrorCode.FENCED_LEADER_EPOCH),
        (vote_request(epoch=5, log=(5, 1), pre=True), ErrorCode.NONE),
    ],
)
def test_what_cannot_be_is_refused(request_: VoteRequest, error_code: ErrorCode) -> None:
    node = started(leader_epoch=4)
    assert reply(node, request_).error_code is error_code
