"""Idempotence against a producer that retries what it likes: each record once, in order."""

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.partitions.core.producer_state import (
    BATCHES_KEPT,
    SEQUENCE_MAX,
    ProducerStates,
    sequence_after,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader
from tests.support.broker.produced import produced
from tests.support.sizes import examples

EXAMPLES = examples(200)


@EXAMPLES
@given(
    start=st.sampled_from((0, SEQUENCE_MAX - 5)),
    sends=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 6), st.integers(1, 3))),
)
def test_a_log_holds_each_batch_once_and_in_order(
    start: int, sends: list[tuple[int, int, int]]
) -> None:
    """A producer resends one of its last batches, or sends the next one: each send is one try."""
    states, log = ProducerStates(), list[BatchHeader]()
    sent: dict[int, list[BatchHeader]] = {1: [], 2: []}
    for producer_id, back, count in sends:
        mine = sent[producer_id]
        if 0 < back <= len(mine):
            batch = mine[-back]
        else:
            last = mine[-1] if mine else None
            sequence = (
                start
                if last is None
                else sequence_after(last.base_sequence, last.last_offset_delta + 1)
            )
            batch = produced(sequence, 0, producer_id, count - 1)
            mine.append(batch)
        error_code, stored = states.check(batch)
        if stored is not None:
            assert log[stored.base_offset] == batch
        elif error_code is ErrorCode.NONE:
            assert batch not in log
            states.record(batch, len(log), 0)
            log += [batch] * count_of(batch)
        else:
            assert error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert mine.index(batch) < len(mine) - BATCHES_KEPT
    for producer_id, mine in sent.items():
        in_log = list(dict.fromkeys(batch for batch in log if batch.producer_id == producer_id))
        assert in_log == mine


def count_of(batch: BatchHeader) -> int:
    return batch.last_offset_delta + 1


@EXAMPLES
@given(
    batches=st.lists(
        st.builds(
            produced,
            producer_id=st.integers(-1, 3),
            producer_epoch=st.integers(0, 2),
            base_sequence=st.sampled_from((0, 1, 2, 5, SEQUENCE_MAX)),
            last_offset_delta=st.integers(0, 3),
        )
    )
)
def test_a_check_changes_nothing_and_a_rebuild_equals_the_live_state(
    batches: list[BatchHeader],
) -> None:
    live, log, offset = ProducerStates(), list[BatchHeader](), 0
    for batch in batches:
        verdict = live.check(batch)
        assert live.check(batch) == verdict
        if verdict.error_code is ErrorCode.NONE and verdict.duplicate_of is None:
            stamped = batch._replace(base_offset=offset)
            live.record(stamped, offset, 0)
            log.append(stamped)
            offset += count_of(batch)
    rebuilt = ProducerStates()
    rebuilt.rebuild(log)
    for batch in [*batches, *log]:
        assert rebuilt.check(batch) == live.check(batch)
