"""The states of batches and of transactional producers, and how grave errors of requests are."""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product

import pytest

from quorumlog.client.core.batch import Batch, BatchState, ProducerIdentity
from quorumlog.client.core.transaction_requests import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorKey,
    CoordinatorType,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    Reaction,
    TransactionRequest,
    reaction_to,
    reaction_to_batch,
)
from quorumlog.client.core.transactions import Transactions, TransactionState
from quorumlog.client.records import GroupMetadata
from quorumlog.client.settings import ProducerSettings
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

WAITING, SENT, RETRYING, DONE = BatchState
OF_A_BATCH = {  # written a second time here, on purpose
    (WAITING, SENT), (WAITING, DONE),
    (SENT, RETRYING), (SENT, DONE),
    (RETRYING, SENT), (RETRYING, DONE),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), list(product(BatchState, repeat=2)))
def test_every_pair_of_states_of_a_batch(source: BatchState, target: BatchState) -> None:
    batch = Batch(TopicPartition("t", 0), created_ms=0.0)
    batch.state = source
    is_legal = (source, target) in OF_A_BATCH
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="a batch may go"):
        batch.become(target)
    assert batch.state is (target if is_legal else source)


UNINITIALIZED, INITIALIZING, READY, OPEN, COMMITTING, ABORTING, BROKEN, ENDED = TransactionState
OF_TRANSACTIONS = {  # written a second time here, on purpose
    (UNINITIALIZED, INITIALIZING), (UNINITIALIZED, ENDED),
    (INITIALIZING, READY), (INITIALIZING, ENDED),
    (READY, OPEN), (READY, ENDED),
    (OPEN, COMMITTING), (OPEN, ABORTING), (OPEN, BROKEN), (OPEN, ENDED),
    (COMMITTING, INITIALIZING), (COMMITTING, READY), (COMMITTING, BROKEN), (COMMITTING, ENDED),
    (ABORTING, INITIALIZING), (ABORTING, READY), (ABORTING, ENDED),
    (BROKEN, ABORTING), (BROKEN, ENDED),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), list(product(TransactionState, repeat=2)))
def test_every_pair_of_states(source: TransactionState, target: TransactionState) -> None:
    settings = ProducerSettings(bootstrap_servers="x:1", transactional_id="tx")
    transactions = Transactions(settings)
    transactions.state = source
    is_legal = (source, target) in OF_TRANSACTIONS
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="may go"):
        transactions._become(target)
    assert transactions.state is (target if is_legal else source)


# `KAFKA` is TransactionManager of Kafka 4.x: the errors that each handler names, and what it does
# with the others. Only `STRICTER` and `MILDER` may differ from it.
E = ErrorCode
PASSES, ABORTABLE, FATAL = "passes", "abortable", "fatal"
GRAVITY = {
    Reaction.RETRY: PASSES,
    Reaction.MOVED: PASSES,
    Reaction.ABORT: ABORTABLE,
    Reaction.FAIL: FATAL,
    Reaction.UNKNOWN_ID: FATAL,
    Reaction.FENCED: FATAL,
}
IDENTITY = {E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING}
ENDS = IDENTITY | {E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.INVALID_TXN_STATE}

ME = ProducerIdentity(7, 0)
REQUESTS: dict[str, TransactionRequest] = {
    "FindCoordinator of a transaction": FindCoordinator(
        coordinator=CoordinatorKey(CoordinatorType.TRANSACTION, "tx")
    ),
    "FindCoordinator of a group": FindCoordinator(
        coordinator=CoordinatorKey(CoordinatorType.GROUP, "g")
    ),
    "InitProducerId": InitProducerId(identity=None),
    "InitProducerId again": InitProducerId(identity=ME),
    "AddPartitionsToTxn": AddPartitions(identity=ME, partitions=()),
    "AddOffsetsToTxn": AddOffsets(identity=ME, group_id="g"),
    "TxnOffsetCommit": CommitOffsets(
        identity=ME, group=GroupMetadata("g", 1, "m", None), offsets={}, is_implicit=True
    ),
    "commit": EndTransaction(identity=ME, committed=True, is_implicit=True),
    "abort": EndTransaction(identity=ME, committed=False, is_implicit=True),
}
GROUP_ERRORS = {E.FENCED_INSTANCE_ID, E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION}
# The errors that are abortable, those that are fatal, and what any other is.
KAFKA: dict[str, tuple[set[ErrorCode], set[ErrorCode], str]] = {
    "FindCoordinator": ({E.GROUP_AUTHORIZATION_FAILED, E.TRANSACTION_ABORTABLE}, ENDS, FATAL),
    "InitProducerId": ({E.TRANSACTION_ABORTABLE}, ENDS, FATAL),
    "AddPartitionsToTxn": ({E.TOPIC_AUTHORIZATION_FAILED}, ENDS, ABORTABLE),
    "AddOffsetsToTxn": (
        {E.UNKNOWN_PRODUCER_ID, E.GROUP_AUTHORIZATION_FAILED, E.TRANSACTION_ABORTABLE},
        ENDS,
        FATAL,
    ),
    "TxnOffsetCommit": (
        GROUP_ERRORS | {E.GROUP_AUTHORIZATION_FAILED, E.TRANSACTION_ABORTABLE},
        ENDS,
        FATAL,
    ),
    "EndTxn": ({E.UNKNOWN_PRODUCER_ID, E.TRANSACTION_ABORTABLE}, ENDS, FATAL),
}
STRICTER = {
    "no transaction is open yet that could be aborted": {
        ("FindCoordinator of a transaction", E.GROUP_AUTHORIZATION_FAILED),
        ("FindCoordinator of a transaction", E.TRANSACTION_ABORTABLE),
        ("InitProducerId", E.TRANSACTION_ABORTABLE),
        ("InitProducerId again", E.TRANSACTION_ABORTABLE),
    },
    "an abort that is refused cannot be aborted": {("abort", E.TRANSACTION_ABORTABLE)},
    "a coordinator that does not know the producer cannot end its transaction": {
        ("commit", E.UNKNOWN_PRODUCER_ID),
        ("abort", E.UNKNOWN_PRODUCER_ID),
    },
    "an abort would be refused as well": {
        ("AddPartitionsToTxn", code)
        for code in (
            E.CLUSTER_AUTHORIZATION_FAILED,
            E.SASL_AUTHENTICATION_FAILED,
            E.UNSUPPORTED_VERSION,
            E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    },
}
# An error of these that Kafka's handlers do not name: the abort that follows shows if the producer
# is at its end, as EndTxn goes to the coordinator of the transaction.
MILDER = {"FindCoordinator of a group", "AddOffsetsToTxn", "TxnOffsetCommit"}


def kafkas(name: str, code: ErrorCode) -> tuple[str, bool]:
    """How grave an error is for Kafka's producer, and whether its handler names it."""
    handler = {"commit": "EndTxn", "abort": "EndTxn"}.get(name, name)
    handler = next(one for one in KAFKA if handler.startswith(one))
    abortable, fatal, others = KAFKA[handler]
    if code in RETRIABLE:
        return PASSES, True
    if code in abortable:
        return ABORTABLE, True
    return (FATAL, True) if code in fatal else (others, False)


def cases() -> Iterator[tuple[str, ErrorCode]]:
    yield from product(REQUESTS, (code for code in ErrorCode if code != E.NONE))


def test_an_error_of_a_request_is_as_grave_as_in_kafka() -> None:
    stricter = set[tuple[str, ErrorCode]]().union(*STRICTER.values())
    for name, code in cases():
        ours = GRAVITY[reaction_to(REQUESTS[name], code)]
        expected, is_named = kafkas(name, code)
        if (name, code) in stricter:
            assert (ours, expected) == (FATAL, ABORTABLE), (name, code.name)
        elif name in MILDER and not is_named and ours != expected:
            assert (ours, expected) == (ABORTABLE, FATAL), (name, code.name)
        else:
            assert ours == expected, (name, code.name)


@pytest.mark.parametrize("code", sorted(IDENTITY))
def test_an_error_of_the_identity_ends_the_producer_in_every_request(code: ErrorCode) -> None:
    """Another producer may own the transactional id by then (KIP-1050)."""
    assert {GRAVITY[reaction_to(request, code)] for request in REQUESTS.values()} == {FATAL}


def test_an_error_of_a_batch_is_as_grave_as_in_kafka() -> None:
    fatal = {
        E.CLUSTER_AUTHORIZATION_FAILED, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, E.PRODUCER_FENCED,
        E.UNSUPPORTED_VERSION, E.INVALID_PRODUCER_ID_MAPPING,
    }  # fmt: skip
    stricter = {
        E.INVALID_TXN_STATE, E.SASL_AUTHENTICATION_FAILED, E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }  # fmt: skip
    for code in ErrorCode:
        expected = FATAL if code in fatal | stricter else ABORTABLE
        assert GRAVITY[reaction_to_batch(code)] == expected, code.name
