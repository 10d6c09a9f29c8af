"""Quorums that break one rule each: a simulator that does not find them proves nothing.

They do not check themselves, so that it is the simulator's oracle that must find them.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
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
from quorumlog.metadata_quorum.core.quorum import Quorum, Rules
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
from quorumlog.metadata_quorum.core.starting import Starting
from quorumlog.metadata_quorum.core.timeouts import Timeouts
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


class UncheckedQuorum(Quorum):
    """A quorum without its own checks."""

    def check_invariants(self, before: tuple[int, int, int, int]) -> None:
        """Check nothing."""


def made_mutant(broken: type[Any], *others: type[Any]) -> type[Quorum]:
    """Return a quorum with these rules, or the broken quorum itself."""
    if issubclass(broken, Quorum):
        return broken

    class Mutant(UncheckedQuorum):
        rules = with_broken(Rules(), broken, *others)

    return Mutant


MUTANTS: Final = Mutants(made_mutant)


@MUTANTS.breaks("a restart loses the vote")
class _VoteNotPersisted(QuorumState):
    def emit(self, effect: Effect) -> None:
        if isinstance(effect, effects.PersistElection):
            effect = replace(effect, voted_id=NOBODY)
        super().emit(effect)


@MUTANTS.breaks("a vote is sent before it is flushed")
class _VoteBeforePersisted(UncheckedQuorum):
    def step(self, now_ms: int, event: Event) -> list[Effect]:
        orders = super().step(now_ms, event)
        return sorted(orders, key=lambda order: isinstance(order, effects.PersistElection))


@MUTANTS.breaks("a voter votes again in the same epoch")
class _SecondVote(Elections):
    def _vote(self, role: Role, request: VoteRequest) -> bool:
        if self._state.leader_id == NOBODY:
            self._state.voted_id = NOBODY
        return super()._vote(role, request)


@MUTANTS.breaks("a voter grants its vote to a candidate with an incomplete log")
class _NoLogCheckInVotes(Elections):
    def _is_up_to_date(self, request: VoteRequest) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return True


@MUTANTS.breaks("a follower's fetch timeout never ends: a lost leader is never replaced")
class _WaitsForEver(Elections):
    def _stand_deadline_ms(self, role: Unattached | Follower) -> int | None:
        return None if isinstance(role, Follower) else super()._stand_deadline_ms(role)


@MUTANTS.breaks("a leader counts its own unflushed records")
class _LeaderCountsUnflushed(Leadership):
    def _own_end_offset(self) -> Offset:
        return self._state.log.end_offset


@MUTANTS.breaks("one voter fewer than a majority commits")
class _MinorityCommits(Leadership):
    def _held_by_majority(self, ends: list[Offset]) -> Offset:
        return ends[self._state.majority - 2]


@MUTANTS.breaks("a leader commits records of older epochs by counting (Raft figure 8)")
class _CommitsOlderEpochs(Leadership):
    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return True


@MUTANTS.breaks("the high watermark stops at the leader epoch's start (KAFKA-12619)")
class _CommitsEpochStart(Leadership):
    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:
        return committed >= role.epoch_start_offset


@MUTANTS.breaks("a leader serves a fetch without comparing the logs")
class _LeaderSeesNoDivergence(Leadership):
    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return None


class _SeesLengthsOnly(Leadership):
    """The other half of KIP-101's rule, for a mutant below: offsets alone are compared."""

    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:
        if request.fetch_offset <= self._state.log.end_offset:
            return None
        return super()._diverging_epoch(request)


@MUTANTS.breaks("a leader accepts fetches of an older epoch")
class _AnswersStaleFetches(Leadership):
    def _fetch_refusal(self, request: FetchRequest) -> ErrorCode:
        error_code = super()._fetch_refusal(request)
        is_stale = error_code is ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE if is_stale and isinstance(self._state.role, Leader) else error_code


@MUTANTS.breaks("a leader without a majority never resigns (KAFKA-15489)")
class _NeverResigns(Leadership):
    def resign(self, role: Role) -> None:
        """Do nothing."""


@MUTANTS.breaks("a follower acknowledges unflushed records")
class _FetchBeforeFlush(Followership):
    def _is_acknowledgement_true(self) -> bool:
        return True


@MUTANTS.breaks("logs are compared only by their length", also=_SeesLengthsOnly)
class _TruncatesTooLittle(Followership):
    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return Offset(self._state.log.end_offset - 1)


@MUTANTS.breaks("a follower truncates a whole epoch, including committed records (KAFKA-12460)")
class _TruncatesTooMuch(Followership):
    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:  # noqa: ARG002 - a mutant has the signature of what it replaces
        start, *_ = [entry.start_offset for entry in self._state.log.epochs.entries][-2:]
        return start

    def _require_uncommitted(self, offset: Offset) -> None:
        """Check nothing."""


@MUTANTS.breaks("a follower applies a high watermark while its log diverges (KAFKA-14704)")
class _HighWatermarkFromDivergence(Followership):
    def _committed_here(self, response: FetchResponse) -> Offset:
        return min(self._state.log.end_offset, response.high_watermark)


@MUTANTS.breaks("a restarted leader continues its epoch (KAFKA-10527)")
class _LeaderRestartsAsLeader(Starting):
    def _resume_as_resigned(self, deadline_ms: int) -> None:
        super()._resume_as_resigned(deadline_ms)
        ballot = Ballot(granted={self._state.node_id})
        self._state.role = Candidate(election_deadline_ms=deadline_ms, ballot=ballot)
        self._leadership.begin((self._state.node_id,))


class _ChecksNoDraft(Followership):
    """For a mutant below: a draft is installed, whatever is in it."""

    def handle_snapshot_checked(self, role: Role, event: events.SnapshotChecked) -> None:
        super().handle_snapshot_checked(role, replace(event, is_whole=True))


@MUTANTS.breaks("a follower installs an incomplete snapshot", also=_ChecksNoDraft)
class _HalfSnapshot(SnapshotDownloads):
    def _is_complete(self, download: Download) -> bool:
        return 2 * download.position >= (download.size or 0)


@MUTANTS.breaks(
    "a leader compares only the length of a log that diverges below the leader's log start"
)
class _SeesNoEpochBelowStart(Leadership):
    def _is_below_start(self, request: FetchRequest) -> bool:
        return request.fetch_offset < self._state.log.start_offset


@MUTANTS.breaks("a leader answers a fetch below its log start with later records")
class _SkipsWhatIsGone(Leadership):
    def _is_below_start(self, request: FetchRequest) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
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


@MUTANTS.breaks("a restarted node ignores the snapshot at the start of its log")
class _ForgetsStart(UncheckedQuorum):
    def _handle_started(self, event: events.Started) -> None:
        super()._handle_started(replace(event, log_start=None))


@MUTANTS.breaks("a follower loses the epoch of its snapshot's end")
class _ForgetsSnapshotEpoch(SnapshotDownloads):
    def install(self, snapshot_id: SnapshotId, voters: VoterSet | None) -> None:
        super().install(snapshot_id, voters)
        self._state.log.start_epoch = Epoch(0)


class _CountsWaits(Timeouts):
    """For a mutant below."""

    def note_wait(self, took_ms: int) -> None:
        pass


@MUTANTS.breaks("a deadline starts before the write that it depends on")
class _DeadlinesBeginBeforeTheWrite(QuorumState):
    timeout_rules = _CountsWaits


class _Configured(Timeouts):
    """For a mutant below."""

    def _slowest_ms(self, peers: Iterable[BrokerId]) -> int:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return 0


@MUTANTS.breaks("the timeouts ignore the latency of the node's disk")
class _TimeoutsIgnoreTheDisk(QuorumState):
    timeout_rules = _Configured


class _OwnDiskAlone(Timeouts):
    """For a mutant below."""

    def note_peer(self, node_id: BrokerId, write_ms: int) -> None:
        """Do nothing."""


@MUTANTS.breaks("a candidate and a leader ignore the disk latency of other nodes")
class _IgnoresTheDisksOfOthers(QuorumState):
    timeout_rules = _OwnDiskAlone
