"""Quorums that break one rule of KIP-853 each: their voters change, and they count wrongly."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.quorum.mutants import UncheckedQuorum, made_mutant
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.elections import Elections
from quorumlog.metadata_quorum.core.leadership import Leadership
from quorumlog.metadata_quorum.core.membership import Membership
from quorumlog.metadata_quorum.core.messages import VoteRequest
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Leader, Progress
from quorumlog.metadata_quorum.core.voter_changes import VoterChanges
from quorumlog.metadata_quorum.core.voter_sets import VoterSet, VoterSets
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Offset

VOTER_MUTANTS: Final = Mutants(made_mutant)


@VOTER_MUTANTS.breaks("a leader counts the old voters until the voter change is committed")
class _CountsTheOldVoters(Leadership):
    def _maybe_advance_high_watermark(self, role: Leader) -> None:
        state, log = self._state, self._state.log
        voters = log.voter_sets.at(log.high_watermark) or state.configured
        others = role.observers | role.followers
        ends = [
            self._own_end_offset()
            if voter == state.node_id
            else others.get(voter, Progress()).fetch_offset
            for voter in voters.ids
        ]
        committed = sorted(ends, reverse=True)[voters.majority - 1]
        if self._is_of_this_epoch(role, committed) and committed > role.high_watermark:
            role.high_watermark = committed
            state.advance_high_watermark(committed)


@VOTER_MUTANTS.breaks("a leader changes the voters before the previous change is committed")
class _ChangesTwoAtOnce(VoterChanges):
    def _is_changing(self, role: Leader) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return False

    def is_removed(self, role: Leader) -> bool:
        return not self._state.is_voter and super()._is_changing(role) is False


@VOTER_MUTANTS.breaks("a leader changes the voters before a record of its epoch is committed")
class _ChangesTooSoon(VoterChanges):
    def _has_committed_in_its_epoch(self, role: Leader) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return True

    def _is_changing(self, role: Leader) -> bool:
        known = role.high_watermark
        committed = self._state.log.high_watermark if known == UNKNOWN_OFFSET else known
        return self._state.log.voter_sets.last_offset >= committed


class _NeverReverts(VoterSets):
    def truncate(self, end_offset: Offset) -> None:
        """Keep what is cut off; but take what comes in its place."""
        self._kept_from = end_offset

    def append(self, history: Iterable[tuple[Offset, VoterSet]]) -> None:
        later = [(max(offset, Offset(self.last_offset + 1)), one) for offset, one in history]
        super().append(later)


@VOTER_MUTANTS.breaks("a truncation keeps the voters of the truncated records")
class _KeepsTruncatedVoters(QuorumState):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.log.voter_sets = _NeverReverts()


@VOTER_MUTANTS.breaks("a leader that removed itself counts its own log")
class _RemovedLeaderCountsItself(Leadership):
    def _counts_itself(self) -> bool:
        return True


class _VotesAlthoughNew(QuorumState):
    def may_vote(self, *, is_named: bool) -> bool:
        return self.is_new or super().may_vote(is_named=is_named)


@VOTER_MUTANTS.breaks("a node with a new disk votes as the old voter", also=_VotesAlthoughNew)
class _WipedVoterVotes(Elections):
    def handle_vote_request(self, request_id: int, request: VoteRequest) -> None:
        directory_id = self._state.directory_id
        super().handle_vote_request(request_id, replace(request, voter_directory_id=directory_id))


@VOTER_MUTANTS.breaks("a node becomes a voter before it may vote")
class _AddsBeforeItMayVote(VoterChanges):
    def _may_vote(self, progress: Progress) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return True


class _StandsForEver(Membership):
    @property
    def may_stand(self) -> bool:
        history = self._log.voter_sets.history
        keys = [voters.has_key(self._node_id, self._directory_id) for _, voters in history]
        return any(keys) or super().may_stand


@VOTER_MUTANTS.breaks("a removed voter still stands for election")
class _RemovedVoterStands(QuorumState):
    membership = _StandsForEver


@VOTER_MUTANTS.breaks("a snapshot omits the voters")
class _SnapshotWithoutVoters(UncheckedQuorum):
    def voters_at(self, end_offset: Offset) -> VoterSet | None:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return None


class _AnyDirectory(Membership):
    def has(self, node_id: BrokerId, directory_id: str | None) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return node_id in self.voter_set.ids


@VOTER_MUTANTS.breaks("a node with a new disk counts as the old voter")
class _CountsAnyDirectory(QuorumState):
    membership = _AnyDirectory


@VOTER_MUTANTS.breaks("a restarted node ignores the voters in its log")
class _ForgetsVotersAtStart(UncheckedQuorum):
    def _handle_started(self, event: events.Started) -> None:
        super()._handle_started(replace(event, voter_sets=()))
