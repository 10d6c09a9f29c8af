"""The messages between quorum nodes: KRaft's requests and responses, without record bytes.

There is one partition, so Kafka's topic and partition arrays are left out. The cluster id is
checked before a request gets here. Numbers from a peer are not trusted: the core answers
INVALID_REQUEST to impossible ones. A directory id that is None is not known: at kraft.version 0 it
does not count. A leader's address that is empty is not known.
Sources: KIP-595, KIP-630, KIP-853 (directory ids, changes of the voters), KIP-996 (pre_vote),
KIP-1166 (high_watermark in a fetch), KIP-1186 (ack_when_committed).

# DEVIATION: Kafka's nodes speak Kafka's protocol with each other.
# docs/decisions/0011-the-quorum-speaks-http-and-cbor.md
"""

from dataclasses import dataclass
from typing import Final

from quorumlog.metadata_quorum.core.voter_sets import Voter
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, UNKNOWN_OFFSET, BrokerId, Epoch, Offset

NOBODY: Final = NO_LEADER
EPOCH_MAX: Final = Epoch((1 << 31) - 1)  # what a record batch can hold
# DEVIATION: Kafka believes any epoch, so that one message can use them all up.
# docs/decisions/0034-an-epoch-is-believed-within-reach.md
EPOCH_STEP_MAX: Final = 1 << 20
"""How far above its own epoch a node believes a peer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """The candidate asks `voter_id`, the receiver, for its vote in `replica_epoch`.

    A pre-vote asks "would you?" and changes nothing; its epoch is the one that the sender is in.
    The sender's log ends at `last_offset` (exclusive) with a record of `last_offset_epoch`.
    `voter_directory_id`: which directory of the receiver the sender takes for a voter.
    """

    replica_id: BrokerId
    replica_epoch: Epoch
    voter_id: BrokerId
    last_offset_epoch: Epoch
    last_offset: Offset
    pre_vote: bool
    replica_directory_id: str | None = None
    voter_directory_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """The answer, with the leader and the epoch that the voter knows now.

    `write_ms`: how long a durable write takes on the voter: a candidate waits for that of its vote.
    """

    error_code: ErrorCode
    leader_id: BrokerId
    leader_epoch: Epoch
    vote_granted: bool
    leader_address: str = ""
    write_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """The leader tells a voter that it leads; it repeats this while it leads."""

    leader_id: BrokerId
    leader_epoch: Epoch
    leader_address: str = ""
    voter_directory_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse:
    """The answer, with the leader and the epoch that the voter knows now."""

    error_code: ErrorCode
    leader_id: BrokerId
    leader_epoch: Epoch
    leader_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """The leader of `leader_epoch` resigns; its preferred successors, the best first."""

    leader_id: BrokerId
    leader_epoch: Epoch
    preferred_candidates: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse:
    """The answer, with the leader and the epoch that the voter knows now."""

    error_code: ErrorCode
    leader_id: BrokerId
    leader_epoch: Epoch
    leader_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Ask for records from `fetch_offset` on: a voter holds all below, durably.

    `last_fetched_epoch` is the epoch of the record before it, 0 if there is none.
    `high_watermark` is what the sender knows: the leader does not make it wait for a newer one.
    `replica_is_new`: the sender may not vote yet (decision 36), so it cannot be added as a voter.
    `write_ms`: how long a durable write takes on the sender: the leader waits for its fetches.
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
    """The largest epoch of the leader's log that is not above the one asked for, and its end."""

    epoch: Epoch
    end_offset: Offset


@dataclass(frozen=True, slots=True, order=True)
class SnapshotId:
    """What a snapshot holds: all below `end_offset`, whose last record is of `epoch` (KIP-630)."""

    end_offset: Offset
    epoch: Epoch

    @property
    def file_name(self) -> str:
        """The name of its file."""
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """The answer; records travel beside it. `high_watermark` is UNKNOWN_OFFSET until known.

    `snapshot_id`: the leader does not have the records any more; this snapshot holds them.
    """

    error_code: ErrorCode
    leader_id: BrokerId
    leader_epoch: Epoch
    high_watermark: Offset = UNKNOWN_OFFSET
    diverging_epoch: DivergingEpoch | None = None
    snapshot_id: SnapshotId | None = None
    leader_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """Ask for the bytes of a snapshot from `position` on (KIP-630)."""

    replica_id: BrokerId
    current_leader_epoch: Epoch
    snapshot_id: SnapshotId
    position: int
    replica_directory_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """The answer; the bytes travel beside it. `size` is that of the whole snapshot."""

    error_code: ErrorCode
    leader_id: BrokerId
    leader_epoch: Epoch
    size: int = 0
    position: int = 0
    leader_address: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoterRequest:
    """Ask the leader to add a voter, which has followed it as an observer (KIP-853).

    The answer comes when the change is committed; without `ack_when_committed`, when it is in the
    leader's log.
    """

    voter: Voter
    ack_when_committed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoterRequest:
    """Ask the leader to remove a voter; the answer comes when the change is committed."""

    voter_id: BrokerId
    directory_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterRequest:
    """A voter tells the leader of `current_leader_epoch` its address.

    The answer comes when the change is in the leader's log.
    """

    voter: Voter
    current_leader_epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeKRaftVersionRequest:
    """Ask the leader to raise kraft.version; the answer comes when the change is committed."""

    kraft_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeResponse:
    """The answer. With REQUEST_TIMED_OUT the change may have been made, or may still be."""

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
