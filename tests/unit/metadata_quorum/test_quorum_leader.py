"""Rules of a leader: appends, fetches, the high watermark, and how it stays or resigns."""

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import FetchRequest, VoteRequest
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Leader
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    fetch_request,
    only,
    sent,
    started,
    vote_response,
)


def leader(voters: tuple[int, ...] = (1, 2, 3), *, flushed: bool = True) -> Quorum:
    """Node 1, elected in epoch 1 at 1000 ms; its log is LeaderChange."""
    quorum = started(voters=voters)
    orders = quorum.step(1000, events.Ticked())
    for epoch in (0, 1):
        for vote in sent(orders, VoteRequest)[: len(voters) // 2]:
            orders = quorum.step(1000, answered(vote, vote_response(epoch, granted=True)))
    assert quorum.is_leader
    if flushed:
        quorum.step(1000, events.LogFlushed(flushed_offset=Offset(1)))
    return quorum


def fetch(quorum: Quorum, request: FetchRequest, now_ms: int = 1000) -> effects.AnswerFetch:
    return only(effects.AnswerFetch, quorum.step(now_ms, asked(request)))


@pytest.mark.parametrize(
    ("request_", "error_code"),
    [
        (fetch_request(epoch=0, offset=0, last_epoch=0), ErrorCode.FENCED_LEADER_EPOCH),
        (fetch_request(epoch=2, offset=0, last_epoch=0), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (fetch_request(epoch=1, offset=-1, last_epoch=0), ErrorCode.INVALID_REQUEST),
        (fetch_request(1, epoch=1, offset=0, last_epoch=0), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_fetch_is_refused_at_once(request_: FetchRequest, error_code: ErrorCode) -> None:
    answer = fetch(leader(), request_)
    assert answer.response.error_code is error_code
    assert (answer.response.leader_id, answer.response.leader_epoch) == (1, 1)
    assert answer.records_from == answer.records_to


def test_one_that_does_not_lead_says_so() -> None:
    answer = fetch(started(), fetch_request(epoch=0, offset=0, last_epoch=0))
    assert answer.response.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_second_fetch_of_a_replica_answers_its_first() -> None:
    quorum = leader()
    request = fetch_request(epoch=1, offset=1, last_epoch=1, high_watermark=Offset(1))
    assert not [o for o in quorum.step(1100, asked(request)) if isinstance(o, effects.AnswerFetch)]
    orders = quorum.step(1101, events.RequestReceived(request_id=78, request=request))
    assert only(effects.AnswerFetch, orders).request_id == 77


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (1, 0, (0, 0)),  # records of an epoch that had none
        (3, 1, (1, 2)),  # more of epoch 1 than there is
        (2, 3, (1, 2)),  # an epoch that we do not have
        (9, 4, (4, 4)),
        (2, 1, None),
        (0, 0, None),
        (5, 5, None),
    ],
)
def test_logs_that_part(offset: int, last_epoch: int, diverging: tuple[int, int] | None) -> None:
    quorum = started(leader_epoch=4, log_end_offset=4, epoch_starts=((1, 0), (4, 2)))
    orders = quorum.step(1000, events.Ticked())
    for epoch in (4, 5):
        vote = sent(orders, VoteRequest)[0]
        orders = quorum.step(1000, answered(vote, vote_response(epoch, granted=True)))
    request = fetch_request(epoch=5, offset=offset, last_epoch=last_epoch, max_wait_ms=0)
    found = fetch(quorum, request).response.diverging_epoch
    assert (found and (found.epoch, found.end_offset)) == diverging
    assert isinstance(quorum.role, Leader)
    is_counted = quorum.role.followers[request.replica_id].last_fetch_ms is not None
    assert is_counted == (diverging is None)


def test_a_voter_with_an_empty_disk_is_let_in_again() -> None:
    quorum = leader()
    fetch(quorum, fetch_request(epoch=1, offset=1, last_epoch=1))
    answer = fetch(quorum, fetch_request(epoch=1, offset=0, last_epoch=0), 1100)
    assert (answer.records_from, answer.records_to) == (0, 1)
    assert quorum.high_watermark == 1


def test_observers_count_for_nothing_and_are_forgotten() -> None:
    quorum = leader()
    quorum.step(1100, asked(fetch_request(9, epoch=1, offset=1, last_epoch=1)))
    assert quorum.high_watermark == 0
    assert isinstance(quorum.role, Leader)
    assert list(quorum.role.observers) == [9]
    for now_ms in range(2000, 302_000, 1000):
        quorum.step(now_ms, asked(fetch_request(2, epoch=1, offset=0, last_epoch=0)))
    quorum.step(302_000, asked(fetch_request(8, epoch=1, offset=1, last_epoch=1)))
    assert list(quorum.role.observers) == [8]


def test_only_the_leader_of_the_epoch_appends() -> None:
    appended = events.RecordsAppended(leader_epoch=Epoch(7), log_end_offset=Offset(2))
    with pytest.raises(InvariantViolation, match="only the leader of epoch 7"):
        leader().step(1001, appended)


def test_resigning_without_leading_does_nothing() -> None:
    assert started().step(1, events.ResignRequested()) == []
