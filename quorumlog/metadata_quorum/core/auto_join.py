"""Requests of a node about its own voter: for a new address and, if enabled, for membership.

A voter sends the leader its new address. With `controller.quorum.auto.join.enable`, a controller
that is no voter and may vote first removes the voter of its id with another directory, and then
adds itself. A node that was a voter and was removed does not add itself again (KAFKA-19850).
Sources: KIP-853 (UpdateRaftVoter), KIP-1186.
"""

from collections.abc import Iterator
from typing import Final

from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VoterChangeRequest,
)
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Follower, Role
from quorumlog.metadata_quorum.core.voter_sets import Voter


class AutoJoin:
    """The rules of a follower that sends its leader requests to change its own voter."""

    def __init__(self, state: QuorumState, *, is_enabled: bool) -> None:
        """`is_enabled`: whether a node that is no voter requests to become a voter."""
        self._state: Final = state
        self._is_enabled: Final = is_enabled
        self._asked: type[VoterChangeRequest] | None = None  # the type of the request that is due
        self._due_ms: int | None = None

    def maybe_ask(self, role: Role) -> None:
        """Send the request that applies, if any, and repeat it as long as it applies."""
        state, request = self._state, self._request(role)
        if request is None:
            self._asked = self._due_ms = None
            return
        if self._asked is not type(request) or self._due_ms is None:
            # DEVIATION: Kafka's controllers wait before they join, too.
            # docs/decisions/0001-voter-changes.md
            wait_ms = self._interval_ms if isinstance(request, UpdateVoterRequest) else 0
            self._asked, self._due_ms = type(request), state.now_ms + wait_ms
        if self._due_ms <= state.now_ms:
            self._due_ms = state.now_ms + self._interval_ms
            state.send(state.leader_id, request)

    @property
    def _interval_ms(self) -> int:
        return 3 * self._state.settings.controller_quorum_fetch_timeout_ms

    def _request(self, role: Role) -> VoterChangeRequest | None:
        state = self._state
        if state.kraft_version == 0 or state.directory_id is None or not state.address:
            return None
        if not isinstance(role, Follower) or not role.has_fetched or role.is_leader_gone:
            return None
        if state.is_voter:
            return self._update(state.directory_id)
        return self._join(state.directory_id) if self._may_join() else None

    def _may_join(self) -> bool:
        """Whether this node may request to join now: a leader makes one change at a time."""
        state = self._state
        is_changing = state.log.voter_sets.last_offset >= state.log.high_watermark
        return self._is_enabled and not (state.was_voter or state.is_new or is_changing)

    def _update(self, directory_id: str) -> UpdateVoterRequest | None:
        state, own = self._state, self._own(directory_id)
        if state.voter_set.get(state.node_id) == own:
            return None
        return UpdateVoterRequest(voter=own, current_leader_epoch=state.leader_epoch)

    def _join(self, directory_id: str) -> VoterChangeRequest:
        stale = self._state.voter_set.get(self._state.node_id)
        if stale is not None:
            return RemoveVoterRequest(voter_id=stale.voter_id, directory_id=stale.directory_id)
        return AddVoterRequest(voter=self._own(directory_id), ack_when_committed=False)

    def _own(self, directory_id: str) -> Voter:
        state = self._state
        return Voter(voter_id=state.node_id, directory_id=directory_id, address=state.address)

    def deadlines(self) -> Iterator[int]:
        """Yield the times at which these rules are due, in ms."""
        if self._due_ms is not None:
            yield self._due_ms
