"""Rules of a follower at their edges: whom it believes, whom it asks, and how long it waits."""

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    DivergingEpoch,
    EndQuorumEpochRequest,
    FetchRequest,
    Response,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Follower, Prospective, Unattached
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import asked, fetch_response, sent, started

RECORDS = events.FetchedRecords(
    base_offset=Offset(0), end_offset=Offset(1), epoch_starts=((Epoch(4), Offset(0)),)
)


def following(node_id: int = 1) -> tuple[Quorum, int]:
    """A node that follows node 2 in epoch 4; and the id of its fetch."""
    node = started(node_id)
    (fetch,) = sent(node.step(0, asked(begin(2, 4))), FetchRequest)
    return node, fetch.request_id


def begin(leader: int, epoch: int) -> BeginQuorumEpochRequest:
    return BeginQuorumEpochRequest(leader_id=BrokerId(leader), leader_epoch=Epoch(epoch))


def end(leader: int, epoch: int, *preferred: int) -> EndQuorumEpochRequest:
    return EndQuorumEpochRequest(
        leader_id=BrokerId(leader),
        leader_epoch=Epoch(epoch),
        preferred_candidates=tuple(map(BrokerId, preferred)),
    )


def response_from(source: int, request_id: int, response: Response) -> events.ResponseReceived:
    return events.ResponseReceived(
        request_id=request_id, source=BrokerId(source), response=response, records=RECORDS
    )


# --- whom it believes ---


@pytest.mark.parametrize(
    ("source", "response"),
    [
        (2, fetch_response(4, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
        (2, fetch_response(4, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)),
        (3, fetch_response(4)),  # it knows the leader, but is not
        (2, fetch_response(3)),  # an older epoch
        (2, fetch_response(4, leader=77)),
    ],
)
def test_records_are_taken_from_the_leader_of_the_epoch_alone(
    source: int, response: Response
) -> None:
    node, fetch_id = following()
    node.step(100, response_from(source, fetch_id, response))
    assert node.log_end_offset == 0
    assert isinstance(node.role, Follower)
    assert node.role.fetch_deadline_ms == 2000  # it has not heard its leader
    assert not node.role.has_fetched


@pytest.mark.parametrize("starts", [((0, 0),), ((3, 0), (4, 0)), ((3, 1),), ((3, 0), (4, 1))])
def test_epochs_that_no_leader_could_have_written_are_not_taken(
    starts: tuple[tuple[int, int], ...],
) -> None:
    node, fetch_id = following()
    fetched = events.FetchedRecords(
        base_offset=Offset(0),
        end_offset=Offset(1),
        epoch_starts=tuple((Epoch(epoch), Offset(start)) for epoch, start in starts),
    )
    node.step(
        100,
        events.ResponseReceived(
            request_id=fetch_id, source=BrokerId(2), response=fetch_response(4), records=fetched
        ),
    )
    assert node.log_end_offset == 0


def test_of_an_epoch_that_it_does_not_have_it_goes_by_the_one_before() -> None:
    """The leader's end is of another epoch: several rounds find where the logs part."""
    node = started(leader_epoch=4, leader_id=2, log_end_offset=4, epoch_starts=((1, 0), (3, 2)))
    diverging = fetch_response(
        4, diverging_epoch=DivergingEpoch(epoch=Epoch(2), end_offset=Offset(1))
    )
    node.step(1, events.ResponseReceived(request_id=1, source=BrokerId(2), response=diverging))
    assert node.log_end_offset == 2


def test_records_from_the_leader_are_taken() -> None:
    node, fetch_id = following()
    node.step(100, response_from(2, fetch_id, fetch_response(4)))
    assert node.log_end_offset == 1
    assert isinstance(node.role, Follower)
    assert node.role.fetch_deadline_ms == 2100


def test_one_that_is_behind_says_nothing_of_who_leads() -> None:
    """UNKNOWN_LEADER_EPOCH: whatever else it says, its epoch is not ours yet."""
    node = started(leader_epoch=4)
    response = fetch_response(4, leader=3, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH)
    node.step(2, response_from(3, 1, response))  # to its first fetch
    assert isinstance(node.role, Unattached)


def test_records_beside_a_divergence_make_no_sense() -> None:
    node, fetch_id = following()
    node.step(100, response_from(2, fetch_id, fetch_response(4)))
    (fetch,) = sent(node.step(101, events.LogFlushed(flushed_offset=Offset(1))), FetchRequest)
    diverging = DivergingEpoch(epoch=Epoch(0), end_offset=Offset(0))
    both = fetch_response(4, diverging_epoch=diverging)
    node.step(102, response_from(2, fetch.request_id, both))
    assert node.log_end_offset == 1


# --- what a leader tells ---


def test_the_end_of_an_epoch_does_not_put_off_the_fetch_timeout() -> None:
    node, _ = following()
    node.step(1900, asked(end(2, 4)))  # it is not among the candidates: 1000 ms
    assert node.next_deadline_ms() == 2000


def test_the_end_of_an_epoch_that_it_had_not_heard_of_counts() -> None:
    node = started(leader_epoch=3)
    node.step(500, asked(end(2, 4, 1, 3)))
    assert isinstance(node.role, Prospective)
    assert node.leader_epoch == 4


@pytest.mark.parametrize(
    ("count", "position", "wait_ms"),
    [(2, 1, 500), (3, 1, 250), (3, 2, 500), (9, 8, 500), (5000, 4999, 500), (5000, 4998, 250)],
)
def test_a_successor_waits_half_as_long_as_the_next(
    count: int, position: int, wait_ms: int
) -> None:
    node, _ = following()
    preferred = [100 + place for place in range(count)]
    preferred[position] = 1
    node.step(100, asked(end(2, 4, *preferred)))
    assert isinstance(node.role, Follower)
    assert node.role.fetch_deadline_ms == 100 + wait_ms


# --- what its driver says ---


def test_a_flush_that_was_not_ordered_or_goes_beyond_the_log_is_a_bug() -> None:
    node, fetch_id = following()
    with pytest.raises(InvariantViolation, match="a flush was ordered"):
        node.step(1, events.LogFlushed(flushed_offset=Offset(0)))
    node, fetch_id = following()
    node.step(100, response_from(2, fetch_id, fetch_response(4)))
    with pytest.raises(InvariantViolation, match="the flushed records were in the log"):
        node.step(101, events.LogFlushed(flushed_offset=Offset(2)))


# --- whom it asks, and how long it waits ---


def test_a_voter_asks_its_leader_even_if_that_seems_gone_and_does_not_wait() -> None:
    node = started()
    (first,) = sent(node.step(0, asked(begin(3, 4))), FetchRequest)
    node.step(100, events.PeerProcessDied(node_id=BrokerId(3)))
    node.step(101, events.RequestFailed(request_id=first.request_id))
    node.role.notice_deadline_ms = None  # type: ignore[union-attr]
    (fetch,) = sent(node.step(121, events.Ticked()), FetchRequest)
    assert fetch.destination == 3
    assert isinstance(fetch.request, FetchRequest)
    assert fetch.request.max_wait_ms == 0
    assert fetch.timeout_ms == 2000


def test_a_fetch_that_may_wait_has_longer() -> None:
    node = started()
    (fetch,) = sent(node.step(0, asked(begin(2, 4))), FetchRequest)
    assert isinstance(fetch.request, FetchRequest)
    assert fetch.request.max_wait_ms == 500
    assert fetch.timeout_ms == 2500


def test_a_voter_without_a_leader_asks_around_slowly_and_an_observer_fast() -> None:
    for node_id, again_ms in ((1, 100), (9, 20)):
        node = started(node_id)
        node.step(0, events.RequestFailed(request_id=1))
        assert not sent(node.step(again_ms - 1, events.Ticked()), FetchRequest)
        assert sent(node.step(again_ms, events.Ticked()), FetchRequest)


def answered_empty(request_id: int) -> events.ResponseReceived:
    return events.ResponseReceived(
        request_id=request_id, source=BrokerId(2), response=fetch_response(4)
    )


def granted(node: Quorum, ask: events.Event) -> bool:
    (order,) = [order for order in node.step(101, ask) if hasattr(order, "response")]
    return bool(getattr(order.response, "vote_granted", False))
