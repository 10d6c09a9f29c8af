"""Planted bugs in changes of the voters, which show in the responses to an administrator.

The mutants of `worlds.quorum.voter_mutants` run in whole nodes, too.
"""

from typing import Any, Final

from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.quorum.mutants import made_mutant
from quorumlog.metadata_quorum.core.leadership import Leadership
from quorumlog.metadata_quorum.core.messages import VoterChangeRequest
from quorumlog.metadata_quorum.core.roles import Leader
from quorumlog.metadata_quorum.core.voter_changes import VoterChanges
from quorumlog.metadata_quorum.io.parts import QuorumParts
from quorumlog.node.substitutes import Substitutes
from quorumlog.wire.codec.error_codes import ErrorCode

# ruff: noqa: ARG002 - a mutant has the signature of the replaced method


def _with(broken: type[Any]) -> Substitutes:
    return Substitutes(quorum=QuorumParts(quorum=made_mutant(broken)))


VOTERS: Final = Mutants(_with)


@VOTERS.breaks("a voter change is acknowledged before it is committed")
class _AnswersVoterChangesAtOnce(VoterChanges):
    def _answer_or_wait(self, role: Leader, request_id: int, request: VoterChangeRequest) -> None:
        self._state.answer_voter_change(request_id, ErrorCode.NONE, "")


@VOTERS.breaks("a leader that removed itself never resigns")
class _RemovedLeaderLeadsOn(VoterChanges):
    def is_removed(self, role: Leader) -> bool:
        return False


@VOTERS.breaks("a removed voter's log still counts for commits")
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
