"""The start of a node: the role that its disk allows.

It refuses to lead an epoch that it led before: it may have appended records that its disk has lost.
Sources: Kafka's `QuorumState.initialize`; KAFKA-10527.
"""

from dataclasses import dataclass

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.elections import Elections
from quorumlog.metadata_quorum.core.leadership import Leadership
from quorumlog.metadata_quorum.core.messages import NOBODY
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Candidate, Follower, Unattached
from quorumlog.wire.codec.identifiers import Epoch


@dataclass(eq=False)
class StartRole:
    """The rules of the first step."""

    _state: QuorumState
    _elections: Elections
    _leadership: Leadership

    def start(self, event: events.Started) -> None:
        """Choose the role that the disk allows: never that of a leader (KAFKA-10527)."""
        state = self._state
        state.log.open(
            event.log_end_offset,
            event.flushed_offset,
            event.epoch_starts,
            start=event.log_start,
            snapshot=event.snapshot_id,
            voter_sets=event.voter_sets,
        )
        may_be_voter = state.is_voter or state.directory_id is not None
        has_peers = bool(state.other_voters or state.bootstrap_ids)
        state.is_new = event.is_new and may_be_voter and has_peers
        state.was_voter = event.was_voter
        if state.log.last_epoch > event.leader_epoch:
            state.set_election(state.log.last_epoch, NOBODY, NOBODY)
        else:
            state.leader_epoch = event.leader_epoch
            state.leader_id, state.voted_id = event.leader_id, event.voted_id
            state.voted_directory_id = event.voted_directory_id
        state.restored_vote = state.leader_epoch, state.voted_id
        state.follow_voters()
        state.advance_high_watermark(state.log.start_offset)  # a snapshot's records are committed
        self._take_up_role()

    def _take_up_role(self) -> None:
        """Choose the role by the election state. Only here is a role set without `become`."""
        state = self._state
        deadline_ms = state.now_ms if state.is_alone else state.new_election_deadline_ms()
        if not state.is_voter and (
            state.leader_id == state.node_id
            or (state.voted_id == state.node_id and state.kraft_version == 0)
        ):
            newer = Epoch(state.leader_epoch + state.has_newer_epoch)
            state.set_election(newer, NOBODY, NOBODY)  # it was a voter
        if state.leader_id == state.node_id:
            self._resume_as_resigned(deadline_ms)
        elif state.leader_id in state.voters:
            state.role = Follower(fetch_deadline_ms=state.new_fetch_deadline_ms())
            leader_id, leader_epoch = state.leader_id, state.leader_epoch
            state.emit(effects.FollowLeader(leader_epoch=leader_epoch, leader_id=leader_id))
        elif self._is_candidate_again():
            ballot = self._elections.new_ballot()
            state.role = candidate = Candidate(election_deadline_ms=deadline_ms, ballot=ballot)
            self._elections.ask_all(candidate)
        else:
            state.set_election(state.leader_epoch, NOBODY, state.voted_id, state.voted_directory_id)
            state.role = Unattached(
                election_deadline_ms=deadline_ms if state.members.may_stand else None
            )

    def _is_candidate_again(self) -> bool:
        """Whether it was a candidate, its epoch has no leader, and it may still stand."""
        state = self._state
        voted_for_itself = state.voted_id == state.node_id and (
            state.kraft_version == 0 or state.voted_directory_id == state.directory_id
        )
        stands = voted_for_itself and state.leader_id == NOBODY
        return stands and state.members.may_stand and state.log.is_durable

    def _resume_as_resigned(self, deadline_ms: int) -> None:
        # It may have appended records in this epoch that its disk has lost: if it continued
        # to lead, two records would have the same epoch and offset.
        self._state.role = resigned = self._leadership.resigned()
        resigned.election_deadline_ms = deadline_ms
