"""The states of a producer's batch: which may follow which."""

from contextlib import nullcontext
from itertools import product

import pytest

from quorumlog.client.core.batch import Batch, BatchState
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.identifiers import TopicPartition

WAITING, SENT, RETRYING, DONE = BatchState
LEGAL = {  # written a second time here, on purpose
    (WAITING, SENT), (WAITING, DONE),
    (SENT, RETRYING), (SENT, DONE),
    (RETRYING, SENT), (RETRYING, DONE),
}  # fmt: skip


@pytest.mark.parametrize(("source", "target"), list(product(BatchState, repeat=2)))
def test_every_pair_of_states(source: BatchState, target: BatchState) -> None:
    batch = Batch(TopicPartition("t", 0), created_ms=0.0)
    batch.state = source
    is_legal = (source, target) in LEGAL
    with nullcontext() if is_legal else pytest.raises(InvariantViolation, match="a batch may go"):
        batch.become(target)
    assert batch.state is (target if is_legal else source)
