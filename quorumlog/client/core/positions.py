"""Decides a consumer's positions: the next offset of each partition, and how it is found.

A partition without a position requests the committed offset, then an offset by
`auto_offset_reset`. Records are fetched ahead of the user: the next fetch starts at `fetch_offset`,
`poll` continues at `offset`, and the chunks lie between them. A `seek` makes outstanding responses
stale; they are dropped. A leader detects that its log was truncated below a consumer's position
(KIP-320, by Fetch v12).

A position belongs to a topic id (KIP-516): in a re-created topic of the same name its offset has no
meaning. The id comes from an assignment of KIP-848, or else from the metadata at the partition's
first request; docs/decisions/0043-consumer-positions.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from quorumlog.backoff import Backoff
from quorumlog.client.core.chunk import Aborted, Chunk
from quorumlog.client.core.deserialization import reader_of
from quorumlog.client.core.position import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    Move,
    Place,
    Position,
    PositionState,
    Reset,
)
from quorumlog.client.errors import (
    DEFINITE,
    DeserializationError,
    KafkaError,
    PositionLost,
    denied,
    of_topic,
)
from quorumlog.client.offset_resets import parse_offset_reset
from quorumlog.client.records import ConsumerRecord, OffsetAndMetadata
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode, known
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.messages.fetch import PartitionData

if TYPE_CHECKING:
    import pyarrow as pa

Piece = TypeVar("Piece", bound=Sized)  # records of one chunk

_NO_TOPIC_IDS: Final[Mapping[str, bytes]] = {}
_EARLIEST: Final = Reset(EARLIEST_TIMESTAMP)
_LATEST: Final = Reset(LATEST_TIMESTAMP)


class Positions:
    """The positions of all partitions that one consumer reads.

    Invariants (checked by tests):
      1. `poll` returns each offset of a partition at most once between two seeks, in order.
      2. At most one request per partition is outstanding; `buffered_bytes` is bounded by
         `max_partition_fetch_bytes` plus one response.
    """

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings: Final = settings
        self._read_records: Final = reader_of(settings) or Chunk.read
        self.by_partition: dict[TopicPartition, Position] = {}
        self._errors: dict[TopicPartition | None, KafkaError] = {}  # for `poll`
        self._topic_errors: dict[str, KafkaError] = {}  # of the latest metadata, for `poll`
        self._moves: list[Move] = []
        self._last_read: Position | None = None
        self._ready: dict[TopicPartition, Position] = {}  # with chunks, in order of arrival
        self._backoff: Final = Backoff(
            settings.metadata_retry_backoff_ms, settings.metadata_retry_backoff_max_ms
        )

    def __iter__(self) -> Iterator[Position]:
        """Iterate over the positions in order of assignment."""
        return iter(self.by_partition.values())

    def assign(
        self,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[str, bytes] = _NO_TOPIC_IDS,
        *,
        by_group: bool = True,
    ) -> None:
        """Read exactly these partitions; partitions that were assigned before keep their position.

        topic_ids: by topic name, if the assignment has topic ids. An id of the group (KIP-848)
        changes only with another assignment; an id of the user, if the topic is created again.
        """
        old = self.by_partition
        self.by_partition = {
            one: old.get(one)
            or Position(
                one,
                topic_id=topic_ids.get(one.topic, ZERO_TOPIC_ID),
                is_assigned_id=by_group and one.topic in topic_ids,
            )
            for one in partitions
        }
        told = {None, *self.by_partition}
        self._errors = {name: error for name, error in self._errors.items() if name in told}
        ready = self._ready.items()
        self._ready = {name: one for name, one in ready if self.is_current(one)}

    def is_current(self, position: Position) -> bool:
        """Return whether `position` is still assigned: a new assignment has a new object."""
        return self.by_partition.get(position.topic_partition) is position

    def of(self, topic_partition: TopicPartition) -> Position:
        """Return the partition's position. Raises KeyError if it is not assigned."""
        position = self.by_partition.get(topic_partition)
        if position is None:
            raise KeyError(f"{topic_partition} is not assigned to this consumer")
        return position

    # --- errors that `poll` raises ---

    def report(self, topic_partition: TopicPartition | None, error: KafkaError) -> None:
        """Let `poll` raise `error`; it replaces an older error of the same partition."""
        self._errors[topic_partition] = error

    def take_undecoded(self) -> KafkaError | None:
        """Return and remove the oldest DeserializationError, None if there is none."""
        for name, error in self._errors.items():
            if isinstance(error, DeserializationError):
                return self._errors.pop(name)
        return None

    def take_error(self) -> KafkaError | None:
        """Return and remove the oldest error, None if there is none."""
        if self._errors:
            return self._errors.pop(next(iter(self._errors)))
        if self._topic_errors:
            return self._topic_errors.pop(next(iter(self._topic_errors)))
        return None

    def report_topics(self, errors: Mapping[str, KafkaError]) -> None:
        """Let `poll` raise the errors of topics in new metadata; they replace earlier ones."""
        self._topic_errors = {**errors}

    def take_moves(self) -> list[Move]:
        """Return and remove the moves since the last call, for the log."""
        moves, self._moves = self._moves, []
        return moves

    def _note_move(self, position: Position, old_offset: int, offset: int, cause: str) -> None:
        self._moves.append(Move(position.topic_partition, old_offset, offset, cause))

    # --- the topic of a position ---

    def maybe_enter(self, position: Position, topic_id: bytes) -> bool:
        """Set the topic id from the metadata, unless the position has an offset in another topic.

        Return whether the position is in that topic.
        """
        has_place = position.state is PositionState.FETCHING
        is_free = position.topic_id == ZERO_TOPIC_ID or not has_place
        if is_free and not position.is_assigned_id and topic_id != ZERO_TOPIC_ID:
            position.topic_id = topic_id
        return position.topic_id == topic_id

    def follow(self, position: Position, topic_id: bytes) -> None:
        """Change to the topic of this id: the earlier topic of this name was deleted.

        Only during `poll`: until then a commit of the user belongs to the earlier topic.
        """
        if self.maybe_enter(position, topic_id) or position.is_assigned_id:
            return
        left = Place(position.topic_id, position.offset, position.epoch)
        previous, position.previous = position.previous, left
        position.topic_id, position.consumed = topic_id, None
        position.preferred_replica = position.high_watermark = -1
        cause = "the topic was deleted and created again"
        if previous is not None and previous.topic_id == topic_id:
            position.place(previous.offset, previous.epoch)
            self._note_move(position, left.offset, previous.offset, cause)
            return
        position.state = PositionState.LOOKING  # with "none", until the user seeks
        position.drop_chunks()
        self._reset_by_policy(position, cause)

    # --- positions that the user chooses ---

    def seek(self, topic_partition: TopicPartition, offset: int, epoch: int = -1) -> None:
        """Continue at `offset`. Raises KeyError if the partition is not assigned."""
        position = self.of(topic_partition)
        self._errors.pop(topic_partition, None)
        position.place(offset, epoch)
        position.lost = None
        position.consumed = OffsetAndMetadata(offset, epoch)

    def seek_by_time(self, topic_partition: TopicPartition, timestamp: int) -> None:
        """Continue at the offset of a time (ms), once a broker has returned it.

        Also EARLIEST_TIMESTAMP and LATEST_TIMESTAMP. If all records are older: at the end. Raises
        KeyError if the partition is not assigned.
        """
        position = self.of(topic_partition)
        self._errors.pop(topic_partition, None)
        position.drop_chunks()
        position.lost = None
        is_time = timestamp >= 0
        self._reset(
            position, Reset(LATEST_TIMESTAMP, time_ms=timestamp) if is_time else Reset(timestamp)
        )

    def look_up(self, topic_partition: TopicPartition) -> None:
        """Continue at the group's committed offset, as a new consumer does."""
        position = self.by_partition.get(topic_partition)
        if position is not None:
            position.drop_chunks()
            position.state, position.retry_at_ms = PositionState.LOOKING, 0.0

    def _reset(self, position: Position, reset: Reset) -> None:
        position.state, position.reset = PositionState.RESETTING, reset
        position.retry_at_ms = 0.0

    def _reset_by_policy(
        self, position: Position, why: str, *, truncated_to: int | None = None
    ) -> None:
        policy = parse_offset_reset(self.settings.auto_offset_reset)
        if position.fetch_offset >= 0:
            setting = self.settings.auto_offset_reset
            position.lost = position.fetch_offset, f"{why} (auto_offset_reset={setting})"
        if policy == "none":
            position.retry_at_ms = float("inf")  # until the user seeks
            name = position.topic_partition
            message = f"{name}: {why}, and auto_offset_reset is none"
            lost = PositionLost(
                message,
                name,
                offset=position.offset,
                topic_id=position.topic_id,
                truncated_to=truncated_to,
            )
            self.report(name, lost)
        elif isinstance(policy, int):
            self._reset(position, Reset(LATEST_TIMESTAMP, age_ms=policy))
        else:
            self._reset(position, _EARLIEST if policy == "earliest" else _LATEST)

    # --- requests to brokers ---

    def waiting(self, now_ms: float, state: PositionState) -> list[Position]:
        """List the positions in `state`, LOOKING or RESETTING, that may be requested now."""
        return [
            one
            for one in self
            if one.state is state
            and not one.is_asked
            and not one.chunks
            and one.retry_at_ms <= now_ms
        ]

    def fetchable(self, now_ms: float) -> list[Position]:
        """List the positions that the next fetch may include, in order of assignment."""
        limit = self.settings.max_partition_fetch_bytes
        if sum(one.buffered_bytes for one in self) >= self.settings.fetch_max_bytes:
            if not self._only_paused_have_records():
                return []
            for one in self:  # fetched again after `resume`: no poll would make room before
                one.drop_chunks()
        return [
            one
            for one in self
            if one.state is PositionState.FETCHING
            and not one.is_asked
            and not one.paused
            and one.buffered_bytes < limit
            and one.retry_at_ms <= now_ms
        ]

    def _only_paused_have_records(self) -> bool:
        """Return whether some partition may be read, but all fetched records are of paused ones."""
        active = [one for one in self if not one.paused]
        return bool(active) and not any(one.chunks for one in active)

    def wake_at_ms(self, now_ms: float) -> float:
        """Return when the next retry is due; `inf` if there is none."""
        later = [one.retry_at_ms for one in self if not one.is_asked and one.retry_at_ms > now_ms]
        return min(later, default=float("inf"))

    # --- responses ---

    def handle_committed(self, position: Position, committed: OffsetAndMetadata | None) -> None:
        """Handle the group's committed offset; None if there is none."""
        if position.state is not PositionState.LOOKING:
            return
        if committed is None or committed.offset < 0:
            no_offset = "the group has no committed offset"
            self._reset_by_policy(position, no_offset)
        else:
            position.place(committed.offset, committed.leader_epoch)
            position.consumed = committed

    def handle_offset(self, position: Position, offset: int, epoch: int) -> None:
        """Handle the ListOffsets response for a RESETTING position; -1: all records are older."""
        if position.state is PositionState.RESETTING:
            self._errors.pop(position.topic_partition, None)  # the cause is over
            position.failures = 0
            reset = position.reset
            if reset.needs_end:
                self._reset(position, replace(reset, end=(offset, epoch)))
                return
            if offset < 0 and reset.end is not None:
                offset, epoch = reset.end
            position.place(offset, epoch)
            position.consumed = OffsetAndMetadata(offset, epoch)
            if position.lost is not None:
                old_offset, cause = position.lost
                position.lost = None
                self._note_move(position, old_offset, offset, cause)

    def handle_failure(self, now_ms: float, position: Position, random_fraction: float) -> None:
        """Retry later, after a lost response or an error."""
        position.failures += 1
        self.leave_preferred(now_ms, position)
        position.retry_at_ms = now_ms + self._backoff.delay_ms(position.failures, random_fraction)

    def leave_preferred(self, now_ms: float, position: Position) -> None:
        """Read from the leader for a while: the preferred replica does not serve this consumer."""
        if position.preferred_replica >= 0:
            position.preferred_replica = -1
            position.leader_until_ms = now_ms + self.settings.retry_backoff_max_ms

    def handle_fetched(
        self,
        now_ms: float,
        position: Position,
        fetch_offset: int,
        answer: PartitionData,
        random_fraction: float,
    ) -> bool:
        """Handle the response to a fetch at `fetch_offset`. True if metadata must be refreshed."""
        is_stale = position.fetch_offset != fetch_offset
        if is_stale or position.state is not PositionState.FETCHING:
            return False
        code = known(answer.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and position.preferred_replica < 0:
            out = f"offset {fetch_offset} is out of range"
            self._reset_by_policy(position, out)
            return False
        was_refused, position.refusal = position.refusal != ErrorCode.NONE, code
        if code != ErrorCode.NONE:
            if code not in RETRIABLE and code != ErrorCode.OFFSET_OUT_OF_RANGE:
                name = position.topic_partition
                message, definite = denied(code, str(name), "READ"), code in DEFINITE
                self.report(name, of_topic(code, name.topic, message, definite=definite))
            self.handle_failure(now_ms, position, random_fraction)
            return True
        position.failures = 0
        position.high_watermark = answer.high_watermark
        if answer.diverging_epoch is not None and answer.diverging_epoch.end_offset >= 0:
            self._handle_truncated(position, answer.diverging_epoch.end_offset)
        elif answer.preferred_read_replica >= 0:
            position.preferred_replica = answer.preferred_read_replica
            position.preferred_until_ms = now_ms + self.settings.metadata_max_age_ms
        elif answer.records and not self._keep(position, answer):
            self.handle_failure(now_ms, position, random_fraction)
        return was_refused

    def _handle_truncated(self, position: Position, end_offset: int) -> None:
        cause = f"the log was truncated to {end_offset}"
        if position.chunks:
            position.drop_chunks()  # the user's offset may still be in the log: fetch from it
        elif self.settings.auto_offset_reset == "none":
            self._reset_by_policy(position, cause, truncated_to=end_offset)
        else:
            if end_offset < position.offset:
                self._note_move(position, position.offset, end_offset, cause)
            position.place(min(end_offset, position.offset), -1)

    def _keep(self, position: Position, answer: PartitionData) -> bool:
        """Buffer the fetched records; return False if none can be read."""
        records = answer.records
        if not isinstance(records, bytes | bytearray | memoryview):
            return False
        aborted = answer.aborted_transactions or ()
        try:
            chunk = Chunk(
                position.topic_partition,
                bytes(records),
                start_offset=position.fetch_offset,
                aborted=[Aborted(one.first_offset, one.producer_id) for one in aborted],
                read_committed=self.settings.isolation_level == "read_committed",
            )
        except CorruptBatch as error:
            self._report_corrupt(position, position.fetch_offset, error)
            return False
        if chunk.is_empty:
            code, name = ErrorCode.MESSAGE_TOO_LARGE, position.topic_partition
            message = (
                f"{name} at offset {position.fetch_offset}: the batch does not fit into the"
                f" {chunk.size_in_bytes} bytes that the broker sent; raise"
                " max_partition_fetch_bytes and fetch_max_bytes"
            )
            self.report(name, KafkaError(code, message, definite=True))
        if chunk.end_offset <= position.fetch_offset:
            return False
        self._ready.setdefault(position.topic_partition, position)
        position.chunks.append(chunk)
        position.buffered_bytes += chunk.size_in_bytes
        position.fetch_offset, position.fetch_epoch = chunk.end_offset, chunk.end_epoch
        return True

    def _report_corrupt(self, position: Position, offset: int, error: CorruptBatch) -> None:
        name = position.topic_partition
        message = f"{name} at offset {offset}: {error}"
        self.report(name, KafkaError(ErrorCode.CORRUPT_MESSAGE, message, definite=True))

    # --- records for the user ---

    def mark_consumed(self) -> None:
        """Mark the records of earlier polls as processed: their offsets may be committed now."""
        for position in self:
            if position.state is PositionState.FETCHING:
                position.consumed = OffsetAndMetadata(position.offset, position.epoch)

    def take(self, max_records: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return up to `max_records`, partition by partition in order of arrival."""
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        for topic_partition, records in self._pieces(max_records, self._read_records):
            taken.setdefault(topic_partition, []).extend(records)
        return taken

    def take_tables(self, max_records: int) -> "dict[TopicPartition, pa.Table]":
        """Return up to `max_records` as `take` does, in tables of `columns.SCHEMA`."""
        from quorumlog.client.core.columns import concatenated  # loads Arrow

        taken: dict[TopicPartition, list[pa.Table]] = {}
        for topic_partition, table in self._pieces(max_records, Chunk.read_table):
            taken.setdefault(topic_partition, []).append(table)
        return {name: concatenated(tables) for name, tables in taken.items()}

    def _pieces(
        self, max_records: int, read: Callable[[Chunk, int], Piece]
    ) -> Iterator[tuple[TopicPartition, Piece]]:
        left = max_records
        for position in list(self._ready.values()):
            while left and position.chunks and not position.paused:
                records = self._read(position, left, read)
                if records is None:
                    break
                if len(records):
                    yield position.topic_partition, records
                    left -= len(records)
            if not position.chunks:
                del self._ready[position.topic_partition]
            if not left:
                break

    def take_next(self) -> ConsumerRecord | None:
        """Return the next record, None if there is none; mark the record before as processed."""
        last = self._last_read
        if last is not None and self.is_current(last) and last.state is PositionState.FETCHING:
            last.consumed = OffsetAndMetadata(last.offset, last.epoch)
        for records in self.take(1).values():
            return records[0]
        return None

    def _read(
        self, position: Position, max_records: int, read: Callable[[Chunk, int], Piece]
    ) -> Piece | None:
        chunk = position.chunks[0]
        try:
            records = read(chunk, max_records)
        except DeserializationError as error:
            self.report(position.topic_partition, error)  # the chunk still has the record
            return None
        except CorruptBatch as error:
            position.drop_chunks()  # fetched again: the damage may have happened on the way
            self._report_corrupt(position, position.offset, error)
            return None
        self._last_read = position
        position.offset, position.epoch = chunk.next_offset, chunk.leader_epoch
        if chunk.is_empty:
            position.chunks.popleft()
            position.buffered_bytes -= chunk.size_in_bytes
        return records
