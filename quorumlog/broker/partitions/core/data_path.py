"""The requests to a partition's data path, and their results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol

from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    NO_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    Epoch,
    Offset,
    TopicId,
    TopicPartition,
)
from quorumlog.wire.codec.message import Sendable

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
NO_REPLICA: Final = BrokerId(-1)  # a consumer's replica id
DEBUG_REPLICA: Final = BrokerId(-2)  # Kafka's debugging consumer: any replica, up to its log end


class ReadEnd(Enum):
    """Where a read stops: at the last stable offset, the high watermark or the log end."""

    LAST_STABLE = "last_stable"
    HIGH_WATERMARK = "high_watermark"
    LOG_END = "log_end"


class RecordError(NamedTuple):
    """The reason why one record, by its index in its batch, cannot be appended (KIP-467)."""

    batch_index: int
    message: str

    def __str__(self) -> str:
        return f"RecordError(batchIndex={self.batch_index}, message='{self.message}')"


class ProduceResult(NamedTuple):
    """The outcome of one append; its offset is -1 unless `error_code` is NONE."""

    error_code: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1  # -1: the producer's own timestamps were kept
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[RecordError] = ()  # the invalid records, for errors of single records


ProduceDone = Callable[[ProduceResult], None]
"""Called once with the outcome: within the call that appends, or later."""

RunDone = Callable[[ErrorCode, int], None]
"""Called with the outcome of the next so many batches of a run, after the call that appends."""


AppendedRun = tuple[Sequence[int], int, int, ErrorCode | Callable[[RunDone], None]]
"""The leading batches of a run, appended in one step: their base offsets, and as in ProduceResult
their append time and the log start; their outcome, or, if they wait, a function to call once, with
the receiver of their outcomes."""


class DivergingEpoch(NamedTuple):
    """The leader's largest epoch not above the follower's, and its end offset (KIP-595)."""

    epoch: Epoch
    end_offset: Offset


Key = tuple[bytes | str, int]
"""A topic's id (Fetch v13 and later) or its name, and the partition's index."""


@dataclass(slots=True, kw_only=True)
class PartitionFetch:
    """One partition of a fetch request; `key` is the partition's in a session."""

    topic_partition: TopicPartition
    topic_id: TopicId | None  # None: the request has a name only, any id matches
    fetch_offset: Offset
    max_bytes: int
    leader_epoch: Epoch  # of the requester's metadata; NO_EPOCH: do not check
    last_fetched_epoch: Epoch  # of the record below fetch_offset; NO_EPOCH: do not check
    log_start_offset: Offset  # the follower's
    error_code: ErrorCode = ErrorCode.NONE  # set by the handler: no topic has this id
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        """Compute the key once: each step of a fetch needs it."""
        topic, index = self.topic_partition
        self.key = (topic if self.topic_id is None else self.topic_id), index


class FetchedPartition(NamedTuple):
    """The fetch response of one partition; `records`: chunks of whole, consecutive batches."""

    error_code: ErrorCode
    high_watermark: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    records: Sequence[Sendable] = ()
    diverging: DivergingEpoch | None = None
    leader_id: BrokerId = BrokerId(-1)  # the current leader, with NOT_LEADER_OR_FOLLOWER
    leader_epoch: Epoch = NO_EPOCH
    preferred_replica: BrokerId = NO_REPLICA  # to read from it instead (KIP-392)
    last_stable_offset: Offset = UNKNOWN_OFFSET
    aborted: Sequence[AbortedTransaction] | None = None  # in `records`; None: not requested

    @property
    def is_plain(self) -> bool:
        """Whether the answer has no error, no divergence and no preferred replica."""
        return not self.error_code and self.diverging is None and self.preferred_replica == -1


class LocalRead(NamedTuple):
    """A read on this broker: `records` are whole batches in [offset of the read, next_offset).

    `log_end_offset` counts all records, committed or not. Without a replica all offsets are -1.
    """

    error_code: ErrorCode
    records: bytes | memoryview = b""
    next_offset: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    log_end_offset: Offset = UNKNOWN_OFFSET


class OffsetAnswer(NamedTuple):
    """The response of ListOffsets for one partition; -1 is unknown."""

    error_code: ErrorCode
    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: Epoch = NO_EPOCH


class LeadershipListener(Protocol):
    """A component that follows which partitions this broker leads: a coordinator."""

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Handle leadership since `leader_epoch`; called again for a newer one. Must not block."""

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Handle the end of leadership (another leader, none, or deleted) as of `leader_epoch`."""
