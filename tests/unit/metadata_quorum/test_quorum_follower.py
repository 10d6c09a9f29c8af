"""Rules of a follower: start, fetch and flush, truncation, elections; whom it believes and asks."""

from typing import Any

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchRequest,
    Response,
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
    begin,
    diverging,
    end,
    fail,
    fetch_response,
    flush,
    only,
    quorum_of,
    records,
    reply,
    requested,
    role_of,
    sent,
    started,
    tick,
)

STARTS = ((1, 0), (3, 2))  # a log of four records: [0, 2) of epoch 1, [2, 4) of epoch 3
WHOLE: dict[str, Any] = {"log_end_offset": 4, "epoch_starts": STARTS}


def follower(node_id: int = 1, **log: Any) -> tuple[Quorum, effects.SendRequest]:
    """A node, with an empty log or another, follows node 2 in epoch 4; and its fetch."""
    quorum = started(node_id, **{"leader_epoch": 4, **log} if log else {})
    [fetch] = sent(quorum.step(0, asked(begin(2, 4))), FetchRequest)
    return quorum, fetch


def response_from(source: int, request_id: int, response: Response) -> events.ResponseReceived:
    """A response with one record of epoch 4, the first of the log."""
    return events.ResponseReceived(
        request_id=request_id,
        source=BrokerId(source),
        response=response,
        records=records(0, 1, (4, 0)),
    )


# --- the start ---


@pytest.mark.parametrize(
    ("started_with", "role"),
    [
        ({}, Unattached),
        ({"leader_epoch": 4, "leader_id": 1, "voted_id": 1}, Resigned),
        ({"leader_epoch": 4, "voted_id": 1}, Candidate),
        ({"leader_epoch": 4, "leader_id": 2}, Follower),
        ({"leader_epoch": 4, "voted_id": 3}, Unattached),
        ({"leader_epoch": 2, "leader_id": 2, **WHOLE}, Unattached),
        # Not yet durable: it may not ask for votes with it.
        ({"leader_epoch": 4, "voted_id": 1, "flushed_offset": 2, **WHOLE}, Unattached),
        ({"node_id": 9, "leader_epoch": 4, "leader_id": 2}, Follower),
        ({"node_id": 9, "leader_epoch": 4, "voted_id": 9}, Unattached),
    ],
)
def test_the_role_after_a_restart(started_with: dict[str, Any], role: type) -> None:
    assert isinstance(started(**started_with).state.role, role)


def test_a_log_newer_than_the_election_state_sets_the_epoch() -> None:
    quorum = started(leader_epoch=2, leader_id=2, **WHOLE)
    assert (quorum.state.leader_epoch, quorum.state.leader_id) == (3, -1)
    with pytest.raises(InvariantViolation, match="Started is the first"):
        quorum.step(1, events.Started())


# --- records and truncation ---


@pytest.mark.parametrize(
    "fetched",
    [
        records(3, 6, (4, 3)),  # not at our end
        records(4, 6, (5, 4)),  # of an epoch that its leader does not know of (KAFKA-18723)
        records(4, 6, (2, 4)),  # of an epoch before our last
        records(4, 6, (4, 4), (3, 5)),
        records(4, 6, (4, 5)),
        records(4, 6),
        records(4, 6, (0, 4)),
        records(4, 6, (3, 4), (4, 6)),
        records(4, 6, (3, 5), (4, 6)),
    ],
)
def test_records_that_cannot_follow_ours_are_not_appended(fetched: events.FetchedRecords) -> None:
    quorum, fetch = follower(**WHOLE)
    assert quorum.step(9, answered(fetch, fetch_response(4), records=fetched)) == []
    assert quorum.state.log.end_offset == 4
    assert sent(tick(quorum, 29), FetchRequest)


@pytest.mark.parametrize("starts", [((0, 0),), ((3, 0), (4, 0)), ((3, 1),), ((3, 0), (4, 1))])
def test_epochs_that_no_leader_could_have_written_are_not_taken(
    starts: tuple[tuple[int, int], ...],
) -> None:
    quorum, fetch = follower()
    quorum.step(100, answered(fetch, fetch_response(4), records=records(0, 1, *starts)))
    assert quorum.state.log.end_offset == 0


@pytest.mark.parametrize(
    ("epoch", "end_offset", "truncated"),
    [
        (3, 3, 3),  # the leader has less of our last epoch
        (2, 1, 2),  # we have nothing of epoch 2: several rounds find where the logs part
        (2, 2, 2),  # all of epoch 3 goes
        (1, 1, 1),
        (0, 0, 0),
    ],
)
def test_what_the_leader_does_not_have_goes(epoch: int, end_offset: int, truncated: int) -> None:
    quorum, fetch = follower(**WHOLE)
    response = fetch_response(4, high_watermark=3, diverging_epoch=diverging(epoch, end_offset))
    orders = quorum.step(9, answered(fetch, response))
    assert orders[0] == effects.TruncateLog(end_offset=Offset(truncated))
    assert quorum.state.log.high_watermark == 0  # what is left may diverge, too (KAFKA-14704)
    assert requested(orders, FetchRequest).fetch_offset == truncated == quorum.state.log.end_offset


def test_nothing_that_is_committed_goes() -> None:
    quorum, fetch = follower(**WHOLE)
    orders = quorum.step(9, answered(fetch, fetch_response(4, high_watermark=3)))
    [again] = sent(orders, FetchRequest)
    parted = fetch_response(4, diverging_epoch=diverging(1, 2))
    with pytest.raises(InvariantViolation, match="3: committed records"):
        quorum.step(10, answered(again, parted))


def test_a_truncation_that_leads_nowhere_or_comes_with_records_is_not_made() -> None:
    quorum, fetch = follower(**WHOLE)
    nowhere = fetch_response(4, diverging_epoch=diverging(3, 9))
    assert quorum.step(9, answered(fetch, nowhere)) == []
    quorum, fetch = follower()
    quorum.step(100, response_from(2, fetch.request_id, fetch_response(4)))
    [fetch] = sent(flush(quorum, 101), FetchRequest)
    both = fetch_response(4, diverging_epoch=diverging(0, 0))
    quorum.step(102, response_from(2, fetch.request_id, both))
    assert quorum.state.log.end_offset == 1


def test_a_flush_that_was_not_ordered_or_goes_beyond_the_log_is_a_bug() -> None:
    quorum, _ = follower()
    with pytest.raises(InvariantViolation, match="a flush was ordered"):
        flush(quorum, 1)
    quorum, fetch = follower()
    quorum.step(100, response_from(2, fetch.request_id, fetch_response(4)))
    with pytest.raises(InvariantViolation, match="the flushed records were in the log"):
        quorum.step(101, events.LogFlushed(flushed_offset=Offset(2)))


# --- whom it believes ---


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
    quorum, fetch = follower(**WHOLE)
    response = fetch_response(epoch, leader=leader, error_code=error_code)
    quorum.step(9, answered(fetch, response))
    assert (quorum.state.leader_epoch, quorum.state.leader_id) == followed


def test_two_leaders_of_one_epoch_end_the_node() -> None:
    quorum, fetch = follower()
    with pytest.raises(InvariantViolation, match="one leader in epoch 4"):
        quorum.step(9, answered(fetch, fetch_response(4, leader=3)))


def test_an_answer_to_an_older_fetch_is_not_used() -> None:
    quorum, fetch = follower(**WHOLE)
    quorum.step(5, asked(begin(3, 5)))
    late = answered(fetch, fetch_response(4), records=records(4, 6, (4, 4)))
    assert quorum.step(9, late) == []


@pytest.mark.parametrize(
    ("source", "response", "end_offset", "deadline_ms"),
    [
        (2, fetch_response(4), 1, 2100),
        (2, fetch_response(4, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), 0, 2000),
        (2, fetch_response(4, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH), 0, 2000),
        (3, fetch_response(4), 0, 2000),  # it knows the leader, but is not
        (2, fetch_response(3), 0, 2000),  # an older epoch
        (2, fetch_response(4, leader=77), 0, 2000),
    ],
)
def test_records_are_taken_from_the_leader_of_the_epoch_alone(
    source: int, response: Response, end_offset: int, deadline_ms: int
) -> None:
    quorum, fetch = follower()
    quorum.step(100, response_from(source, fetch.request_id, response))
    assert quorum.state.log.end_offset == end_offset
    role = role_of(quorum, Follower)
    assert role.fetch_deadline_ms == deadline_ms  # 2000: it has not heard its leader
    assert role.has_fetched is (deadline_ms != 2000)


def test_one_that_is_behind_says_nothing_of_who_leads() -> None:
    """UNKNOWN_LEADER_EPOCH: whatever else it says, its epoch is not ours yet."""
    quorum = started(leader_epoch=4)
    response = fetch_response(4, leader=3, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)
    quorum.step(2, response_from(3, 1, response))  # to its first fetch
    assert isinstance(quorum.state.role, Unattached)


def test_begin_quorum_epoch_of_an_older_epoch_is_fenced() -> None:
    quorum, _ = follower()
    assert reply(quorum, begin(3, 3)) == BeginQuorumEpochResponse(
        error_code=ErrorCode.FENCED_LEADER_EPOCH, leader_id=BrokerId(2), leader_epoch=Epoch(4)
    )


@pytest.mark.parametrize("leader_id", [1, 9])
def test_nobody_else_may_say_that_it_leads(leader_id: int) -> None:
    quorum, _ = follower()
    assert reply(quorum, begin(leader_id, 8)).error_code is ErrorCode.INVALID_REQUEST
    assert quorum.state.leader_epoch == 4


# --- the end of its leader ---


@pytest.mark.parametrize(
    ("preferred", "stands_ms"),
    [((1, 3), 100), ((3, 1), 600), ((3, 4, 1), 600), ((3, 4, 5, 1), 600), ((), 1100)],
)
def test_the_preferred_successor_stands_first(preferred: tuple[int, ...], stands_ms: int) -> None:
    quorum, _ = follower()
    assert isinstance(reply(quorum, end(2, 4, *preferred), 100), EndQuorumEpochResponse)
    tick(quorum, stands_ms - 1)
    assert isinstance(quorum.state.role, Prospective) == (stands_ms == 100)
    tick(quorum, stands_ms)
    assert isinstance(quorum.state.role, Prospective)


@pytest.mark.parametrize(
    ("count", "position", "wait_ms"),
    [(2, 1, 500), (3, 1, 250), (3, 2, 500), (9, 8, 500), (5000, 4999, 500), (5000, 4998, 250)],
)
def test_a_successor_waits_half_as_long_as_the_next(
    count: int, position: int, wait_ms: int
) -> None:
    quorum, _ = follower()
    preferred = [100 + place for place in range(count)]
    preferred[position] = 1
    quorum.step(100, asked(end(2, 4, *preferred)))
    assert role_of(quorum, Follower).fetch_deadline_ms == 100 + wait_ms


def test_the_end_of_an_epoch_does_not_put_off_the_fetch_timeout() -> None:
    quorum, _ = follower()
    quorum.step(1900, asked(end(2, 4)))  # it is not among the candidates: 1000 ms
    assert quorum.next_deadline_ms() == 2000


def test_the_end_of_an_epoch_that_it_had_not_heard_of_counts() -> None:
    quorum = started(leader_epoch=3)
    quorum.step(500, asked(end(2, 4, 1, 3)))
    assert isinstance(quorum.state.role, Prospective)
    assert quorum.state.leader_epoch == 4


def test_the_notice_of_a_death_can_be_turned_off() -> None:
    quorum = quorum_of(
        3, settings=QuorumSettings(controller_quorum_dead_process_notice_enable=False)
    )
    quorum.step(0, events.Started(leader_epoch=Epoch(4), leader_id=BrokerId(1)))
    assert quorum.step(100, events.PeerProcessDied(node_id=BrokerId(1))) == []
    assert quorum.next_deadline_ms() == 2000


# --- whom it asks, and how long it waits ---


def test_an_observer_that_asks_in_vain_asks_less_and_less_often_up_to_a_limit() -> None:
    """The voters hold an election meanwhile: they have other things to do."""
    quorum, now_ms, waits = started(9), 0, []
    fetch_id = 1  # sent at the start
    for _ in range(7):
        fail(quorum, fetch_id, now_ms)
        deadline_ms = quorum.next_deadline_ms()
        assert deadline_ms is not None
        waits.append(deadline_ms - now_ms)
        now_ms = deadline_ms
        [fetch] = sent(tick(quorum, now_ms), FetchRequest)
        fetch_id = fetch.request_id
    assert waits == [20, 40, 80, 160, 250, 250, 250]
    [fetch] = sent(quorum.step(now_ms, asked(begin(2, 4))), FetchRequest)
    [fetch] = sent(quorum.step(now_ms, answered(fetch, fetch_response(4))), FetchRequest)
    deposed = fetch_response(6, leader=3, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    [fetch] = sent(quorum.step(now_ms, answered(fetch, deposed)), FetchRequest)
    fail(quorum, fetch.request_id, now_ms)
    assert quorum.next_deadline_ms() == now_ms + 20  # the response named a leader: not in vain


def test_a_voter_asks_its_leader_even_if_that_seems_gone_and_does_not_wait() -> None:
    quorum = started()
    [first] = sent(quorum.step(0, asked(begin(3, 4))), FetchRequest)
    assert isinstance(first.request, FetchRequest)
    assert (first.request.max_wait_ms, first.timeout_ms) == (500, 2500)  # one that waits has longer
    quorum.step(100, events.PeerProcessDied(node_id=BrokerId(3)))
    fail(quorum, first.request_id, 101)
    role_of(quorum, Follower).notice_deadline_ms = None
    orders = tick(quorum, 121)
    assert requested(orders, FetchRequest).max_wait_ms == 0
    order = only(effects.SendRequest, orders)
    assert (order.destination, order.timeout_ms) == (3, 2000)


def test_a_voter_without_a_leader_asks_around_slowly_and_an_observer_fast() -> None:
    for node_id, again_ms in ((1, 100), (9, 20)):
        quorum = started(node_id)
        fail(quorum, 1)
        assert not sent(tick(quorum, again_ms - 1), FetchRequest)
        assert sent(tick(quorum, again_ms), FetchRequest)
