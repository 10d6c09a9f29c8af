"""The states of a producer's batch and of a transactional producer: which may follow which."""

from contextlib import nullcontext
from itertools import product

import pytest

from quorumlog.client.core.batch import Batch, BatchState
from quorumlog.client.core.transaction_states import TransactionState
from quorumlog.client.core.transactions import Transactions
from quorumlog.client.settings import ProducerSettings
from quorumlog.invariants import InvariantViolation
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


UNINITIALIZED, INITIALIZING, READY, OPEN, COMMITTING, ABORTING, ABORTABLE, FATAL = TransactionState
OF_TRANSACTIONS = {  # written a second time here, on purpose
    (UNINITIALIZED, INITIALIZING), (UNINITIALIZED, FATAL),
    (INITIALIZING, READY), (INITIALIZING, FATAL),
    (READY, OPEN), (READY, FATAL),
    (OPEN, COMMITTING), (OPEN, ABORTING), (OPEN, ABORTABLE), (OPEN, FATAL),
    (COMMITTING, INITIALIZING), (COMMITTING, READY), (COMMITTING, ABORTABLE), (COMMITTING, FATAL),
    (ABORTING, INITIALIZING), (ABORTING, READY), (ABORTING, FATAL),
    (ABORTABLE, ABORTING), (ABORTABLE, FATAL),
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
