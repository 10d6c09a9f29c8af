"""Epochs run out, and a peer may say anything: how far a node believes it."""

from typing import Any

import pytest

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    Request,
    Response,
    VoteRequest,
)
from quorumlog.metadata_quorum.core.roles import Candidate, Resigned, Unattached
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    fetch_request,
    fetch_response,
    only,
    sent,
    started,
    vote_request,
    vote_response,
)

OURS = 4
NEAR, FAR = OURS + EPOCH_STEP_MAX, OURS + EPOCH_STEP_MAX + 1


def requests_of(epoch: int) -> list[Request]:
    leader_id, leader_epoch = BrokerId(3), Epoch(epoch)
    return [
        vote_request(epoch=epoch),
        vote_request(epoch=epoch, pre=True),
        BeginQuorumEpochRequest(leader_id=leader_id, leader_epoch=leader_epoch),
        EndQuorumEpochRequest(
            leader_id=leader_id, leader_epoch=leader_epoch, preferred_candidates=()
        ),
    ]


def responses_of(epoch: int) -> list[Response]:
    led: dict[str, Any] = {"leader_id": BrokerId(3), "leader_epoch": Epoch(epoch)}
    return [
        vote_response(epoch, granted=False, leader=3),
        fetch_response(epoch, leader=3),
        BeginQuorumEpochResponse(error_code=ErrorCode.NONE, **led),
        EndQuorumEpochResponse(error_code=ErrorCode.NONE, **led),
    ]


@pytest.mark.parametrize("epoch", [FAR, EPOCH_MAX, EPOCH_MAX + 1])
@pytest.mark.parametrize("kind", range(4))
def test_a_request_from_an_epoch_out_of_reach_is_refused(kind: int, epoch: int) -> None:
    node = started(leader_epoch=OURS)
    orders = node.step(1, asked(requests_of(epoch)[kind]))
    answer = only(effects.SendResponse, orders).response
    assert (answer.error_code, answer.leader_epoch) == (ErrorCode.INVALID_REQUEST, OURS)
    assert node.leader_epoch == OURS
    assert not [order for order in orders if isinstance(order, effects.PersistElection)]


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_one_within_reach_is_believed(kind: int) -> None:
    node = started(leader_epoch=OURS)
    node.step(1, asked(requests_of(NEAR)[kind]))
    assert node.leader_epoch == NEAR


@pytest.mark.parametrize(("epoch", "after"), [(FAR, OURS), (NEAR, NEAR)])
@pytest.mark.parametrize("kind", range(4))
def test_a_response_is_believed_as_far_as_a_request(kind: int, epoch: int, after: int) -> None:
    node = started(leader_epoch=OURS)
    (fetch_id,) = [
        order.request_id
        for order in node.step(400, events.Ticked())
        if isinstance(order, effects.SendRequest)
    ] or [1]
    response = responses_of(epoch)[kind]
    node.step(
        401, events.ResponseReceived(request_id=fetch_id, source=BrokerId(3), response=response)
    )
    assert node.leader_epoch == after


def test_a_fetch_of_any_epoch_leaves_ours_alone() -> None:
    node = started(leader_epoch=OURS)
    orders = node.step(1, asked(fetch_request(epoch=EPOCH_MAX, offset=0, last_epoch=0)))
    answer = only(effects.AnswerFetch, orders).response
    assert answer.error_code is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert node.leader_epoch == OURS


def test_nobody_stands_when_there_is_no_newer_epoch() -> None:
    node = started(leader_epoch=EPOCH_MAX)
    node.step(10_000, events.Ticked())
    assert isinstance(node.role, Unattached)
    one_before = started(leader_epoch=EPOCH_MAX - 1, voters=(1,))
    assert (one_before.leader_epoch, one_before.is_leader) == (EPOCH_MAX, True)


def test_a_candidate_of_the_last_epoch_does_not_stand_again() -> None:
    node = started(leader_epoch=EPOCH_MAX, voted_id=1)
    assert isinstance(node.role, Candidate)
    for now_ms in (1000, 5000, 20_000):
        for ask in sent(node.step(now_ms, events.Ticked()), VoteRequest):
            node.step(now_ms, answered(ask, vote_response(EPOCH_MAX, granted=True)))
        assert node.leader_epoch == EPOCH_MAX
        assert not node.is_leader
        deadline_ms = node.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > now_ms


def test_one_that_resigned_in_the_last_epoch_stays_so_and_is_not_busy() -> None:
    node = started(leader_epoch=EPOCH_MAX, leader_id=1)
    for request_id in (1, 2):
        node.step(1, events.RequestFailed(request_id=request_id))
    node.step(5000, events.Ticked())
    assert isinstance(node.role, Resigned)
    assert node.leader_epoch == EPOCH_MAX
    deadline_ms = node.next_deadline_ms()
    assert deadline_ms is None or deadline_ms > 5000


def test_an_observer_that_was_a_voter_of_the_last_epoch_starts() -> None:
    node = started(9, leader_epoch=EPOCH_MAX, voted_id=9)
    assert (node.leader_epoch, node._state.voted_id) == (EPOCH_MAX, -1)
