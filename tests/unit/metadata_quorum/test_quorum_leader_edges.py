"""Rules of a leader at their edges: who counts, for how long, and what it does not believe."""

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.leadership import OBSERVERS_MAX
from quorumlog.metadata_quorum.core.messages import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    VoteRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Leader, Resigned
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    fetch_request,
    fetch_response,
    only,
    sent,
    started,
    vote_response,
)


def leader(voters: tuple[int, ...] = (1, 2, 3)) -> Quorum:
    """Node 1, elected in epoch 1 at 1000 ms; its log is LeaderChange, and durable."""
    quorum = started(voters=voters)
    orders = quorum.step(1000, events.Ticked())
    for epoch in (0, 1):
        for vote in sent(orders, VoteRequest)[: len(voters) // 2]:
            orders = quorum.step(1000, answered(vote, vote_response(epoch, granted=True)))
    quorum.step(1000, events.LogFlushed(flushed_offset=Offset(1)))
    assert quorum.is_leader
    return quorum


def fetched(quorum: Quorum, now_ms: int, *replicas: int, offset: int = 1, epoch: int = 1) -> None:
    for replica in replicas:
        request = fetch_request(replica, epoch=1, offset=offset, last_epoch=epoch)
        quorum.step(now_ms, asked(request, 100 + replica))


def role_of(quorum: Quorum) -> Leader:
    assert isinstance(quorum.role, Leader)
    return quorum.role


# --- check-quorum: KAFKA-15489, KAFKA-16144 ---


def test_a_fetch_that_diverges_does_not_hold_a_leader() -> None:
    quorum = leader()
    fetched(quorum, 3999, 2, offset=9)
    quorum.step(4000, events.Ticked())
    assert isinstance(quorum.role, Resigned)


# --- fetches ---


def test_a_fetch_waits_no_longer_than_its_sender_would() -> None:
    quorum = leader()
    request = fetch_request(
        epoch=1, offset=1, last_epoch=1, max_wait_ms=60_000, high_watermark=Offset(1)
    )
    quorum.step(1100, asked(request))
    (parked,) = role_of(quorum).parked.values()
    assert parked.deadline_ms == 3100


@pytest.mark.parametrize(
    "request_",
    [
        fetch_request(-2, epoch=1, offset=0, last_epoch=0),
        fetch_request(epoch=1, offset=0, last_epoch=-1),
        fetch_request(epoch=1, offset=0, last_epoch=0, max_wait_ms=-1),
    ],
)
def test_numbers_that_cannot_be_are_refused(request_: FetchRequest) -> None:
    quorum = leader()
    answer = only(effects.AnswerFetch, quorum.step(1001, asked(request_)))
    assert answer.response.error_code is ErrorCode.INVALID_REQUEST
    assert not role_of(quorum).observers


def test_an_offset_that_goes_back_is_believed_and_the_high_watermark_stays() -> None:
    """A disk was lost: what its voter held before counts no more (KAFKA-12181)."""
    quorum = leader()
    quorum.step(1050, events.RecordsAppended(leader_epoch=Epoch(1), log_end_offset=Offset(3)))
    quorum.step(1051, events.LogFlushed(flushed_offset=Offset(3)))
    fetched(quorum, 1100, 2, offset=3)
    assert quorum.high_watermark == 3
    fetched(quorum, 1200, 2, offset=2)
    role = role_of(quorum)
    assert role.followers[BrokerId(2)].fetch_offset == 2
    assert (role.high_watermark, quorum.high_watermark) == (3, 3)
    quorum.step(1300, events.RecordsAppended(leader_epoch=Epoch(1), log_end_offset=Offset(4)))
    quorum.step(1301, events.LogFlushed(flushed_offset=Offset(4)))
    assert quorum.high_watermark == 3


def test_observers_have_a_number_and_the_one_silent_for_longest_goes_first() -> None:
    quorum = leader()
    for replica in range(10, 10 + OBSERVERS_MAX):
        fetched(quorum, 1100, replica)
    fetched(quorum, 1101, 10)  # so 11 has been silent for longest
    fetched(quorum, 1102, 5)
    observers = role_of(quorum).observers
    assert len(observers) == OBSERVERS_MAX
    assert BrokerId(11) not in observers
    assert BrokerId(10) in observers


def test_a_log_that_an_append_does_not_lengthen_is_a_bug() -> None:
    appended = events.RecordsAppended(leader_epoch=Epoch(1), log_end_offset=Offset(1))
    with pytest.raises(InvariantViolation, match="an append makes the log longer"):
        leader().step(1001, appended)


# --- the end ---


def test_one_that_resigned_asks_again_soon_whom_it_did_not_reach() -> None:
    quorum = leader()
    orders = quorum.step(1100, events.ResignRequested())
    ends = sent(orders, EndQuorumEpochRequest)
    assert quorum.resignation_pending
    quorum.step(1101, events.RequestFailed(request_id=ends[0].request_id))
    assert quorum.next_deadline_ms() == 1121
    heard = EndQuorumEpochResponse(
        error_code=ErrorCode.NONE, leader_id=BrokerId(1), leader_epoch=Epoch(1)
    )
    quorum.step(1102, answered(ends[1], heard))
    assert quorum.resignation_pending
    (again,) = sent(quorum.step(1121, events.Ticked()), EndQuorumEpochRequest)
    assert quorum.resignation_pending
    quorum.step(1122, answered(again, heard))
    assert not quorum.resignation_pending


def test_a_fetch_that_names_an_epoch_of_the_future_parts_at_our_last() -> None:
    quorum = leader()
    request = fetch_request(epoch=1, offset=3, last_epoch=9)
    answer = only(effects.AnswerFetch, quorum.step(1001, asked(request)))
    assert answer.response.diverging_epoch is not None
    assert answer.response.diverging_epoch.epoch == 1
    assert answer.response.diverging_epoch.end_offset == 1


def test_voters_are_counted_once_and_in_order() -> None:
    assert started(voters=(3, 1, 2, 3))._state.voters == (1, 2, 3)


def test_a_clock_that_goes_back_moves_no_deadline() -> None:
    quorum = leader()
    fetched(quorum, 3000, 2)
    before = role_of(quorum).check_quorum_deadline_ms
    fetched(quorum, 10, 2)
    assert role_of(quorum).check_quorum_deadline_ms >= before


def test_an_observer_without_a_leader_has_no_election_timeout() -> None:
    observer = started(9, leader_epoch=4, leader_id=2)
    unknown = fetch_response(6, leader=-1, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    observer.step(1, events.ResponseReceived(request_id=1, source=BrokerId(2), response=unknown))
    assert observer.leader_epoch == 6
    assert getattr(observer.role, "election_deadline_ms", 0) is None
