"""Metadata quorums with one broken rule each: elections, commits, snapshots, timeouts."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.parts import UncheckedQuorum
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.elections import Elections
from quorumlog.metadata_quorum.core.events import Event
from quorumlog.metadata_quorum.core.followership import Followership
from quorumlog.metadata_quorum.core.leadership import Leadership
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    DivergingEpoch,
    FetchRequest,
    FetchResponse,
    SnapshotId,
    VoteRequest,
)
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import (
    Ballot,
    Candidate,
    Download,
    Follower,
    Leader,
    Role,
    Unattached,
)
from quorumlog.metadata_quorum.core.snapshot_downloads import SnapshotDownloads
from quorumlog.metadata_quorum.core.start_role import StartRole
from quorumlog.metadata_quorum.core.timeouts import Timeouts
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.driver.driver import Driver
from quorumlog.metadata_quorum.driver.patience import PatientExecutor, attempt
from quorumlog.storage.errors import DiskExhausted
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

# ruff: noqa: ARG002 - a mutant has the signature of the replaced method

QUORUMS: Final = Mutants("metadata quorum")
FULL_DISKS: Final = Mutants("metadata quorum")
"""Whole nodes alone can run them."""


@QUORUMS.breaks("a restart loses the vote")
class _VoteNotPersisted(QuorumState):
    def emit(self, effect: Effect) -> None:
        if isinstance(effect, effects.PersistElection):
            effect = replace(effect, voted_id=NOBODY)
        super().emit(effect)


@QUORUMS.breaks("a vote is sent before it is flushed")
class _VoteBeforePersisted(UncheckedQuorum):
    def step(self, now_ms: int, event: Event) -> list[Effect]:
        orders = super().step(now_ms, event)
        return sorted(orders, key=lambda order: isinstance(order, effects.PersistElection))


@QUORUMS.breaks("a voter votes again in the same epoch")
class _SecondVote(Elections):
    def _vote(self, role: Role, request: VoteRequest) -> bool:
        if self._state.leader_id == NOBODY:
            self._state.voted_id = NOBODY
        return super()._vote(role, request)


@QUORUMS.breaks("a voter grants its vote to a candidate with an incomplete log")
class _NoLogCheckInVotes(Elections):
    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return True


@QUORUMS.breaks("a follower's fetch timeout never ends: a lost leader is never replaced")
class _WaitsForEver(Elections):
    def _stand_deadline_ms(self, role: Unattached | Follower) -> int | None:
        return None if isinstance(role, Follower) else super()._stand_deadline_ms(role)


@QUORUMS.breaks("a leader counts its own unflushed records")
class _LeaderCountsUnflushed(Leadership):
    def _own_end_offset(self) -> Offset:
        return self._state.log.end_offset


@QUORUMS.breaks("one voter fewer than a majority commits")
class _MinorityCommits(Leadership):
    def _held_by_majority(self, ends: list[Offset]) -> Offset:
        return ends[self._state.majority - 2]


@QUORUMS.breaks("a leader commits records of older epochs by counting (Raft figure 8)")
class _CommitsOlderEpochs(Leadership):
    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:
        return True


@QUORUMS.breaks("the high watermark stops at the leader epoch's start (KAFKA-12619)")
class _CommitsEpochStart(Leadership):
    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:
        return committed >= role.epoch_start_offset


@QUORUMS.breaks("a leader serves a fetch without comparing the logs")
class _LeaderSeesNoDivergence(Leadership):
    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:
        return None


class _SeesLengthsOnly(Leadership):
    """The other half of KIP-101's rule, for a mutant below: offsets alone are compared."""

    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:
        if request.fetch_offset <= self._state.log.end_offset:
            return None
        return super()._diverging_epoch(request)


@QUORUMS.breaks("a leader accepts fetches of an older epoch")
class _AnswersStaleFetches(Leadership):
    def _fetch_refusal(self, request: FetchRequest) -> ErrorCode:
        error_code = super()._fetch_refusal(request)
        is_stale = error_code is ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE if is_stale and isinstance(self._state.role, Leader) else error_code


@QUORUMS.breaks("a leader without a majority never resigns (KAFKA-15489)")
class _NeverResigns(Leadership):
    def resign(self, role: Role) -> None:
        """Do nothing."""


@QUORUMS.breaks("a follower acknowledges unflushed records")
class _FetchBeforeFlush(Followership):
    def _is_acknowledgement_true(self) -> bool:
        return True


@QUORUMS.breaks("logs are compared only by their length", also=_SeesLengthsOnly)
class _TruncatesTooLittle(Followership):
    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:
        return Offset(self._state.log.end_offset - 1)


@QUORUMS.breaks("a follower truncates a whole epoch, including committed records (KAFKA-12460)")
class _TruncatesTooMuch(Followership):
    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:
        start, *_ = [entry.start_offset for entry in self._state.log.epochs.entries][-2:]
        return start

    def _require_uncommitted(self, offset: Offset) -> None:
        """Check nothing."""


@QUORUMS.breaks("a follower applies a high watermark while its log diverges (KAFKA-14704)")
class _HighWatermarkFromDivergence(Followership):
    def _committed_here(self, response: FetchResponse) -> Offset:
        return min(self._state.log.end_offset, response.high_watermark)


@QUORUMS.breaks("a restarted leader continues its epoch (KAFKA-10527)")
class _LeaderRestartsAsLeader(StartRole):
    def _resume_as_resigned(self, deadline_ms: int) -> None:
        super()._resume_as_resigned(deadline_ms)
        ballot = Ballot(granted={self._state.node_id})
        self._state.role = Candidate(election_deadline_ms=deadline_ms, ballot=ballot)
        self._leadership.begin((self._state.node_id,))


class _ChecksNoDraft(Followership):
    """For a mutant below: a draft is installed, whatever is in it."""

    def handle_snapshot_checked(self, role: Role, event: events.SnapshotChecked) -> None:
        super().handle_snapshot_checked(role, replace(event, is_whole=True))


@QUORUMS.breaks("a follower installs an incomplete snapshot", also=_ChecksNoDraft)
class _HalfSnapshot(SnapshotDownloads):
    def _is_complete(self, download: Download) -> bool:
        return 2 * download.position >= (download.size or 0)


@QUORUMS.breaks(
    "a leader compares only the length of a log that diverges below the leader's log start"
)
class _SeesNoEpochBelowStart(Leadership):
    def _is_below_start(self, request: FetchRequest) -> bool:
        return request.fetch_offset < self._state.log.start_offset


@QUORUMS.breaks("a leader answers a fetch below its log start with later records")
class _SkipsWhatIsGone(Leadership):
    def _is_below_start(self, request: FetchRequest) -> bool:
        return False

    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:
        if request.fetch_offset < self._state.log.start_offset:
            return None
        return super()._diverging_epoch(request)

    def _complete(self, role: Leader, request_id: int) -> None:
        parked = role.parked[request_id]
        offset = max(parked.fetch_offset, self._state.log.start_offset)
        role.parked[request_id] = replace(parked, fetch_offset=offset)
        super()._complete(role, request_id)


@QUORUMS.breaks("a restarted node ignores the snapshot at the start of its log")
class _ForgetsStart(UncheckedQuorum):
    def _handle_started(self, event: events.Started) -> None:
        super()._handle_started(replace(event, log_start=None))


@QUORUMS.breaks("a follower loses the epoch of its snapshot's end")
class _ForgetsSnapshotEpoch(SnapshotDownloads):
    def install(self, snapshot_id: SnapshotId, voters: VoterSet | None) -> None:
        super().install(snapshot_id, voters)
        self._state.log.start_epoch = Epoch(0)


class _CountsWaits(Timeouts):
    def note_wait(self, took_ms: int) -> None:
        pass


@QUORUMS.breaks("a deadline starts before the write that it depends on")
class _DeadlinesBeginBeforeTheWrite(QuorumState):
    timeout_rules = _CountsWaits


class _Configured(Timeouts):
    def _slowest_ms(self, peers: Iterable[BrokerId]) -> int:
        return 0


@QUORUMS.breaks("the timeouts ignore the latency of the node's disk")
class _TimeoutsIgnoreTheDisk(QuorumState):
    timeout_rules = _Configured


class _OwnDiskAlone(Timeouts):
    def note_peer(self, node_id: BrokerId, write_ms: int) -> None:
        """Do nothing."""


@QUORUMS.breaks("a candidate and a leader ignore the disk latency of other nodes")
class _IgnoresTheDisksOfOthers(QuorumState):
    timeout_rules = _OwnDiskAlone


# --- voters with a full disk ---


T = TypeVar("T")


@FULL_DISKS.breaks("a vote or metadata record that does not fit on the disk counts as written")
class _TakesRefusedWritesForDone(Driver):
    def _write(self, work: Callable[[], object], name: str) -> None:
        super()._write(lambda: str(attempt(work)), name)


class _Impatient(PatientExecutor):
    def run(self, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self.executor.run(work, done)

    def run_again(self, _: DiskExhausted, work: Callable[[], T], done: Callable[[T], None]) -> None:
        self.run(work, done)


@FULL_DISKS.breaks("a full disk ends a voter's process")
class _FullDisksEndVoters(Driver):
    patience = _Impatient
