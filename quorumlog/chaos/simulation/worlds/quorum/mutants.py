"""Quorums that break one rule each: a simulator that does not find them proves nothing.

They do not check themselves, so that it is the simulator's oracle that must find them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from quorumlog.metadata_quorum.core import effects
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
    VoteRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum, Rules
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import (
    Ballot,
    Candidate,
    Follower,
    Leader,
    Role,
    Unattached,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset


class _Unchecked(Quorum):
    """A quorum without its own checks."""

    def check_invariants(self, before: tuple[int, int, int, int]) -> None:
        """Look away."""


class _VoteNotPersisted(QuorumState):
    def emit(self, effect: Effect) -> None:
        if isinstance(effect, effects.PersistElection):
            effect = replace(effect, voted_id=NOBODY)
        super().emit(effect)


class _VoteBeforePersisted(_Unchecked):
    def step(self, now_ms: int, event: Event) -> list[Effect]:
        orders = super().step(now_ms, event)
        return sorted(orders, key=lambda order: isinstance(order, effects.PersistElection))


class _SecondVote(Elections):
    def _vote(self, role: Role, request: VoteRequest) -> bool:
        if self._state.leader_id == NOBODY:
            self._state.voted_id = NOBODY
        return super()._vote(role, request)


class _NoLogCheckInVotes(Elections):
    def _is_up_to_date(self, request: VoteRequest) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return True


class _WaitsForEver(Elections):
    def _stand_deadline_ms(self, role: Unattached | Follower) -> int | None:
        return None if isinstance(role, Follower) else super()._stand_deadline_ms(role)


class _LeaderCountsUnflushed(Leadership):
    def _own_end_offset(self) -> Offset:
        return self._state.log.end_offset


class _MinorityCommits(Leadership):
    def _held_by_majority(self, ends: list[Offset]) -> Offset:
        return ends[self._state.majority - 2]


class _CommitsOlderEpochs(Leadership):
    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return True


class _CommitsEpochStart(Leadership):
    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:
        return committed >= role.epoch_start_offset


class _SeesNoDivergence(Leadership):
    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return None


class _SeesLengthsOnly(Leadership):
    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:
        if request.fetch_offset <= self._state.log.end_offset:
            return None
        return super()._diverging_epoch(request)


class _AnswersStaleFetches(Leadership):
    def _fetch_refusal(self, request: FetchRequest) -> ErrorCode:
        error_code = super()._fetch_refusal(request)
        is_stale = error_code is ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE if is_stale and isinstance(self._state.role, Leader) else error_code


class _NeverResigns(Leadership):
    def resign(self, role: Role) -> None:
        """Lead on."""


class _FetchBeforeFlush(Followership):
    def _is_acknowledgement_true(self) -> bool:
        return True


class _TruncatesTooLittle(Followership):
    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return Offset(self._state.log.end_offset - 1)


class _TruncatesTooMuch(Followership):
    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:  # noqa: ARG002 - a mutant has the signature of what it replaces
        start, *_ = [entry.start_offset for entry in self._state.log.epochs.entries][-2:]
        return start

    def _require_uncommitted(self, offset: Offset) -> None:
        """Look away."""


class _HighWatermarkFromDivergence(Followership):
    def _committed_here(self, response: FetchResponse) -> Offset:
        return min(self._state.log.end_offset, response.high_watermark)


class _LeaderRestartsAsLeader(_Unchecked):
    def _resume_as_resigned(self, deadline_ms: int) -> None:
        super()._resume_as_resigned(deadline_ms)
        ballot = Ballot(granted={self.node_id})
        self._state.role = Candidate(election_deadline_ms=deadline_ms, ballot=ballot)
        self._leadership.begin((self.node_id,))


def _made_of(broken: Rules) -> type[Quorum]:
    """Return a quorum of these rules, which does not check itself."""

    class Mutant(_Unchecked):
        rules = broken

    return Mutant


_ALL: Final[tuple[tuple[str, type[Quorum], str], ...]] = (
    (
        "vote_not_persisted",
        _made_of(Rules(state=_VoteNotPersisted)),
        "a vote is forgotten by a restart",
    ),
    ("vote_before_persisted", _VoteBeforePersisted, "a vote leaves before it is on the disk"),
    (
        "second_vote",
        _made_of(Rules(elections=_SecondVote)),
        "a voter votes again in the same epoch",
    ),
    (
        "no_log_check_in_votes",
        _made_of(Rules(elections=_NoLogCheckInVotes)),
        "a voter elects any candidate, whatever its log lacks",
    ),
    (
        "fetch_before_flush",
        _made_of(Rules(followership=_FetchBeforeFlush)),
        "a follower acknowledges what is not on its disk",
    ),
    (
        "leader_counts_unflushed",
        _made_of(Rules(leadership=_LeaderCountsUnflushed)),
        "a leader counts what is not on its disk",
    ),
    (
        "minority_commits",
        _made_of(Rules(leadership=_MinorityCommits)),
        "one voter less than a majority commits",
    ),
    (
        "commits_older_epochs",
        _made_of(Rules(leadership=_CommitsOlderEpochs)),
        "a leader commits records of older epochs by counting (Raft figure 8)",
    ),
    (
        "commits_epoch_start",
        _made_of(Rules(leadership=_CommitsEpochStart)),
        "the high watermark stops at the epoch's start (KAFKA-12619)",
    ),
    (
        "leader_sees_no_divergence",
        _made_of(Rules(leadership=_SeesNoDivergence)),
        "a leader lets any log follow its own",
    ),
    (
        "truncates_too_little",
        # The other half of KIP-101's rule is lost, too: offsets alone are compared.
        _made_of(Rules(followership=_TruncatesTooLittle, leadership=_SeesLengthsOnly)),
        "logs are compared by their length alone",
    ),
    (
        "truncates_too_much",
        _made_of(Rules(followership=_TruncatesTooMuch)),
        "a follower drops a whole epoch, committed or not (KAFKA-12460)",
    ),
    (
        "leader_restarts_as_leader",
        _LeaderRestartsAsLeader,
        "a leader goes on in its epoch after a restart (KAFKA-10527)",
    ),
    (
        "high_watermark_from_divergence",
        _made_of(Rules(followership=_HighWatermarkFromDivergence)),
        "a follower believes a high watermark while its log diverges (KAFKA-14704)",
    ),
    (
        "answers_stale_fetches",
        _made_of(Rules(leadership=_AnswersStaleFetches)),
        "a leader answers fetches of an older epoch",
    ),
    (
        "waits_for_ever",
        _made_of(Rules(elections=_WaitsForEver)),
        "a follower never gives up its leader: there is none in the end",
    ),
    (
        "never_resigns",
        _made_of(Rules(leadership=_NeverResigns)),
        "a leader without a majority is due to resign for ever, and does not (KAFKA-15489)",
    ),
)

MUTANT_CLASSES: Final[Mapping[str, type[Quorum]]] = {name: mutant for name, mutant, _ in _ALL}
MUTANTS: Final[Mapping[str, str]] = {name: rule for name, _, rule in _ALL}
"""Name -> the rule that it breaks."""
