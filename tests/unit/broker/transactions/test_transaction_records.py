"""The bytes of `__transaction_state`, field by field as in Kafka's schemas, and the state table."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import pytest

from quorumlog.broker.transactions.core.records import (
    TransactionMetadata,
    TransactionRecord,
    decode,
    encode,
)
from quorumlog.broker.transactions.core.states import STATUS, TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.identifiers import TopicPartition

KEY = bytes.fromhex("0000 0001 78")  # version, "x"
ONGOING = TransactionMetadata(
    producer_id=4001,
    producer_epoch=2,
    transaction_timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=(TopicPartition("a", 0), TopicPartition("a", 3), TopicPartition("b", 1)),
    last_update_ms=2000,
    start_ms=1000,
)
EMPTY = replace(ONGOING, state=TransactionState.EMPTY, partitions=(), start_ms=-1)
PREPARED = replace(
    ONGOING,
    state=TransactionState.PREPARE_COMMIT,
    producer_epoch=32_767,
    previous_producer_id=4001,
    next_producer_id=4002,
    client_transaction_version=2,
    next_producer_epoch=0,
)
IDS = "0000000000000fa1 0002 0000ea60"  # producer id, epoch, timeout
TIMES = "00000000000007d0 00000000000003e8"  # last update, start
VECTORS = {
    "v0 ongoing": (
        TransactionRecord(transactional_id="x", metadata=ONGOING, value_version=0),
        f"0000 {IDS} 01 00000002"  # version, ids, status, two topics
        "0001 61 00000002 00000000 00000003"  # "a": two partitions
        f"0001 62 00000001 00000001 {TIMES}",  # "b": one
    ),
    "v0 empty": (
        TransactionRecord(transactional_id="x", metadata=EMPTY, value_version=0),
        f"0000 {IDS} 00 ffffffff 00000000000007d0 ffffffffffffffff",  # null partitions
    ),
    "v0 complete": (
        TransactionRecord(
            transactional_id="x",
            metadata=replace(ONGOING, state=TransactionState.COMPLETE_ABORT, partitions=()),
            value_version=0,
        ),
        f"0000 {IDS} 05 00000000 {TIMES}",  # no partitions
    ),
    "v1 ongoing": (
        TransactionRecord(transactional_id="x", metadata=ONGOING, value_version=1),
        f"0001 {IDS} 01 03"  # compact: a count is one more
        "02 61 03 00000000 00000003 00"  # each struct ends in its tagged fields: none
        f"02 62 02 00000001 00 {TIMES} 00",
    ),
    "v1 empty": (
        TransactionRecord(transactional_id="x", metadata=EMPTY, value_version=1),
        f"0001 {IDS} 00 00 00000000000007d0 ffffffffffffffff 00",
    ),
    "v1 prepared, with every tagged field": (
        TransactionRecord(transactional_id="x", metadata=PREPARED, value_version=1),
        "0001 0000000000000fa1 7fff 0000ea60 02 03"
        "02 61 03 00000000 00000003 00"
        f"02 62 02 00000001 00 {TIMES}"
        "04"  # tagged fields: tag, size, value
        "00 08 0000000000000fa1"  # previous producer id
        "01 08 0000000000000fa2"  # next producer id
        "02 02 0002"  # client transaction version
        "03 02 0000",  # next producer epoch
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_a_record_has_kafkas_bytes(name: str) -> None:
    record, value = VECTORS[name]
    assert encode(record) == (KEY, bytes.fromhex(value))
    assert decode(KEY, bytes.fromhex(value)) == record


def test_a_tombstone_has_no_value() -> None:
    gone = TransactionRecord(transactional_id="x", metadata=None)
    assert encode(gone) == (KEY, None)
    assert decode(KEY, None) == gone


def test_what_the_old_form_cannot_say_is_not_in_it() -> None:
    key, value = encode(TransactionRecord(transactional_id="x", metadata=PREPARED, value_version=0))
    read = decode(key, value).metadata
    without_ids = replace(PREPARED, previous_producer_id=-1, next_producer_id=-1)
    assert read == replace(without_ids, client_transaction_version=0, next_producer_epoch=-1)


def test_a_tagged_field_that_a_newer_kafka_writes_is_ignored() -> None:
    value = bytes.fromhex(f"0001 {IDS} 00 00 00000000000007d0 ffffffffffffffff 01 09 02 0007")
    assert decode(KEY, value).metadata == EMPTY


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("0001 0001 78", None, "TransactionLogKey of version 1"),
        ("ffff 0001 78", None, "TransactionLogKey of version -1"),
        ("0000 0001 78", "0002 00", "TransactionLogValue of version 2"),
        ("0000 0001 78", "ffff 00", "TransactionLogValue of version -1"),
        ("00", None, "in 1 bytes"),
    ],
)
def test_an_unknown_version_is_refused_by_name(key: str, value: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(bytes.fromhex(key), None if value is None else bytes.fromhex(value))


@pytest.mark.parametrize("status", [6, 7, 8, 255])
def test_a_state_that_is_in_no_record_is_refused(status: int) -> None:
    value = bytes.fromhex(f"0000 {IDS} {status:02x} ffffffff {TIMES}")
    with pytest.raises(MalformedFrame, match="x: status"):
        decode(KEY, value)


@pytest.mark.parametrize("name", VECTORS)
def test_bytes_that_end_early_are_refused_wherever_they_end(name: str) -> None:
    value = bytes.fromhex(VECTORS[name][1])
    for end in range(len(value)):
        with pytest.raises(MalformedFrame):
            decode(KEY, value[:end])
    for end in range(len(KEY)):
        with pytest.raises(MalformedFrame):
            decode(KEY[:end], value)


def test_the_numbers_of_the_states_are_kafkas() -> None:
    names = "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead"
    numbers = {name: number for number, name in enumerate([*names.split(), "PrepareEpochFence"])}
    assert {state.value: number for state, number in STATUS.items()} == numbers


LEGAL = {  # written a second time here, on purpose
    ("EMPTY", "EMPTY"),
    ("EMPTY", "ONGOING"),
    ("EMPTY", "PREPARE_ABORT"),
    ("EMPTY", "DEAD"),
    ("ONGOING", "ONGOING"),
    ("ONGOING", "PREPARE_COMMIT"),
    ("ONGOING", "PREPARE_ABORT"),
    ("ONGOING", "PREPARE_EPOCH_FENCE"),
    ("PREPARE_COMMIT", "COMPLETE_COMMIT"),
    ("PREPARE_ABORT", "COMPLETE_ABORT"),
    ("COMPLETE_COMMIT", "EMPTY"),
    ("COMPLETE_COMMIT", "ONGOING"),
    ("COMPLETE_COMMIT", "PREPARE_ABORT"),
    ("COMPLETE_COMMIT", "DEAD"),
    ("COMPLETE_ABORT", "EMPTY"),
    ("COMPLETE_ABORT", "ONGOING"),
    ("COMPLETE_ABORT", "PREPARE_ABORT"),
    ("COMPLETE_ABORT", "DEAD"),
    ("PREPARE_EPOCH_FENCE", "PREPARE_ABORT"),
}


@pytest.mark.parametrize(("source", "target"), list(product(TransactionState, repeat=2)))
def test_every_pair_of_states(source: TransactionState, target: TransactionState) -> None:
    transaction = Transaction("x", replace(ONGOING, state=source))
    is_legal = (source.name, target.name) in LEGAL
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change"):
        transaction.begin(target)
    assert transaction.pending is (target if is_legal else None)
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="legal change"):
        transaction._transition(replace(ONGOING, state=target, last_update_ms=2001))
    assert transaction.state is (target if is_legal else source)


def test_a_fence_is_followed_by_an_abort_and_nothing_else_begins_meanwhile() -> None:
    transaction = Transaction("x", ONGOING)
    transaction.begin(TransactionState.PREPARE_EPOCH_FENCE)
    with pytest.raises(InvariantViolation, match="legal change"):
        transaction.begin(TransactionState.PREPARE_COMMIT)
    transaction.begin(TransactionState.PREPARE_ABORT)
    with pytest.raises(InvariantViolation, match="one change at a time"):
        transaction.begin(TransactionState.PREPARE_ABORT)


def test_an_epoch_never_falls_and_every_change_has_a_later_time() -> None:
    transaction = Transaction("x", ONGOING)
    with pytest.raises(InvariantViolation, match="2: epoch"):
        transaction._transition(replace(ONGOING, producer_epoch=1, last_update_ms=2001))
    with pytest.raises(InvariantViolation, match="2: a later change"):
        transaction._transition(ONGOING)
    behind = transaction.with_partitions(0, (), 0)  # by the clock
    assert behind.last_update_ms == 2001


BROKEN = {
    "no producer": replace(EMPTY, producer_epoch=-1),
    "partitions without a transaction": replace(ONGOING, state=TransactionState.COMPLETE_COMMIT),
    "a transaction without a start": replace(ONGOING, start_ms=-1),
    "a next producer id without a decision": replace(ONGOING, next_producer_id=4002),
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_a_contradiction_is_our_bug_and_in_a_record_it_is_malformed(wrong: str) -> None:
    with pytest.raises(InvariantViolation, match=f"3: {wrong}"):
        Transaction("x", BROKEN[wrong]).check_invariants()
    record = TransactionRecord(transactional_id="x", metadata=BROKEN[wrong])
    with pytest.raises(MalformedFrame, match=f"x: {wrong}"):
        decode(*encode(record))


def test_markers_are_missing_only_where_they_belong() -> None:
    transaction = Transaction("x", ONGOING)
    transaction.unmarked = {*ONGOING.partitions}
    with pytest.raises(InvariantViolation, match="4: markers without a decision"):
        transaction.check_invariants()
    prepared = Transaction("x", PREPARED)
    prepared.unmarked.add(TopicPartition("c", 0))
    with pytest.raises(InvariantViolation, match="4: markers of strangers"):
        prepared.check_invariants()
