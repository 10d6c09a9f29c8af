"""The effects of a replica: imperatives, performed in order."""

from dataclasses import dataclass

from quorumlog.broker.partitions.core.data_path import DivergingEpoch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignEpoch:
    """Record where `leader_epoch` starts; the epoch file follows with the next flush."""

    leader_epoch: Epoch
    start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFetching:
    """Replicate from this leader only, in this epoch only."""

    leader_id: BrokerId
    leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFetching:
    """Replicate from no leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateTo:
    """Drop every record from `offset` on, then report LogTruncated."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOverAt:
    """Drop the whole log and let it begin, empty, at `offset`; then report LogStartedOver."""

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DisclaimLog:
    """Report this log as not whole: the leader's log differs from `offset` on.

    This replica holds [offset, high_watermark) as committed records; `high_watermark` > `offset`.
    """

    leader_id: BrokerId
    offset: Offset
    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Delete all records below `offset`, then report LogStartRose."""

    offset: Offset


@dataclass(slots=True)
class CompleteBelow:
    """Acknowledge the records below `high_watermark`, and show them to consumers."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWaiting:
    """Answer every waiting produce and deletion with this error; retry every delayed fetch."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetch:
    """Answer a follower's fetch: with records if the error is NONE and `diverging` is None."""

    error_code: ErrorCode
    diverging: DivergingEpoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Send AlterPartition (KIP-497); report IsrAnswered, whatever the outcome.

    `new_isr` pairs each broker with its epoch as of its last fetch, -1 if unknown (KIP-903).
    """

    leader_epoch: Epoch
    partition_epoch: Epoch
    new_isr: tuple[tuple[BrokerId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceLeadership:
    """Notify the coordinators that this broker leads since this epoch."""

    leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceResignation:
    """Notify the coordinators that this broker no longer leads, as of this epoch."""

    leader_epoch: Epoch


Effect = (
    AssignEpoch
    | StartFetching
    | StopFetching
    | TruncateTo
    | StartOverAt
    | DisclaimLog
    | AdvanceLogStart
    | CompleteBelow
    | FailWaiting
    | AnswerFetch
    | ProposeIsr
    | AnnounceLeadership
    | AnnounceResignation
)
