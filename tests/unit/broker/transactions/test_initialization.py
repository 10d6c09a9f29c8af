"""InitProducerId (KIP-98, KIP-360): epochs and fencing; and what time alone does to them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from quorumlog.broker.coordination.core.deadlines import Deadlines
from quorumlog.broker.transactions.core.requests import EndTransaction, ProducerIdAndEpoch
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.coordination.transactions_begun import begun, opened
from tests.support.transactions.coordination import (
    SETTINGS,
    START_MS,
    T0,
    Coordination,
    abort,
    add,
    commit,
    init,
    stored,
)

LAST_EPOCH = 32_766  # the last one that a producer may have


def test_the_next_producer_of_the_id_gets_the_next_epoch_and_fences_the_first() -> None:
    driven, first = begun()
    assert driven.begun() == ProducerIdAndEpoch(1002, 1)
    assert driven.error_of(add(first, T0)) is ErrorCode.PRODUCER_FENCED
    assert driven.error_of(commit(first)) is ErrorCode.PRODUCER_FENCED
    assert driven.error_of(init(first)) is ErrorCode.PRODUCER_FENCED
    driven.begun(transaction_timeout_ms=500)
    assert driven.transaction.metadata.transaction_timeout_ms == 500


def test_an_epoch_that_could_not_be_written_is_given_out_later() -> None:
    driven, first = begun()
    driven.ask(init())
    driven.fail_write()
    driven.added(first, T0)  # nobody has fenced it
    driven.ended(commit(first, api_version=4))
    assert driven.begun() == ProducerIdAndEpoch(1002, 1)


def test_without_a_producer_id_the_error_of_the_allocation_is_told() -> None:
    driven = Coordination()
    driven.allocates = False
    request_id = driven.ask(init())
    driven.allocate(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert driven.replies[request_id].error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driven.coordinator.transactions == {}
    driven = Coordination()
    request_id = driven.ask(init())
    driven.fail_write()
    assert driven.replies[request_id].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driven.coordinator.transactions == {}
    assert driven.coordinator.next_deadline_ms is None
    assert driven.begun() == ProducerIdAndEpoch(1003, 0)


def test_if_that_abort_cannot_be_written_the_transaction_goes_on() -> None:
    driven, first = opened()
    request_id = driven.ask(init())
    driven.fail_write()
    assert driven.replies[request_id].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driven.state is TransactionState.ONGOING
    assert driven.ended(commit(first)) == ProducerIdAndEpoch(1002, 1)


def test_a_producer_that_goes_on_gets_the_next_epoch_and_a_repeated_request_the_same() -> None:
    driven, first = begun()
    second = driven.begun(first)
    assert second == ProducerIdAndEpoch(1002, 1)
    assert driven.begun(first) == second
    assert driven.begun() == ProducerIdAndEpoch(1002, 2)  # another producer
    assert driven.error_of(init(first)) is ErrorCode.PRODUCER_FENCED
    assert driven.error_of(init(second)) is ErrorCode.PRODUCER_FENCED


def test_a_new_coordinator_does_not_know_which_epoch_the_last_one_has_replaced() -> None:
    driven = Coordination(batches=[stored(producer_epoch=1, last_producer_epoch=0)])
    assert driven.error_of(init(ProducerIdAndEpoch(1001, 0))) is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_is_fenced_cannot_abort_the_transaction_of_its_successor() -> None:
    driven, first = begun()
    second = driven.opened()
    assert driven.error_of(init(first)) is ErrorCode.PRODUCER_FENCED
    assert driven.state is TransactionState.ONGOING
    assert driven.error_of(init(second)) is ErrorCode.CONCURRENT_TRANSACTIONS
    driven.write_markers()
    assert driven.begun(second) == ProducerIdAndEpoch(1002, 2)  # which it has by the abort


def test_a_producer_whose_id_another_has_is_fenced_and_one_whose_id_has_expired_begins() -> None:
    stranger = ProducerIdAndEpoch(77, 5)
    driven, _ = begun()
    assert driven.error_of(init(stranger)) is ErrorCode.PRODUCER_FENCED
    assert Coordination().begun(stranger) == ProducerIdAndEpoch(1002, 0)


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
def test_a_producer_id_without_epochs_is_replaced(transaction_version: int) -> None:
    batches = [stored(producer_epoch=LAST_EPOCH - 1)]
    driven = Coordination(transaction_version=transaction_version, batches=batches)
    assert driven.begun() == ProducerIdAndEpoch(1001, LAST_EPOCH)
    assert driven.begun() == ProducerIdAndEpoch(1002, 0)
    assert driven.begun() == ProducerIdAndEpoch(1002, 1)


def test_a_producer_that_goes_on_without_epochs_may_repeat_its_request() -> None:
    driven = Coordination(batches=[stored(producer_epoch=LAST_EPOCH)])
    last = ProducerIdAndEpoch(1001, LAST_EPOCH)
    assert driven.begun(last) == ProducerIdAndEpoch(1002, 0)
    assert driven.begun(last) == ProducerIdAndEpoch(1002, 0)
    older = ProducerIdAndEpoch(1001, LAST_EPOCH - 1)
    assert driven.error_of(init(older)) is ErrorCode.PRODUCER_FENCED
    assert driven.begun() == ProducerIdAndEpoch(1002, 1)
    assert driven.error_of(init(last)) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("changes", "error_code"),
    [
        ({"transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 60_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transaction_timeout_ms": 60_000}, ErrorCode.NONE),
        ({"name": ""}, ErrorCode.INVALID_REQUEST),
        ({"name": "n" * 32_768}, ErrorCode.INVALID_REQUEST),
        ({"expected": ProducerIdAndEpoch(5, -1)}, ErrorCode.INVALID_REQUEST),
        ({"expected": ProducerIdAndEpoch(-1, 5)}, ErrorCode.INVALID_REQUEST),
        ({"enable_2pc": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared": True}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_a_wrong_request_is_refused(changes: dict[str, object], error_code: ErrorCode) -> None:
    driven = Coordination()
    assert driven.error_of(init(**changes)) is error_code  # type: ignore[arg-type]
    assert bool(driven.coordinator.transactions) == (error_code is ErrorCode.NONE)


@pytest.mark.parametrize(
    ("version", "error_code"),
    [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)],
)
def test_older_clients_know_another_word_for_fenced(version: int, error_code: ErrorCode) -> None:
    driven, first = begun()
    driven.begun()
    assert driven.error_of(init(first, api_version=version)) is error_code


ONGOING, PREPARE_ABORT = TransactionState.ONGOING, TransactionState.PREPARE_ABORT
EXPIRY_MS = 1_000_000


def test_deadlines_come_in_order_of_time_and_an_id_has_one() -> None:
    deadlines = Deadlines[str]()
    assert deadlines.first_ms is None
    for name, due_ms in (("b", 5), ("a", 7), ("c", 6), ("a", 4)):
        deadlines.set(name, due_ms)
    assert deadlines.first_ms == 4
    assert deadlines.due(3, 9) == []
    assert deadlines.due(5, 9) == ["a", "b"]
    assert deadlines.due(9, 2) == ["a", "b"]
    deadlines.set("a", None)
    deadlines.set("never", None)
    assert deadlines.due(9, 9) == ["b", "c"]


@pytest.mark.parametrize(
    ("interval_ms", "over_ms", "aborted_ms"),
    [(1, 10_000, 10_000), (10_000, 10_000, 10_000), (10_000, 10_001, 20_000), (3000, 9999, 12_000)],
)
def test_timed_out_transactions_are_aborted_at_multiples_of_an_interval(
    interval_ms: int, over_ms: int, aborted_ms: int
) -> None:
    settings = replace(
        SETTINGS, transaction_abort_timed_out_transaction_cleanup_interval_ms=interval_ms
    )
    driven = Coordination(settings=settings, now_ms=0)
    producer = driven.begun(transaction_timeout_ms=5000)
    driven.tick(over_ms - 5000 - driven.now_ms)
    driven.added(producer, T0)
    assert driven.now_ms == over_ms - 5000
    driven.tick(aborted_ms - driven.now_ms - 1)
    assert driven.writes == []
    driven.tick(1)
    driven.commit_writes()
    assert driven.state is PREPARE_ABORT


@pytest.mark.parametrize("transaction_version", [0, 1])
def test_a_producer_of_an_older_version_is_fenced_by_the_timeout(transaction_version: int) -> None:
    driven = Coordination(transaction_version=transaction_version)
    producer = driven.opened(api_version=3)
    driven.tick(10_000)
    driven.commit_writes()
    [sent] = driven.markers
    assert (sent.producer.epoch, sent.transaction_version) == (1, 0)
    driven.write_markers()
    for end in (commit, abort):
        assert driven.error_of(end(producer, api_version=4)) is ErrorCode.PRODUCER_FENCED
    assert driven.begun() == ProducerIdAndEpoch(producer.producer_id, 2)


def test_the_time_goes_on_while_the_coordinator_changes() -> None:
    driven = Coordination()
    driven.opened()
    driven.tick(9000)
    successor = driven.taken_over()
    successor.tick(999)
    assert successor.writes == []
    successor.tick(1)
    assert len(successor.writes) == 1


def test_an_abort_that_is_refused_is_tried_again_with_the_same_epoch() -> None:
    driven, producer = opened()
    driven.tick(10_000)
    driven.fail_write()
    assert driven.state is ONGOING
    driven.tick(20)
    driven.fail_write()
    driven.tick(39)
    assert driven.writes == []
    driven.tick(1)
    driven.commit_writes()
    assert driven.markers[0].producer.epoch == producer.epoch + 1


def test_a_producer_that_is_ahead_of_the_refused_abort_may_commit() -> None:
    driven, producer = opened()
    driven.tick(10_000)
    driven.fail_write()
    driven.ended(commit(producer))
    assert driven.state is TransactionState.COMPLETE_COMMIT


def test_a_transaction_whose_partition_is_just_added_is_aborted_right_after() -> None:
    driven, producer = begun()
    driven.added(producer, T0)
    driven.ask(add(producer, T0._replace(partition=5)))
    driven.tick(10_000)
    driven.commit_writes()
    driven.tick(0)
    driven.commit_writes()
    assert driven.state is PREPARE_ABORT
    assert len(driven.markers[0].partitions) == 2


def test_the_last_epoch_is_left_to_fence_an_older_producer() -> None:
    ongoing = stored(producer_epoch=LAST_EPOCH, state=ONGOING, partitions=(T0,), start_ms=START_MS)
    driven = Coordination(batches=[ongoing], transaction_version=1)
    driven.tick(10_000)
    driven.commit_writes()
    assert driven.markers[0].producer == ProducerIdAndEpoch(1001, LAST_EPOCH + 1)
    driven.write_markers()
    assert driven.begun() == ProducerIdAndEpoch(1002, 0)


def test_a_timeout_without_epochs_gets_a_new_producer_id() -> None:
    """KAFKA-20090: else the epoch could not be bumped again."""
    ongoing = stored(producer_epoch=LAST_EPOCH, state=ONGOING, partitions=(T0,), start_ms=START_MS)
    driven = Coordination(batches=[ongoing])
    driven.allocates = False
    driven.tick(10_000)
    assert driven.error_of(init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    driven.allocate(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert driven.state is ONGOING
    driven.tick(20)
    driven.allocate()
    driven.commit_writes()
    driven.write_markers()
    assert driven.transaction.producer == ProducerIdAndEpoch(1002, 0)


def test_an_epoch_above_the_last_one_is_still_aborted() -> None:
    """A record of an older Kafka may have it."""
    ongoing = stored(
        producer_epoch=LAST_EPOCH + 1, state=ONGOING, partitions=(T0,), start_ms=START_MS
    )
    driven = Coordination(batches=[ongoing])
    driven.tick(10_000)
    driven.commit_writes()
    assert driven.markers[0].producer == ProducerIdAndEpoch(1001, LAST_EPOCH + 1)
    driven.write_markers()
    assert driven.begun() == ProducerIdAndEpoch(1002, 1)


@pytest.mark.parametrize("end", [commit, abort])
@pytest.mark.parametrize(("add_version", "end_version"), [(3, 4), (5, 5)])
def test_an_end_that_is_asked_for_again_does_not_prolong_an_id(
    end: Callable[..., EndTransaction], add_version: int, end_version: int
) -> None:
    driven = Coordination()
    request = end(driven.opened(api_version=add_version), api_version=end_version)
    driven.ended(request)
    ended_ms = driven.transaction.metadata.last_update_ms
    driven.tick(ended_ms + EXPIRY_MS - 1 - START_MS)
    assert driven.error_of(request) is ErrorCode.NONE
    assert driven.writes == []
    driven.tick(1)
    driven.commit_writes()
    assert driven.coordinator.transactions == {}


def test_a_tombstone_that_is_refused_leaves_the_id_as_it_was() -> None:
    driven, producer = begun()
    driven.tick(EXPIRY_MS)
    request_id = driven.ask(add(producer, T0, api_version=5))
    assert request_id not in driven.replies
    driven.fail_write()
    driven.commit_writes()
    assert driven.replies[request_id].partitions == {T0: ErrorCode.NONE}


def test_an_addition_to_an_id_that_expires_meanwhile_is_of_no_id() -> None:
    driven, producer = begun()
    driven.tick(EXPIRY_MS)
    request_id = driven.ask(add(producer, T0, api_version=5))
    driven.commit_writes()
    answer = driven.replies[request_id].partitions
    assert answer == {T0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}


@pytest.mark.parametrize("end", [commit, abort])
def test_an_id_expires_after_its_last_transaction_and_not_during_one(end: object) -> None:
    driven = Coordination()
    driven.answer(end(driven.opened()))  # type: ignore[operator]
    driven.tick(10 * EXPIRY_MS)  # its marker is not written
    assert driven.state.value.startswith("Prepare")
    driven.write_markers()
    driven.tick(EXPIRY_MS)
    driven.commit_writes()
    assert driven.coordinator.transactions == {}
    assert driven.taken_over().coordinator.transactions == {}


def test_many_ids_are_forgotten_with_few_records_batches() -> None:
    driven = Coordination()
    for number in range(250):
        driven.begun(name=f"id{number}")
    written = len(driven.batches)
    driven.now_ms += EXPIRY_MS
    for _ in range(4):
        driven.tick(0)
    driven.commit_writes()
    assert len(driven.batches) - written == 3
    assert driven.coordinator.transactions == {}
    assert driven.coordinator.next_deadline_ms is None
