"""The states of a transactional producer: which may follow which."""

from contextlib import nullcontext
from itertools import product

import pytest

from quorumlog.client.core.transaction_states import TransactionState
from quorumlog.client.core.transactions import Transactions
from quorumlog.client.settings import ProducerSettings
from quorumlog.invariants import InvariantViolation

UNINITIALIZED, INITIALIZING, READY, OPEN, COMMITTING, ABORTING, ABORTABLE, FATAL = TransactionState
LEGAL = {  # written a second time here, on purpose
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
    is_legal = (source, target) in LEGAL
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="may go"):
        transactions._become(target)
    assert transactions.state is (target if is_legal else source)
