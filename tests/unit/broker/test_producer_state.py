"""Sequence numbers of idempotent producers: duplicates, gaps, epochs, expiry (KIP-98)."""

import pytest

from quorumlog.broker.partitions.core import producer_state
from quorumlog.broker.partitions.core.producer_state import SEQUENCE_MAX, Check, ProducerStates
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import BatchHeader
from tests.support.broker.produced import produced

APPEND = Check(ErrorCode.NONE)


def states(*batches: BatchHeader) -> ProducerStates:
    result = ProducerStates()
    for offset, batch in enumerate(batches):
        result.record(batch, offset, 1000)
    return result


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert states().check(produced(41)) == APPEND


def test_the_next_sequence_is_appended_and_a_gap_is_not() -> None:
    after = states(produced(0, last_offset_delta=4))
    assert after.check(produced(5)) == APPEND
    assert after.check(produced(6)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_one_of_the_last_five_batches_is_a_duplicate_and_an_older_one_is_out_of_order() -> None:
    after = states(*map(produced, range(6)))
    for sequence in range(1, 6):
        duplicate = after.check(produced(sequence)).duplicate_of
        assert duplicate is not None
        assert duplicate.base_offset == sequence
    assert after.check(produced(0)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_sequence_wraps_to_zero() -> None:
    after = states(produced(SEQUENCE_MAX - 1, last_offset_delta=1))
    assert after.check(produced(0)) == APPEND
    across = states(produced(SEQUENCE_MAX, last_offset_delta=1))
    assert across.check(produced(1)) == APPEND


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    after = states(produced(0), produced(1))
    assert after.check(produced(2, 1)).error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert after.check(produced(0, 1)) == APPEND
    after.record(produced(0, 1), 2, 1000)
    assert after.check(produced(2, 0)).error_code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert after.check(produced(1, 1)) == APPEND


def test_an_idle_producer_expires_and_a_marker_keeps_it() -> None:
    after = states(produced(0), produced(0, producer_id=8))
    after.record(produced(-1, producer_id=8, is_control=True), 2, 1500)
    after.expire(2001, 1000)
    assert len(after) == 1
    assert after.check(produced(9)) == APPEND
    refused = after.check(produced(9, producer_id=8))
    assert refused.error_code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    after = states(*(produced(0, producer_id=who) for who in (1, 2, 1, 3)))
    assert len(after) == 2
    assert after.check(produced(5, producer_id=2)) == APPEND  # forgotten: idle for longest
