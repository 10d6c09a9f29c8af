"""A consumer's position in one partition: its topic id, its offset, and the search for it."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from quorumlog.client.core.chunk import Chunk
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition

EARLIEST_TIMESTAMP: Final = -2
LATEST_TIMESTAMP: Final = -1


class PositionState(Enum):
    """LOOKING (for the committed offset), RESETTING (requests an offset by time), FETCHING."""

    LOOKING = auto()
    RESETTING = auto()
    FETCHING = auto()


@dataclass(frozen=True, slots=True)
class Reset:
    """A search for an offset by time.

    With a time (`time_ms`), or a duration until now (`age_ms`, KIP-1106), the log end offset is
    requested first: where no record is young enough, reading begins there, and misses no record
    that is written during the search.
    """

    timestamp: int
    age_ms: int | None = None
    time_ms: int | None = None
    end: tuple[int, int] | None = None  # the log end offset and its leader epoch

    def asked_timestamp(self, wall_ms: int) -> int:
        """Return the timestamp of the next ListOffsets."""
        if self.end is None:
            return self.timestamp
        if self.time_ms is not None:
            return self.time_ms
        return max(0, wall_ms - (self.age_ms or 0))

    @property
    def needs_end(self) -> bool:
        """True if the log end offset must be requested first."""
        return self.end is None and not (self.age_ms is None and self.time_ms is None)


class Move(NamedTuple):
    """A change of position without a seek by the user: records are skipped or read again."""

    topic_partition: TopicPartition
    old_offset: int
    new_offset: int
    cause: str

    def __str__(self) -> str:
        return (
            f"{self.topic_partition}: the position moves from {self.old_offset} to"
            f" {self.new_offset}: {self.cause}"
        )


class Place(NamedTuple):
    """An offset in one topic, and the leader epoch of the record before it."""

    topic_id: bytes
    offset: int
    epoch: int


@dataclass(slots=True, eq=False)
class Position:
    """A consumer's position in one partition.

    consumed: the offset after the records that earlier polls returned; it may be committed.
    topic_id: the topic of all other fields; zeros before the first metadata, or if the cluster has
        no topic ids. is_assigned_id: it came with an assignment, and changes only with another.
    lost: the offset at which records were missing, and the cause, until a reset has an offset.
    previous: the place in the topic of this name that was read before: a broker that lags behind
        may send that topic's metadata once more.
    """

    topic_partition: TopicPartition
    topic_id: bytes = ZERO_TOPIC_ID
    is_assigned_id: bool = False
    lost: tuple[int, str] | None = None
    previous: Place | None = None
    state: PositionState = PositionState.LOOKING
    offset: int = -1
    epoch: int = -1
    fetch_offset: int = -1
    fetch_epoch: int = -1
    consumed: OffsetAndMetadata | None = None
    reset: Reset = Reset(LATEST_TIMESTAMP)
    chunks: deque[Chunk] = field(default_factory=deque)
    buffered_bytes: int = 0
    is_asked: bool = False  # a request for it is outstanding
    paused: bool = False
    preferred_replica: int = -1  # until `preferred_until_ms`: read from it, not from the leader
    preferred_until_ms: float = 0.0
    leader_until_ms: float = 0.0  # until then the leader's preferred replica is ignored
    failures: int = 0
    retry_at_ms: float = 0.0
    high_watermark: int = -1
    refusal: ErrorCode = ErrorCode.NONE  # of the last fetch

    def prefers(self, now_ms: float) -> int:
        """Return the replica to read from instead of the leader; -1: the leader (KIP-392).

        From time to time the next fetch goes to the leader, which may prefer another replica then.
        """
        if self.preferred_replica >= 0 and now_ms >= self.preferred_until_ms:
            self.preferred_replica = -1
        return self.preferred_replica

    def place(self, offset: int, epoch: int) -> None:
        """Continue at `offset`; drop the records fetched for another place."""
        self.state = PositionState.FETCHING
        self.retry_at_ms = 0.0
        self.offset = self.fetch_offset = offset
        self.epoch = self.fetch_epoch = epoch
        self.drop_chunks()

    def drop_chunks(self) -> None:
        """Drop the fetched records that were not read."""
        self.chunks.clear()
        self.buffered_bytes = 0
        self.fetch_offset, self.fetch_epoch = self.offset, self.epoch
