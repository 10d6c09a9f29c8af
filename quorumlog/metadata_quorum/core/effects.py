"""The effects of the quorum core: imperatives, performed in order.

The package's docstring states the driver's duties for each effect.
"""

from dataclasses import dataclass

from quorumlog.metadata_quorum.core.messages import (
    FetchResponse,
    FetchSnapshotResponse,
    PlainResponse,
    Request,
    SnapshotId,
)
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistElection:
    """Make the election state durable before any later effect is performed.

    `is_new`: the voter has to catch up before it may vote; see `Started`.
    `voted_directory_id`: the candidate's directory id; None: its request had none.
    `was_voter`: this node, with its directory, was a voter of a committed voter set.
    """

    leader_epoch: Epoch
    leader_id: BrokerId
    voted_id: BrokerId
    is_new: bool
    voted_directory_id: str | None
    was_voter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLeaderChange:
    """Append one control batch of one record, LeaderChange, at `base_offset` in our new epoch."""

    leader_epoch: Epoch
    base_offset: Offset
    leader_id: BrokerId
    voters: tuple[BrokerId, ...]
    granting_voters: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendVoters:
    """Append a control batch at `base_offset`: [KRaftVersion 1, if it is set here,] Voters."""

    leader_epoch: Epoch
    base_offset: Offset
    voters: VoterSet
    sets_kraft_version: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFetched:
    """Append the records [base, end) that came beside the response to `request_id`."""

    request_id: int
    base_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Drop the records at and above `end_offset`."""

    end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSnapshot:
    """Write the bytes beside the response to `request_id` to the draft, at `position`.

    Position 0 begins a new draft.
    """

    request_id: int
    snapshot_id: SnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSnapshot:
    """Begin to read the whole draft; the result is `SnapshotChecked`."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """Make the checked draft a snapshot; drop the whole log, and start it at the snapshot's end."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetchSnapshot:
    """Respond with bytes of the snapshot from `position` on, and its size in `response`.

    The error is SNAPSHOT_NOT_FOUND if there is no such file, POSITION_OUT_OF_RANGE behind its end.
    """

    request_id: int
    response: FetchSnapshotResponse
    snapshot_id: SnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLog:
    """Begin to make the whole log durable; the result is `LogFlushed`."""

    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send a request; feed its response or its failure, after `timeout_ms` at the latest."""

    request_id: int
    destination: BrokerId
    request: Request
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResponse:
    """Respond to the request `request_id`."""

    request_id: int
    response: PlainResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetch:
    """Respond to the fetch `request_id`, with whole batches from [records_from, records_to).

    As many as fit, at least one; none if the range is empty.
    """

    request_id: int
    response: FetchResponse
    records_from: Offset = Offset(0)
    records_to: Offset = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceHighWatermark:
    """All records below `high_watermark` are committed: publish them, and answer requests."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class BecomeLeader:
    """We lead `leader_epoch`; the LeaderChange record is at `epoch_start_offset`."""

    leader_epoch: Epoch
    epoch_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignLeadership:
    """We lead `leader_epoch` no longer: append no more records, fail uncommitted requests."""

    leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowLeader:
    """`leader_id` leads this epoch, and is not this node; NOBODY: the leader is unknown."""

    leader_epoch: Epoch
    leader_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersChanged:
    """Another voter set is in force; None: kraft.version is 0, with the configured voters.

    The effect comes at the start as well, unless kraft.version is 0 then.
    """

    voters: VoterSet | None


DiskWrite = (
    PersistElection
    | AppendLeaderChange
    | AppendVoters
    | AppendFetched
    | TruncateLog
    | AppendSnapshot
    | InstallSnapshot
)
LeaderEffect = BecomeLeader | ResignLeadership | FollowLeader
Effect = (
    DiskWrite
    | LeaderEffect
    | FlushLog
    | SendRequest
    | SendResponse
    | AnswerFetch
    | AnswerFetchSnapshot
    | CheckSnapshot
    | AdvanceHighWatermark
    | VotersChanged
)
