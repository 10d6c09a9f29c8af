"""AddPartitionsToTxn and AddOffsetsToTxn; DescribeTransactions and ListTransactions."""

import pytest

from quorumlog.broker.transactions.core.partition_additions import HELD_MAX
from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch, TransactionFilter
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.broker.transactions.core.transaction import RETRY
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.coordination.transactions_begun import begun, opened
from tests.support.transactions.coordination import (
    OFFSETS,
    T0,
    T1,
    Coordination,
    add,
    add_offsets,
    commit,
    init,
    records_of,
    verify,
)

T2, T3 = TopicPartition("t", 2), TopicPartition("t", 3)


def test_the_first_partition_opens_a_transaction_once_it_is_committed() -> None:
    driven, producer = begun()
    driven.now_ms += 5
    request_id = driven.ask(add(producer, T0, T1))
    assert request_id not in driven.replies
    assert driven.transaction.state is TransactionState.EMPTY
    driven.commit_writes()
    assert driven.replies[request_id].partitions == {T0: ErrorCode.NONE, T1: ErrorCode.NONE}
    assert driven.state is TransactionState.ONGOING
    assert driven.transaction.metadata.partitions == (T0, T1)
    assert driven.transaction.metadata.start_ms == driven.now_ms


def test_more_partitions_join_once_and_the_start_stays() -> None:
    driven, producer = opened(T1)
    started_ms = driven.transaction.metadata.start_ms
    driven.now_ms += 100
    driven.added(producer, T0)
    assert driven.transaction.metadata.partitions == (T0, T1)
    assert driven.transaction.metadata.start_ms == started_ms
    request_id = driven.ask(add(producer, T1))
    assert driven.writes == []
    assert driven.replies[request_id].partitions == {T1: ErrorCode.NONE}


def test_partitions_that_could_not_be_written_are_not_in_the_transaction() -> None:
    driven, producer = begun()
    request_id = driven.ask(add(producer, T0))
    driven.fail_write()
    assert driven.replies[request_id].partitions == {T0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert driven.transaction.state is TransactionState.EMPTY
    driven.added(producer, T0)
    assert driven.answer(add_offsets(producer)) is ErrorCode.NONE
    assert driven.transaction.metadata.partitions == (OFFSETS, T0)


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
    nameless = add(ProducerIdAndEpoch(producer_id, epoch), T0, name="")
    assert driven.error_of(nameless) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("version", "error_code"),
    [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)],
)
def test_older_clients_know_another_word_for_fenced(version: int, error_code: ErrorCode) -> None:
    driven, first = begun()
    driven.begun()
    assert driven.error_of(add(first, T0, api_version=version)) is error_code
    assert driven.error_of(add_offsets(first, api_version=version)) is error_code


def test_while_the_last_transaction_ends_the_next_waits_for_it() -> None:
    driven, producer = opened()
    driven.ask(commit(producer))
    following = ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)
    late = driven.ask(add(producer, T1, api_version=5))
    next_one = driven.ask(add(following, T1, api_version=5))
    driven.commit_writes()
    assert driven.error_of(verify(following, T0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not {late, next_one} & driven.replies.keys()
    driven.write_markers()
    assert driven.replies[late].partitions == {T1: ErrorCode.PRODUCER_FENCED}
    assert driven.replies[next_one].partitions == {T1: ErrorCode.NONE}
    assert driven.transaction.metadata.partitions == (T1,)


@pytest.mark.parametrize("version", [0, 3])
def test_an_addition_of_an_older_client_begins_no_transaction_after_the_last(version: int) -> None:
    """Its epoch is that of both: it may be a late one of the transaction that ends."""
    driven, producer = opened(api_version=version)
    driven.ask(commit(producer, api_version=3))
    driven.commit_writes()
    for request in (add(producer, T1, api_version=version), add_offsets(producer)):
        assert driven.error_of(request) is ErrorCode.CONCURRENT_TRANSACTIONS
    driven.write_markers()
    assert driven.state is TransactionState.COMPLETE_COMMIT
    assert driven.writes == []


def test_additions_that_have_waited_share_a_refusal() -> None:
    driven, producer = opened(T0)
    asked = [driven.ask(add(producer, one, api_version=5)) for one in (T1, T2, T3)]
    driven.fail_write()
    assert [one in driven.replies for one in asked] == [True, False, False]
    driven.fail_write()
    codes = [{*driven.replies[one].partitions.values()} for one in asked[1:]]
    assert codes == [{ErrorCode.COORDINATOR_NOT_AVAILABLE}] * 2
    assert driven.transaction.metadata.partitions == (T0,)


def test_a_refused_batch_that_completes_and_begins_leaves_neither_pending() -> None:
    driven, producer = opened()
    driven.ask(commit(producer))
    driven.commit_writes()
    following = ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)
    refused = driven.ask(add(following, T1, api_version=5))
    driven.marked(driven.markers.pop())
    written = [one.metadata for one in records_of(driven.writes[0].records)]
    states = [TransactionState.COMPLETE_COMMIT, TransactionState.ONGOING]
    assert [one and one.state for one in written] == states
    driven.fail_write()
    assert driven.replies[refused].partitions == {T1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert driven.transaction.pending_changes == 0
    driven.tick(int(RETRY.max_ms))
    driven.commit_writes()
    assert driven.state is TransactionState.COMPLETE_COMMIT
    assert not driven.transaction.is_busy
    driven.added(following, T1, api_version=5)


def test_not_too_many_additions_wait_for_one_id() -> None:
    driven, producer = opened()
    driven.ask(add(producer, T1, api_version=5))
    asked = [driven.ask(add(producer, T2, api_version=5)) for _ in range(HELD_MAX + 1)]
    assert [*driven.replies[asked.pop()].partitions.values()] == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert not {*asked} & driven.replies.keys()
    driven.commit_writes()
    assert {*asked} <= driven.replies.keys()


def test_a_coordinator_that_is_replaced_lets_nobody_wait() -> None:
    driven, producer = opened()
    driven.ask(commit(producer))
    driven.commit_writes()
    request_id = driven.ask(add(producer, T1, api_version=5))
    [sent] = driven.markers
    driven.marked(sent, {T0: ErrorCode.TRANSACTION_COORDINATOR_FENCED})
    assert driven.replies[request_id].partitions == {T1: ErrorCode.NOT_COORDINATOR}
    assert driven.shard.next_deadline_ms is None


@pytest.mark.parametrize(
    ("version", "absent"), [(4, ErrorCode.INVALID_TXN_STATE), (5, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_a_leader_learns_the_partitions_of_a_transaction(version: int, absent: ErrorCode) -> None:
    driven, producer = opened(T0)
    request = add(producer, T0, T1, api_version=version, verify_only=True)
    for _ in range(2):  # a question: asking again changes nothing
        assert driven.answer(request).partitions == {T0: ErrorCode.NONE, T1: absent}
    assert driven.writes == []
    assert driven.transaction.metadata.partitions == (T0,)
    driven.ask(add(producer, T1))  # not committed: not verified
    request_id = driven.ask(verify(producer, T1))
    outcomes = driven.replies[request_id].partitions
    assert outcomes == {T1: ErrorCode.TRANSACTION_ABORTABLE}


def test_after_its_end_a_transaction_has_no_partitions() -> None:
    """A leader that verifies late must not append (KAFKA-14884): its answer says abort."""
    driven, producer = opened(T0, api_version=3)
    driven.ended(commit(producer, api_version=4))
    assert driven.error_of(verify(producer, T0)) is ErrorCode.TRANSACTION_ABORTABLE


def test_a_leader_that_adds_does_so_for_a_client_of_version_2() -> None:
    driven, producer = begun()
    driven.added(producer, T0, api_version=5)
    assert driven.transaction.metadata.client_transaction_version == 2
    driven.ended(commit(producer))
    following = ProducerIdAndEpoch(producer.producer_id, 1)
    driven.added(following, T0, api_version=3)
    assert driven.transaction.metadata.client_transaction_version == 0


def several() -> Coordination:
    """`done` is complete, `open` has lasted 500 ms, `x` is empty, `new` is not committed."""
    driven = Coordination()
    for name in ("done", "open"):
        driven.answer(add(driven.begun(name=name), T0, name=name, api_version=5))
    driven.ended(commit(driven.coordinator.transactions["done"].producer, name="done"))
    driven.begun()
    driven.ask(init(name="new"))
    driven.tick(500)
    return driven


def listed(driven: Coordination, **wanted: object) -> list[str]:
    wanted_of = TransactionFilter(**wanted)  # type: ignore[arg-type]
    found = driven.coordinator.list_transactions(driven.now_ms, wanted_of)
    return [one.transactional_id for one in found]


def test_all_that_is_committed_is_listed() -> None:
    driven = several()
    found = driven.coordinator.list_transactions(driven.now_ms, TransactionFilter())
    assert [(one.transactional_id, one.producer_id, one.transaction_state) for one in found] == [
        ("done", 1002, "CompleteCommit"),
        ("open", 1003, "Ongoing"),
        ("x", 1004, "Empty"),
    ]


def test_a_filter_lets_pass_what_it_names() -> None:
    driven = several()
    assert listed(driven, states=frozenset({"Ongoing", "Empty"})) == ["open", "x"]
    assert listed(driven, producer_ids=frozenset({1002, 77})) == ["done"]
    ongoing = frozenset({"Ongoing"})
    assert listed(driven, states=ongoing, duration_ms=499) == ["open"]
    assert listed(driven, states=ongoing, duration_ms=500) == []
    assert listed(driven, states=ongoing, producer_ids=frozenset({1002})) == []
    assert listed(driven, matches_id=lambda name: "n" in name) == ["done", "open"]
    assert listed(driven, states=ongoing, matches_id=lambda name: name == "x") == []
    states = frozenset({"Ongoing", "Lost", "empty"})
    assert TransactionFilter(states=states).unknown_states == ["Lost", "empty"]
    assert listed(driven, states=states) == ["open"]
    assert listed(driven, states=frozenset({"Lost"})) == []


def test_a_description_says_what_is_committed_and_finds_nothing_else() -> None:
    driven, producer = opened(T1, T0)
    driven.ask(commit(producer))
    found = driven.coordinator.describe("x")
    assert found.error_code is ErrorCode.NONE
    assert (found.state, found.producer) == (TransactionState.ONGOING, producer)
    assert (found.partitions, found.transaction_timeout_ms) == ((T0, T1), 10_000)
    assert found.start_ms == driven.now_ms
    driven = Coordination()
    driven.ask(init())
    for name in ("x", "y"):
        found = driven.coordinator.describe(name)
        assert found.error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert found.transactional_id == name
    assert driven.coordinator.describe("").error_code is ErrorCode.INVALID_REQUEST
