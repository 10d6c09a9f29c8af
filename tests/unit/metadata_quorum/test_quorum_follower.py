"""Rules of a follower: start, fetch and flush, truncation, elections that it stands in."""

from typing import Any

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DivergingEpoch,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import (
    Candidate,
    Follower,
    Prospective,
    Resigned,
    Unattached,
)
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import (
    answered,
    asked,
    fetch_response,
    only,
    sent,
    started,
)

STARTS = ((1, 0), (3, 2))  # a log of four records: [0, 2) of epoch 1, [2, 4) of epoch 3


def follower(**started_with: Any) -> tuple[Quorum, effects.SendRequest]:
    """Node 1 with four records follows node 2 in epoch 4; and its fetch."""
    given: dict[str, Any] = {
        "leader_epoch": 4,
        "log_end_offset": 4,
        "epoch_starts": STARTS,
        **started_with,
    }
    quorum = started(**given)
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(2), leader_epoch=Epoch(4))
    orders = quorum.step(0, asked(begin))
    return quorum, sent(orders, FetchRequest)[0]


def records(base: int, end: int, *starts: tuple[int, int]) -> events.FetchedRecords:
    return events.FetchedRecords(
        base_offset=Offset(base),
        end_offset=Offset(end),
        epoch_starts=tuple((Epoch(epoch), Offset(offset)) for epoch, offset in starts),
    )


@pytest.mark.parametrize(
    ("started_with", "role"),
    [
        ({}, Unattached),
        ({"leader_epoch": 4, "leader_id": 1, "voted_id": 1}, Resigned),
        ({"leader_epoch": 4, "voted_id": 1}, Candidate),
        ({"leader_epoch": 4, "leader_id": 2}, Follower),
        ({"leader_epoch": 4, "voted_id": 3}, Unattached),
        ({"leader_epoch": 2, "leader_id": 2, "log_end_offset": 4, "epoch_starts": STARTS},
         Unattached),
        (  # not yet durable: it may not ask for votes with it
            {"leader_epoch": 4, "voted_id": 1, "log_end_offset": 4, "flushed_offset": 2,
             "epoch_starts": STARTS},
            Unattached,
        ),
        ({"node_id": 9, "leader_epoch": 4, "leader_id": 2}, Follower),
        ({"node_id": 9, "leader_epoch": 4, "voted_id": 9}, Unattached),
    ],
)  # fmt: skip
def test_the_role_after_a_restart(started_with: dict[str, Any], role: type) -> None:
    quorum = started(**started_with)
    assert isinstance(quorum.role, role)


def test_a_log_newer_than_the_election_state_sets_the_epoch() -> None:
    quorum = started(leader_epoch=2, leader_id=2, log_end_offset=4, epoch_starts=STARTS)
    assert (quorum.leader_epoch, quorum.leader_id) == (3, -1)


def test_started_comes_first_and_once() -> None:
    quorum = started()
    with pytest.raises(InvariantViolation, match="Started is the first"):
        quorum.step(1, events.Started())


@pytest.mark.parametrize(
    "fetched",
    [
        records(3, 6, (4, 3)),  # not at our end
        records(4, 6, (5, 4)),  # of an epoch that its leader does not know of (KAFKA-18723)
        records(4, 6, (2, 4)),  # of an epoch before our last
        records(4, 6, (4, 4), (3, 5)),
        records(4, 6, (4, 5)),
        records(4, 6),
    ],
)
def test_records_that_cannot_follow_ours_are_not_appended(fetched: events.FetchedRecords) -> None:
    quorum, fetch = follower()
    assert quorum.step(9, answered(fetch, fetch_response(4), records=fetched)) == []
    assert quorum.log_end_offset == 4
    assert sent(quorum.step(29, events.Ticked()), FetchRequest)


@pytest.mark.parametrize(
    ("epoch", "end", "truncated"),
    [
        (3, 3, 3),  # the leader has less of our last epoch
        (2, 2, 2),  # we have nothing of epoch 2: all of epoch 3 goes
        (1, 1, 1),
        (0, 0, 0),
    ],
)
def test_what_the_leader_does_not_have_goes(epoch: int, end: int, truncated: int) -> None:
    quorum, fetch = follower()
    diverging = DivergingEpoch(epoch=Epoch(epoch), end_offset=Offset(end))
    response = fetch_response(4, high_watermark=3, diverging_epoch=diverging)
    orders = quorum.step(9, answered(fetch, response))
    assert orders[0] == effects.TruncateLog(end_offset=Offset(truncated))
    assert quorum.high_watermark == 0  # what is left may diverge, too (KAFKA-14704)
    (again,) = sent(orders, FetchRequest)
    assert isinstance(again.request, FetchRequest)
    assert again.request.fetch_offset == truncated


def test_nothing_that_is_committed_goes() -> None:
    quorum, fetch = follower()
    (again,) = sent(
        quorum.step(9, answered(fetch, fetch_response(4, high_watermark=3))), FetchRequest
    )
    diverging = DivergingEpoch(epoch=Epoch(1), end_offset=Offset(2))
    with pytest.raises(InvariantViolation, match="3: committed records"):
        quorum.step(10, answered(again, fetch_response(4, diverging_epoch=diverging)))


def test_a_truncation_that_leads_nowhere_is_not_made() -> None:
    quorum, fetch = follower()
    diverging = DivergingEpoch(epoch=Epoch(3), end_offset=Offset(9))
    assert quorum.step(9, answered(fetch, fetch_response(4, diverging_epoch=diverging))) == []


@pytest.mark.parametrize(
    ("error_code", "leader", "epoch", "followed"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, 3, 6, (6, 3)),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 5, (5, -1)),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, 2, 3, (4, 2)),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 4, (4, 2)),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 77, 9, (4, 2)),  # not a voter
    ],
)
def test_an_error_says_whom_to_follow(
    error_code: ErrorCode, leader: int, epoch: int, followed: tuple[int, int]
) -> None:
    quorum, fetch = follower()
    response = fetch_response(epoch, leader=leader, error_code=error_code)
    quorum.step(9, answered(fetch, response))
    assert (quorum.leader_epoch, quorum.leader_id) == followed


def test_two_leaders_of_one_epoch_end_the_node() -> None:
    quorum, fetch = follower()
    with pytest.raises(InvariantViolation, match="one leader in epoch 4"):
        quorum.step(9, answered(fetch, fetch_response(4, leader=3)))


def test_an_answer_to_an_older_fetch_is_not_used() -> None:
    quorum, fetch = follower()
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(3), leader_epoch=Epoch(5))
    quorum.step(5, asked(begin))
    late = answered(fetch, fetch_response(4), records=records(4, 6, (4, 4)))
    assert quorum.step(9, late) == []


def test_an_observer_that_asks_in_vain_asks_less_and_less_often_up_to_a_limit() -> None:
    """The voters hold an election meanwhile: they have other things to do."""
    quorum, now_ms, waits = started(9), 0, []
    fetch_id = 1  # sent at the start
    for _ in range(7):
        quorum.step(now_ms, events.RequestFailed(request_id=fetch_id))
        deadline_ms = quorum.next_deadline_ms()
        assert deadline_ms is not None
        waits.append(deadline_ms - now_ms)
        now_ms = deadline_ms
        (fetch,) = sent(quorum.step(now_ms, events.Ticked()), FetchRequest)
        fetch_id = fetch.request_id
    assert waits == [20, 40, 80, 160, 250, 250, 250]
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(2), leader_epoch=Epoch(4))
    (fetch,) = sent(quorum.step(now_ms, asked(begin)), FetchRequest)
    (fetch,) = sent(quorum.step(now_ms, answered(fetch, fetch_response(4))), FetchRequest)
    quorum.step(now_ms, events.RequestFailed(request_id=fetch.request_id))
    assert quorum.next_deadline_ms() == now_ms + 20


def test_begin_quorum_epoch_of_an_older_epoch_is_fenced() -> None:
    quorum, _ = follower()
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(3), leader_epoch=Epoch(3))
    response = only(effects.SendResponse, quorum.step(1, asked(begin))).response
    assert response == BeginQuorumEpochResponse(
        error_code=ErrorCode.FENCED_LEADER_EPOCH, leader_id=BrokerId(2), leader_epoch=Epoch(4)
    )


@pytest.mark.parametrize("leader_id", [1, 9])
def test_nobody_else_may_say_that_it_leads(leader_id: int) -> None:
    quorum, _ = follower()
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(leader_id), leader_epoch=Epoch(8))
    response = only(effects.SendResponse, quorum.step(1, asked(begin))).response
    assert response.error_code is ErrorCode.INVALID_REQUEST
    assert quorum.leader_epoch == 4


@pytest.mark.parametrize(
    ("preferred", "stands_ms"),
    [((1, 3), 100), ((3, 1), 600), ((3, 4, 1), 600), ((3, 4, 5, 1), 600), ((), 1100)],
)
def test_the_preferred_successor_stands_first(preferred: tuple[int, ...], stands_ms: int) -> None:
    quorum, _ = follower()
    end = EndQuorumEpochRequest(
        leader_id=BrokerId(2),
        leader_epoch=Epoch(4),
        preferred_candidates=tuple(map(BrokerId, preferred)),
    )
    response = only(effects.SendResponse, quorum.step(100, asked(end))).response
    assert isinstance(response, EndQuorumEpochResponse)
    quorum.step(stands_ms - 1, events.Ticked())
    assert isinstance(quorum.role, Prospective) == (stands_ms == 100)
    quorum.step(stands_ms, events.Ticked())
    assert isinstance(quorum.role, Prospective)


def test_the_notice_of_a_death_can_be_turned_off() -> None:
    quorum = Quorum(
        node_id=BrokerId(3),
        voters=tuple(map(BrokerId, (1, 2, 3))),
        settings=QuorumSettings(controller_quorum_dead_process_notice_enable=False),
        random_fraction=lambda: 0.0,
    )
    quorum.step(0, events.Started(leader_epoch=Epoch(4), leader_id=BrokerId(1)))
    assert quorum.step(100, events.PeerProcessDied(node_id=BrokerId(1))) == []
    assert quorum.next_deadline_ms() == 2000
