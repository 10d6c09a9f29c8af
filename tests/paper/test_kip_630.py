"""KIP-630, snapshots of the metadata log, by clause: who gets one, and how it is fetched."""

from typing import Any

import pytest

from quorumlog.chaos.mutants.quorum import QUORUMS
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    SnapshotId,
    VoteRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Follower, Leader
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

START = SnapshotId(Offset(10), Epoch(3))
NEWEST = SnapshotId(Offset(16), Epoch(5))
CUT_LOG: dict[str, Any] = {
    "leader_epoch": Epoch(6),
    "log_end_offset": Offset(20),
    "epoch_starts": ((Epoch(4), Offset(10)), (Epoch(5), Offset(14))),
    "log_start": START,
    "snapshot_id": NEWEST,
}
LATER = SnapshotId(Offset(40), Epoch(6))


def leader(quorum_class: type[Quorum] = Quorum) -> Quorum:
    """Node 1 leads epoch 7; its log starts at 10, behind epoch 3."""
    quorum = started(1, quorum_class=quorum_class, **CUT_LOG)
    ordered = quorum.step(5000, events.Ticked())
    for epoch in (6, 7):  # pre-votes, then votes
        request, _ = sent(ordered, VoteRequest)
        ordered = quorum.step(5000, answered(request, vote_response(epoch, granted=True)))
    assert quorum.is_leader
    return quorum


def follower(**log: Any) -> tuple[Quorum, list[Effect]]:
    """Node 1 follows node 2 in epoch 6, and has just fetched."""
    quorum = started(1, **log)
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(2), leader_epoch=Epoch(6))
    return quorum, quorum.step(10, asked(begin))


def downloading(**log: Any) -> tuple[Quorum, list[Effect]]:
    quorum, ordered = follower(**log)
    [fetch] = sent(ordered, FetchRequest)
    named = fetch_response(6, high_watermark=44, snapshot_id=LATER)
    return quorum, quorum.step(20, answered(fetch, named))


def chunk(position: int, size: int = 100, **more: Any) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(
        error_code=more.pop("error_code", ErrorCode.NONE),
        leader_id=BrokerId(2),
        leader_epoch=Epoch(6),
        position=position,
        size=size,
    )


@pytest.mark.parametrize(
    ("offset", "last_epoch", "answer"),
    [
        (9, 3, "snapshot"),  # below the start
        (0, 0, "snapshot"),
        (10, 3, "records"),  # just at it
        (10, 2, "snapshot"),
        (10, 4, "snapshot"),  # the records below are others
        (15, 2, "snapshot"),  # an epoch that is older than all that the leader has
        (15, 3, "diverging"),
        (15, 5, "records"),
        (15, 4, "diverging"),
        (12, 4, "records"),
        (30, 5, "diverging"),
    ],
)
def test_a_leader_names_its_newest_snapshot_where_records_do_not_help(
    offset: int, last_epoch: int, answer: str
) -> None:
    quorum = leader()
    fetch = fetch_request(2, epoch=7, offset=offset, last_epoch=last_epoch)
    told = only(effects.AnswerFetch, quorum.step(5100, asked(fetch)))
    response = told.response
    assert (response.snapshot_id == NEWEST) is (answer == "snapshot")
    assert (response.diverging_epoch is not None) is (answer == "diverging")
    assert (told.records_to > told.records_from) is (answer == "records")
    assert told.records_from in {0, offset}


@pytest.mark.planted
def test_the_mutant_that_compares_lengths_below_its_start_cuts_what_it_cannot_send() -> None:
    """The follower's log ends at 12 in epoch 2: they part below 10, where this log starts."""
    answers = []
    for quorum_class in (Quorum, QUORUMS["sees_no_epoch_below_start"].parts.quorum):
        fetch = fetch_request(2, epoch=7, offset=12, last_epoch=2)
        ordered = leader(quorum_class).step(5100, asked(fetch))
        answers.append(only(effects.AnswerFetch, ordered).response)
    assert (answers[0].snapshot_id, answers[0].diverging_epoch) == (NEWEST, None)
    assert answers[1].snapshot_id is None
    assert answers[1].diverging_epoch is not None


@pytest.mark.parametrize(
    ("epoch", "position", "replica", "error_code"),
    [
        (7, 0, 2, ErrorCode.NONE),
        (6, 0, 2, ErrorCode.FENCED_LEADER_EPOCH),
        (8, 0, 2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (7, -1, 2, ErrorCode.INVALID_REQUEST),
        (7, 0, 1, ErrorCode.INVALID_REQUEST),
        (7, 0, -1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_leader_serves_a_snapshot_in_its_own_epoch_only(
    epoch: int, position: int, replica: int, error_code: ErrorCode
) -> None:
    request = FetchSnapshotRequest(
        replica_id=BrokerId(replica),
        current_leader_epoch=Epoch(epoch),
        snapshot_id=NEWEST,
        position=position,
    )
    ordered = leader().step(5100, asked(request))
    if error_code is ErrorCode.NONE:
        answer = only(effects.AnswerFetchSnapshot, ordered)
        assert (answer.snapshot_id, answer.position) == (NEWEST, position)
    else:
        response = only(effects.SendResponse, ordered).response
        assert response.error_code is error_code


def test_voters_that_fetch_a_snapshot_keep_the_leader_in_office() -> None:
    quorum = leader()
    request = FetchSnapshotRequest(
        replica_id=BrokerId(3), current_leader_epoch=Epoch(7), snapshot_id=NEWEST, position=0
    )
    for now_ms in range(5000, 20_000, 1000):
        quorum.step(now_ms, asked(request))
        assert isinstance(quorum.state.role, Leader)
    quorum.step(30_000, events.Ticked())
    assert not quorum.is_leader


LONGER: dict[str, Any] = {"leader_epoch": 3, "log_end_offset": 50, "epoch_starts": ((3, 0),)}


@pytest.mark.parametrize("log", [{}, LONGER], ids=["of no records", "longer than the snapshot"])
def test_a_follower_fetches_in_chunks_checks_and_installs(log: dict[str, Any]) -> None:
    quorum, ordered = downloading(**log)
    [request] = sent(ordered, FetchSnapshotRequest)
    assert (request.destination, request.request) == (
        2,
        FetchSnapshotRequest(
            replica_id=BrokerId(1), current_leader_epoch=Epoch(6), snapshot_id=LATER, position=0
        ),
    )
    ordered = quorum.step(30, answered(request, chunk(0), snapshot_bytes=60))
    assert only(effects.AppendSnapshot, ordered).position == 0
    [request] = sent(ordered, FetchSnapshotRequest)
    ordered = quorum.step(40, answered(request, chunk(60), snapshot_bytes=40))
    assert [type(one).__name__ for one in ordered] == ["AppendSnapshot", "CheckSnapshot"]
    ordered = quorum.step(50, events.SnapshotChecked(snapshot_id=LATER, is_whole=True))
    assert isinstance(ordered[0], effects.InstallSnapshot)
    assert only(effects.AdvanceHighWatermark, ordered).high_watermark == 40
    assert (quorum.state.log.end_offset, quorum.state.log.flushed_offset, quorum.log_start) == (
        40,
        40,
        (40, 6),
    )
    [fetch] = sent(ordered, FetchRequest)
    assert fetch.request == fetch_request(
        1, epoch=6, offset=40, last_epoch=6, high_watermark=Offset(40)
    )


def test_while_a_large_draft_is_checked_the_leader_hears_of_the_follower() -> None:
    quorum, ordered = downloading()
    [request] = sent(ordered, FetchSnapshotRequest)
    quorum.step(30, answered(request, chunk(0), snapshot_bytes=100))
    now_ms = 30
    for _ in range(20):
        now_ms = quorum.next_deadline_ms() or 0
        [request] = sent(quorum.step(now_ms, events.Ticked()), FetchSnapshotRequest)
        ordered = quorum.step(now_ms, answered(request, chunk(100)))
        assert ordered == []
        assert isinstance(quorum.state.role, Follower)
    ordered = quorum.step(now_ms, events.SnapshotChecked(snapshot_id=LATER, is_whole=True))
    assert isinstance(ordered[0], effects.InstallSnapshot)


@pytest.mark.parametrize(
    ("response", "count"),
    [
        (chunk(7), 20),  # other bytes than those asked for
        (chunk(0, size=10), 20),  # more than there are
        (chunk(0), 0),  # none
        (chunk(0, size=0), 0),
        (chunk(0, error_code=ErrorCode.SNAPSHOT_NOT_FOUND), 0),
    ],
)
def test_a_chunk_that_makes_no_sense_ends_the_download(
    response: FetchSnapshotResponse, count: int
) -> None:
    quorum, ordered = downloading()
    [request] = sent(ordered, FetchSnapshotRequest)
    ordered = quorum.step(30, answered(request, response, snapshot_bytes=count))
    assert ordered == []
    assert sent(quorum.step(200, events.Ticked()), FetchRequest)  # it asks what to do, later


def test_a_snapshot_that_changed_its_size_is_not_the_same() -> None:
    quorum, ordered = downloading()
    [request] = sent(ordered, FetchSnapshotRequest)
    ordered = quorum.step(30, answered(request, chunk(0), snapshot_bytes=60))
    [request] = sent(ordered, FetchSnapshotRequest)
    assert quorum.step(40, answered(request, chunk(60, size=101), snapshot_bytes=41)) == []


def test_a_download_ends_with_the_epoch_and_its_check_installs_nothing() -> None:
    quorum, ordered = downloading()
    [request] = sent(ordered, FetchSnapshotRequest)
    quorum.step(30, answered(request, chunk(0), snapshot_bytes=100))
    begin = BeginQuorumEpochRequest(leader_id=BrokerId(3), leader_epoch=Epoch(7))
    [fetch] = sent(quorum.step(40, asked(begin)), FetchRequest)
    named = fetch_response(7, leader=3, snapshot_id=LATER)
    response = events.ResponseReceived(
        request_id=fetch.request_id, source=BrokerId(3), response=named
    )
    # The file of the draft is still being read: no other download begins.
    assert sent(quorum.step(50, response), FetchSnapshotRequest) == []
    checked = events.SnapshotChecked(snapshot_id=LATER, is_whole=True)
    assert not any(isinstance(e, effects.InstallSnapshot) for e in quorum.step(60, checked))
    assert quorum.state.log.end_offset == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_only_a_whole_draft_is_installed(*, is_whole: bool) -> None:
    quorum, ordered = downloading()
    [request] = sent(ordered, FetchSnapshotRequest)
    quorum.step(30, answered(request, chunk(0), snapshot_bytes=100))
    ordered = quorum.step(40, events.SnapshotChecked(snapshot_id=LATER, is_whole=is_whole))
    assert any(isinstance(e, effects.InstallSnapshot) for e in ordered) is is_whole
    assert quorum.state.log.end_offset == (40 if is_whole else 0)


def test_a_snapshot_that_lacks_what_is_committed_is_refused() -> None:
    quorum, ordered = follower(**CUT_LOG)
    assert quorum.state.log.high_watermark == 10  # what is below the start of a log is committed
    [fetch] = sent(ordered, FetchRequest)
    named = fetch_response(6, snapshot_id=SnapshotId(Offset(10), Epoch(3)))
    assert sent(quorum.step(20, answered(fetch, named)), FetchSnapshotRequest) == []


def test_a_vote_is_asked_for_by_the_end_of_the_snapshot_if_the_log_is_empty() -> None:
    quorum = started(
        1, leader_epoch=Epoch(6), log_end_offset=Offset(16), log_start=NEWEST, snapshot_id=NEWEST
    )
    [first, _] = sent(quorum.step(5000, events.Ticked()), VoteRequest)
    assert isinstance(first.request, VoteRequest)
    assert (first.request.last_offset_epoch, first.request.last_offset) == (5, 16)


def test_a_snapshot_of_what_is_not_committed_is_our_bug() -> None:
    with pytest.raises(InvariantViolation, match="12"):
        leader().step(5100, events.SnapshotWritten(snapshot_id=SnapshotId(Offset(18), Epoch(5))))
