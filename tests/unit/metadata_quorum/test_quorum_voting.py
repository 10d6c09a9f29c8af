"""Rules of elections that the papers leave to the implementation: votes, epochs, roles."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.log_outline import LogOutline
from quorumlog.metadata_quorum.core.messages import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    NOBODY,
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    Request,
    Response,
    VoteRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.quorum_state import Membership
from quorumlog.metadata_quorum.core.roles import (
    Ballot,
    Candidate,
    Follower,
    Leader,
    ParkedFetch,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.storage.core.leader_epochs import EpochEntry, LeaderEpochs
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    begin,
    end,
    fail,
    fetch_request,
    fetch_response,
    only,
    quorum_of,
    reply,
    role_of,
    sent,
    started,
    tick,
    vote_request,
    vote_response,
)

OLD_LOG: dict[str, Any] = {"log_end_offset": 4, "epoch_starts": ((1, 0),)}


def prospective(now_ms: int = 1000, **started_with: Any) -> Quorum:
    node = started(**started_with)
    tick(node, now_ms)
    role_of(node, Prospective)
    return node


# --- being asked ---


def test_an_observer_has_no_vote() -> None:
    node = started(9, leader_epoch=4)
    for is_pre_vote in (True, False):
        response = reply(node, vote_request(epoch=6, voter=9, pre=is_pre_vote))
        assert response.error_code is ErrorCode.INCONSISTENT_VOTER_SET
    assert node.state.leader_epoch == 4


def test_one_that_stands_though_it_knows_the_leader_votes_for_nobody() -> None:
    node = prospective(2000, leader_epoch=4, leader_id=3)
    assert not reply(node, vote_request(epoch=4, log=(3, 9)), 2001).vote_granted
    assert node.state.voted_id == -1


@pytest.mark.parametrize("stands", [False, True])
def test_a_vote_starts_the_election_timeout_anew_and_is_the_only_one(stands: bool) -> None:
    node = prospective(leader_epoch=4) if stands else started(leader_epoch=4)
    now_ms = 1700 if stands else 700
    orders = node.step(now_ms, asked(vote_request(2, epoch=4, log=(3, 9))))
    assert only(effects.PersistElection, orders).voted_id == 2
    role: Any = role_of(node, Prospective if stands else Unattached)
    assert role.election_deadline_ms == now_ms + 1000
    assert not reply(node, vote_request(3, epoch=4, log=(3, 9)), now_ms + 2).vote_granted


@pytest.mark.parametrize(
    ("on_disk", "role", "left_ms"),
    [
        ({}, Unattached, 1000),
        ({"voted_id": 1}, Candidate, 1000),
        ({"leader_id": 1}, Resigned, 1000),
        ({"leader_id": 3}, Follower, 1600),  # a timer of its own: a new one
        ({}, Prospective, 2000),
    ],
)
def test_a_mere_newer_epoch_does_not_restart_the_election_timeout(
    on_disk: dict[str, Any], role: type, left_ms: int
) -> None:
    node = started(leader_epoch=4, **OLD_LOG, **on_disk)
    if role is Prospective:
        tick(node, 1000)
    assert isinstance(node.state.role, role)
    now_ms = 1600 if role is Prospective else 600
    assert not reply(node, vote_request(epoch=6, log=(1, 0)), now_ms).vote_granted
    assert role_of(node, Unattached).election_deadline_ms == left_ms


# --- asking ---


def test_who_is_asked_again_is_not_yet_counted() -> None:
    """A refusal that is asked about again must not end the round before it is answered."""
    node = started(leader_epoch=4, **OLD_LOG)
    votes = sent(tick(node, 1000), VoteRequest)
    node.step(1001, answered(votes[0], vote_response(4, granted=False)))
    orders = node.step(1002, asked(vote_request(2, epoch=4, log=(1, 3), pre=True)))
    assert len(sent(orders, VoteRequest)) == 1
    node.step(1003, answered(votes[1], vote_response(4, granted=False)))
    assert isinstance(node.state.role, Prospective)


def test_two_that_refuse_each_other_do_not_ask_for_ever() -> None:
    node = started(leader_epoch=4, **OLD_LOG)
    vote, _ = sent(tick(node, 1000), VoteRequest)
    asked_again = []
    for _ in range(3):
        node.step(1001, answered(vote, vote_response(4, granted=False)))
        orders = node.step(1001, asked(vote_request(2, epoch=4, log=(1, 3), pre=True)))
        asked_again += sent(orders, VoteRequest)
        vote = asked_again[0]
    assert len(asked_again) == 1


def test_a_granted_vote_with_an_error_does_not_count() -> None:
    node = started(leader_epoch=4)
    votes = sent(tick(node, 1000), VoteRequest)
    granted = vote_response(4, granted=True)
    response = replace(granted, error_code=ErrorCode.INVALID_REQUEST)
    node.step(1001, answered(votes[0], response))
    assert isinstance(node.state.role, Prospective)


def test_a_notice_does_not_put_off_the_fetch_timeout() -> None:
    node = started(3, leader_epoch=4, leader_id=1)
    node.step(1990, events.PeerProcessDied(node_id=BrokerId(1)))
    assert node.next_deadline_ms() == 2000  # not 2030


# --- epochs run out, and a peer may send anything: how far a node believes it ---


OURS = 4
NEAR, FAR = OURS + EPOCH_STEP_MAX, OURS + EPOCH_STEP_MAX + 1


def requests_of(epoch: int) -> list[Request]:
    return [
        vote_request(epoch=epoch),
        vote_request(epoch=epoch, pre=True),
        begin(3, epoch),
        end(3, epoch),
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
    assert node.state.leader_epoch == OURS
    assert not [order for order in orders if isinstance(order, effects.PersistElection)]


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_one_within_reach_is_believed(kind: int) -> None:
    node = started(leader_epoch=OURS)
    node.step(1, asked(requests_of(NEAR)[kind]))
    assert node.state.leader_epoch == NEAR


@pytest.mark.parametrize(("epoch", "after"), [(FAR, OURS), (NEAR, NEAR)])
@pytest.mark.parametrize("kind", range(4))
def test_a_response_is_believed_as_far_as_a_request(kind: int, epoch: int, after: int) -> None:
    node = started(leader_epoch=OURS)
    requests = [one for one in tick(node, 400) if isinstance(one, effects.SendRequest)]
    request_id = requests[0].request_id if requests else 1
    response = responses_of(epoch)[kind]
    received = events.ResponseReceived(request_id=request_id, source=BrokerId(3), response=response)
    node.step(401, received)
    assert node.state.leader_epoch == after


def test_a_fetch_of_any_epoch_leaves_ours_alone() -> None:
    node = started(leader_epoch=OURS)
    orders = node.step(1, asked(fetch_request(epoch=EPOCH_MAX, offset=0, last_epoch=0)))
    answer = only(effects.AnswerFetch, orders).response
    assert answer.error_code is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert node.state.leader_epoch == OURS


def test_nobody_stands_when_there_is_no_newer_epoch() -> None:
    node = started(leader_epoch=EPOCH_MAX)
    tick(node, 10_000)
    assert isinstance(node.state.role, Unattached)
    one_before = started(leader_epoch=EPOCH_MAX - 1, voters=(1,))
    assert (one_before.state.leader_epoch, one_before.is_leader) == (EPOCH_MAX, True)
    observer = started(9, leader_epoch=EPOCH_MAX, voted_id=9)  # it was a voter
    assert (observer.state.leader_epoch, observer.state.voted_id) == (EPOCH_MAX, -1)


def test_a_candidate_of_the_last_epoch_does_not_stand_again() -> None:
    node = started(leader_epoch=EPOCH_MAX, voted_id=1)
    assert isinstance(node.state.role, Candidate)
    for now_ms in (1000, 5000, 20_000):
        for ask in sent(tick(node, now_ms), VoteRequest):
            node.step(now_ms, answered(ask, vote_response(EPOCH_MAX, granted=True)))
        assert node.state.leader_epoch == EPOCH_MAX
        assert not node.is_leader
        deadline_ms = node.next_deadline_ms()
        assert deadline_ms is None or deadline_ms > now_ms


def test_one_that_resigned_in_the_last_epoch_stays_so_and_is_not_busy() -> None:
    node = started(leader_epoch=EPOCH_MAX, leader_id=1)
    for request_id in (1, 2):
        fail(node, request_id, 1)
    tick(node, 5000)
    assert isinstance(node.state.role, Resigned)
    assert node.state.leader_epoch == EPOCH_MAX
    deadline_ms = node.next_deadline_ms()
    assert deadline_ms is None or deadline_ms > 5000


# --- every pair of roles, within an epoch and to a newer one; written a second time, on purpose ---


VOTERS = tuple(map(BrokerId, (1, 2, 3)))
OBSERVING = Membership(BrokerId(1), None, VoterSet.of_ids(VOTERS[1:]), LogOutline())
ROLES: dict[type[Role], Role] = {
    Unattached: Unattached(election_deadline_ms=1),
    Prospective: Prospective(election_deadline_ms=1, ballot=Ballot(granted=set())),
    Candidate: Candidate(election_deadline_ms=1, ballot=Ballot(granted=set())),
    Follower: Follower(fetch_deadline_ms=1),
    Leader: Leader(
        epoch_start_offset=Offset(0),
        granting_voters=(),
        followers={},
        begin_epoch_deadline_ms=1,
        check_quorum_deadline_ms=1,
    ),
    Resigned: Resigned(election_deadline_ms=1, preferred_candidates=(), end_epoch_due_ms={}),
}
LEGAL_WITHIN = {
    (Unattached, Unattached), (Unattached, Prospective), (Unattached, Follower),
    (Prospective, Unattached), (Prospective, Follower),
    (Candidate, Prospective), (Candidate, Follower), (Candidate, Leader),
    (Follower, Prospective),
    (Leader, Resigned),
}  # fmt: skip
LEGAL_TO_NEWER = {(Prospective, Candidate), *product(ROLES, (Unattached, Follower))}
OBSERVERS = {
    (source, target) for source in (Unattached, Follower) for target in (Unattached, Follower)
}


def quorum(node_id: int = 1) -> Quorum:
    made = quorum_of(node_id)
    made.state.leader_epoch = Epoch(4)
    return made


def legal(is_legal: bool) -> AbstractContextManager[object]:
    return nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change")


@pytest.mark.parametrize("is_newer", [False, True], ids=["within", "to_newer"])
@pytest.mark.parametrize(("source", "target"), list(product(ROLES, repeat=2)))
def test_every_pair_of_roles(source: type[Role], target: type[Role], is_newer: bool) -> None:
    node = quorum().state
    node.role = ROLES[source]
    is_legal = (source, target) in (LEGAL_TO_NEWER if is_newer else LEGAL_WITHIN)
    with legal(is_legal):
        node.become(ROLES[target], leader_epoch=Epoch(4 + is_newer))
    assert node.role is ROLES[target if is_legal else source]
    assert node.leader_epoch == 4 + (is_legal and is_newer)
    if source in {Unattached, Follower}:
        observer = quorum(node_id=9).state
        observer.role = ROLES[source]
        with legal((source, target) in OBSERVERS):
            observer.become(ROLES[target], leader_epoch=Epoch(5))


def test_an_epoch_never_falls() -> None:
    assert {*get_args(Role)} == {*ROLES}  # all roles are here
    with pytest.raises(InvariantViolation, match="an epoch never falls"):
        quorum().state.become(ROLES[Unattached], leader_epoch=Epoch(3))


EARLIER = (4, 0, NOBODY, NOBODY)  # epoch, high watermark, leader and vote before the step
RECORD = LeaderEpochs((EpochEntry(Epoch(4), Offset(0)),))


@pytest.mark.parametrize(
    ("number", "role", "state", "before"),
    [
        (1, Unattached, {}, (5, 0, NOBODY, NOBODY)),
        (1, Unattached, {}, (4, 1, NOBODY, NOBODY)),
        (2, Unattached, {"high_watermark": 1}, EARLIER),
        (2, Unattached, {"flushed_offset": 1}, EARLIER),
        (4, Unattached, {"leader_id": 2}, EARLIER),
        (4, Prospective, {"leader_id": 1}, EARLIER),
        (4, Candidate, {}, EARLIER),
        (4, Candidate, {"voted_id": 1, "leader_id": 2}, EARLIER),
        (4, Follower, {}, EARLIER),
        (4, Follower, {"leader_id": 1}, EARLIER),
        (4, Leader, {"leader_id": 2}, EARLIER),
        (4, Resigned, {"leader_id": 2}, EARLIER),
        (5, Follower, {"leader_id": 2}, (4, 0, 3, NOBODY)),
        (5, Unattached, {"voted_id": 2}, (4, 0, NOBODY, 3)),
        (6, Leader, {"leader_id": 1}, EARLIER),
        (9, Unattached, {"leader_epoch": 3, "epochs": RECORD, "end_offset": 1,
                         "flushed_offset": 1}, (3, 0, NOBODY, NOBODY)),
        (10, Follower, {"leader_id": 2, "fetch_id": 7, "end_offset": 1}, EARLIER),
        (10, Prospective, {"end_offset": 1}, EARLIER),
        (11, Unattached, {"voted_id": 9, "members": OBSERVING}, EARLIER),
        (11, Prospective, {"members": OBSERVING}, EARLIER),
        (15, Unattached, {"end_offset": 1}, EARLIER),
    ],
)  # fmt: skip
def test_each_invariant_speaks(
    number: int, role: type[Role], state: dict[str, Any], before: tuple[int, int, int, int]
) -> None:
    node = quorum()
    node.state.role = replace(ROLES[role])
    for name, value in state.items():
        owners = node.state, node.state.log, node.state.role
        setattr(next(owner for owner in owners if hasattr(owner, name)), name, value)
    with pytest.raises(InvariantViolation, match=rf"^{number}: "):
        node.check_invariants(before)


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (7, {"high_watermark": Offset(1), "epoch_start_offset": Offset(1)}),
        (8, {"parked": {1: ParkedFetch(replica_id=BrokerId(2), fetch_offset=Offset(3),
                                       high_watermark=Offset(0), deadline_ms=1)}}),
    ],
)  # fmt: skip
def test_each_invariant_of_a_leader_speaks(number: int, state: dict[str, Any]) -> None:
    node = quorum()
    node.state.leader_id, node.state.log.epochs = BrokerId(1), RECORD
    node.state.log.end_offset = node.state.log.flushed_offset = Offset(2)
    node.state.role = replace(ROLES[Leader], **state)
    with pytest.raises(InvariantViolation, match=rf"^{number}: "):
        node.check_invariants((4, 0, 1, NOBODY))


@pytest.mark.parametrize("role", [Unattached, Follower, Prospective, Candidate])
def test_a_node_that_searches_a_leader_has_a_deadline(
    role: type[Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = quorum()
    node._has_started = True
    node.state.role = replace(ROLES[role])
    node._check_progress()
    for rules in (node._elections, node._followership):
        monkeypatch.setattr(rules, "deadlines", lambda _role: iter(()))
    with pytest.raises(InvariantViolation, match=r"^16: "):
        node._check_progress()


def test_a_newer_epoch_forgets_leader_and_vote_and_the_same_one_keeps_them() -> None:
    node = quorum().state
    node.become(ROLES[Unattached], voted_id=BrokerId(2))
    node.become(ROLES[Follower], leader_id=BrokerId(3))
    assert (node.leader_id, node.voted_id) == (3, 2)
    node.become(ROLES[Prospective])
    assert (node.leader_id, node.voted_id) == (3, 2)
    node.become(ROLES[Unattached], leader_epoch=Epoch(5))
    assert (node.leader_id, node.voted_id) == (NOBODY, NOBODY)
