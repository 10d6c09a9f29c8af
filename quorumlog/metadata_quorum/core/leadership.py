"""What a leader does: the start of its epoch, fetches, the high watermark, and its end.

It refuses fetches of another epoch, and counts nothing that is not durable. Sources: KIP-595
(Fetch, LeaderChange, EndQuorumEpoch), KIP-1166; KAFKA-12619, KAFKA-15489; Raft 5.3, 5.4.2.
"""

from collections.abc import Iterator
from typing import Final

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    DivergingEpoch,
    EndQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
)
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Leader, ParkedFetch, Progress, Resigned
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Epoch, Offset

# DEVIATION: Kafka remembers any number of them for a time.
# docs/decisions/0014-every-memory-has-a-limit.md
OBSERVERS_MAX: Final = 1000  # that a leader remembers


class Leading(QuorumState):
    """The rules of a leader, and of one that has resigned."""

    # --- the start ---

    def _become_leader(self, granting_voters: tuple[BrokerId, ...]) -> None:
        """Append LeaderChange before anything else, and tell the other voters.

        Only a record of this epoch lets the high watermark move (Raft 5.4.2).
        """
        start = self.log_end_offset
        half_fetch_ms = self.settings.controller_quorum_fetch_timeout_ms // 2
        role = Leader(
            epoch_start_offset=start,
            granting_voters=granting_voters,
            followers={voter: Progress() for voter in self._others},
            begin_epoch_deadline_ms=self._now_ms + half_fetch_ms,
            check_quorum_deadline_ms=self._new_check_quorum_deadline_ms(),
        )
        self._become(role, leader_id=self.node_id)
        change = effects.AppendLeaderChange(
            leader_epoch=self.leader_epoch,
            base_offset=start,
            leader_id=self.node_id,
            voters=self.voters,
            granting_voters=granting_voters,
        )
        self._emit(change)
        self.epochs = self.epochs.assigned(self.leader_epoch, start)
        self.log_end_offset = Offset(start + 1)
        self._emit(effects.BecomeLeader(leader_epoch=self.leader_epoch, epoch_start_offset=start))
        self._tell_that_we_lead()

    def _tell_that_we_lead(self) -> None:
        for voter in self._others:
            self._send(
                voter,
                BeginQuorumEpochRequest(leader_id=self.node_id, leader_epoch=self.leader_epoch),
            )

    def _new_check_quorum_deadline_ms(self) -> int:
        return self._now_ms + self.settings.controller_quorum_fetch_timeout_ms * 3 // 2

    # --- fetches ---

    def _handle_fetch_request(self, request_id: int, request: FetchRequest) -> None:
        error_code = self._fetch_refusal(request)
        if error_code is not ErrorCode.NONE or not isinstance(self.role, Leader):
            self._refuse_fetch(request_id, error_code)
            return
        role = self.role
        self._answer_those_of(role, request.replica_id)
        diverging_epoch = self._diverging_epoch(request)
        if diverging_epoch is not None:  # its offset says nothing of our log: KAFKA-13141
            self._answer_fetch(request_id, self._fetch_response(role, diverging_epoch))
            return
        self._note_progress(role, request)
        self._maybe_advance_high_watermark(role)
        # Parked first, answered by `_lead` in the same step if there is something to say.
        role.parked[request_id] = ParkedFetch(
            replica_id=request.replica_id,
            fetch_offset=request.fetch_offset,
            high_watermark=request.high_watermark,
            deadline_ms=self._now_ms + self._wait_ms(request),
        )

    def _wait_ms(self, request: FetchRequest) -> int:
        return min(request.max_wait_ms, self.settings.controller_quorum_request_timeout_ms)

    def _fetch_refusal(self, request: FetchRequest) -> ErrorCode:
        numbers = request.fetch_offset, request.last_fetched_epoch, request.max_wait_ms
        if min(*numbers, request.replica_id) < 0 or request.replica_id == self.node_id:
            return ErrorCode.INVALID_REQUEST
        if request.current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if request.current_leader_epoch > self.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if not isinstance(self.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def _diverging_epoch(self, request: FetchRequest) -> DivergingEpoch | None:
        """Where the logs may have parted; None: all below `fetch_offset` is as in our log."""
        epoch, end_offset = self._epoch_end(request.last_fetched_epoch)
        if epoch == request.last_fetched_epoch and end_offset >= request.fetch_offset:
            return None
        return DivergingEpoch(epoch=epoch, end_offset=end_offset)

    def _epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """Find the largest epoch of our log that is <= `epoch`, and its (exclusive) end.

        Epoch 0, in which there are no records, ends at 0.
        """
        found = self.epochs.end_offset_for(min(epoch, self.last_epoch), self.log_end_offset)
        if found.end_offset <= 0 or not self.epochs.entries:
            return Epoch(0), Offset(0)
        return found.epoch, found.end_offset

    def _note_progress(self, role: Leader, request: FetchRequest) -> None:
        """Remember what it holds. An offset may go back: a disk was lost (KAFKA-12181)."""
        if request.replica_id in role.followers:
            progress = role.followers[request.replica_id]
            self._maybe_hold_the_quorum(role, request.replica_id)
        else:
            progress = self._observer_progress(role, request.replica_id)
        progress.fetched(self._now_ms, request.fetch_offset, self.log_end_offset)

    def _observer_progress(self, role: Leader, observer_id: BrokerId) -> Progress:
        """Find or make it; dict order is that of the last fetch, the oldest first."""
        oldest_ms = self._now_ms - self.settings.controller_quorum_observer_session_ms
        progress = role.observers.pop(observer_id, None) or Progress()
        role.observers[observer_id] = progress
        for known_id, known in list(role.observers.items()):
            is_silent = known.last_fetch_ms is not None and known.last_fetch_ms < oldest_ms
            if not is_silent and len(role.observers) <= OBSERVERS_MAX:
                break
            del role.observers[known_id]
        return progress

    def _fetch_response(self, role: Leader, diverging: DivergingEpoch | None) -> FetchResponse:
        return FetchResponse(
            error_code=ErrorCode.NONE,
            leader_id=self.node_id,
            leader_epoch=self.leader_epoch,
            high_watermark=role.high_watermark,
            diverging_epoch=diverging,
        )

    def _answer_those_of(self, role: Leader, replica_id: BrokerId) -> None:
        """Answer what this replica asked before: it has given up on it."""
        for request_id, parked in list(role.parked.items()):
            if parked.replica_id == replica_id:
                self._answer_parked(role, request_id)

    def _answer_parked(self, role: Leader, request_id: int) -> None:
        parked = role.parked.pop(request_id)
        self._answer_fetch(
            request_id,
            self._fetch_response(role, None),
            records_from=parked.fetch_offset,
            records_to=self.log_end_offset,
        )

    def _has_news(self, role: Leader, parked: ParkedFetch) -> bool:
        """Whether there are records, or a newer high watermark: no commit waits (KIP-1166)."""
        return (
            self.log_end_offset > parked.fetch_offset
            or role.high_watermark > parked.high_watermark
            or parked.deadline_ms <= self._now_ms
        )

    # --- the high watermark ---

    def _handle_records_appended(self, event: events.RecordsAppended) -> None:
        is_ours = self.is_leader and event.leader_epoch == self.leader_epoch
        require(is_ours, f"only the leader of epoch {event.leader_epoch} appends in it")
        require(event.log_end_offset > self.log_end_offset, "an append makes the log longer")
        self.log_end_offset = event.log_end_offset

    def _maybe_advance_high_watermark(self, role: Leader) -> None:
        """Commit what a majority of the voters holds durably, ourselves included."""
        followers = (progress.fetch_offset for progress in role.followers.values())
        ends = sorted([self._own_end_offset(), *followers], reverse=True)
        committed = self._held_by_majority(ends)
        if not self._is_of_this_epoch(role, committed) or committed <= role.high_watermark:
            return
        role.high_watermark = committed
        self._advance_high_watermark(committed)

    def _own_end_offset(self) -> Offset:
        # DEVIATION: Kafka's leader counts its own log before it flushes.
        # docs/decisions/0010-what-a-vote-or-a-fetch-claims-is-on-the-disk.md
        return self.flushed_offset  # not the end of the log: power loss may take the rest

    def _held_by_majority(self, ends: list[Offset]) -> Offset:
        return ends[self._majority - 1]

    def _is_of_this_epoch(self, role: Leader, committed: Offset) -> bool:
        """Strictly behind the start: LeaderChange itself is held (KAFKA-12619, Raft 5.4.2)."""
        return committed > role.epoch_start_offset

    def _advance_high_watermark(self, committed: Offset) -> None:
        if committed > self.high_watermark:
            self.high_watermark = committed
            self._emit(effects.AdvanceHighWatermark(high_watermark=committed))

    # --- the end ---

    def _maybe_hold_the_quorum(self, role: Leader, voter: BrokerId) -> None:
        role.fetched_voters.add(voter)
        if len(role.fetched_voters) + 1 >= self._majority:
            role.fetched_voters.clear()
            role.check_quorum_deadline_ms = self._new_check_quorum_deadline_ms()

    def _lead(self) -> None:
        """Do what is due as a leader, or as one that has resigned."""
        if isinstance(self.role, Leader):
            self._maybe_advance_high_watermark(self.role)
            for request_id, parked in list(self.role.parked.items()):
                if self._has_news(self.role, parked):
                    self._answer_parked(self.role, request_id)
            if self._others and self.role.check_quorum_deadline_ms <= self._now_ms:
                self._resign()  # a majority may have another leader by now (KAFKA-15489)
            elif self._others and self.role.begin_epoch_deadline_ms <= self._now_ms:
                half_fetch_ms = self.settings.controller_quorum_fetch_timeout_ms // 2
                self.role.begin_epoch_deadline_ms = self._now_ms + half_fetch_ms
                self._tell_that_we_lead()
        if isinstance(self.role, Resigned):
            self._tell_that_we_resigned(self.role)
            if self.role.election_deadline_ms <= self._now_ms and self._has_newer_epoch:
                # A newer epoch: in this one it would still be taken for the leader.
                newer = Epoch(self.leader_epoch + 1)
                self._become_unattached(newer, deadline_ms=self._now_ms)

    def _resign(self) -> None:
        """Lead no more in this epoch, and let the follower that holds most stand first."""
        if not isinstance(self.role, Leader):
            return
        followers = self.role.followers
        preferred = sorted(followers, key=lambda voter: (-followers[voter].fetch_offset, voter))
        self._become(self._resigned(tuple(preferred)))

    def _resigned(self, preferred_candidates: tuple[BrokerId, ...]) -> Resigned:
        return Resigned(
            election_deadline_ms=self._new_election_deadline_ms(),
            preferred_candidates=preferred_candidates,
            tell_ms=dict.fromkeys(self._others, self._now_ms),
        )

    def _tell_that_we_resigned(self, role: Resigned) -> None:
        request = EndQuorumEpochRequest(
            leader_id=self.node_id,
            leader_epoch=self.leader_epoch,
            preferred_candidates=role.preferred_candidates,
        )
        due = [voter for voter, tell_ms in role.tell_ms.items() if tell_ms <= self._now_ms]
        for voter in due:
            del role.tell_ms[voter]
            role.told[self._send(voter, request)] = voter

    def _handle_end_quorum_outcome(self, request_id: int, *, has_answered: bool) -> None:
        if isinstance(self.role, Resigned) and request_id in self.role.told:
            voter = self.role.told.pop(request_id)
            if not has_answered:
                self.role.tell_ms[voter] = self._retry_ms()

    @property
    def resignation_pending(self) -> bool:
        """Whether some voter has not heard yet that this node leads no more."""
        return isinstance(self.role, Resigned) and bool(self.role.tell_ms or self.role.told)

    def _deadlines(self) -> Iterator[int]:
        yield from super()._deadlines()
        if isinstance(self.role, Leader):
            for parked in self.role.parked.values():
                yield parked.deadline_ms
            if self._others:
                yield self.role.check_quorum_deadline_ms
                yield self.role.begin_epoch_deadline_ms
        elif isinstance(self.role, Resigned):
            if self._has_newer_epoch:
                yield self.role.election_deadline_ms
            yield from self.role.tell_ms.values()

    def _check_leader(self, role: Leader) -> None:
        require(self.leader_id == self.node_id, "4: a leader is the leader of its epoch")
        has_begun = self.log_end_offset > role.epoch_start_offset
        require(has_begun and self.last_epoch == self.leader_epoch, "6: it has begun its epoch")
        is_known = role.high_watermark != UNKNOWN_OFFSET
        is_own = role.high_watermark > role.epoch_start_offset
        require(is_own or not is_known, "7: only records of its epoch move the high watermark")
        ends = [parked.fetch_offset for parked in role.parked.values()]
        require(max(ends, default=0) <= self.log_end_offset, "8: a parked fetch is valid")
