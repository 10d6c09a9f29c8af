"""AddPartitionsToTxn and AddOffsetsToTxn, by clients and by the leaders of partitions."""

import pytest

from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.transactions.coordination import (
    OFFSETS,
    T0,
    T1,
    Coordination,
    add,
    add_offsets,
    commit,
    verify,
)


def test_the_first_partition_opens_a_transaction_once_it_is_committed() -> None:
    driven = Coordination()
    producer = driven.begun()
    driven.now_ms += 5
    request_id = driven.ask(add(producer, T0, T1))
    assert request_id not in driven.replies
    assert driven.transaction.state is TransactionState.EMPTY
    driven.commit_writes()
    assert driven.replies[request_id].partitions == {T0: ErrorCode.NONE, T1: ErrorCode.NONE}
    assert driven.state is TransactionState.ONGOING
    assert driven.transaction.metadata.partitions == (T0, T1)
    assert driven.transaction.metadata.start_ms == driven.now_ms


def test_more_partitions_join_and_the_start_stays() -> None:
    driven = Coordination()
    producer = driven.opened(T1)
    started_ms = driven.transaction.metadata.start_ms
    driven.now_ms += 100
    driven.added(producer, T0)
    assert driven.transaction.metadata.partitions == (T0, T1)
    assert driven.transaction.metadata.start_ms == started_ms


def test_what_is_in_the_transaction_already_is_not_written_again() -> None:
    driven = Coordination()
    producer = driven.opened(T0, T1)
    request_id = driven.ask(add(producer, T1))
    assert driven.writes == []
    assert driven.replies[request_id].partitions == {T1: ErrorCode.NONE}


def test_offsets_belong_to_a_transaction_by_the_partition_of_their_group() -> None:
    driven = Coordination()
    producer = driven.begun()
    assert driven.answer(add_offsets(producer)) is ErrorCode.NONE
    assert driven.transaction.metadata.partitions == (OFFSETS,)


def test_partitions_that_could_not_be_written_are_not_in_the_transaction() -> None:
    driven = Coordination()
    producer = driven.begun()
    request_id = driven.ask(add(producer, T0))
    driven.fail_write()
    assert driven.replies[request_id].partitions == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert driven.transaction.state is TransactionState.EMPTY
    driven.added(producer, T0)


def test_only_the_producer_that_is_not_fenced_may_add() -> None:
    driven = Coordination()
    producer_id, epoch = driven.begun()
    stranger, older, newer = (
        ProducerIdAndEpoch(77, epoch),
        ProducerIdAndEpoch(producer_id, epoch - 1),
        ProducerIdAndEpoch(producer_id, epoch + 1),
    )
    for request in (add, verify):
        assert driven.error_of(request(stranger, T0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert driven.error_of(request(older, T0)) is ErrorCode.PRODUCER_FENCED
        assert driven.error_of(request(newer, T0)) is ErrorCode.PRODUCER_FENCED
        unknown = Coordination().error_of(request(stranger, T0))
        assert unknown is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert driven.error_of(add_offsets(older)) is ErrorCode.PRODUCER_FENCED


def test_an_id_without_a_name_is_an_invalid_request() -> None:
    driven = Coordination()
    assert driven.error_of(add(driven.begun(), T0, name="")) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("version", "error_code"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)],
)
def test_older_clients_know_another_word_for_fenced(version: int, error_code: ErrorCode) -> None:
    driven = Coordination()
    first = driven.begun()
    driven.begun()
    assert driven.error_of(add(first, T0, api_version=version)) is error_code
    assert driven.error_of(add_offsets(first, api_version=version)) is error_code


def test_while_the_last_transaction_ends_the_next_must_wait() -> None:
    driven = Coordination()
    producer = driven.opened()
    driven.ask(commit(producer))
    assert driven.error_of(add(producer, T1)) is ErrorCode.CONCURRENT_TRANSACTIONS  # committed now
    following = ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)
    assert driven.error_of(add(following, T1)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert driven.error_of(verify(following, T0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    driven.write_markers()
    driven.added(following, T1)


@pytest.mark.parametrize(
    ("version", "absent"),
    [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_a_leader_learns_which_partitions_belong_to_the_transaction(
    version: int, absent: ErrorCode
) -> None:
    driven = Coordination()
    producer = driven.opened(T0)
    request = add(producer, T0, T1, api_version=version, verify_only=True)
    for _ in range(2):  # a question: asking again changes nothing
        assert driven.answer(request).partitions == {T0: ErrorCode.NONE, T1: absent}
    assert driven.writes == []
    assert driven.transaction.metadata.partitions == (T0,)


def test_what_is_not_committed_is_not_verified() -> None:
    driven = Coordination()
    producer = driven.opened(T0)
    driven.ask(add(producer, T1))
    request_id = driven.ask(verify(producer, T1))
    outcomes = driven.replies[request_id].partitions
    assert outcomes == {T1: ErrorCode.TRANSACTION_ABORTABLE}


def test_after_its_end_a_transaction_has_no_partitions() -> None:
    """A leader that verifies late must not append (KAFKA-14884): its answer says abort."""
    driven = Coordination()
    producer = driven.opened(T0, api_version=3)
    driven.ended(commit(producer, api_version=4))
    assert driven.error_of(verify(producer, T0)) is ErrorCode.TRANSACTION_ABORTABLE


def test_a_leader_that_adds_does_so_for_a_client_of_version_2() -> None:
    driven = Coordination()
    producer = driven.begun()
    driven.added(producer, T0, api_version=5)
    assert driven.transaction.metadata.client_transaction_version == 2
    driven.ended(commit(producer))
    following = ProducerIdAndEpoch(producer.producer_id, 1)
    driven.added(following, T0, api_version=3)
    assert driven.transaction.metadata.client_transaction_version == 0
