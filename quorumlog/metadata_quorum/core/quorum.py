"""The Raft core of the metadata log: one node, voter or observer, as a state machine.

Static voters, kraft.version 1 rules, pre-vote always. Not here: changes of the voter set
(KIP-853), snapshots (KIP-630). The package's docstring says what the driver must do.
Sources: KIP-595, KIP-996; Raft sections 5.1 to 5.4.
"""

from typing import assert_never

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.events import Event
from quorumlog.metadata_quorum.core.followership import Following
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.roles import (
    OBSERVER_ROLES,
    Ballot,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from quorumlog.storage.core.leader_epochs import EpochEntry, LeaderEpochs
from quorumlog.wire.codec.identifiers import Epoch


class Quorum(Following):
    """One node of the quorum; see `step`.

    Invariants (`check_invariants`, after every step and before any effect leaves):
      1. The epoch and the high watermark never fall.
      2. high_watermark <= log_end_offset, flushed_offset <= log_end_offset.
      3. What is committed is not truncated.
      4. A leader, or one that has resigned, is the leader of its epoch; a follower has another
         leader; a candidate has voted for itself and has none; one that is unattached has none.
      5. Within an epoch, neither the leader nor the vote changes once there is one.
      6. A leader has appended a record of its epoch.
      7. Only records of its epoch move a leader's high watermark.
      8. A parked fetch is valid: all below its offset is in the log.
      9. No record is of a newer epoch than the node.
     10. Nothing is truncated while a flush is under way; and a voter that fetches, or stands in
         an election, has a durable log.
     11. An observer only follows, and never votes; nor does a voter that is new.
    """

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Take in one fact; return what to do, in order. Raises InvariantViolation: our bug."""
        self._now_ms = max(self._now_ms, now_ms)
        self._effects = []
        before = self._marks()
        require(self._has_started != isinstance(event, events.Started), "Started is the first")
        self._handle(event)
        self._lead()
        self._elect()
        self._lead()  # a voter may have just won
        self._follow()
        self.check_invariants(before)
        return self._effects

    def next_deadline_ms(self) -> int | None:
        """When to feed `Ticked`, at the latest; None: nothing is due."""
        return min(self._deadlines(), default=None)

    def _handle(self, event: Event) -> None:
        match event:
            case events.Started():
                self._handle_started(event)
            case events.Ticked():
                pass  # every step does what is due
            case events.RequestReceived():
                self._handle_request(event)
            case events.ResponseReceived():
                self._handle_response(event)
            case events.RequestFailed(request_id=request_id):
                self._handle_vote_failed(request_id)
                self._handle_fetch_failed(request_id)
                self._handle_end_quorum_outcome(request_id, has_answered=False)
            case events.RecordsAppended():
                self._handle_records_appended(event)
            case events.LogFlushed():
                self._handle_log_flushed(event)
            case events.PeerProcessDied():
                self._handle_peer_process_died(event)
            case events.ResignRequested():
                self._resign()
            case _:
                assert_never(event)

    def _handle_request(self, event: events.RequestReceived) -> None:
        match event.request:
            case VoteRequest() as request:
                self._handle_vote_request(event.request_id, request)
            case BeginQuorumEpochRequest() as request:
                self._handle_begin_quorum_epoch(event.request_id, request)
            case EndQuorumEpochRequest() as request:
                self._handle_end_quorum_epoch(event.request_id, request)
            case FetchRequest() as request:
                self._handle_fetch_request(event.request_id, request)
            case _:
                assert_never(event.request)

    def _handle_response(self, event: events.ResponseReceived) -> None:
        match event.response:
            case VoteResponse() as response:
                self._handle_vote_response(event, response)
            case FetchResponse() as response:
                self._handle_fetch_response(event, response)
            case BeginQuorumEpochResponse() as response:
                self._learn(response.leader_epoch, response.leader_id)
            case EndQuorumEpochResponse() as response:
                self._learn(response.leader_epoch, response.leader_id)
                self._handle_end_quorum_outcome(event.request_id, has_answered=True)
            case _:
                assert_never(event.response)

    # --- the start ---

    def _handle_started(self, event: events.Started) -> None:
        """Take up the role that the disk allows: never that of a leader (KAFKA-10527)."""
        self._has_started = True
        self.is_new = event.is_new and self.is_voter and bool(self._others)
        self.epochs = LeaderEpochs(tuple(EpochEntry(*start) for start in event.epoch_starts))
        self.log_end_offset = event.log_end_offset
        self.flushed_offset = min(event.flushed_offset, event.log_end_offset)
        if self.last_epoch > event.leader_epoch:
            self._set_election(self.last_epoch, NOBODY, NOBODY)
        else:
            self.leader_epoch = event.leader_epoch
            self.leader_id, self.voted_id = event.leader_id, event.voted_id
        self._take_up_role()

    def _take_up_role(self) -> None:
        """Choose by what the election state says. Only here is a role set without `_become`."""
        is_alone = self.is_voter and not self._others
        deadline_ms = self._now_ms if is_alone else self._new_election_deadline_ms()
        if not self.is_voter and self.node_id in {self.leader_id, self.voted_id}:
            newer = Epoch(self.leader_epoch + self._has_newer_epoch)
            self._set_election(newer, NOBODY, NOBODY)  # it was a voter
        if self.leader_id == self.node_id:
            self._resume_as_resigned(deadline_ms)
        elif self.leader_id in self.voters:
            self.role = Follower(fetch_deadline_ms=self._fetch_timeout_ms())
            leader_id, leader_epoch = self.leader_id, self.leader_epoch
            self._emit(effects.FollowLeader(leader_epoch=leader_epoch, leader_id=leader_id))
        elif self.voted_id == self.node_id and self.is_log_durable:
            ballot = Ballot(granted={self.node_id})
            self.role = Candidate(election_deadline_ms=deadline_ms, ballot=ballot)
            self._ask_all(ballot)
        else:
            self._set_election(self.leader_epoch, NOBODY, self.voted_id)
            self.role = Unattached(election_deadline_ms=deadline_ms if self.is_voter else None)

    def _resume_as_resigned(self, deadline_ms: int) -> None:
        # It may have appended, in this epoch, what is not on its disk any more: were it to lead on,
        # two records would have the same epoch and offset.
        self.role = self._resigned(())
        self.role.election_deadline_ms = deadline_ms

    # --- invariants ---

    def _marks(self) -> tuple[int, int, int, int]:
        return self.leader_epoch, self.high_watermark, self.leader_id, self.voted_id

    def check_invariants(self, before: tuple[int, int, int, int]) -> None:
        """Raise InvariantViolation with the number of the rule that does not hold."""
        epoch, high_watermark, leader_id, voted_id = before
        is_rising = epoch <= self.leader_epoch and high_watermark <= self.high_watermark
        require(is_rising, "1: the epoch and the high watermark never fall")
        ends = max(self.high_watermark, self.flushed_offset)
        require(ends <= self.log_end_offset, "2: what is committed or durable is held")
        if epoch == self.leader_epoch:
            require(leader_id in {NOBODY, self.leader_id}, "5: one leader in an epoch")
            require(voted_id in {NOBODY, self.voted_id}, "5: one vote in an epoch")
        require(self.last_epoch <= self.leader_epoch, "9: no record is of a newer epoch")
        self._check_role()
        if self.is_voter and (self._fetch_id is not None or self._ballot() is not None):
            require(self.is_log_durable, "10: a voter that fetches or stands has a durable log")
        if not self._takes_part:
            is_observing = isinstance(self.role, OBSERVER_ROLES) and self.voted_id == NOBODY
            require(is_observing, "11: an observer only follows")

    def _check_role(self) -> None:
        match self.role:
            case Leader():
                self._check_leader(self.role)
            case Resigned():
                require(self.leader_id == self.node_id, "4: it led this epoch")
            case Follower():
                is_led = self.leader_id in self._others
                require(is_led, "4: a follower has another leader")
            case Candidate():
                is_free = self.voted_id == self.node_id and self.leader_id == NOBODY
                require(is_free, "4: a candidate has its own vote and no leader")
            case Prospective():
                require(self.leader_id != self.node_id, "4: it does not lead")
            case Unattached():
                require(self.leader_id == NOBODY, "4: one that is unattached has no leader")
            case _:
                assert_never(self.role)
