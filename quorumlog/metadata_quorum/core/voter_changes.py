"""Changes of the voter set, as the leader makes them (KIP-853)."""

from typing import Final

from quorumlog.metadata_quorum.core import effects
from quorumlog.metadata_quorum.core.messages import VoterChangeRequest, VoterChangeResponse
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Leader
from quorumlog.wire.codec.error_codes import ErrorCode


class VoterChanges:
    """The rules of the leader that changes the voter set."""

    def __init__(self, state: QuorumState) -> None:
        self._state: Final = state

    def handle_request(self, request_id: int, request: VoterChangeRequest) -> None:
        """Refuse the change: at kraft.version 0 the configured voters are in force."""
        del request
        if isinstance(self._state.role, Leader):
            self._answer(request_id, ErrorCode.UNSUPPORTED_VERSION, "kraft.version is 0")
        else:
            self._answer(request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead")

    def _answer(self, request_id: int, error_code: ErrorCode, message: str) -> None:
        response = VoterChangeResponse(
            error_code=error_code,
            error_message=message,
            leader_id=self._state.leader_id,
            leader_epoch=self._state.leader_epoch,
        )
        self._state.emit(effects.SendResponse(request_id=request_id, response=response))
