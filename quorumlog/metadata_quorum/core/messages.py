"""The messages between quorum nodes: KRaft's requests and responses, without record bytes.

The metadata log has one partition, so Kafka's topic and partition arrays are left out. The cluster
id is checked before a request reaches the core. Numbers from a peer are untrusted: the core answers
INVALID_REQUEST to impossible ones. A directory id of None is unknown: kraft.version 0 ignores
directory ids. An empty leader address is unknown.
Sources: KIP-595, KIP-630, KIP-853 (directory ids, changes of the voters), KIP-996 (pre_vote),
KIP-1166 (high_watermark in a fetch), KIP-1186 (ack_when_committed).

# DEVIATION: Kafka's nodes speak Kafka's protocol with each other.
# docs/decisions/0004-quorum-protocol.md
"""

from dataclasses import dataclass
from typing import Final

from quorumlog.metadata_quorum.core.voter_sets import Voter
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, UNKNOWN_OFFSET, BrokerId, Epoch, Offset

NOBODY: Final = NO_LEADER
EPOCH_MAX: Final = Epoch((1 << 31) - 1)  # the largest epoch of a record batch
# DEVIATION: Kafka accepts any epoch, so that one message can use them all up.
# docs/decisions/0004-quorum-protocol.md
EPOCH_STEP_MAX: Final = 1 << 20
"""The largest step above its own epoch that a node accepts from a peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderResponse:
    """The part that responses share: the sender's current leader and epoch."""

    error_code: ErrorCode
    leader_id: BrokerId
    leader_epoch: Epoch
    leader_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """A candidate's request for the vote of `voter_id`, the receiver, in `replica_epoch`.

    A pre-vote changes no state, and its epoch is the sender's current one. The sender's log ends at
    `last_offset` (exclusive) with a record of `last_offset_epoch`. `voter_directory_id`: the
    receiver's directory id in the sender's voter set.
    """

    replica_id: BrokerId
    replica_epoch: Epoch
    voter_id: BrokerId
    last_offset_epoch: Epoch
    last_offset: Offset
    pre_vote: bool
    replica_directory_id: str | None
    voter_directory_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse(LeaderResponse):
    """The response, with the voter's current leader and epoch.

    `write_ms`: the duration of a durable write on the voter; a candidate's timeout allows for it.
    """

    vote_granted: bool
    write_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """The leader's announcement of its epoch to a voter, repeated while it leads."""

    leader_id: BrokerId
    leader_epoch: Epoch
    leader_address: str = ""
    voter_directory_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse(LeaderResponse):
    """The response, with the voter's current leader and epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """The resignation of the leader of `leader_epoch`; its preferred successors, the best first."""

    leader_id: BrokerId
    leader_epoch: Epoch
    preferred_candidates: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse(LeaderResponse):
    """The response, with the voter's current leader and epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A request for records from `fetch_offset` on: a voter holds all records below, durably.

    `last_fetched_epoch`: the epoch of the record before it, 0 if there is none.
    `high_watermark`: the sender's; the leader answers at once if its own is newer.
    `replica_is_new`: the sender may not vote yet (decision 2), so it cannot be added as a voter.
    `write_ms`: the duration of a durable write on the sender; check-quorum allows for it.
    """

    replica_id: BrokerId
    current_leader_epoch: Epoch
    fetch_offset: Offset
    last_fetched_epoch: Epoch
    max_wait_ms: int
    high_watermark: Offset = UNKNOWN_OFFSET
    replica_directory_id: str | None = None
    replica_is_new: bool = False
    write_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergingEpoch:
    """The leader's largest epoch up to the fetch's `last_fetched_epoch`, and its end offset."""

    epoch: Epoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class SnapshotId:
    """A snapshot's id: its (exclusive) end offset, and the epoch of its last record (KIP-630)."""

    end_offset: Offset
    epoch: Epoch

    @property
    def file_name(self) -> str:
        """The name of the snapshot's file."""
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse(LeaderResponse):
    """The response; the records travel beside it.

    `high_watermark`: UNKNOWN_OFFSET until the leader has committed a record of its epoch.
    `snapshot_id`: the leader has deleted the requested records; this snapshot contains them.
    """

    high_watermark: Offset = UNKNOWN_OFFSET
    diverging_epoch: DivergingEpoch | None = None
    snapshot_id: SnapshotId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """A request for the bytes of a snapshot from `position` on (KIP-630)."""

    replica_id: BrokerId
    current_leader_epoch: Epoch
    snapshot_id: SnapshotId
    position: int
    replica_directory_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse(LeaderResponse):
    """The response; the bytes travel beside it. `size`: bytes of the whole snapshot."""

    size: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoterRequest:
    """A request to the leader to add a voter that has followed it as an observer (KIP-853).

    The response comes when the change is committed; without `ack_when_committed`, when it is in the
    leader's log.
    """

    voter: Voter
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoterRequest:
    """A request to the leader to remove a voter; the response comes at the change's commit."""

    voter_id: BrokerId
    directory_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterRequest:
    """A voter's new address, for the leader of `current_leader_epoch`.

    The response comes when the change is in the leader's log.
    """

    voter: Voter
    current_leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeKRaftVersionRequest:
    """A request to the leader to raise kraft.version; the response comes at the change's commit."""

    kraft_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResponse:
    """The response. With REQUEST_TIMED_OUT the change may be committed, now or later."""

    error_code: ErrorCode
    error_message: str
    leader_id: BrokerId
    leader_epoch: Epoch
    leader_address: str = ""


VoterChangeRequest = (
    AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest | UpgradeKRaftVersionRequest
)
Request = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | VoterChangeRequest
)
PlainResponse = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchSnapshotResponse
    | VoterChangeResponse
)
Response = PlainResponse | FetchResponse
