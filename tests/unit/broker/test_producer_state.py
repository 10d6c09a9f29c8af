"""Sequence numbers of idempotent producers: duplicates, gaps, epochs, expiry (KIP-98)."""

from dataclasses import dataclass

import pytest

from quorumlog.broker.partitions.core import producer_state
from quorumlog.broker.partitions.core.producer_state import SEQUENCE_MAX, Check, ProducerStates
from quorumlog.wire.codec.error_codes import ErrorCode


@dataclass(frozen=True)
class Batch:
    base_sequence: int
    producer_epoch: int = 0
    producer_id: int = 7
    last_offset_delta: int = 0
    base_offset: int = 0
    max_timestamp: int = 0
    is_control: bool = False


APPEND = Check(ErrorCode.NONE)


def states(*batches: Batch) -> ProducerStates:
    result = ProducerStates()
    for offset, batch in enumerate(batches):
        result.record(batch, offset, 1000)
    return result


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert states().check(Batch(41)) == APPEND


def test_the_next_sequence_is_appended_and_a_gap_is_not() -> None:
    after = states(Batch(0, last_offset_delta=4))
    assert after.check(Batch(5)) == APPEND
    assert after.check(Batch(6)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_one_of_the_last_five_batches_is_a_duplicate_and_an_older_one_is_out_of_order() -> None:
    after = states(*map(Batch, range(6)))
    for sequence in range(1, 6):
        duplicate = after.check(Batch(sequence)).duplicate_of
        assert duplicate is not None
        assert duplicate.base_offset == sequence
    assert after.check(Batch(0)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_sequence_wraps_to_zero() -> None:
    after = states(Batch(SEQUENCE_MAX - 1, last_offset_delta=1))
    assert after.check(Batch(0)) == APPEND
    across = states(Batch(SEQUENCE_MAX, last_offset_delta=1))
    assert across.check(Batch(1)) == APPEND


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    after = states(Batch(0), Batch(1))
    assert after.check(Batch(2, 1)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert after.check(Batch(0, 1)) == APPEND
    after.record(Batch(0, 1), 2, 1000)
    assert after.check(Batch(2, 0)).error_code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert after.check(Batch(1, 1)) == APPEND


def test_an_idle_producer_expires_and_a_marker_keeps_it() -> None:
    after = states(Batch(0), Batch(0, producer_id=8))
    after.record(Batch(-1, producer_id=8, is_control=True), 2, 1500)
    after.expire(2001, 1000)
    assert len(after) == 1
    assert after.check(Batch(9)) == APPEND
    refused = after.check(Batch(9, producer_id=8))
    assert refused.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    after = states(*(Batch(0, producer_id=who) for who in (1, 2, 1, 3)))
    assert len(after) == 2
    assert after.check(Batch(5, producer_id=2)) == APPEND  # forgotten: idle for longest
