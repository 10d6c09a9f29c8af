"""A transactional producer's decisions, one story each; tests/property has all of them at once."""

from collections.abc import Callable

import pytest

from quorumlog.client.core.batch import ProducerIdentity
from quorumlog.client.core.transaction import Outcome
from quorumlog.client.core.transaction_attempts import TransactionAttempts
from quorumlog.client.core.transaction_requests import (
    ANY_BROKER,
    Abilities,
    AddOffsets,
    AddPartitions,
    Answer,
    CommitOffsets,
    CoordinatorKey,
    CoordinatorType,
    Dispatch,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    TransactionRequest,
)
from quorumlog.client.core.transactions import Transactions, TransactionState
from quorumlog.client.errors import KafkaError, TransactionError
from quorumlog.client.records import GroupMetadata, OffsetAndMetadata
from quorumlog.client.settings import ProducerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

T = TopicPartition("t", 0)
GROUP = GroupMetadata("g", 3, "m", "instance")
FIRST, SECOND = ProducerIdentity(7, 0), ProducerIdentity(7, 1)
EXPLICIT, IMPLICIT = Abilities(recovers=True), Abilities(recovers=True, is_implicit=True)
LOST = KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost", definite=False)
DONE = Answer()


class Story:
    """A producer, and the coordinators' answers to whatever it asks."""

    def __init__(self, abilities: Abilities = EXPLICIT) -> None:
        settings = ProducerSettings(bootstrap_servers="x:1", transactional_id="tx")
        self.transactions = Transactions(settings)
        self.attempts = TransactionAttempts(settings, self.transactions)
        self.abilities = abilities
        self.now_ms = 0.0

    def next(self, *, is_quiet: bool = True) -> Dispatch | None:
        self.now_ms += 1_000
        return self.attempts.next(self.now_ms, is_quiet=is_quiet)

    def asked(self) -> TransactionRequest:
        return self.dispatched().request

    def dispatched(self) -> Dispatch:
        """The next attempt; coordinators are found on the way."""
        dispatch = self.next()
        while dispatch is not None and isinstance(dispatch.request, FindCoordinator):
            is_own = dispatch.request.coordinator.type is CoordinatorType.TRANSACTION
            abilities = self.abilities if is_own else None
            self.answer(dispatch, Answer(coordinator_id=1 if is_own else 2, abilities=abilities))
            dispatch = self.next()
        assert dispatch is not None
        return dispatch

    def answer(self, dispatch: Dispatch, answer: Answer = DONE) -> None:
        self.attempts.handle_answer(self.now_ms, dispatch, answer, 0.5)

    def answer_next(self, answer: Answer = DONE) -> TransactionRequest:
        dispatch = self.dispatched()
        self.answer(dispatch, answer)
        return dispatch.request

    def refuse_next(self, code: ErrorCode) -> TransactionRequest:
        return self.answer_next(Answer(error_code=code))

    def lose_next(self) -> TransactionRequest:
        dispatch = self.dispatched()
        self.attempts.handle_lost(self.now_ms, dispatch, LOST, 0.5)
        return dispatch.request

    def ended(self, outcome: Outcome) -> KafkaError | None:
        assert outcome.is_done
        return self.transactions.claim(outcome)

    def failed(self, outcome: Outcome) -> KafkaError:
        error = self.ended(outcome)
        assert error is not None
        return error

    def begun(self, *, with_record: bool = True) -> "Story":
        """A producer in its first transaction, which the coordinator has."""
        outcome = self.transactions.initialize()
        self.answer_next(Answer(identity=FIRST))
        assert self.ended(outcome) is None
        self.transactions.begin()
        if with_record:
            self.transactions.admit(self.transactions.ticket(), T)
            if not self.abilities.is_implicit:
                self.answer_next(Answer(partitions={T: ErrorCode.NONE}))
        return self


def test_a_transaction_before_kip_890() -> None:
    story = Story()
    outcome = story.transactions.initialize()
    dispatch = story.next()
    assert dispatch is not None
    key = CoordinatorKey(CoordinatorType.TRANSACTION, "tx")
    assert (dispatch.broker_id, dispatch.request) == (ANY_BROKER, FindCoordinator(coordinator=key))
    assert story.next() is None  # one at a time
    story.answer(dispatch, Answer(coordinator_id=1, abilities=EXPLICIT))
    assert story.answer_next(Answer(identity=FIRST)) == InitProducerId(identity=None)
    assert story.ended(outcome) is None

    story.transactions.begin()
    story.transactions.admit(story.transactions.ticket(), T)
    assert not story.transactions.may_send(T)
    added = story.answer_next(Answer(partitions={T: ErrorCode.NONE}))
    assert added == AddPartitions(identity=FIRST, partitions=(T,))
    assert story.transactions.may_send(T)
    story.transactions.admit(story.transactions.ticket(), T)  # added once
    assert story.next() is None

    commit = story.transactions.commit()
    assert story.next(is_quiet=False) is None
    ended = story.answer_next()
    assert ended == EndTransaction(identity=FIRST, committed=True, is_implicit=False)
    assert story.ended(commit) is None
    assert story.transactions.identity == FIRST
    assert not story.transactions.may_send(T)


def test_a_transaction_with_kip_890() -> None:
    story = Story(IMPLICIT).begun()
    assert story.transactions.may_send(T)
    outcome = story.transactions.send_offsets({T: OffsetAndMetadata(5)}, GROUP)
    request = story.answer_next(Answer(partitions={T: ErrorCode.NONE}))
    assert isinstance(request, CommitOffsets)
    assert (request.group, request.is_implicit) == (GROUP, True)
    assert story.ended(outcome) is None
    commit = story.transactions.commit()
    ended = story.answer_next(Answer(identity=SECOND))
    assert ended == EndTransaction(identity=FIRST, committed=True, is_implicit=True)
    assert story.ended(commit) is None
    assert story.transactions.identity == SECOND


def test_offsets_before_kip_890_go_to_both_coordinators() -> None:
    story = Story().begun(with_record=False)
    places = {T: OffsetAndMetadata(5), TopicPartition("t", 1): OffsetAndMetadata(6)}
    outcome = story.transactions.send_offsets(places, GROUP)
    assert story.answer_next() == AddOffsets(identity=FIRST, group_id="g")
    dispatch = story.dispatched()
    assert dispatch.broker_id == 2
    codes = {T: ErrorCode.NONE, TopicPartition("t", 1): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    story.answer(dispatch, Answer(partitions=codes))
    assert not outcome.is_done
    rest = story.answer_next(Answer(partitions={TopicPartition("t", 1): ErrorCode.NONE}))
    assert isinstance(rest, CommitOffsets)
    assert [*rest.offsets] == [TopicPartition("t", 1)]
    assert story.ended(outcome) is None


@pytest.mark.parametrize("abilities", [EXPLICIT, IMPLICIT])
def test_an_empty_transaction_asks_for_nothing(abilities: Abilities) -> None:
    for end in (Transactions.commit, Transactions.abort):
        story = Story(abilities).begun(with_record=False)
        outcome = end(story.transactions)
        assert story.next() is None
        assert story.ended(outcome) is None


def test_a_lost_commit_may_be_repeated_and_tells_how_it_ended() -> None:
    story = Story().begun()
    outcome = story.transactions.commit()
    story.lose_next()
    assert story.transactions.commit() is outcome
    with pytest.raises(RuntimeError, match="commit_transaction has not returned"):
        story.transactions.abort()
    story.answer_next()  # EndTxn again
    # Its first attempt could be executed in the next transaction of this epoch.
    assert not outcome.is_done
    assert story.answer_next(Answer(identity=SECOND)) == InitProducerId(identity=FIRST)
    with pytest.raises(RuntimeError, match="commit_transaction has not returned"):
        story.transactions.begin()
    assert story.ended(outcome) is None
    story.transactions.begin()


def test_a_commit_that_ended_before_its_epoch_was_refused_has_ended_well() -> None:
    story = Story().begun()
    outcome = story.transactions.commit()
    story.lose_next()
    story.answer_next()
    story.refuse_next(ErrorCode.PRODUCER_FENCED)
    assert story.ended(outcome) is None
    with pytest.raises(TransactionError, match="PRODUCER_FENCED") as caught:
        story.transactions.begin()
    assert caught.value.fatal


@pytest.mark.parametrize("is_first", [True, False])
def test_a_fenced_commit_is_definite_if_no_attempt_may_stand(is_first: bool) -> None:
    story = Story().begun()
    outcome = story.transactions.commit()
    if not is_first:
        story.lose_next()
    story.refuse_next(ErrorCode.INVALID_PRODUCER_EPOCH)
    error = story.failed(outcome)
    assert (error.code, error.fatal, error.abortable) == (ErrorCode.PRODUCER_FENCED, True, False)
    assert error.definite is is_first
    assert story.next() is None  # for ever


def test_a_failed_batch_ends_the_transaction_and_its_epoch() -> None:
    story = Story().begun()
    commit = story.transactions.commit()
    too_large = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "t-0", definite=True)
    told = story.transactions.handle_failed_batch(too_large, was_sent=True)
    assert (told.abortable, told.fatal, told.retriable) == (True, False, False)
    error = story.failed(commit)
    assert (error.code, error.definite) == (ErrorCode.MESSAGE_TOO_LARGE, True)
    with pytest.raises(TransactionError, match="MESSAGE_TOO_LARGE"):
        story.transactions.ticket()
    abort = story.transactions.abort()
    end = story.answer_next()
    assert isinstance(end, EndTransaction)
    assert not end.committed
    assert story.answer_next(Answer(identity=SECOND)) == InitProducerId(identity=FIRST)
    assert story.ended(abort) is None


def test_an_abort_that_leaves_a_gap_or_is_refused_is_fatal() -> None:
    story = Story(Abilities(recovers=False)).begun()
    expired = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "t-0", definite=False)
    story.transactions.handle_failed_batch(expired, was_sent=True)
    abort = story.transactions.abort()
    story.answer_next()
    assert story.ended(abort) is None  # it is aborted
    assert story.transactions.state is TransactionState.FATAL_ERROR
    story = Story(IMPLICIT).begun()
    abort = story.transactions.abort()
    story.refuse_next(ErrorCode.INVALID_TXN_STATE)
    error = story.failed(abort)
    assert error.fatal


@pytest.mark.parametrize("abilities", [EXPLICIT, IMPLICIT])
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("end", [Transactions.commit, Transactions.abort])
def test_an_unknown_producer_id_ends_the_producer(
    abilities: Abilities, is_lost: bool, end: Callable[[Transactions], Outcome]
) -> None:
    """A new id would fence the owner of the transactional id (KAFKA-18019)."""
    story = Story(abilities).begun()
    outcome = end(story.transactions)
    if is_lost:
        story.lose_next()
    story.refuse_next(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    error = story.failed(outcome)
    assert (error.abortable, error.fatal, error.definite) == (False, True, not is_lost)
    assert "transactional.id.expiration.ms" in error.message
    assert "make a new one" in error.message
    for call in (Transactions.begin, Transactions.abort):
        with pytest.raises(TransactionError, match="INVALID_PRODUCER_ID_MAPPING"):
            call(story.transactions)
    assert story.next() is None  # for ever


PASSING = [
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
]  # fmt: skip
MOVED = [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE]


@pytest.mark.parametrize("code", [*PASSING, *MOVED])
def test_an_error_that_passes_is_waited_for(code: ErrorCode) -> None:
    story = Story().begun(with_record=False)
    story.transactions.admit(story.transactions.ticket(), T)
    story.answer_next(Answer(partitions={T: code}))
    assert story.attempts.next(story.now_ms, is_quiet=True) is None
    assert story.now_ms < story.attempts.wake_at_ms(story.now_ms) < story.now_ms + 200
    dispatch = story.next()
    assert dispatch is not None
    assert isinstance(dispatch.request, FindCoordinator) is (code in MOVED)


ABORTABLE = [
    ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
]  # fmt: skip
FATAL = [
    ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION,
]  # fmt: skip


@pytest.mark.parametrize("code", [*ABORTABLE, *FATAL])
def test_what_an_error_of_offsets_ends(code: ErrorCode) -> None:
    story = Story(IMPLICIT).begun(with_record=False)
    outcome = story.transactions.send_offsets({T: OffsetAndMetadata(5)}, GROUP)
    story.answer_next(Answer(partitions={T: code}))
    error = story.failed(outcome)
    assert (error.abortable, error.fatal) == (code in ABORTABLE, code in FATAL)
    assert error.definite  # they will not be committed


@pytest.mark.parametrize(
    ("code", "is_fatal"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, False),  # only the coordinator fences (KIP-588)
        (ErrorCode.REQUEST_TIMED_OUT, False),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, False),
        (ErrorCode.TRANSACTION_ABORTABLE, False),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        (ErrorCode.INVALID_TXN_STATE, True),
        (ErrorCode.PRODUCER_FENCED, True),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, True),
        (ErrorCode.UNSUPPORTED_VERSION, True),
    ],
)
def test_what_the_error_of_a_batch_ends(code: ErrorCode, is_fatal: bool) -> None:
    story = Story(IMPLICIT).begun()
    error = KafkaError(code, "t-0", definite=False)
    told = story.transactions.handle_failed_batch(error, was_sent=True)
    assert (told.fatal, told.abortable, told.definite) == (is_fatal, not is_fatal, False)


def test_an_answer_of_an_earlier_attempt_counts_for_nothing() -> None:
    story = Story().begun()
    first = story.transactions.commit()
    dispatch = story.dispatched()
    story.answer(dispatch)
    assert story.ended(first) is None
    story.transactions.begin()
    story.transactions.admit(story.transactions.ticket(), T)
    story.answer_next(Answer(partitions={T: ErrorCode.NONE}))
    second = story.transactions.commit()
    again = story.dispatched()
    story.answer(dispatch)
    assert not second.is_done
    story.answer(again)
    assert story.ended(second) is None


def test_a_record_that_waited_into_the_next_transaction_is_refused() -> None:
    story = Story().begun()
    ticket = story.transactions.ticket()
    outcome = story.transactions.commit()
    story.answer_next()
    story.ended(outcome)
    story.transactions.begin()
    with pytest.raises(RuntimeError, match="the transaction has ended"):
        story.transactions.admit(ticket, T)


def test_close_tells_what_a_commit_under_way_may_have_done() -> None:
    for is_asked in (False, True):
        story = Story().begun()
        outcome = story.transactions.commit()
        if is_asked:
            story.dispatched()
        closed = KafkaError(ErrorCode.NETWORK_EXCEPTION, "closed", definite=True)
        story.attempts.close(closed)
        error = story.failed(outcome)
        assert error.definite is not is_asked
        assert story.next() is None
