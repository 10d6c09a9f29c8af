"""Markers: sent after the decision only, again until they are written, and after a fail-over."""

import pytest

from quorumlog.broker.coordination.core.events import BecameLeader
from quorumlog.broker.transactions.core.events import MarkersWritten, PartitionsDeleted
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch
from tests.support.coordination.transactions_begun import opened
from tests.support.transactions.coordination import T0, T1, Coordination, abort, add, commit, init

PREPARE_COMMIT, COMPLETE_COMMIT = TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT


def prepared() -> Coordination:
    """A transaction of two partitions is decided, and its markers are asked for."""
    driven = Coordination()
    driven.answer(commit(driven.opened(T0, T1)))
    assert driven.state is PREPARE_COMMIT
    return driven


def written(name: str, prepared_ms: int, error_code: ErrorCode) -> MarkersWritten:
    return MarkersWritten(
        transactional_id=name,
        prepared_ms=prepared_ms,
        coordinator_epoch=Epoch(1),
        errors={T0: error_code},
    )


def test_a_transaction_is_complete_when_its_last_marker_is_written() -> None:
    driven = prepared()
    [sent] = driven.markers
    driven.marked(sent, {T0: ErrorCode.NONE})
    assert driven.writes == []
    driven.marked(sent, {T1: ErrorCode.NONE})
    assert driven.state is PREPARE_COMMIT
    driven.commit_writes()
    assert driven.state is COMPLETE_COMMIT
    driven.step(written("y", 1, ErrorCode.NONE))  # of an unknown id
    assert driven.writes == []


@pytest.mark.parametrize(
    "error_code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.INVALID_PRODUCER_EPOCH,  # KAFKA-19999: giving up would leave it open for ever
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_marker_that_is_not_written_is_sent_again_alone_later(error_code: ErrorCode) -> None:
    driven = prepared()
    driven.marked(driven.markers.pop(), {T0: ErrorCode.NONE, T1: error_code})
    assert driven.markers == []
    driven.tick(19)
    assert driven.markers == []
    driven.tick(1)
    [again] = driven.markers
    assert again.partitions == (T1,)
    driven.write_markers()
    assert driven.state is COMPLETE_COMMIT


def test_the_waits_grow_and_have_a_limit() -> None:
    driven = prepared()
    waits = []
    for _ in range(9):
        failed = dict.fromkeys((T0, T1), ErrorCode.REQUEST_TIMED_OUT)
        driven.marked(driven.markers.pop(), failed)
        due_ms = driven.coordinator.next_deadline_ms
        assert due_ms is not None
        waits.append(due_ms - driven.now_ms)
        driven.tick(waits[-1])
    assert waits == [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]


def test_one_round_of_failures_counts_once() -> None:
    driven = prepared()
    [sent] = driven.markers
    for where in (T0, T1):
        driven.marked(sent, {where: ErrorCode.REQUEST_TIMED_OUT})
    assert driven.coordinator.next_deadline_ms == driven.now_ms + 20


def test_a_marker_whose_leader_is_slow_does_not_hold_up_the_others() -> None:
    driven = prepared()
    [first] = driven.markers
    driven.marked(first, {T0: ErrorCode.REQUEST_TIMED_OUT})
    driven.tick(20)
    assert driven.markers[-1].partitions == (T0,)  # T1 is under way
    assert driven.coordinator.next_deadline_ms is None


def test_partitions_that_are_deleted_need_no_marker_and_may_be_the_last_ones() -> None:
    driven = prepared()
    [sent] = driven.markers
    driven.step(PartitionsDeleted(partitions=frozenset({T0})))
    driven.marked(sent, {T1: ErrorCode.NONE})
    driven.commit_writes()
    assert driven.state is COMPLETE_COMMIT
    driven = prepared()
    driven.marked(driven.markers[0], {T1: ErrorCode.NONE})
    driven.step(PartitionsDeleted(partitions=frozenset({T0})))
    driven.commit_writes()
    assert driven.state is COMPLETE_COMMIT


def test_partitions_of_an_open_transaction_stay_in_it_though_they_are_deleted() -> None:
    driven, producer = opened(T0, T1)
    driven.step(PartitionsDeleted(partitions=frozenset({T0})))
    assert driven.transaction.metadata.partitions == (T0, T1)
    driven.ended(commit(producer))


def test_after_an_unknown_outcome_markers_are_sent_if_the_decision_is_in_the_log() -> None:
    driven = Coordination()
    driven.ask(commit(driven.opened()))
    driven.batches.append(driven.writes[0].records)
    driven.end_write(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert driven.markers == []
    driven.load()
    assert driven.state is PREPARE_COMMIT
    driven.write_markers()
    assert driven.state is COMPLETE_COMMIT


def test_an_answer_that_the_coordinator_before_had_asked_for_counts_for_the_same_decision() -> None:
    driven = prepared()
    [first] = driven.markers
    successor = driven.taken_over()
    successor.marked(first)
    successor.commit_writes()
    assert successor.state is COMPLETE_COMMIT


def test_an_answer_about_an_earlier_decision_says_nothing_about_this_one() -> None:
    """With an older client, both have the same producer id and epoch."""
    driven, producer = opened(T0, api_version=3)
    driven.answer(commit(producer, api_version=4))
    [late] = driven.markers
    driven.write_markers()
    driven.added(producer, T0, api_version=3)
    driven.answer(abort(producer, api_version=4))
    [sent] = driven.markers
    assert sent.producer == late.producer
    driven.marked(late)
    assert driven.writes == []
    driven.marked(sent)
    driven.commit_writes()
    assert driven.state is TransactionState.COMPLETE_ABORT


def test_a_coordinator_that_is_fenced_does_nothing_more_until_it_leads_again() -> None:
    driven = prepared()
    [sent] = driven.markers
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    driven.marked(driven.markers.pop(), {T0: ErrorCode.NONE, T1: fenced})
    assert driven.error_of(init(name="other")) is ErrorCode.NOT_COORDINATOR
    assert driven.coordinator.next_deadline_ms is None
    driven.tick(1_000_000)
    assert (driven.markers, driven.writes) == ([], [])
    driven.step(BecameLeader(leader_epoch=Epoch(3)))
    driven.tick(0)
    [again] = driven.markers
    assert (again.partitions, again.coordinator_epoch) == ((T1,), 3)
    driven.marked(sent, {T1: fenced})  # as of the epoch before: it was us
    driven.tick(1000)
    driven.write_markers()
    assert driven.state is COMPLETE_COMMIT


def test_a_fenced_coordinator_completes_nothing_but_remembers_what_is_written() -> None:
    driven = prepared()
    driven.begun(name="y")
    driven.answer(abort(driven.coordinator.transactions["y"].producer, name="y"))
    driven.commit_writes()
    [sent] = driven.markers
    driven.step(written("y", 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED))
    driven.marked(sent)
    assert driven.writes == []
    driven.step(BecameLeader(leader_epoch=Epoch(2)))
    driven.tick(0)
    driven.commit_writes()
    assert (driven.state, len(driven.markers)) == (COMPLETE_COMMIT, 1)


def test_a_decision_that_is_committed_after_the_fencing_sends_nothing() -> None:
    driven = prepared()
    driven.begun(name="y")
    driven.ask(abort(driven.coordinator.transactions["y"].producer, name="y"))
    driven.marked(driven.markers.pop(), {T0: ErrorCode.TRANSACTION_COORDINATOR_FENCED})
    driven.commit_writes()
    assert (driven.markers, driven.writes) == ([], [])


def test_many_decisions_are_taken_up_in_several_ticks() -> None:
    driven = Coordination()
    for number in range(150):
        name = f"id{number}"
        producer = driven.begun(name=name)
        driven.answer(add(producer, T0, name=name, api_version=5))
        driven.answer(commit(producer, name=name))
    successor = driven.taken_over()
    assert len(successor.markers) == 100
    successor.tick(0)
    assert len(successor.markers) == 150
