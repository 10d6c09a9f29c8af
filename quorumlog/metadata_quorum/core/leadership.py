"""Leadership: the start of an epoch, fetches, the high watermark, and the end.

A leader refuses fetches of another epoch, and counts only durable records, of the voters in force.
Sources: KIP-595 (Fetch, LeaderChange, EndQuorumEpoch), KIP-853, KIP-1166; KAFKA-12619, KAFKA-15489;
Raft 5.3, 5.4.2.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    DivergingEpoch,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    SnapshotId,
)
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Leader, ParkedFetch, Progress, Resigned, Role
from quorumlog.metadata_quorum.core.voter_changes import VoterChanges
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Epoch, Offset

# DEVIATION: Kafka's leader keeps any number of observers for a time.
# docs/decisions/0039-limits.md
OBSERVERS_MAX: Final = 1000  # in a leader's memory


@dataclass(eq=False)
class Leadership:
    """The rules of a leader, and of a leader that has resigned."""

    _state: QuorumState
    _voter_changes: VoterChanges

    # --- the start ---

    def begin(self, granting_voters: tuple[BrokerId, ...]) -> None:
        """Become the leader: append LeaderChange first, then send BeginQuorumEpoch to the voters.

        Only a record of this epoch lets the high watermark move (Raft 5.4.2).
        """
        state, start = self._state, self._state.log.end_offset
        role = Leader(
            epoch_start_offset=start,
            granting_voters=granting_voters,
            followers={voter: Progress() for voter in state.other_voters},
            begin_epoch_deadline_ms=self._new_begin_epoch_deadline_ms(),
            check_quorum_deadline_ms=state.new_check_quorum_deadline_ms(),
        )
        state.become(role, leader_id=state.node_id)
        epoch = state.leader_epoch
        change = effects.AppendLeaderChange(
            leader_epoch=epoch,
            base_offset=start,
            leader_id=state.node_id,
            voters=state.voters,
            granting_voters=granting_voters,
        )
        state.emit(change)
        state.log.append(Offset(start + 1), ((epoch, start),))
        self._voter_changes.begin_epoch(role)
        state.emit(effects.BecomeLeader(leader_epoch=epoch, epoch_start_offset=start))
        self._send_begin_quorum_epoch(role)

    def _send_begin_quorum_epoch(self, role: Leader) -> None:
        """Send it to each voter without a fetch of this epoch in the last half fetch timeout.

        As Kafka's LeaderState.needToSendBeginQuorumRequests: a voter that fetches has this leader.
        """
        state = self._state
        since_ms = state.now_ms - state.settings.controller_quorum_fetch_timeout_ms // 2
        for voter in state.other_voters:
            fetched_ms = role.followers[voter].last_fetch_ms
            if fetched_ms is not None and fetched_ms > since_ms:
                continue
            request = BeginQuorumEpochRequest(
                leader_id=state.node_id,
                leader_epoch=state.leader_epoch,
                leader_address=state.leader_address,
                voter_directory_id=state.members.directory_of(voter),
            )
            state.send(voter, request)

    def _new_begin_epoch_deadline_ms(self) -> int:
        return self._state.now_ms + self._state.settings.controller_quorum_fetch_timeout_ms // 2

    # --- fetches ---

    def handle_fetch_request(self, request_id: int, request: FetchRequest) -> None:
        """Answer a fetch, or park it until there are records or a newer high watermark."""
        error_code = self._fetch_refusal(request)
        match self._state.role:
            case Leader() as role if error_code is ErrorCode.NONE:
                self._serve_fetch(role, request_id, request)
            case _:
                self._state.refuse_fetch(request_id, error_code)

    def _fetch_refusal(self, request: FetchRequest) -> ErrorCode:
        numbers = request.fetch_offset, request.last_fetched_epoch, request.max_wait_ms
        if min(*numbers, request.replica_id) < 0 or request.replica_id == self._state.node_id:
            return ErrorCode.INVALID_REQUEST
        return self._epoch_refusal(request.current_leader_epoch)

    def _epoch_refusal(self, current_leader_epoch: Epoch) -> ErrorCode:
        if current_leader_epoch < self._state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if current_leader_epoch > self._state.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(self._state.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def handle_fetch_snapshot_request(self, request_id: int, request: FetchSnapshotRequest) -> None:
        """Answer with bytes of a snapshot. A voter's snapshot fetch counts for check-quorum."""
        state = self._state
        snapshot_id = request.snapshot_id
        numbers = request.position, snapshot_id.end_offset, snapshot_id.epoch, request.replica_id
        error_code = self._epoch_refusal(request.current_leader_epoch)
        if min(numbers) < 0 or request.replica_id == state.node_id:
            error_code = ErrorCode.INVALID_REQUEST
        response = FetchSnapshotResponse(
            error_code=error_code,
            leader_id=state.leader_id,
            leader_epoch=state.leader_epoch,
            leader_address=state.leader_address,
        )
        match state.role:
            case Leader() as role if error_code is ErrorCode.NONE:
                if state.members.has(request.replica_id, request.replica_directory_id):
                    # KAFKA-15489
                    self._maybe_hold_the_quorum(role, request.replica_id)
                answer = effects.AnswerFetchSnapshot(
                    request_id=request_id,
                    response=response,
                    snapshot_id=snapshot_id,
                    position=request.position,
                )
                state.emit(answer)
            case _:
                state.emit(effects.SendResponse(request_id=request_id, response=response))

    def _serve_fetch(self, role: Leader, request_id: int, request: FetchRequest) -> None:
        for earlier_id, parked in list(role.parked.items()):
            if parked.replica_id == request.replica_id:  # it has given that fetch up
                self._complete(role, earlier_id)
        if self._is_below_start(request):
            response = self._fetch_response(role, snapshot_id=self._state.log.snapshot)
            self._state.emit(effects.AnswerFetch(request_id=request_id, response=response))
            return
        diverging_epoch = self._diverging_epoch(request)
        if diverging_epoch is not None:  # its offset is not progress: KAFKA-13141
            response = self._fetch_response(role, diverging_epoch)
            self._state.emit(effects.AnswerFetch(request_id=request_id, response=response))
            return
        self._note_progress(role, request)
        wait_ms = min(
            request.max_wait_ms, self._state.settings.controller_quorum_request_timeout_ms
        )
        # Parked first; `lead` answers it in the same step if it is complete.
        role.parked[request_id] = ParkedFetch(
            replica_id=request.replica_id,
            fetch_offset=request.fetch_offset,
            high_watermark=request.high_watermark,
            deadline_ms=self._state.now_ms + wait_ms,
        )

    def _is_below_start(self, request: FetchRequest) -> bool:
        """Whether the logs diverge below our start, or may: only a snapshot helps (KIP-630)."""
        log = self._state.log
        if log.start_offset == 0:
            return False
        offset, epoch = request.fetch_offset, request.last_fetched_epoch
        is_another = offset == log.start_offset and epoch != log.start_epoch
        return offset < log.start_offset or epoch < log.start_epoch or is_another

    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:
        """Return where the logs may diverge; None: the logs agree below `fetch_offset`."""
        epoch, end_offset = self._state.log.epoch_end(request.last_fetched_epoch)
        if epoch == request.last_fetched_epoch and end_offset >= request.fetch_offset:
            return None
        return DivergingEpoch(epoch=epoch, end_offset=end_offset)

    def _note_progress(self, role: Leader, request: FetchRequest) -> None:
        """Record a replica's fetch offset. It may go back: a disk was lost (KAFKA-12181)."""
        replica_id, directory_id = request.replica_id, request.replica_directory_id
        if self._state.members.has(replica_id, directory_id):
            progress = role.followers[replica_id]
            self._state.timeouts.note_peer(replica_id, request.write_ms)
            self._maybe_hold_the_quorum(role, replica_id)
        else:
            progress = self._observer_progress(role, replica_id, directory_id)
        progress.directory_id, progress.is_new = directory_id, request.replica_is_new
        progress.fetched(self._state.now_ms, request.fetch_offset, self._state.log.end_offset)

    def _observer_progress(
        self, role: Leader, observer_id: BrokerId, directory_id: str | None
    ) -> Progress:
        """Find or create the progress; the dict is in the order of the last fetch, oldest first."""
        session_ms = self._state.settings.controller_quorum_observer_session_ms
        oldest_ms = self._state.now_ms - session_ms
        progress = role.observers.pop(observer_id, None)
        if progress is None or progress.directory_id != directory_id:
            progress = Progress()  # another directory is another replica
        role.observers[observer_id] = progress
        for known_id, known in list(role.observers.items()):
            is_back = known_id == observer_id  # the last entry: its fetch is recorded next
            is_silent = not is_back and (known.last_fetch_ms or 0) < oldest_ms
            if not is_silent and len(role.observers) <= OBSERVERS_MAX:
                break
            del role.observers[known_id]
        return progress

    def _fetch_response(
        self,
        role: Leader,
        diverging_epoch: DivergingEpoch | None = None,
        snapshot_id: SnapshotId | None = None,
    ) -> FetchResponse:
        return FetchResponse(
            error_code=ErrorCode.NONE,
            leader_id=self._state.node_id,
            leader_epoch=self._state.leader_epoch,
            leader_address=self._state.leader_address,
            high_watermark=role.high_watermark,
            diverging_epoch=diverging_epoch,
            snapshot_id=snapshot_id,
        )

    def _complete(self, role: Leader, request_id: int) -> None:
        answer = effects.AnswerFetch(
            request_id=request_id,
            response=self._fetch_response(role),
            records_from=role.parked.pop(request_id).fetch_offset,
            records_to=self._state.log.end_offset,
        )
        self._state.emit(answer)

    def _waits_over_ms(self, role: Leader) -> int:
        """Return the latest deadline of the fetches to answer now.

        A fetch whose wait is over takes the fetches with it whose waits end soon. From then on they
        arrive together: an idle leader wakes up half as often.
        """
        now_ms = self._state.now_ms
        if all(parked.deadline_ms > now_ms for parked in role.parked.values()):
            return now_ms
        return now_ms + self._state.settings.controller_quorum_fetch_max_wait_ms // 4

    def _can_complete(self, role: Leader, parked: ParkedFetch, over_ms: int) -> bool:
        """Whether there are records, or a newer high watermark (KIP-1166), or the wait is over."""
        return (
            self._state.log.end_offset > parked.fetch_offset
            or role.high_watermark > parked.high_watermark
            or parked.deadline_ms <= over_ms
        )

    # --- the high watermark ---

    def handle_records_appended(self, role: Role, event: events.RecordsAppended) -> None:
        """Handle records that the controller has appended to the log."""
        is_ours = isinstance(role, Leader) and event.leader_epoch == self._state.leader_epoch
        require(is_ours, f"only the leader of epoch {event.leader_epoch} appends in it")
        self._state.log.append(event.log_end_offset)

    def _maybe_advance_high_watermark(self, role: Leader) -> None:
        """Raise the high watermark to the offset that a majority of the voters holds durably."""
        ends = [progress.fetch_offset for progress in role.followers.values()]
        if self._counts_itself():
            ends.append(self._own_end_offset())
        ends.sort(reverse=True)
        committed = self._held_by_majority(ends)
        if self._is_of_this_epoch(role, committed) and committed > role.high_watermark:
            role.high_watermark = committed
            self._state.advance_high_watermark(committed)

    def _counts_itself(self) -> bool:
        return self._state.is_voter  # not if it has removed itself (KIP-853)

    def _own_end_offset(self) -> Offset:
        # DEVIATION: Kafka's leader counts its own log before it flushes.
        # docs/decisions/0002-durable-votes.md
        return self._state.log.flushed_offset  # power loss may take the rest

    def _held_by_majority(self, ends: list[Offset]) -> Offset:
        return ends[self._state.majority - 1]

    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:
        """Whether a majority holds LeaderChange, the first record (KAFKA-12619, Raft 5.4.2)."""
        return committed > role.epoch_start_offset

    # --- due actions ---

    def lead(self, role: Leader) -> None:
        """Commit, answer fetches, repeat BeginQuorumEpoch; resign without a majority's fetches."""
        state = self._state
        self._maybe_advance_high_watermark(role)
        if {*role.followers} <= {parked.replica_id for parked in role.parked.values()}:
            role.begin_epoch_deadline_ms = self._new_begin_epoch_deadline_ms()  # all follow
        over_ms = self._waits_over_ms(role)
        for request_id, parked in list(role.parked.items()):
            if self._can_complete(role, parked, over_ms):
                self._complete(role, request_id)
        self._voter_changes.maybe_answer(role)
        self._voter_changes.maybe_upgrade(role)
        if self._voter_changes.is_removed(role):
            self.resign(role)
            return
        if not state.other_voters:
            return
        if role.check_quorum_deadline_ms <= state.now_ms:
            self.resign(role)  # a majority may have another leader by now (KAFKA-15489)
        elif role.begin_epoch_deadline_ms <= state.now_ms:
            role.begin_epoch_deadline_ms = self._new_begin_epoch_deadline_ms()
            self._send_begin_quorum_epoch(role)

    def _maybe_hold_the_quorum(self, role: Leader, voter: BrokerId) -> None:
        role.fetched_voters.add(voter)
        if len(role.fetched_voters) + self._counts_itself() >= self._state.majority:
            role.fetched_voters.clear()
            role.check_quorum_deadline_ms = self._state.new_check_quorum_deadline_ms()

    # --- the end ---

    def resign(self, role: Role) -> None:
        """Resign in this epoch, and let the follower with the highest fetch offset stand first."""
        if isinstance(role, Leader):
            offsets = {voter: progress.fetch_offset for voter, progress in role.followers.items()}
            preferred = sorted(offsets, key=lambda voter: (-offsets[voter], voter))
            self._state.become(self.resigned(tuple(preferred)))

    def resigned(self, preferred_candidates: tuple[BrokerId, ...] = ()) -> Resigned:
        """Return the role of a node that has just resigned; the best successor comes first."""
        state = self._state
        return Resigned(
            election_deadline_ms=state.new_election_deadline_ms(),
            preferred_candidates=preferred_candidates,
            end_epoch_due_ms=dict.fromkeys(state.other_voters, state.now_ms),
        )

    def end_epoch(self, role: Resigned) -> None:
        """Send EndQuorumEpoch where it is due; leave the epoch when the election timeout is over.

        The node moves to a newer epoch: in this one, its peers would still take it for the leader.
        """
        state = self._state
        request = EndQuorumEpochRequest(
            leader_id=state.node_id,
            leader_epoch=state.leader_epoch,
            preferred_candidates=role.preferred_candidates,
        )
        due_ms = role.end_epoch_due_ms
        for voter in [voter for voter, at_ms in due_ms.items() if at_ms <= state.now_ms]:
            del due_ms[voter]
            role.end_epoch_sent[state.send(voter, request)] = voter
        if role.election_deadline_ms <= state.now_ms and state.has_newer_epoch:
            deadline_ms = state.now_ms if state.members.may_stand else None
            state.become_unattached(Epoch(state.leader_epoch + 1), deadline_ms=deadline_ms)

    def handle_end_quorum_epoch_outcome(self, request_id: int, *, has_answered: bool) -> None:
        """Schedule EndQuorumEpoch again for a voter that did not answer."""
        role = self._state.role
        if isinstance(role, Resigned) and request_id in role.end_epoch_sent:
            voter = role.end_epoch_sent.pop(request_id)
            if not has_answered:
                role.end_epoch_due_ms[voter] = self._state.retry_ms()

    def deadlines(self, role: Role) -> Iterator[int]:
        """Yield the times at which these rules are due, in ms."""
        match role:
            case Leader():
                for parked in role.parked.values():
                    yield parked.deadline_ms
                yield from self._voter_changes.deadlines(role)
                if self._state.other_voters:
                    yield role.check_quorum_deadline_ms
                    yield role.begin_epoch_deadline_ms
            case Resigned():
                if self._state.has_newer_epoch:
                    yield role.election_deadline_ms
                yield from role.end_epoch_due_ms.values()
            case _:
                pass

    def check_invariants(self, role: Leader) -> None:
        """Raise InvariantViolation with the number of the broken rule (see `Quorum`)."""
        state, log = self._state, self._state.log
        require(state.leader_id == state.node_id, "4: a leader is the leader of its epoch")
        has_begun = log.end_offset > role.epoch_start_offset
        require(has_begun and log.last_epoch == state.leader_epoch, "6: it has begun its epoch")
        is_known = role.high_watermark != UNKNOWN_OFFSET
        is_own = role.high_watermark > role.epoch_start_offset
        require(is_own or not is_known, "7: only records of its epoch move the high watermark")
        ends = [parked.fetch_offset for parked in role.parked.values()]
        require(max(ends, default=0) <= log.end_offset, "8: a parked fetch is valid")
        self._voter_changes.check_invariants(role)
