"""The effects of the quorum core: imperatives, performed in order.

The package's docstring says what each one requires of the driver.
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

    `is_new`: the voter has yet to catch up before it may vote; see `Started`.
    `voted_directory_id`: that of the candidate; None: it named none.
    `was_voter`: this node, with its directory, was a voter of a committed voter set.
    """

    leader_epoch: Epoch
    leader_id: BrokerId
    voted_id: BrokerId
    is_new: bool = False
    voted_directory_id: str | None = None
    was_voter: bool = False


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
    """Append one control batch at `base_offset`: [KRaftVersion 1, if it is set here,] Voters."""

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
    """Write the bytes that came beside the response to `request_id` to the draft, at `position`.

    At position 0 a new draft begins.
    """

    request_id: int
    snapshot_id: SnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSnapshot:
    """Begin to read all of the draft; `SnapshotChecked` says whether it is whole."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """Make the checked draft a snapshot; then drop the whole log, and let it start at its end."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetchSnapshot:
    """Answer with bytes of the snapshot from `position` on, and its size in `response`.

    With SNAPSHOT_NOT_FOUND if there is no such file, with POSITION_OUT_OF_RANGE behind its end.
    """

    request_id: int
    response: FetchSnapshotResponse
    snapshot_id: SnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLog:
    """Begin to make all that is in the log durable; `LogFlushed` says when it is."""

    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """Send; report the answer or the failure, after `timeout_ms` at the latest."""

    request_id: int
    destination: BrokerId
    request: Request
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendResponse:
    """Answer the request that came with `request_id`."""

    request_id: int
    response: PlainResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFetch:
    """Answer the fetch `request_id`, with whole batches from [records_from, records_to).

    As many as fit, at least one; none if the range is empty.
    """

    request_id: int
    response: FetchResponse
    records_from: Offset = Offset(0)
    records_to: Offset = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceHighWatermark:
    """All below `high_watermark` is committed: publish it, and answer what waits for it."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class BecomeLeader:
    """We lead `leader_epoch`; the LeaderChange record is at `epoch_start_offset`."""

    leader_epoch: Epoch
    epoch_start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignLeadership:
    """We lead `leader_epoch` no longer: append nothing more, fail what is not committed."""

    leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowLeader:
    """`leader_id` leads this epoch; NOBODY: no leader is known. It is never this node."""

    leader_epoch: Epoch
    leader_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersChanged:
    """Another voter set is in force; None: kraft.version is 0, the configured voters are.

    It comes at the start as well, unless kraft.version is 0 then.
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
