"""A consumer's positions: what it fetches, what it gives out, and resets and seeks."""

import pytest

from quorumlog.client.core.position import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    Position,
    PositionState,
)
from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import KafkaError, PositionLost
from quorumlog.client.records import ConsumerRecord, OffsetAndMetadata
from quorumlog.client.settings import ConsumerSettings, IsolationLevel, OffsetReset
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.fetch import AbortedTransaction, EpochEndOffset, PartitionData
from quorumlog.wire.codec.records import Record, encode_batch

T = TopicPartition("t", 0)
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def batch(first: int, last: int, *, epoch: int = 1, compression: int = 0) -> bytes:
    records = [Record(offset, offset, None, b"%d" % offset) for offset in range(first, last + 1)]
    kind = Compression(compression)
    return encode_batch(records, base_offset=first, leader_epoch=epoch, compression=kind)


def transactional(offset: int, producer: int) -> bytes:
    record = Record(offset, 0, None, b"%d" % offset)
    return encode_batch(
        [record], base_offset=offset, producer_id=producer, producer_epoch=0, base_sequence=0,
        is_transactional=True,
    )  # fmt: skip


def marker(offset: int, producer: int, kind: bytes) -> bytes:
    record = Record(offset, 0, kind, b"\0\0\0\0\0\0")
    return encode_batch(
        [record], base_offset=offset, producer_id=producer, producer_epoch=0,
        is_control=True, is_transactional=True,
    )  # fmt: skip


def told(positions: Positions) -> KafkaError:
    error = positions.take_error()
    assert error is not None
    return error


def reading(
    reset: OffsetReset = "earliest",
    isolation: IsolationLevel = "read_uncommitted",
    *,
    offset: int = 0,
    max_partition_fetch_bytes: int = 1_048_576,
) -> tuple[Positions, Position]:
    positions = Positions(
        ConsumerSettings(
            bootstrap_servers="x:1",
            auto_offset_reset=reset,
            isolation_level=isolation,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
        )
    )
    positions.assign([T])
    positions.seek(T, offset)
    return positions, positions.by_partition[T]


def fetched(positions: Positions, at: int, answer: PartitionData) -> bool:
    return positions.handle_fetched(0, positions.by_partition[T], at, answer, 0.5)


def offsets(taken: dict[TopicPartition, list[ConsumerRecord]]) -> list[int]:
    assert {*taken} <= {T}
    records = taken.get(T, [])
    assert [int(record.value or b"-1") for record in records] == [one.offset for one in records]
    return [record.offset for record in records]


def test_records_come_once_in_order_and_in_pieces() -> None:
    positions, position = reading(offset=3)
    assert positions.fetchable(0) == [position]
    fetched(positions, 3, PartitionData(records=batch(0, 5) + batch(6, 9, compression=3)))
    assert position.fetch_offset == 10
    fetched(positions, 10, PartitionData(records=batch(10, 11)))
    assert offsets(positions.take(2)) == [3, 4]
    assert (position.offset, position.fetch_offset) == (5, 12)
    assert offsets(positions.take(5)) == [5, 6, 7, 8, 9]
    assert offsets(positions.take(500)) == [10, 11]
    assert offsets(positions.take(500)) == []
    assert position.buffered_bytes == 0


def test_compacted_and_old_batches_are_passed_over() -> None:
    positions, position = reading()
    kept = [Record(4, 0, None, b"4"), Record(7, 0, None, b"7")]
    fetched(positions, 0, PartitionData(records=encode_batch(kept, base_offset=2)))
    assert offsets(positions.take(1)) == [4]
    assert position.offset == 5
    assert offsets(positions.take(9)) == [7]
    assert position.offset == 8
    positions, position = reading(offset=9)
    fetched(positions, 9, PartitionData(records=batch(0, 5)))
    assert positions.fetchable(0) == []
    assert positions.take_error() is None
    assert position.fetch_offset == 9


def test_a_seek_overtakes_what_is_under_way_and_a_reset() -> None:
    positions, position = reading()
    fetched(positions, 0, PartitionData(records=batch(0, 5)))
    positions.seek(T, 2)
    assert offsets(positions.take(9)) == []
    fetched(positions, 6, PartitionData(records=batch(6, 9)))  # asked for before the seek
    assert offsets(positions.take(9)) == []
    fetched(positions, 2, PartitionData(records=batch(0, 5)))
    assert offsets(positions.take(9)) == [2, 3, 4, 5]
    assert position.offset == 6
    positions, position = reading("by_duration:PT1H", offset=50)
    fetched(positions, 50, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    first = position.reset
    positions.seek_by_time(T, LATEST_TIMESTAMP)
    assert position.reset is not first  # its answer is dropped
    positions.handle_offset(position, 90, 3)
    assert (position.offset, position.state) == (90, PositionState.FETCHING)


def test_the_buffer_is_bounded() -> None:
    positions, position = reading(max_partition_fetch_bytes=100)
    fetched(positions, 0, PartitionData(records=batch(0, 5)))
    assert position.buffered_bytes > 100
    assert positions.fetchable(0) == []
    positions.take(9)
    assert positions.fetchable(0) == [position]
    position.paused = True
    assert positions.fetchable(0) == []


def test_aborted_transactions_and_markers_are_not_shown() -> None:
    log = b"".join(
        [
            transactional(0, 1), transactional(1, 2), batch(2, 2), marker(3, 1, ABORT),
            transactional(4, 1), marker(5, 2, COMMIT), marker(6, 1, COMMIT),
        ]
    )  # fmt: skip
    aborted = [AbortedTransaction(producer_id=1, first_offset=0)]
    answer = PartitionData(records=log, aborted_transactions=aborted)
    positions, position = reading(isolation="read_committed")
    fetched(positions, 0, answer)
    assert offsets(positions.take(9)) == [1, 2, 4]
    assert position.offset == 7
    positions, position = reading()
    fetched(positions, 0, answer)
    assert offsets(positions.take(9)) == [0, 1, 2, 4]


def test_damage_is_told_once_and_fetched_again() -> None:
    positions, position = reading()
    damaged = bytearray(batch(3, 5))
    damaged[-1] ^= 1
    fetched(positions, 0, PartitionData(records=batch(0, 2) + bytes(damaged)))
    assert offsets(positions.take(9)) == [0, 1, 2]
    assert told(positions).code == ErrorCode.CORRUPT_MESSAGE
    assert position.fetch_offset == 3
    fetched(positions, 3, PartitionData(records=batch(3, 5)))
    assert offsets(positions.take(9)) == [3, 4, 5]


@pytest.mark.parametrize(
    ("reset", "timestamp"), [("earliest", EARLIEST_TIMESTAMP), ("latest", LATEST_TIMESTAMP)]
)
def test_out_of_range_is_reset_by_policy(reset: OffsetReset, timestamp: int) -> None:
    positions, position = reading(reset, offset=50)
    fetched(positions, 50, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert positions.waiting(0, PositionState.RESETTING) == [position]
    assert position.reset.timestamp == timestamp
    positions.handle_offset(position, 7, 2)
    assert (position.offset, position.epoch, position.state) == (7, 2, PositionState.FETCHING)


@pytest.mark.parametrize(("by_time", "offset"), [((7, 2), 7), ((-1, -1), 90)])
def test_a_reset_by_duration_asks_for_end_and_time(by_time: tuple[int, int], offset: int) -> None:
    """Without a record that is young enough, reading begins at the end (KIP-1106)."""
    positions, position = reading("by_duration:PT1H", offset=50)
    fetched(positions, 50, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert position.reset.asked_timestamp(5_000_000) == LATEST_TIMESTAMP
    positions.handle_offset(position, 90, 3)
    assert positions.waiting(0, PositionState.RESETTING) == [position]
    assert position.reset.asked_timestamp(5_000_000) == 1_400_000
    assert position.reset.asked_timestamp(60_000) == 0  # -1 and -2 mean other places
    positions.handle_offset(position, *by_time)
    assert (position.offset, position.state) == (offset, PositionState.FETCHING)


def test_without_a_policy_out_of_range_is_an_error_until_the_user_seeks() -> None:
    positions, position = reading("none", offset=50)
    fetched(positions, 50, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    error = told(positions)
    assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert positions.fetchable(1e12) == []
    positions.seek(T, 1)
    assert positions.fetchable(0) == [position]


def test_a_reset_waits_until_what_was_fetched_is_read() -> None:
    positions, position = reading(offset=0)
    fetched(positions, 0, PartitionData(records=batch(0, 5)))
    fetched(positions, 6, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert positions.waiting(0, PositionState.RESETTING) == []
    assert offsets(positions.take(9)) == [0, 1, 2, 3, 4, 5]
    assert positions.waiting(0, PositionState.RESETTING) == [position]


def test_a_truncated_log_takes_back_only_who_has_read_further() -> None:
    """KIP-320: the leader says where its log and what we read part."""
    positions, position = reading(offset=9)
    parted = PartitionData(diverging_epoch=EpochEndOffset(epoch=1, end_offset=6))
    fetched(positions, 9, parted)
    assert position.offset == 6
    positions, position = reading("none", offset=9)
    fetched(positions, 9, parted)
    assert "truncated to 6" in str(told(positions))
    positions, position = reading("none", offset=0)
    fetched(positions, 0, PartitionData(records=batch(0, 5)))
    positions.take(2)
    fetched(positions, 6, PartitionData(diverging_epoch=EpochEndOffset(epoch=1, end_offset=4)))
    assert positions.take_error() is None
    assert (position.offset, position.fetch_offset) == (2, 2)


def moves(positions: Positions) -> list[str]:
    return [str(move) for move in positions.take_moves()]


def test_a_place_that_moves_by_itself_is_told_once_with_its_cause() -> None:
    positions, position = reading(offset=9)
    parted = PartitionData(diverging_epoch=EpochEndOffset(epoch=1, end_offset=6))
    fetched(positions, 9, parted)
    assert moves(positions) == ["t-0: the position moves from 9 to 6: the log was truncated to 6"]
    fetched(positions, 6, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    positions.handle_offset(position, 8, 1)
    told_move = "t-0: the position moves from 6 to 8: offset 6 is out of range"
    assert moves(positions) == [f"{told_move} (auto_offset_reset=earliest)"]
    positions.seek_by_time(T, LATEST_TIMESTAMP)
    positions.handle_offset(position, 20, 1)
    assert moves(positions) == []


OLD, NEW = b"1" * 16, b"2" * 16


def reading_old(reset: OffsetReset = "earliest") -> tuple[Positions, Position]:
    """A consumer of a topic that was deleted since, and created again: it has read 0 to 2."""
    positions, position = reading(reset)
    assert positions.maybe_enter(position, OLD)
    fetched(positions, 0, PartitionData(records=batch(0, 5)))
    positions.take(3)
    positions.mark_consumed()
    return positions, position


def test_a_position_does_not_outlive_its_topic() -> None:
    positions, position = reading_old()
    assert not positions.maybe_enter(position, NEW)
    assert position.consumed == OffsetAndMetadata(3, 1)  # of the old topic, for a commit to it
    positions.follow(position, NEW)
    assert position.topic_id == NEW
    assert [one for one in positions if one.consumed is not None] == []
    assert positions.waiting(0, PositionState.RESETTING) == [position]
    assert offsets(positions.take(500)) == []
    positions.handle_offset(position, 0, 0)
    recreated = "the topic was deleted and created again (auto_offset_reset=earliest)"
    assert moves(positions) == [f"t-0: the position moves from 3 to 0: {recreated}"]
    fetched(positions, 0, PartitionData(records=batch(0, 1)))
    assert offsets(positions.take(500)) == [0, 1]


def test_without_a_policy_a_new_topic_is_an_error_until_the_user_seeks() -> None:
    positions, position = reading_old("none")
    positions.follow(position, NEW)
    assert "created again, and auto_offset_reset is none" in str(told(positions))
    assert positions.waiting(1e9, PositionState.LOOKING) == []
    positions.mark_consumed()
    assert position.consumed is None
    positions.seek(T, 0)
    assert positions.fetchable(0) == [position]


def lost(positions: Positions) -> tuple[TopicPartition, int, bytes, int | None]:
    error = told(positions)
    assert isinstance(error, PositionLost)
    return error.topic_partition, error.offset, error.topic_id, error.truncated_to


def test_a_lost_position_names_its_topic_and_where_the_log_was_truncated() -> None:
    positions, position = reading("none", offset=9)
    positions.maybe_enter(position, OLD)
    fetched(positions, 9, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert lost(positions) == (T, 9, OLD, None)
    positions.seek(T, 8, 3)
    parted = PartitionData(diverging_epoch=EpochEndOffset(epoch=1, end_offset=6))
    fetched(positions, 8, parted)
    assert lost(positions) == (T, 8, OLD, 6)
    positions, position = reading_old("none")
    positions.follow(position, NEW)
    assert lost(positions) == (T, 3, NEW, None)


def test_an_offset_of_the_user_belongs_to_the_topic_that_the_user_names() -> None:
    positions = Positions(ConsumerSettings(bootstrap_servers="x:1", auto_offset_reset="none"))
    positions.assign([T], {T.topic: OLD}, by_group=False)
    positions.seek(T, 7, 3)
    position = positions.by_partition[T]
    assert (position.offset, position.fetch_epoch) == (7, 3)
    assert positions.maybe_enter(position, OLD)
    assert not positions.maybe_enter(position, NEW)  # it was created again before the first fetch
    positions.follow(position, NEW)
    assert lost(positions) == (T, 7, NEW, None)


def test_a_broker_that_lags_behind_costs_no_place() -> None:
    positions, position = reading_old("latest")
    positions.follow(position, NEW)
    positions.handle_offset(position, 7, 1)
    positions.follow(position, OLD)  # as metadata of another broker name it once more
    assert (position.topic_id, position.offset) == (OLD, 3)
    positions.follow(position, NEW)
    assert (position.topic_id, position.offset, position.epoch) == (NEW, 7, 1)


def test_only_a_partition_without_a_place_enters_another_topic() -> None:
    positions, _ = reading()
    positions.assign([])
    positions.assign([T])
    position = positions.by_partition[T]
    assert positions.maybe_enter(position, OLD)
    assert positions.maybe_enter(position, NEW)
    positions.handle_committed(position, None)
    assert positions.maybe_enter(position, OLD)
    assert moves(positions) == []
    positions, _ = reading()
    positions.assign([])
    positions.assign([T], {"t": OLD})
    position = positions.by_partition[T]
    assert not positions.maybe_enter(position, NEW)
    positions.handle_committed(position, OffsetAndMetadata(4))
    positions.follow(position, NEW)
    assert (position.topic_id, position.offset) == (OLD, 4)


def test_errors_that_pass_are_retried_and_others_told() -> None:
    positions, position = reading()
    assert fetched(positions, 0, PartitionData(error_code=ErrorCode.FENCED_LEADER_EPOCH))
    assert positions.fetchable(0) == []
    assert positions.fetchable(positions.wake_at_ms(0)) == [position]
    assert fetched(positions, 0, PartitionData(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    assert told(positions).code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    positions, _ = reading()
    with pytest.raises(KeyError, match="u-1 is not assigned to this consumer"):
        positions.seek(TopicPartition("u", 1), 0)


def test_only_what_earlier_calls_returned_counts_as_consumed() -> None:
    positions, position = reading()
    fetched(positions, 0, PartitionData(records=batch(0, 5, epoch=3)))
    positions.mark_consumed()
    positions.take(4)
    assert position.consumed == OffsetAndMetadata(0)
    positions.mark_consumed()
    assert position.consumed == OffsetAndMetadata(4, 3)
    positions, position = reading()
    fetched(positions, 0, PartitionData(records=batch(0, 2, epoch=4)))
    for offset in range(3):
        record = positions.take_next()
        assert record is not None
        assert record.offset == offset
        assert position.consumed == OffsetAndMetadata(offset, 4 if offset else -1)
    assert positions.take_next() is None
    assert position.consumed == OffsetAndMetadata(3, 4)


def test_a_committed_offset_is_where_reading_starts() -> None:
    positions = Positions(ConsumerSettings(bootstrap_servers="x:1", auto_offset_reset="latest"))
    positions.assign([T])
    position = positions.by_partition[T]
    assert positions.waiting(0, PositionState.LOOKING) == [position]
    positions.handle_committed(position, OffsetAndMetadata(5, 2))
    assert (position.offset, position.fetch_epoch) == (5, 2)
    positions.assign([])
    positions.assign([T])
    fresh = positions.by_partition[T]
    assert fresh is not position
    assert not positions.is_current(position)
    positions.handle_committed(fresh, None)
    assert fresh.state is PositionState.RESETTING


def test_bytes_that_are_no_batches_are_told_and_asked_for_again_after_a_pause() -> None:
    nonsense = [
        (b"\0" * 200, ErrorCode.CORRUPT_MESSAGE),
        (batch(0, 5)[:70], ErrorCode.MESSAGE_TOO_LARGE),
    ]
    for records, code in nonsense:
        positions, position = reading()
        for _ in range(3):
            fetched(positions, 0, PartitionData(records=records))
            assert positions.fetchable(0) == []
            assert positions.fetchable(positions.wake_at_ms(0)) == [position]
        assert told(positions).code == code
        assert positions.take_error() is None  # not once for each attempt
        assert position.offset == 0


def test_a_preferred_replica_is_read_until_it_fails_or_the_time_is_over() -> None:
    positions, position = reading()
    named = PartitionData(preferred_read_replica=3)
    fetched(positions, 0, named)
    limit_ms = positions.settings.metadata_max_age_ms
    assert position.prefers(limit_ms - 1) == 3
    assert position.prefers(limit_ms) == -1  # the leader is asked again
    assert position.leader_until_ms == 0.0
    fetched(positions, 0, named)
    out = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert fetched(positions, 0, out)  # at a replica that may be behind: nothing is reset
    assert (position.state, position.offset) == (PositionState.FETCHING, 0)
    assert position.prefers(0) == -1
    assert position.leader_until_ms == positions.settings.retry_backoff_max_ms
