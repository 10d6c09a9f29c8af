"""InitProducerId: who gets which epoch, and who is fenced (KIP-98, KIP-360)."""

import pytest

from quorumlog.broker.transactions.core.requests import NO_PRODUCER, ProducerIdAndEpoch
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.transactions.coordination import (
    T0,
    Coordination,
    abort,
    add,
    commit,
    init,
    stored,
)

LAST_EPOCH = 32_766  # the last one that a producer may have


def test_a_new_id_gets_a_new_producer_id_and_epoch_0() -> None:
    driven = Coordination()
    assert driven.begun() == ProducerIdAndEpoch(1002, 0)
    assert driven.state is TransactionState.EMPTY


def test_the_next_producer_of_the_id_gets_the_next_epoch_and_fences_the_first() -> None:
    driven = Coordination()
    first = driven.begun()
    assert driven.begun() == ProducerIdAndEpoch(1002, 1)
    assert driven.error_of(add(first, T0)) is ErrorCode.PRODUCER_FENCED
    assert driven.error_of(commit(first)) is ErrorCode.PRODUCER_FENCED
    assert driven.error_of(init(first)) is ErrorCode.PRODUCER_FENCED


def test_an_epoch_is_told_once_it_is_committed() -> None:
    driven = Coordination()
    request_id = driven.ask(init())
    assert driven.replies == {}
    driven.commit_writes()
    assert driven.replies[request_id].producer == ProducerIdAndEpoch(1002, 0)


def test_an_id_whose_first_record_is_refused_is_as_if_it_was_never_asked_for() -> None:
    driven = Coordination()
    request_id = driven.ask(init())
    driven.fail_write()
    assert driven.replies[request_id].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driven.coordinator.transactions == {}
    assert driven.coordinator.next_deadline_ms is None
    assert driven.begun() == ProducerIdAndEpoch(1003, 0)


def test_an_epoch_that_could_not_be_written_is_given_out_later() -> None:
    driven = Coordination()
    first = driven.begun()
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


def test_while_a_change_is_under_way_another_must_wait() -> None:
    driven = Coordination()
    driven.allocates = False
    driven.ask(init())
    assert driven.error_of(init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driven.error_of(add(NO_PRODUCER, T0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    driven.allocate()
    driven.commit_writes()
    assert driven.replies[1].error_code is ErrorCode.NONE


def test_an_open_transaction_is_aborted_before_the_next_producer_begins() -> None:
    driven = Coordination()
    first = driven.opened()
    assert driven.error_of(init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driven.state is TransactionState.PREPARE_ABORT
    [sent] = driven.markers
    assert (sent.producer, sent.commit) == (ProducerIdAndEpoch(1002, 1), False)
    assert driven.error_of(init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    driven.write_markers()
    assert driven.begun() == ProducerIdAndEpoch(1002, 2)
    assert driven.error_of(commit(first)) is ErrorCode.PRODUCER_FENCED


def test_if_that_abort_cannot_be_written_the_transaction_goes_on() -> None:
    driven = Coordination()
    first = driven.opened()
    request_id = driven.ask(init())
    driven.fail_write()
    assert driven.replies[request_id].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driven.state is TransactionState.ONGOING
    assert driven.ended(commit(first)) == ProducerIdAndEpoch(1002, 1)


def test_a_producer_that_goes_on_gets_the_next_epoch_and_a_repeated_request_the_same() -> None:
    driven = Coordination()
    first = driven.begun()
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
    driven = Coordination()
    first = driven.begun()
    second = driven.opened()
    assert driven.error_of(init(first)) is ErrorCode.PRODUCER_FENCED
    assert driven.state is TransactionState.ONGOING
    assert driven.error_of(init(second)) is ErrorCode.CONCURRENT_TRANSACTIONS
    driven.write_markers()
    assert driven.begun(second) == ProducerIdAndEpoch(1002, 2)  # which it has by the abort


def test_a_producer_that_another_has_replaced_is_fenced_by_its_producer_id_too() -> None:
    driven = Coordination()
    driven.begun()
    stranger = ProducerIdAndEpoch(77, 0)
    assert driven.error_of(init(stranger)) is ErrorCode.PRODUCER_FENCED


def test_a_producer_whose_id_has_expired_begins_anew() -> None:
    driven = Coordination()
    assert driven.begun(ProducerIdAndEpoch(77, 5)) == ProducerIdAndEpoch(1002, 0)


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
def test_a_request_that_is_wrong_is_refused(
    changes: dict[str, object], error_code: ErrorCode
) -> None:
    driven = Coordination()
    assert driven.error_of(init(**changes)) is error_code  # type: ignore[arg-type]
    assert bool(driven.coordinator.transactions) == (error_code is ErrorCode.NONE)


@pytest.mark.parametrize(
    ("version", "error_code"),
    [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)],
)
def test_older_clients_know_another_word_for_fenced(version: int, error_code: ErrorCode) -> None:
    driven = Coordination()
    first = driven.begun()
    driven.begun()
    assert driven.error_of(init(first, api_version=version)) is error_code


def test_the_timeout_is_that_of_the_newest_producer() -> None:
    driven = Coordination()
    driven.begun(transaction_timeout_ms=10_000)
    driven.begun(transaction_timeout_ms=500)
    assert driven.transaction.metadata.transaction_timeout_ms == 500


def test_ids_of_one_partition_do_not_disturb_each_other() -> None:
    driven = Coordination()
    mine, other = driven.begun(), driven.begun(name="y")
    assert mine.producer_id != other.producer_id
    driven.added(mine, T0)
    driven.ask(commit(mine))  # under way
    assert driven.error_of(abort(other, name="y")) is ErrorCode.NONE
