"""The events of a replica: facts, in the past tense."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quorumlog.metadata_quorum.image import BrokerImage, PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, BrokerId, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPublished:
    """The metadata log was replayed up to this image."""

    image: PartitionImage
    brokers: Mapping[BrokerId, BrokerImage]
    min_insync_replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersPublished:
    """A broker was registered, fenced or unfenced; the partition itself did not change."""

    brokers: Mapping[BrokerId, BrokerImage]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRemoved:
    """The topic was deleted, or this broker is no longer a replica."""

    error_code: ErrorCode  # for the waiting produces


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsAppended:
    """The leader appended: its log now ends at `log_end_offset` (exclusive)."""

    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlushed:
    """All records below `flushed_offset` are on disk: they survive the loss of power."""

    flushed_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartRose:
    """Retention or DeleteRecords deleted all records below `log_start_offset`."""

    log_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartKept:
    """The log will not start below `log_start_offset` again, even after a power loss."""

    log_start_offset: Offset


class FollowerFetched(NamedTuple):
    """A follower fetched from `fetch_offset` on: it acknowledges all records below."""

    broker_id: BrokerId
    broker_epoch: int  # -1: an old version without the field
    leader_epoch: Epoch
    fetch_offset: Offset
    last_fetched_epoch: Epoch
    log_start_offset: Offset  # of the follower's log


class LeaderAnswered(NamedTuple):
    """The leader responded to our fetch, and its records are in our log."""

    leader_epoch: Epoch  # of the fetch
    log_end_offset: Offset
    high_watermark: Offset  # the leader's
    log_start_offset: Offset  # the leader's


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderDiverged:
    """The leader's log differs from ours below `fetch_offset`: its `epoch` ends at `end_offset`."""

    leader_epoch: Epoch
    fetch_offset: Offset
    last_fetched_epoch: Epoch
    epoch: Epoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOutOfRange:
    """The leader does not hold `fetch_offset`; its log starts at `log_start_offset`."""

    leader_epoch: Epoch
    fetch_offset: Offset
    last_fetched_epoch: Epoch
    log_start_offset: Offset  # UNKNOWN_OFFSET: not in the response


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBeganEarlier:
    """The leader sent a whole batch that contains `fetch_offset`, and begins below it."""

    leader_epoch: Epoch
    fetch_offset: Offset
    last_fetched_epoch: Epoch
    base_offset: Offset  # of the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTruncated:
    """TruncateTo is done: our log ends at `log_end_offset`."""

    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartedOver:
    """StartOverAt is done: our log is empty and begins at `offset`."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrAnswered:
    """The outcome of the ISR that we proposed in `asked_epoch` (our partition epoch then).

    With NONE, the other fields are the committed state. REQUEST_TIMED_OUT: outcome unknown.
    """

    asked_epoch: Epoch
    error_code: ErrorCode
    leader_epoch: Epoch = NO_EPOCH
    partition_epoch: Epoch = NO_EPOCH
    isr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed: it is `now_ms`."""


# The handling of these events depends on the role.
RoleEvent = (
    BrokersPublished
    | RecordsAppended
    | LogFlushed
    | FollowerFetched
    | LeaderAnswered
    | LeaderDiverged
    | FetchOutOfRange
    | BatchBeganEarlier
    | IsrAnswered
    | Ticked
)
# The driver has made this change to the log.
LogEvent = LogStartRose | LogStartKept | LogTruncated | LogStartedOver
Event = PartitionPublished | ReplicaRemoved | LogEvent | RoleEvent
