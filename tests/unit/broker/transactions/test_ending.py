"""EndTxn: who may end which transaction, and how (KIP-98, KIP-890)."""

from collections.abc import Callable

import pytest

from quorumlog.broker.transactions.core.events import TransactionVersionChanged
from quorumlog.broker.transactions.core.requests import EndTransaction, ProducerIdAndEpoch
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.coordination.transactions_begun import begun, opened
from tests.support.transactions.coordination import (
    START_MS,
    T0,
    Coordination,
    abort,
    commit,
    init,
    stored,
)

P = 1002
LAST_EPOCH = 32_766


def producer(epoch: int, producer_id: int = P) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer_id, epoch)


def test_a_decision_that_cannot_be_written_is_none() -> None:
    driven, current = opened()
    request_id = driven.ask(commit(current))
    driven.fail_write()
    assert driven.replies[request_id].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (driven.state, driven.markers) == (TransactionState.ONGOING, [])
    assert driven.ended(abort(current)) == producer(1)
    assert driven.state is TransactionState.COMPLETE_ABORT


def with_state(state: str, transaction_version: int = 2) -> Coordination:
    """The producer's epoch is 1 in each of these states."""
    driven = Coordination(transaction_version=transaction_version)
    current = driven.begun()
    version = 5 if transaction_version == 2 else 4
    if transaction_version < 2 or state in {"Empty", "Ongoing"}:
        current = driven.begun()
    if state != "Empty":
        driven.added(current, T0, api_version=version if version == 5 else 3)
    if state.startswith("Complete"):
        end = commit if state == "CompleteCommit" else abort
        driven.ended(end(current, api_version=version))
    assert (driven.state.value, driven.transaction.producer) == (state, producer(1))
    return driven


OLD = ErrorCode.PRODUCER_FENCED
WRONG = ErrorCode.INVALID_TXN_STATE
FINE = ErrorCode.NONE
TABLE = {  # KIP-890: (state, commit, epoch) -> the error, and the epoch that is told
    ("Ongoing", True, 0): (OLD, -1),
    ("Ongoing", False, 0): (OLD, -1),
    ("Ongoing", True, 1): (FINE, 2),
    ("Ongoing", False, 1): (FINE, 2),
    ("Empty", True, 0): (OLD, -1),
    ("Empty", False, 0): (OLD, -1),
    ("Empty", True, 1): (WRONG, -1),
    ("Empty", False, 1): (FINE, 2),
    ("CompleteCommit", True, 0): (FINE, 1),
    ("CompleteCommit", False, 0): (WRONG, -1),
    ("CompleteCommit", True, 1): (WRONG, -1),
    ("CompleteCommit", False, 1): (FINE, 2),
    ("CompleteAbort", True, 0): (OLD, -1),  # KAFKA-20785
    ("CompleteAbort", False, 0): (FINE, 1),
    ("CompleteAbort", True, 1): (WRONG, -1),
    ("CompleteAbort", False, 1): (FINE, 2),
}


@pytest.mark.parametrize(("state", "is_commit", "epoch"), TABLE)
def test_version_2_by_state_and_epoch(state: str, is_commit: bool, epoch: int) -> None:
    driven = with_state(state)
    end = commit if is_commit else abort
    result = driven.answer(end(producer(epoch)))
    assert (result.error_code, result.producer.epoch) == TABLE[state, is_commit, epoch]
    driven.write_markers()
    assert driven.error_of(end(producer(5))) is OLD
    stranger = producer(1, producer_id=77)
    assert driven.error_of(end(stranger)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


OLDER_TABLE = {  # KIP-98: (state, commit) -> the error, with the current epoch
    ("Ongoing", True): FINE,
    ("Ongoing", False): FINE,
    ("Empty", True): WRONG,
    ("Empty", False): WRONG,
    ("CompleteCommit", True): FINE,
    ("CompleteCommit", False): WRONG,
    ("CompleteAbort", True): WRONG,
    ("CompleteAbort", False): FINE,
}


@pytest.mark.parametrize(("state", "is_commit"), OLDER_TABLE)
@pytest.mark.parametrize("transaction_version", [0, 1])
def test_versions_0_and_1_by_state(state: str, is_commit: bool, transaction_version: int) -> None:
    driven = with_state(state, transaction_version)
    end = commit if is_commit else abort
    for epoch in (0, 2):  # KAFKA-9600: neither an older one nor a newer one
        assert driven.error_of(end(producer(epoch), api_version=4)) is OLD
    assert driven.error_of(end(producer(0), api_version=1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert driven.error_of(end(producer(1), api_version=4)) is OLDER_TABLE[state, is_commit]
    assert driven.transaction.producer == producer(1)


def test_an_id_that_is_not_known_has_nothing_to_end() -> None:
    driven = Coordination()
    assert driven.error_of(commit(producer(0))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driven.error_of(commit(producer(0), name="")) is ErrorCode.INVALID_REQUEST


def test_an_abort_without_a_transaction_is_complete_without_markers() -> None:
    driven, current = begun()
    assert driven.answer(abort(current)).producer == producer(1)
    driven.commit_writes()
    assert (driven.state, driven.markers) == (TransactionState.COMPLETE_ABORT, [])


def test_a_zombie_of_version_2_does_not_take_an_older_clients_commit_for_its_own() -> None:
    """Epoch 1 is one more than the zombie's, but not because its transaction ended."""
    driven, zombie = begun()
    current = driven.begun()
    driven.added(current, T0, api_version=3)
    driven.ended(commit(current, api_version=4))
    assert driven.error_of(commit(zombie)) is ErrorCode.PRODUCER_FENCED


def exhausted(epoch: int = LAST_EPOCH) -> tuple[Coordination, ProducerIdAndEpoch]:
    """The producer 1001 has an open transaction, and no epoch left."""
    state = TransactionState.ONGOING
    ongoing = stored(producer_epoch=epoch, state=state, partitions=(T0,), start_ms=START_MS)
    return Coordination(batches=[ongoing]), producer(epoch, 1001)


def test_while_its_producer_id_is_got_a_decision_is_under_way() -> None:
    driven, last = exhausted()
    driven.allocates = False
    request_id = driven.ask(commit(last))
    assert driven.error_of(abort(last)) is ErrorCode.CONCURRENT_TRANSACTIONS
    driven.allocate(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert driven.replies[request_id].error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driven.allocates = True
    assert driven.answer(commit(last)).producer == producer(0)


def test_an_answer_to_an_allocation_that_nobody_waits_for_changes_nothing() -> None:
    driven = Coordination()
    driven.allocates = False
    driven.ask(init())
    [asked] = driven.asked_for
    driven.allocate()
    driven.commit_writes()
    driven.asked_for.append(asked)
    driven.allocate()
    assert driven.transaction.producer == producer(0)


def test_at_version_0_records_have_the_old_form_unless_they_say_what_it_cannot() -> None:
    driven = Coordination(transaction_version=0)
    current = driven.opened(T0, api_version=3)
    driven.ended(commit(current, api_version=4))
    assert {record.value_version for record in driven.log} == {0}
    driven.ended(abort(current, api_version=5))
    assert [record.value_version for record in driven.log[-2:]] == [1, 1]


def test_a_new_level_holds_from_the_next_record_on() -> None:
    driven = Coordination(transaction_version=0)
    driven.opened(T0, api_version=3)
    driven.step(TransactionVersionChanged(transaction_version=2))
    assert driven.error_of(init()) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driven.log[-1].value_version == 1
    assert driven.transaction.metadata.client_transaction_version == 2


@pytest.mark.parametrize("end", [commit, abort])
def test_an_epoch_before_the_last_transaction_is_fenced(end: Callable[..., EndTransaction]) -> None:
    driven, first = opened()
    second = driven.ended(commit(first))
    driven.added(second, T0)
    driven.ended(commit(second))
    assert driven.error_of(commit(second)) is ErrorCode.NONE  # repeated
    assert driven.error_of(end(first)) is ErrorCode.PRODUCER_FENCED
