"""Metadata quorums with one broken rule of KIP-853 each: their voters change."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.mutants.parts import UncheckedQuorum
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.elections import Elections
from quorumlog.metadata_quorum.core.leadership import Leadership
from quorumlog.metadata_quorum.core.messages import VoterChangeRequest, VoteRequest
from quorumlog.metadata_quorum.core.quorum_state import Membership, QuorumState
from quorumlog.metadata_quorum.core.roles import Leader, Progress
from quorumlog.metadata_quorum.core.voter_changes import VoterChanges
from quorumlog.metadata_quorum.core.voter_sets import VoterSet, VoterSets
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Offset

# ruff: noqa: ARG002 - a mutant has the signature of the replaced method

VOTERS: Final = Mutants("metadata quorum")
VOTER_RESPONSES: Final = Mutants("metadata quorum")
"""Whole nodes alone can run them."""


@VOTERS.breaks("a leader counts the old voters until the voter change is committed")
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


@VOTERS.breaks("a leader changes the voters before the previous change is committed")
class _ChangesTwoAtOnce(VoterChanges):
    def _is_changing(self, role: Leader) -> bool:
        return False

    def is_removed(self, role: Leader) -> bool:
        return not self._state.is_voter and super()._is_changing(role) is False


@VOTERS.breaks("a leader changes the voters before a record of its epoch is committed")
class _ChangesTooSoon(VoterChanges):
    def _has_committed_in_its_epoch(self, role: Leader) -> bool:
        return True

    def _is_changing(self, role: Leader) -> bool:
        known = role.high_watermark
        committed = self._state.log.high_watermark if known == UNKNOWN_OFFSET else known
        return self._state.log.voter_sets.last_offset >= committed


class _NeverReverts(VoterSets):
    def truncate(self, end_offset: Offset) -> None:
        """Keep the voter sets that are cut off, beside those of the new records."""
        self._kept_from = end_offset

    def append(self, history: Iterable[tuple[Offset, VoterSet]]) -> None:
        later = [(max(offset, Offset(self.last_offset + 1)), one) for offset, one in history]
        super().append(later)


@VOTERS.breaks("a truncation keeps the voters of the truncated records")
class _KeepsTruncatedVoters(QuorumState):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.log.voter_sets = _NeverReverts()


@VOTERS.breaks("a leader that removed itself counts its own log")
class _RemovedLeaderCountsItself(Leadership):
    def _counts_itself(self) -> bool:
        return True


class _VotesAlthoughNew(QuorumState):
    def may_vote(self, *, is_named: bool) -> bool:
        return self.is_new or super().may_vote(is_named=is_named)


@VOTERS.breaks("a node with a new disk votes as the old voter", also=_VotesAlthoughNew)
class _WipedVoterVotes(Elections):
    def handle_vote_request(self, request_id: int, request: VoteRequest) -> None:
        directory_id = self._state.directory_id
        super().handle_vote_request(request_id, replace(request, voter_directory_id=directory_id))


@VOTERS.breaks("a node becomes a voter before it may vote")
class _AddsBeforeItMayVote(VoterChanges):
    def _may_vote(self, progress: Progress) -> bool:
        return True


class _StandsForEver(Membership):
    @property
    def may_stand(self) -> bool:
        history = self._log.voter_sets.history
        keys = [voters.has_key(self._node_id, self._directory_id) for _, voters in history]
        return any(keys) or super().may_stand


@VOTERS.breaks("a removed voter still stands for election")
class _RemovedVoterStands(QuorumState):
    membership = _StandsForEver


@VOTERS.breaks("a snapshot omits the voters")
class _SnapshotWithoutVoters(UncheckedQuorum):
    def voters_at(self, end_offset: Offset) -> VoterSet | None:
        return None


class _AnyDirectory(Membership):
    def has(self, node_id: BrokerId, directory_id: str | None) -> bool:
        return node_id in self.voter_set.ids


@VOTERS.breaks("a node with a new disk counts as the old voter")
class _CountsAnyDirectory(QuorumState):
    membership = _AnyDirectory


@VOTERS.breaks("a restarted node ignores the voters in its log")
class _ForgetsVotersAtStart(UncheckedQuorum):
    def _handle_started(self, event: events.Started) -> None:
        super()._handle_started(replace(event, voter_sets=()))


# --- responses to an administrator ---


@VOTERS.breaks("a restarted voter forgets the directory id that it voted for")
class _ForgetsTheDirectoryOfItsVote(UncheckedQuorum):
    def _handle_started(self, event: events.Started) -> None:
        super()._handle_started(replace(event, voted_directory_id=None))


@VOTER_RESPONSES.breaks("a voter change is acknowledged before it is committed")
class _AnswersVoterChangesAtOnce(VoterChanges):
    def _answer_or_wait(self, role: Leader, request_id: int, request: VoterChangeRequest) -> None:
        self._state.answer_voter_change(request_id, ErrorCode.NONE, "")


@VOTER_RESPONSES.breaks("a leader that removed itself never resigns")
class _RemovedLeaderLeadsOn(VoterChanges):
    def is_removed(self, role: Leader) -> bool:
        return False


@VOTER_RESPONSES.breaks("a removed voter's log still counts for commits")
class _CountsTheRemoved(Leadership):
    def _maybe_advance_high_watermark(self, role: Leader) -> None:
        removed = {
            node_id: progress
            for node_id, progress in role.observers.items()
            if any(node_id in voters.ids for _, voters in self._state.log.voter_sets.history)
        }
        role.followers |= removed
        super()._maybe_advance_high_watermark(role)
        for node_id in removed:
            del role.followers[node_id]
