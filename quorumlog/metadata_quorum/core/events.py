"""The events of the quorum core: facts, in the past tense."""

from dataclasses import dataclass

from quorumlog.metadata_quorum.core.messages import NOBODY, Request, Response, SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The state that was read from the disk: the first event, fed once.

    The election state is that of the last `PersistElection`; all defaults if there is none.
    `epoch_starts`: (epoch, first offset) of the log, oldest first.
    Records below `flushed_offset` survive power loss.
    `is_new`: the earlier votes of this voter are unknown: its disk is new, or has lost them.
    `log_start`: the snapshot at whose end offset the log starts; None: it starts at 0.
    `snapshot_id`: the newest snapshot, if there is one.
    `voter_sets`: (offset of the record, voter set) of the newest snapshot and the log, oldest
    first; a snapshot's set has the offset of its last record. Empty: kraft.version is 0.
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
    """A request from a peer; this node chose its `request_id`, which the response repeats."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """The whole batches beside a fetch response: offsets [base, end), with valid CRCs.

    `epoch_starts`: (epoch, first offset) at each change of the batches' leader epoch, the first
    batch included. `voter_sets`: (offset, voter set) of each Voters record.
    """

    base_offset: Offset
    end_offset: Offset
    epoch_starts: tuple[tuple[Epoch, Offset], ...]
    voter_sets: tuple[tuple[Offset, VoterSet], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """The response of `source` to our `SendRequest` with this `request_id`."""

    request_id: int
    source: BrokerId
    response: Response
    records: FetchedRecords | None = None
    snapshot_bytes: int = 0  # their number beside a FetchSnapshotResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """Our request gets no response: it timed out, or the connection failed."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsAppended:
    """We lead `leader_epoch`, and our controller appended records up to `log_end_offset`."""

    leader_epoch: Epoch
    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeDecided:
    """We lead, and our controller has decided to raise kraft.version to 1 (KIP-853)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlushed:
    """The flush of `FlushLog` is complete: all records below `flushed_offset` are durable.

    `was_repeated`: as in `WriteEnded`.
    """

    flushed_offset: Offset
    took_ms: int = 0
    was_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteEnded:
    """The driver waited `took_ms` for an effect that is a `DiskWrite`.

    `was_repeated`: the disk had no room at first, so the time does not measure its speed.
    """

    took_ms: int
    was_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChecked:
    """The draft of `CheckSnapshot` was read: it is whole, or unusable.

    `voters`: its voter set; None: kraft.version is 0 at its end.
    """

    snapshot_id: SnapshotId
    is_whole: bool
    voters: VoterSet | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWritten:
    """A snapshot of committed records is durable on this node's disk."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartMoved:
    """The log starts at this snapshot's end offset: the snapshot contains the earlier records."""

    log_start: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerProcessDied:
    """A peer's connection closed, and a new one was refused: no process listens there."""

    node_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResignRequested:
    """The node is about to stop, or its controller failed: it must no longer lead."""


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
