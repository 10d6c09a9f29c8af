"""Rules of a leader: appends, fetches, the high watermark, and how it stays or resigns."""

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    VoteRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Leader, Resigned, Unattached
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
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


def test_one_voter_leads_at_once_and_commits_only_what_is_durable() -> None:
    quorum = started(voters=(1,))
    assert quorum.is_leader
    assert quorum.high_watermark == 0
    orders = quorum.step(5, events.LogFlushed(flushed_offset=Offset(1)))
    assert orders == [effects.AdvanceHighWatermark(high_watermark=Offset(1))]
    orders = quorum.step(9, events.RecordsAppended(leader_epoch=Epoch(1), log_end_offset=Offset(3)))
    assert orders == [effects.FlushLog(log_end_offset=Offset(3))]
    assert quorum.high_watermark == 1
    assert quorum.next_deadline_ms() is None


def test_one_voter_leads_again_after_a_restart_in_a_newer_epoch() -> None:
    quorum = started(
        voters=(1,),
        leader_epoch=1,
        leader_id=1,
        voted_id=1,
        log_end_offset=4,
        epoch_starts=((1, 0),),
    )
    assert quorum.is_leader
    assert quorum.leader_epoch == 3


def test_flushes_are_ordered_one_at_a_time() -> None:
    quorum = leader(flushed=False)
    appended = events.RecordsAppended(leader_epoch=Epoch(1), log_end_offset=Offset(2))
    assert quorum.step(1001, appended) == []
    orders = quorum.step(1002, events.LogFlushed(flushed_offset=Offset(1)))
    assert orders == [effects.FlushLog(log_end_offset=Offset(2))]


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


def test_an_empty_fetch_waits_for_records_or_its_deadline() -> None:
    quorum = leader()
    request = fetch_request(
        epoch=1, offset=1, last_epoch=1, max_wait_ms=300, high_watermark=Offset(1)
    )
    quorum.step(1100, asked(request))
    other = fetch_request(3, epoch=1, offset=1, last_epoch=1, high_watermark=Offset(1))
    quorum.step(1100, asked(other, 78))
    assert quorum.next_deadline_ms() == 1400
    first = only(effects.AnswerFetch, quorum.step(1400, events.Ticked()))
    assert first.records_from == first.records_to == 1
    appended = events.RecordsAppended(leader_epoch=Epoch(1), log_end_offset=Offset(2))
    second = only(effects.AnswerFetch, quorum.step(1450, appended))
    assert (second.records_from, second.records_to) == (1, 2)


def test_a_newer_high_watermark_is_told_at_once() -> None:
    quorum = leader()
    quorum.step(1100, asked(fetch_request(3, epoch=1, offset=0, last_epoch=0)))
    orders = quorum.step(1110, asked(fetch_request(2, epoch=1, offset=1, last_epoch=1)))
    assert orders[0] == effects.AdvanceHighWatermark(high_watermark=Offset(1))
    assert only(effects.AnswerFetch, orders).response.high_watermark == 1


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


def test_a_leader_repeats_that_it_leads() -> None:
    quorum = leader()
    quorum.step(1500, asked(fetch_request(epoch=1, offset=1, last_epoch=1)))
    orders = quorum.step(2000, events.Ticked())
    assert [order.destination for order in sent(orders, BeginQuorumEpochRequest)] == [2, 3]


def test_a_leader_that_hears_a_majority_stays_and_one_that_does_not_resigns() -> None:
    quorum = leader()
    for now_ms in (2000, 4000, 6000):
        quorum.step(now_ms, asked(fetch_request(epoch=1, offset=1, last_epoch=1)))
    quorum.step(8999, events.Ticked())
    assert quorum.is_leader
    orders = quorum.step(9000, events.Ticked())
    assert isinstance(quorum.role, Resigned)
    assert effects.ResignLeadership(leader_epoch=Epoch(1)) in orders
    ends = sent(orders, EndQuorumEpochRequest)
    assert [end.destination for end in ends] == [2, 3]
    assert quorum.resignation_pending


def test_one_that_resigned_tells_until_all_have_heard() -> None:
    quorum = leader()
    quorum.step(1100, asked(fetch_request(3, epoch=1, offset=1, last_epoch=1)))
    orders = quorum.step(1200, events.ResignRequested())
    to_two, to_three = sent(orders, EndQuorumEpochRequest)
    assert isinstance(to_two.request, EndQuorumEpochRequest)
    assert to_two.request.preferred_candidates == (3, 2)
    quorum.step(1201, events.RequestFailed(request_id=to_two.request_id))
    quorum.step(1202, events.RequestFailed(request_id=to_three.request_id))
    again = sent(quorum.step(1222, events.Ticked()), EndQuorumEpochRequest)
    assert [end.destination for end in again] == [2, 3]
    orders = quorum.step(2200, events.Ticked())
    assert not isinstance(quorum.role, Unattached)  # its time has come: it stands at once
    assert quorum.leader_epoch == 2


def test_parked_fetches_are_refused_when_leadership_ends() -> None:
    quorum = leader()
    request = fetch_request(epoch=1, offset=1, last_epoch=1, high_watermark=Offset(1))
    quorum.step(1100, asked(request))
    orders = quorum.step(1200, events.ResignRequested())
    answer = only(effects.AnswerFetch, orders)
    assert answer.response.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_only_the_leader_of_the_epoch_appends() -> None:
    appended = events.RecordsAppended(leader_epoch=Epoch(7), log_end_offset=Offset(2))
    with pytest.raises(InvariantViolation, match="only the leader of epoch 7"):
        leader().step(1001, appended)


def test_resigning_without_leading_does_nothing() -> None:
    assert started().step(1, events.ResignRequested()) == []


def test_a_deposed_leader_resigns_before_it_follows() -> None:
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(3), leader_epoch=Epoch(2))
    orders = leader().step(1100, asked(begin))
    kinds = [type(order) for order in orders]
    assert kinds.index(effects.ResignLeadership) < kinds.index(effects.FollowLeader)
    assert kinds.index(effects.PersistElection) < kinds.index(effects.SendResponse)
