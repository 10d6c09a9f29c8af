"""Quorums that break one rule each: a simulator that does not find them proves nothing.

They do not check themselves, so that it is the simulator's oracle that must find them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from quorumlog.metadata_quorum.core import effects
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.events import Event
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    DivergingEpoch,
    FetchRequest,
    FetchResponse,
    VoteRequest,
)
from quorumlog.metadata_quorum.core.quorum import Quorum
from quorumlog.metadata_quorum.core.roles import Ballot, Candidate, Follower, Leader
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset


class _Mutant(Quorum):
    """A quorum without its own checks."""

    def check_invariants(self, before: tuple[int, int, int, int]) -> None:
        """Look away."""


class _VoteNotPersisted(_Mutant):
    def _emit(self, effect: Effect) -> None:
        if isinstance(effect, effects.PersistElection):
            effect = replace(effect, voted_id=NOBODY)
        super()._emit(effect)


class _VoteBeforePersisted(_Mutant):
    def step(self, now_ms: int, event: Event) -> list[Effect]:
        orders = super().step(now_ms, event)
        return sorted(orders, key=lambda order: isinstance(order, effects.PersistElection))


class _SecondVote(_Mutant):
    def _votes(self, request: VoteRequest) -> bool:
        if self.leader_id == NOBODY:
            self.voted_id = NOBODY
        return super()._votes(request)


class _NoLogCheckInVotes(_Mutant):
    def _is_up_to_date(self, request: VoteRequest) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return True


class _FetchBeforeFlush(_Mutant):
    def _is_acknowledgement_true(self) -> bool:
        return True


class _LeaderCountsUnflushed(_Mutant):
    def _own_end_offset(self) -> Offset:
        return self.log_end_offset


class _MinorityCommits(_Mutant):
    def _held_by_majority(self, ends: list[Offset]) -> Offset:
        return ends[self._majority - 2]


class _CommitsOlderEpochs(_Mutant):
    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return True


class _CommitsEpochStart(_Mutant):
    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:
        return committed >= role.epoch_start_offset


class _LeaderSeesNoDivergence(_Mutant):
    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return None


class _TruncatesTooLittle(_Mutant):
    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:  # noqa: ARG002 - a mutant has the signature of what it replaces
        return Offset(self.log_end_offset - 1)

    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:
        # The other half of KIP-101's rule is lost, too: offsets alone are compared.
        if request.fetch_offset <= self.log_end_offset:
            return None
        return super()._diverging_epoch(request)


class _TruncatesTooMuch(_Mutant):
    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:  # noqa: ARG002 - a mutant has the signature of what it replaces
        start, *_ = [entry.start_offset for entry in self.epochs.entries][-2:]
        return start

    def _require_uncommitted(self, offset: Offset) -> None:
        """Look away."""


class _LeaderRestartsAsLeader(_Mutant):
    def _resume_as_resigned(self, deadline_ms: int) -> None:
        super()._resume_as_resigned(deadline_ms)
        ballot = Ballot(granted={self.node_id})
        self.role = Candidate(election_deadline_ms=deadline_ms, ballot=ballot)
        self._become_leader((self.node_id,))


class _HighWatermarkFromDivergence(_Mutant):
    def _committed_here(self, response: FetchResponse) -> Offset:
        return min(self.log_end_offset, response.high_watermark)


class _AnswersStaleFetches(_Mutant):
    def _fetch_refusal(self, request: FetchRequest) -> ErrorCode:
        error_code = super()._fetch_refusal(request)
        if error_code is ErrorCode.FENCED_LEADER_EPOCH and self.is_leader:
            return ErrorCode.NONE
        return error_code


class _WaitsForEver(_Mutant):
    def _stand_deadline_ms(self) -> int | None:
        return None if isinstance(self.role, Follower) else super()._stand_deadline_ms()


_ALL: Final[tuple[tuple[type[Quorum], str], ...]] = (
    (_VoteNotPersisted, "a vote is forgotten by a restart"),
    (_VoteBeforePersisted, "a vote leaves before it is on the disk"),
    (_SecondVote, "a voter votes again in the same epoch"),
    (_NoLogCheckInVotes, "a voter elects whoever asks, whatever its log lacks"),
    (_FetchBeforeFlush, "a follower acknowledges what is not on its disk"),
    (_LeaderCountsUnflushed, "a leader counts what is not on its disk"),
    (_MinorityCommits, "one voter less than a majority commits"),
    (_CommitsOlderEpochs, "a leader commits records of older epochs by counting (Raft figure 8)"),
    (_CommitsEpochStart, "the high watermark stops at the epoch's start (KAFKA-12619)"),
    (_LeaderSeesNoDivergence, "a leader lets any log follow its own"),
    (_TruncatesTooLittle, "logs are compared by their length alone"),
    (_TruncatesTooMuch, "a follower drops a whole epoch, committed or not (KAFKA-12460)"),
    (_LeaderRestartsAsLeader, "a leader goes on in its epoch after a restart (KAFKA-10527)"),
    (
        _HighWatermarkFromDivergence,
        "a follower believes a high watermark while its log diverges (KAFKA-14704)",
    ),
    (_AnswersStaleFetches, "a leader answers fetches of an older epoch"),
    (_WaitsForEver, "a follower never gives up its leader: there is none in the end"),
)


def _name(mutant: type[Quorum]) -> str:
    words = mutant.__name__.lstrip("_")
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in words)[1:]


MUTANT_CLASSES: Final[Mapping[str, type[Quorum]]] = {_name(mutant): mutant for mutant, _ in _ALL}
MUTANTS: Final[Mapping[str, str]] = {_name(mutant): said for mutant, said in _ALL}
"""Name -> the rule that it breaks."""
