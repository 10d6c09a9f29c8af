"""The events of the quorum core: facts, in the past tense."""

from dataclasses import dataclass

from quorumlog.metadata_quorum.core.messages import NOBODY, Request, Response, SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The disk was read: the first event, and once only.

    The election state is that of the last `PersistElection` (all defaults: there is none).
    `epoch_starts`: (epoch, first offset) of the log, oldest first.
    Records below `flushed_offset` survive power loss.
    `is_new`: the earlier votes of this voter are unknown: its disk is new, or has lost them.
    `log_start`: the snapshot at whose end the log starts; None: it starts at 0.
    `snapshot_id`: the newest snapshot, if there is one.
    `voter_sets`: what the newest snapshot and the log say of the voters: (offset of the record, the
    set), oldest first; that of a snapshot counts as its last record. Without any, kraft.version
    is 0.
    """

    leader_epoch: Epoch = Epoch(0)
    leader_id: BrokerId = NOBODY
    voted_id: BrokerId = NOBODY
    voted_directory_id: str | None = None
    was_voter: bool = False
    is_new: bool = False
    log_end_offset: Offset = Offset(0)
    flushed_offset: Offset = Offset(0)
    epoch_starts: tuple[tuple[Epoch, Offset], ...] = ()
    log_start: SnapshotId | None = None
    snapshot_id: SnapshotId | None = None
    voter_sets: tuple[tuple[Offset, VoterSet], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed: it is `now_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """A peer sent a request; this node chose its `request_id`, which the answer repeats."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """The whole batches beside a fetch response: offsets [base, end), with valid CRCs.

    `epoch_starts`: (epoch, first offset) wherever the leader epoch of the batches changes, the
    first batch included. `voter_sets`: (offset, what it says) of each record with a voter set.
    """

    base_offset: Offset
    end_offset: Offset
    epoch_starts: tuple[tuple[Epoch, Offset], ...]
    voter_sets: tuple[tuple[Offset, VoterSet], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """`source` answered the request of our `SendRequest` with this `request_id`."""

    request_id: int
    source: BrokerId
    response: Response
    records: FetchedRecords | None = None
    snapshot_bytes: int = 0  # how many came beside a FetchSnapshotResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """No answer will come to our request: it timed out, or the connection failed."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsAppended:
    """We lead `leader_epoch`, and our own records made the log end at `log_end_offset`."""

    leader_epoch: Epoch
    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeDecided:
    """We lead, and our controller has decided that kraft.version 1 comes into force (KIP-853)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlushed:
    """The flush that `FlushLog` ordered is done: all below `flushed_offset` is durable.

    `was_repeated`: as in `WriteEnded`.
    """

    flushed_offset: Offset
    took_ms: int = 0
    was_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEnded:
    """The driver waited this long for an effect that is a `DiskWrite`.

    `was_repeated`: there was no room at first, so the time says nothing of how slow the disk is.
    """

    took_ms: int
    was_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChecked:
    """The draft that `CheckSnapshot` names was read: it is whole, or of no use.

    `voters`: the voter set in it; None: kraft.version is 0 at its end.
    """

    snapshot_id: SnapshotId
    is_whole: bool
    voters: VoterSet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWritten:
    """A snapshot of committed records is on the disk of this node, durably."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartMoved:
    """The log starts where this snapshot ends: the snapshot holds what was before."""

    log_start: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProcessDied:
    """A peer's connection closed, and a new one was refused: no process listens there."""

    node_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignRequested:
    """The node is about to stop, or its controller failed: it should no longer lead."""


OwnEvent = RecordsAppended | UpgradeDecided | ResignRequested
LogEvent = LogFlushed | WriteEnded | SnapshotChecked | SnapshotWritten | LogStartMoved
Event = (
    Started
    | Ticked
    | RequestReceived
    | ResponseReceived
    | RequestFailed
    | OwnEvent
    | LogEvent
    | PeerProcessDied
)
